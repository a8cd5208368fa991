"""Chunks and shards of scores. The functions are pure: they map integers to integers.

::

    one shard = all scores of some samples      one chunk = some of its samples, some of their components

                 components 0 1 | 2 3 | 4 5     a level is a run of components: to read the first ones, only the
    samples 0.. +---------+-----+-----+         first levels of every shard are read
                |         |     |     |
            64..+---------+-----+-----+         a shard is one file and the unit of writing; its samples are those of
                |         |     |     |         a shard of the stack
                +---------+-----+-----+

Milliseconds to write and read a shard of 25.6 MB: the scores of 512 photographs in 25 x 25 cells with 20 components
each, in chunks of 64 samples. Two shared cores, from the page cache, the best of several; by Zarr and, in brackets, by
`dpca.storage.arrays.reading`:

=====================  =======  =====  ========  =================  ==========
components of a chunk  chunk    write  read all  the first quarter  one sample
=====================  =======  =====  ========  =================  ==========
20                     3.2 MB   52     19 (6)    16 (7)             1.8
5                      .8 MB    54     41 (21)   6 (1)              2.2
2                      .3 MB    69     48 (40)   12 (5)             2.6
1                      .16 MB   76     62 (41)   11 (3)             3.8
=====================  =======  =====  ========  =================  ==========

Decoding such a shard to photographs takes half a second, so the cost of eight levels is small, and more levels would
gain little. Each chunk adds 20 bytes to the file.

Scores that are larger than their samples have shards that are boxes of the scores of one sample, with all components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpca.storage.arrays.layout import Layout

_CHUNK_BYTES = 4 * 2**20
_LEAST_CHUNK_BYTES = 2**16
_MOST_LEVELS = 8
# Lengths of the chunks of a box of scores along one axis of a grid, two, three, and more.
_BOX_LENGTHS = (4096, 64, 16, 8)


def score_layout(rows: int, shape: tuple[int, ...], itemsize: int) -> Layout:
    """Return chunks and shards of scores.

    Parameters
    ----------
    rows : int
        Samples of a shard.
    shape : tuple of int
        Shape of one sample's scores, components last.
    itemsize : int
        Bytes of one score.

    Returns
    -------
    Layout
        A shard holds ``rows`` samples. A chunk holds one level of some samples. All levels of these samples have at
        most 4 MiB, if ``rows`` has enough factors of two. If no suitable length divides the number of components, the
        last level is padded in the file.
    """
    unit = rows
    while unit % 2 == 0 and unit * math.prod(shape) * itemsize > _CHUNK_BYTES:
        unit //= 2
    *grid, k = shape
    level = _level_length(k, unit * math.prod(grid) * itemsize)
    return Layout((unit, *grid, level), (rows, *grid, -(-k // level) * level))


def score_chunk(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lengths of the chunks of boxes of scores along the axes of the grid."""
    *grid, _ = shape
    return tuple(min(_BOX_LENGTHS[min(len(grid), len(_BOX_LENGTHS)) - 1], length) for length in grid)


def boxed_score_layout(shape: tuple[int, ...], box: Sequence[int]) -> Layout:
    """Return chunks and shards of scores of this shape in boxes of whole chunks, or up to the end of the grid."""
    chunk, k = score_chunk(shape), shape[-1]
    whole = (-(-b // c) * c for b, c in zip(box, chunk, strict=True))
    return Layout((1, *chunk, k), (1, *whole, k))


def _level_length(k: int, component_bytes: int) -> int:
    """Return the number of components of a level that wastes least, by padding in the file or by unneeded reading.

    Padding is at most a tenth of the file.
    """
    least = max(-(-k // _MOST_LEVELS), -(-_LEAST_CHUNK_BYTES // component_bytes))
    fitting = (c for c in range(min(least, k), k + 1) if 10 * (-k % c) <= k)
    return min(fitting, key=lambda c: (2 * (-k % c) + c, -c))
