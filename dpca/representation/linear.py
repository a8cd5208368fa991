"""The linear representation: a mean and orthonormal components of every part of the attributes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array, PickledByFields, Region, blocks
from dpca.kernels.pixels import Pixels
from dpca.partition.band_box import BandBox
from dpca.partition.bands import Bands
from dpca.partition.base import Partition
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.partition.whole import Whole
from dpca.representation.base import Representation, array_digest
from dpca.representation.cell_boxes import part_of, places_of_cells, whole_cells, with_neighbors
from dpca.representation.cell_runs import (
    CellRun,
    products_of,
    ranks_of,
    scores_of,
    squared_lengths,
    stacked,
    uncentered,
)
from dpca.representation.divided import DividedRepresentation
from dpca.representation.on_disk import ArrayOnDisk
from dpca.storage.arrays.layout import box_shape, boxes_of
from dpca.storage.remote.tasks import one_blas_thread
from dpca.storage.transaction.workspace import fingerprint_of

# Floating-point bytes of a tile that is mapped at a time: enough samples for matrix products that still fit the cache.
_BLOCK_BYTES = 2**25
# Attributes of parts that are centered and multiplied together, so that they stay in the cache of a core.
_RUN_FEATURES = 2**14
# Attributes of components that are read at a time.
_READ_FEATURES = 2**21
# Number of arrays of the size of a sample in the work on one, besides components.
_OTHERS = 12


@dataclass(frozen=True, eq=False)
class LinearRepresentation(PickledByFields, DividedRepresentation):
    """The scores of every part are the products of its centered attributes with its components.

    Parameters
    ----------
    partition : Partition
        Partition of the attributes.
    mean : array (*sample_shape) or (n_features,)
        Mean sample.
    components : array (n_components, *sample_shape) or (n_components, n_features)
        Component j of every part is at the positions of its attributes, so that ``components[j]`` has the shape of
        a sample. The rows of a part are orthonormal. If it has fewer attributes than there are components, the
        other rows are zero. Components of overlapping cells are summed where they overlap.
    """

    partition: Partition
    mean: Any  # Array or ArrayOnDisk
    components: Any

    @property
    def scores_kind(self) -> str:  # type: ignore[override]
        """Kind of a store of these scores."""
        return self.partition.scores_kind

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.partition.sample_shape

    @property
    def score_shape(self) -> tuple[int, ...]:
        """Shape of one sample's scores: (*grid_shape, n_components)."""
        return (*self.partition.grid_shape, self.components.shape[0])

    @property
    def ranks(self) -> Array:
        """Number of components of each part (n_parts,), without zero rows."""
        if self.is_by_blocks:
            return np.array([len(self.components)])
        # Rows have length 1 or 0, up to rounding error.
        if not self.divides:
            with one_blas_thread():  # the products of an overlap are too small for several threads
                parts = self.partition.all_parts(self.components)
            return np.array([(squared_lengths(part) > 0.5).sum() for part in parts])
        shape, squares = self.sample_shape, np.zeros(self.score_shape)
        for region in boxes_of(shape, box_shape(shape, _READ_FEATURES, self.unit)):
            around = self.aligned(region)
            own = self.box(around)
            if isinstance(own.partition, BandBox):
                each = np.stack([own.partition.sums(np.square(row.ravel(), dtype=float)) for row in own.components], 1)
            else:
                each = np.stack(list(map(squared_lengths, own.partition.all_parts(own.components))))
            squares[self.score_places(region)] += self.own_scores(each.reshape(1, *own.score_shape), region, around)[0]
        return np.ravel((squares > 0.5).sum(axis=-1))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the components."""
        return self.components.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the mean and the components."""
        return self.mean.nbytes + self.components.nbytes

    @property
    def cell_shape(self) -> tuple[int, ...] | None:
        """Length of a cell along each spatial axis, None if samples are not divided into cells."""
        return self.partition.cell_shape if isinstance(self.partition, CellGrid) else None

    def score_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the axes of one sample's scores, given those of a sample."""
        return (*self.partition.grid_axes(axes), "component")

    def score_centers(self, axis: int, values: Array) -> Array | None:
        """Return the centers of cells along an axis of a sample, from the positions of its entries, or None."""
        return self.partition.centers(axis, values) if isinstance(self.partition, CellGrid) else None

    def n_spatial(self, axes: Sequence[str]) -> int:
        """Return the number of spatial axes of a sample with these names of axes; for cells, that of the cell shape."""
        return super().n_spatial(axes) if self.cell_shape is None else len(self.cell_shape)

    def fingerprint(self) -> str:
        """Return the hash of the mean, the components and their places."""
        shapes, places = [list(self.sample_shape), list(self.score_shape)], self.partition.identity
        places = array_digest(places) if isinstance(places, np.ndarray) else places
        return fingerprint_of(self.scores_kind, shapes, places, *map(array_digest, (self.mean, self.components)))

    def work_bytes(self, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        """Bytes of temporary arrays, as `Representation.work_bytes`."""
        partition, d, k = self.partition, math.prod(self.sample_shape), self.components.shape[0]
        work = self.score_dtype(dtype)
        decoded = np.dtype(dtype) if pixels and self._rounds_parts(dtype) else work
        results = n_rows * (d * decoded.itemsize + partition.n_parts * k * work.itemsize)
        run = min(self._tile_features, max(_RUN_FEATURES, partition.max_features))
        taken = self._tile_features * partition.split_dtype(dtype).itemsize
        tile = min(n_rows, self._step(work.itemsize)) * (taken + run * work.itemsize)
        region = tuple((0, length) for length in self.sample_shape)
        # The components of the parts, twice while they are cut; means, and the places of the attributes.
        model = 2 * k * d * work.itemsize + 6 * d * 8
        return results + tile + partition.split_bytes(region, work) + model

    @property
    def is_by_blocks(self) -> bool:
        """Whether the components of whole samples are on disk, see `dpca.representation.by_blocks`."""
        return isinstance(self.components, ArrayOnDisk) and isinstance(self.partition, Whole)

    @property
    def divides(self) -> bool:
        """Whether `box` is supported."""
        return type(self.partition) in (Whole, Bands, CellGrid, LappedGrid)

    @property
    def adds_boxes(self) -> bool:
        """Whether the scores of a sample are sums over boxes, and not those of the parts in each box."""
        return isinstance(self.partition, Whole | Bands)

    @property
    def held_bytes(self) -> int:
        """Bytes of the arrays that are in memory, and not in a store."""
        return sum(x.nbytes for x in (self.mean, self.components) if isinstance(x, np.ndarray))

    def aligned(self, region: Region) -> Region:
        """Return the box around a box of a sample that is encoded or decoded for it, see `cell_boxes`."""
        return with_neighbors(self.partition, whole_cells(self.partition, region))

    @property
    def unit(self) -> tuple[int, ...]:
        """Lengths of the smallest box of whole parts."""
        return tuple(b for _, b in whole_cells(self.partition, tuple((0, 1) for _ in self.sample_shape)))

    def scored_boxes(self, most: int, chunk: tuple[int, ...] = ()) -> list[tuple[Region, Region]]:
        """Return boxes of whole parts with up to ``most`` attributes, each with the `aligned` box that is encoded."""
        boxes = boxes_of(self.sample_shape, box_shape(self.sample_shape, most, self.unit))
        return [(region, self.aligned(region)) for region in boxes]

    def score_places(self, region: Region) -> tuple[slice, ...]:
        """Return the place of the scores of a box of whole parts along the axes of the grid."""
        return places_of_cells(self.partition, region)

    def box(self, region: Region, n_components: int | None = None) -> Self:
        """Return the representation of an `aligned` box of samples; only this box is read of the mean and components.

        The scores of a sample are the sum of the `own_scores` of its boxes, each at its `score_places`: partial sums
        for one part or bands, and otherwise the scores of the cells in the box.

        Parameters
        ----------
        region : tuple of (start, stop)
        n_components : int, optional
            Only this many of the first components; default all.
        """
        part, inside = part_of(self.partition, region), tuple(slice(a, b) for a, b in region)
        mean, components = (self._shaped(x, ndim) for x, ndim in ((self.mean, 0), (self.components, 1)))
        rows = components[(slice(0, n_components), *inside)]
        return replace(self, partition=part, mean=mean[inside], components=rows)

    def mean_box(self, region: Region) -> Array:
        """Return a box of the mean."""
        found: Array = self._shaped(self.mean, 0)[tuple(slice(a, b) for a, b in region)]
        return found

    def component(self, index: int, region: Region) -> Array:
        """Return a box of a component, for any partition."""
        box = (slice(index, index + 1), *(slice(a, b) for a, b in region))
        found: Array = self._shaped(self.components, 1)[box][0]
        return found

    def box_bytes(self, region: Region, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        """Bytes of the representation of a box, and of its temporary arrays, as `work_bytes`; nothing is read."""
        part = part_of(self.partition, region)
        mean = np.broadcast_to(np.zeros((), self.mean.dtype), part.sample_shape)
        rows = np.broadcast_to(np.zeros((), self.dtype), (self.score_shape[-1], *part.sample_shape))
        own = replace(self, partition=part, mean=mean, components=rows)
        # `work_bytes` counts two copies of the components. The first is the box itself, and only cells are cut.
        fewer = (2 - self._box_copies) * rows.size * self.score_dtype(dtype).itemsize
        return own.work_bytes(n_rows, dtype, pixels=pixels) + mean.size * mean.itemsize - fewer

    @property
    def _box_copies(self) -> int:
        """Number of arrays of the size of the components of a box."""
        return 2 if isinstance(self.partition, CellGrid) else 1

    def box_features(self, n_bytes: int, itemsize: int) -> int:
        """Return about the number of attributes of a box of which components and temporary arrays have these bytes."""
        return n_bytes // (itemsize * (self._box_copies * self.components.shape[0] + _OTHERS))

    def _shaped(self, x: Array, leading: int) -> Array:
        """Return the mean or the components in the shape of samples; those in a store have it."""
        return (
            x if len(x.shape) == leading + len(self.sample_shape) else x.reshape(*x.shape[:leading], *self.sample_shape)
        )

    def _leading(self, n_components: int) -> Self:
        return replace(self, components=first_rows(self.components, n_components))

    def _encode(self, samples: Array) -> Array:
        """Return (x - mean) V^T of every part. Costs 2 n d k operations."""
        if isinstance(self.components, ArrayOnDisk):
            total = np.zeros((len(samples), *self.score_shape), self.score_dtype(samples.dtype))
            for region, around in self._boxes:
                place = (slice(None), *self.score_places(region))
                scores = LinearRepresentation._encode(self.box(around), samples[_at(around)])
                total[place] += self.own_scores(scores, region, around)
            return total
        partition, samples = self.partition, np.ascontiguousarray(samples)
        dtype, n = self.score_dtype(samples.dtype), len(samples)
        scores = np.zeros((n, partition.n_parts, len(self.components)), dtype)
        if isinstance(partition, BandBox):
            mean, rows = self.mean.ravel(), self.components.reshape(len(self.components), -1)
            for i, sample in enumerate(samples.reshape(n, -1)):
                x = sample - mean
                for a, row in enumerate(rows):
                    scores[i, :, a] = partition.sums(x * row)
            return scores
        everywhere = (0,) * len(self.sample_shape)
        for few in blocks(n, self._step(dtype.itemsize)):
            block, here = samples[few], scores[few]
            for parts, runs in self._tiles:
                size = len(block) * sum(map(partition.n_features, parts))
                raw = linalg.scratch("raw", (size,), partition.split_dtype(samples.dtype))
                values = partition.split(block, parts, everywhere, raw)
                for run in runs:
                    taken = stacked(values[run.start : run.start + len(run.mean)])
                    x = linalg.scratch("values", taken.shape, dtype)
                    # Together faster than one call that converts and subtracts.
                    np.copyto(x, taken)
                    x -= run.mean.astype(dtype)
                    for some, rows in run.products:
                        np.matmul(x[some], rows.swapaxes(1, 2), out=scores_of(run, some, rows, here))
        return scores.reshape(n, *self.score_shape)

    def _decode(self, scores: Array, pixels: Pixels | None) -> Array:
        """Return y V + mean of every part, in place. Costs 2 n d k operations."""
        partition, n = self.partition, len(scores)
        if isinstance(self.components, ArrayOnDisk):
            samples = np.empty((n, *self.sample_shape), self.decoded_dtype(scores.dtype))
            for region, around in self._boxes:
                some = scores[(slice(None), *self.score_places(around))]
                decoded = LinearRepresentation._decode(self.box(around), some, None)
                own = (slice(a - o, b - o) for (a, b), (o, _) in zip(region, around, strict=True))
                samples[_at(region)] = decoded[(slice(None), *own)]
            return samples
        pixels = pixels if pixels is not None and self._rounds_parts(pixels.dtype) else None
        dtype = self.decoded_dtype(scores.dtype)
        scores = scores.reshape(n, partition.n_parts, len(self.components))
        samples = np.empty((n, *self.sample_shape), dtype if pixels is None else pixels.dtype)
        if isinstance(partition, BandBox):
            mean, rows = self.mean.ravel().astype(dtype), self.components.reshape(len(self.components), -1)
            for flat, of_bands in zip(samples.reshape(n, -1), scores, strict=True):
                flat[:] = mean
                for a, row in enumerate(rows):
                    flat += partition.spread(of_bands[:, a]) * row
            return samples
        for few in blocks(n, self._step(dtype.itemsize)):
            partition.join(self._decoded(scores[few], samples[few], pixels), samples[few])
        return samples

    @property
    def _boxes(self) -> list[tuple[Region, Region]]:
        """The boxes of components on disk, those of the store or of whole cells, each with the `aligned` box."""
        if not self.is_by_blocks:
            return self.scored_boxes(_READ_FEATURES // len(self.components))
        boxes = [tuple((part.start, part.stop) for part in inside) for _, *inside in self.components.boxes()]
        return [(box, box) for box in boxes]

    def _rounds_parts(self, dtype: DTypeLike) -> bool:
        """Return whether samples are rounded part by part, in the cache; this requires parts of the same type."""
        return not isinstance(self.partition, Whole | BandBox) and self.partition.split_dtype(dtype) == np.dtype(dtype)

    def _decoded(self, scores: Array, samples: Array, pixels: Pixels | None) -> Iterator[tuple[int, Array]]:
        """Yield for every run the index of its first partition and its values (count, n, n_features)."""
        dtype = self.decoded_dtype(scores.dtype)
        for _, runs in self._tiles:
            for run in runs:
                shape = (len(run.mean), len(scores), run.mean.shape[2])
                # Whole samples are computed in place.
                in_place = isinstance(self.partition, Whole)
                x = samples.reshape(shape) if in_place else linalg.scratch("values", shape, dtype)
                for some, rows in run.products:
                    np.matmul(scores_of(run, some, rows, scores), rows, out=x[some], dtype=dtype)
                yield run.first, uncentered(x, run.mean.astype(dtype), pixels)

    def _step(self, itemsize: int) -> int:
        """Return the number of samples that are mapped at a time."""
        return max(1, _BLOCK_BYTES // (self._tile_features * itemsize))

    @cached_property
    def _tile_features(self) -> int:
        """Attributes of the largest tile."""
        return max(sum(map(self.partition.n_features, parts)) for parts in self._parts)

    @cached_property
    def _parts(self) -> list[tuple[int, ...]]:
        """Indices of the parts of every tile. A row of cells is contiguous in memory."""
        return list(self.partition.tiles((1, *self.sample_shape[1:])))

    @cached_property
    def _tiles(self) -> list[tuple[tuple[int, ...], list[CellRun]]]:
        """Partitions that are split together, and their runs with the arrays for matrix products."""
        partition, everywhere = self.partition, (0,) * len(self.sample_shape)
        mean = np.ascontiguousarray(self.mean, np.float64).reshape(1, *self.sample_shape)
        components = np.ascontiguousarray(self.components).reshape(-1, *self.sample_shape)

        def cut(x: Array, parts: Sequence[int]) -> list[Array]:
            size = len(x) * sum(map(partition.n_features, parts))
            return partition.split(x, parts, everywhere, np.empty(size, partition.split_dtype(x.dtype)))

        tiles = []
        # In a box of a sample, rows of the components are arbitrarily short, and none is left out.
        whole = isinstance(partition, Whole)
        for parts in self._parts:
            means, rows = cut(mean, parts), cut(components, parts)
            runs: list[CellRun] = []
            sizes = [partition.n_features(i) for i in parts]
            for _, equal in itertools.groupby(
                enumerate(sizes), lambda each: (each[1], each[0] // max(1, _RUN_FEATURES // each[1]))
            ):
                (first, _), *others = equal
                here = slice(first, first + 1 + len(others))
                ranks = [len(part) for part in rows[here]] if whole else ranks_of(rows[here])
                products = products_of(rows[here], ranks)
                runs.append(CellRun(parts[here.start], here.start, stacked(means[here]), products))
            tiles.append((parts, runs))
        return tiles


def _at(region: Region) -> tuple[slice, ...]:
    """Return the place of a box in samples."""
    return (slice(None), *(slice(*ends) for ends in region))


def first_rows(components: Any, count: int) -> Any:
    """Return the first rows of components, in memory or on disk."""
    return components.first(count) if isinstance(components, ArrayOnDisk) else components[:count]


def in_boxes(basis: Representation) -> LinearRepresentation | None:
    """Return a representation that encodes and decodes samples in boxes, see `LinearRepresentation.box`, or None."""
    return basis if isinstance(basis, LinearRepresentation) and basis.divides else None
