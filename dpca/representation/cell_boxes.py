"""Boxes of samples that representations encode and decode: whole cells, and the cells that overlap them.

::

    +-----+-----+-----+-----+    #  a box of pixels
    |     | + + | + + | + + |
    +-----+-----+-----+-----+    the cell around it: whole cells
    |     | + + | ##  | + + |
    +-----+-----+-----+-----+    +  its neighbors, if cells are lapped: a filter extends up to the middle of a neighbor.
    |     | + + | + + | + + |       What is encoded or decoded of the neighbors themselves is not complete.
    +-----+-----+-----+-----+
"""

from __future__ import annotations

from dpca.kernels.algebra.types import Region
from dpca.partition.band_box import BandBox
from dpca.partition.bands import Bands
from dpca.partition.base import Partition
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.partition.whole import Whole


def whole_cells(partition: Partition, region: Region) -> Region:
    """Return the smallest box of whole cells around a box of a sample; the same box if there is one part."""
    if not isinstance(partition, CellGrid):
        return region
    cells = (*partition.cell_shape, *partition.channel_shape)
    sizes = zip(region, cells, partition.sample_shape, strict=True)
    return tuple((a // c * c, min(-(-b // c) * c, n)) for (a, b), c, n in sizes)


def with_neighbors(partition: Partition, region: Region) -> Region:
    """Return a box of whole cells with the cells that overlap it."""
    if not isinstance(partition, LappedGrid):
        return region
    cells = (*partition.cell_shape, *(0 for _ in partition.channel_shape))
    sizes = zip(region, cells, partition.sample_shape, strict=True)
    return tuple((max(0, a - c), min(b + c, n)) for (a, b), c, n in sizes)


def places_of_cells(partition: Partition, region: Region) -> tuple[slice, ...]:
    """Return the place of a box of whole cells along the axes of the grid; none if there is one part.

    Every box has attributes of any band.
    """
    if isinstance(partition, Bands | BandBox):
        return (slice(0, partition.n_parts),)
    if not isinstance(partition, CellGrid):
        return ()
    return tuple(slice(a // c, -(-b // c)) for (a, b), c in zip(region, partition.cell_shape, strict=False))


def part_of(partition: Partition, region: Region) -> Partition:
    """Return the partition of a box of whole cells."""
    shape = tuple(b - a for a, b in region)
    if isinstance(partition, LappedGrid):
        return LappedGrid(shape, partition.cell_shape, partition.overlap)
    if isinstance(partition, CellGrid):
        return CellGrid(shape, tuple(map(min, partition.cell_shape, shape)))
    if isinstance(partition, Bands):
        return BandBox(partition.labels[tuple(slice(*ends) for ends in region)], partition.n_parts)
    return Whole(shape)
