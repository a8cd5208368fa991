"""Scores, reconstructions and their errors of large samples, block by block of attributes, as Dask arrays.

No task holds a whole sample, mean or component. If components of whole samples are on disk, blocks are those in which
they are stored. Otherwise, blocks are boxes of a sample: of cells, of patches, or of whole components in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeGuard, cast

import dask.array as da
import numpy as np
from dask.delayed import delayed
from numpy.typing import DTypeLike

from dpca.engine.sources.centered import scaled
from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.superposed import superposed_lazily
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.pixels import Pixels, to_pixels
from dpca.partition.whole import Whole
from dpca.representation.base import Representation
from dpca.representation.divided import DividedRepresentation, in_any_boxes
from dpca.representation.lazy import lazily_opened, lazy_chunks, map_samples
from dpca.representation.linear import LinearRepresentation
from dpca.representation.on_disk import ArrayOnDisk
from dpca.representation.superposed import Superposed
from dpca.representation.whitened import WeightedRepresentation, in_units
from dpca.storage.arrays.layout import box_shape, boxes_of

#: Samples of more bytes in floating point are encoded and decoded in boxes.
LARGE_SAMPLE = 2**26
# Bytes of the components, or of the samples in floating point, of one task.
_TASK_BYTES = 2**26

BoxSums = Callable[[Any, Array, Array | None, Region, Region], Array]
"""A function of a box of samples, see `sums_over_boxes`."""


def is_by_boxes(basis: Representation, dtype: DTypeLike, copies: int = 1) -> TypeGuard[DividedRepresentation]:
    """Return whether samples of a type are encoded by `encoded_by_boxes`, and decoded by `decoded_by_boxes`.

    They are if they are large: if the ``copies`` of a sample and its scores that a task holds exceed `LARGE_SAMPLE`.
    """
    if in_any_boxes(basis) is None:
        return False
    itemsize = basis.score_dtype(dtype).itemsize
    return copies * (math.prod(basis.sample_shape) + math.prod(basis.score_shape)) * itemsize > LARGE_SAMPLE


def encoded_by_boxes(basis: DividedRepresentation, x: Any) -> da.Array:
    """Return the scores (n, *score_shape) of samples in a Dask or Zarr array; no task holds a whole sample.

    Costs 2 n d k operations. Values that several boxes need, at the borders of patches and of lapped cells, are read
    for each of them.
    """
    if not basis.adds_boxes:
        return scored_by_boxes(basis, x, Representation.encode)
    return of_summands(basis, summed_by_boxes(basis, x), "scores_of_sums", x.dtype)


def scored_by_boxes(basis: DividedRepresentation, x: Any, function: Any) -> da.Array:
    """Return what a function (basis, samples) -> array of the shape of scores returns for boxes of whole parts."""
    parts, places = list[da.Array](), list[Region]()
    for region, around, rows in boxes_to_encode(basis, x.dtype):
        place, held = (_ends(basis.score_places(box)) for box in (region, around))
        encode = partial(_encoded_box, function=function, around=around, own=_inside(place, held))
        shape = (*(b - a for a, b in place), basis.score_shape[-1])
        here = region_of(x, around, rows)
        parts.append(map_samples(here, encode, of_task(basis, around), shape, basis.score_dtype(x.dtype)))
        places.append(place)
    return joined(parts, places)


def summed_by_boxes(basis: DividedRepresentation, x: Any) -> da.Array:
    """Return the sums of `summands` (n, *summand_shape), float64, over boxes of samples in a Dask or Zarr array."""
    parts = list[da.Array]()
    for _, around, rows in boxes_to_encode(basis, x.dtype):
        here, sums = region_of(x, around, rows), partial(_summands, around=around)
        parts.append(map_samples(here, sums, of_task(basis, around), basis.summand_shape, np.float64))
    return da.stack(parts).sum(axis=0)


def of_summands(
    basis: DividedRepresentation, sums: da.Array, method: str, dtype: DTypeLike, length: int | None = None
) -> da.Array:
    """Return ``basis.method(sums, dtype)``, scores or the like of samples of a type, for each of their sums.

    ``length`` is that of the last axis of the result, if it is not the number of components.
    """
    small, shape = basis.box(tuple((0, 1) for _ in basis.sample_shape)), basis.score_shape
    shape, found = (shape, basis.score_dtype(dtype)) if length is None else ((length,), np.dtype(np.float64))
    return map_samples(sums, partial(_of_sums, method=method, dtype=np.dtype(dtype)), small, shape, found)


def _of_sums(basis: DividedRepresentation, sums: Array, *, method: str, dtype: np.dtype[Any]) -> Array:
    found: Array = getattr(basis, method)(sums, dtype)
    return found


def boxes_to_encode(basis: DividedRepresentation, dtype: np.dtype[Any]) -> list[tuple[Region, Region, int]]:
    """Return boxes to encode, see `DividedRepresentation.scored_boxes`, and the number of samples of a task."""
    found = basis.score_dtype(dtype)
    boxes = basis.scored_boxes(basis.box_features(_TASK_BYTES, found.itemsize))
    rows = rows_of(basis, [around for _, around in boxes], found)
    return [(region, around, rows) for region, around in boxes]


def decoded_by_boxes(basis: DividedRepresentation, scores: Any, pixels: Pixels | None = None) -> da.Array:
    """Return the samples (n, *sample_shape) of scores (n, *grid, at least k) in a Dask or Zarr array of k components.

    No task holds a whole sample. Costs 2 n d k operations.
    """
    k, dtype = basis.score_shape[-1], basis.decoded_dtype(scores.dtype)
    most, parts = basis.box_features(_TASK_BYTES, dtype.itemsize), list[da.Array]()
    regions = boxes_of(basis.sample_shape, box_shape(basis.sample_shape, most, basis.unit))
    held = [basis.aligned(region) for region in regions]
    rows = rows_of(basis, held, dtype)
    for region, around in zip(regions, held, strict=True):
        decode = partial(_decoded_box, around=around, own=_inside(region, around), pixels=pixels)
        here = region_of(scores, (*_ends(basis.score_places(around)), (0, k)), rows)
        shape, found = tuple(b - a for a, b in region), dtype if pixels is None else pixels.dtype
        parts.append(map_samples(here, decode, of_task(basis, around), shape, found))
    return joined(parts, regions)


def sums_over_boxes(basis: LinearRepresentation, x: Any, function: BoxSums) -> da.Array:
    """Return the sums (n,), float64, of a function over boxes of samples in a Dask or Zarr array.

    No task holds a whole sample. If scores are sums over boxes, the samples are read twice.

    Parameters
    ----------
    basis : LinearRepresentation
        One that `divides`.
    x : Dask or Zarr array (n, *sample_shape)
    function : callable (basis, samples, scores, region, around) -> array (n,)
        Receives the basis of a box ``around``, the samples there, their scores if these are sums over boxes, else None,
        and the box ``region`` of whole parts whose sums it returns.
    """
    scores, parts = encoded_by_boxes(basis, x) if basis.adds_boxes else None, list[da.Array]()
    boxes, axes = basis.scored_boxes(basis.box_features(_TASK_BYTES, 8)), range(len(x.shape))
    rows = rows_of(basis, [around for _, around in boxes], np.dtype(np.float64))
    for region, around in boxes:
        here = region_of(x, around, rows)
        pairs: list[Any] = [here, tuple(axes)]
        if scores is not None:
            whole = scores.rechunk((here.chunks[0], *(-1 for _ in basis.score_shape)))
            pairs += [whole, (0, *range(len(axes), len(axes) + whole.ndim - 1))]
        options = {"function": function, "basis": delayed(of_task(basis, around), pure=False)}
        options |= {"region": region, "around": around, "concatenate": True}
        parts.append(da.blockwise(_summed_box, (0,), *pairs, dtype=float, meta=np.empty(0), **options))
    return da.stack(parts).sum(axis=0)


def _summed_box(
    samples: Array,
    scores: Array | None = None,
    *,
    function: BoxSums,
    basis: DividedRepresentation,
    region: Region,
    around: Region,
) -> Array:
    check_finite(samples, 0, "a chunk")
    return function(_in_task(basis, around), samples, scores, region, around)


def rows_of(basis: DividedRepresentation, boxes: Sequence[Region], dtype: np.dtype[Any]) -> int:
    """Return the number of samples of each task, for boxes of them and their scores."""
    largest, scores = max(math.prod(b - a for a, b in box) for box in boxes), float(math.prod(basis.score_shape))
    if not basis.adds_boxes:
        scores *= largest / math.prod(basis.sample_shape)
    return max(1, int(_TASK_BYTES / ((largest + scores) * dtype.itemsize)))


def _ends(places: tuple[slice, ...]) -> Region:
    return tuple((place.start, place.stop) for place in places)


def _inside(region: Region, around: Region) -> tuple[slice, ...]:
    return tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(region, around, strict=True))


def region_of(x: Any, region: Region, rows: int) -> da.Array:
    """Return a region of samples or scores in chunks of some rows; of a Zarr array only its chunks there are read."""
    unit = max(x.chunks[0]) if isinstance(x, da.Array) else x.chunks[0]
    if isinstance(x, da.Array):
        here = x[(slice(None), *(slice(a, b) for a, b in region))]
        return here.rechunk((min(rows, unit), *(b - a for a, b in region)))
    return ArrayOnDisk.of(x).region_as_dask(region, max(1, rows // unit) * unit)


def joined(parts: Sequence[da.Array], regions: Sequence[Region]) -> da.Array:
    """Join arrays of regions that form a grid, in C order, along the axes after the first one."""
    counts = [len({region[axis] for region in regions}) for axis in range(len(regions[0]))]
    arrays, axis = list(parts), len(counts)
    for count in reversed(counts):
        arrays = [da.concatenate(arrays[i : i + count], axis=axis) for i in range(0, len(arrays), count)]
        axis -= 1
    (whole,) = arrays
    return whole


def of_task(basis: DividedRepresentation, region: Region) -> DividedRepresentation:
    """Return what a task receives of a representation: a box of it, or all of it if that is to be read in the task."""
    return basis if isinstance(basis.components, ArrayOnDisk) else basis.box(region)


def _in_task(basis: DividedRepresentation, region: Region) -> DividedRepresentation:
    # A copy without what the box keeps for further calls: the graph holds all boxes until its end.
    return basis.box(region) if isinstance(basis.components, ArrayOnDisk) else replace(basis)


def _encoded_box(
    basis: DividedRepresentation, samples: Array, *, function: Any, around: Region, own: tuple[slice, ...]
) -> Array:
    found: Array = function(_in_task(basis, around), samples)[(slice(None), *own)]
    return found


def _summands(basis: DividedRepresentation, samples: Array, *, around: Region) -> Array:
    return _in_task(basis, around).summands(samples).astype(np.float64, copy=False)


def _decoded_box(
    basis: DividedRepresentation, scores: Array, *, around: Region, own: tuple[slice, ...], pixels: Any
) -> Array:
    return _in_task(basis, around).decode(scores, pixels=pixels)[(slice(None), *own)]


class BasisBlocks:
    """The blocks of attributes of a linear representation on disk.

    Parameters
    ----------
    basis : LinearRepresentation
        Of whole samples; its components are `ArrayOnDisk`, and its mean unless it has weights.
    """

    def __init__(self, basis: LinearRepresentation) -> None:
        components, k = cast(ArrayOnDisk, basis.components), len(basis.components)
        self._shape = basis.sample_shape
        self._box = _grown(components.edges[1:], self._shape, _TASK_BYTES // (k * basis.dtype.itemsize))
        self._mean, self._components = self._cut(basis.mean), components.as_dask((k, *self._box))
        self._weights: da.Array | None = None
        self._superposition = basis.superposition if isinstance(basis, Superposed) else None
        if isinstance(basis, Superposed):
            roots = np.broadcast_to(np.sqrt(basis.superposition.weights)[:, None], self._shape)
            self._weights, self._sample_mean = self._cut(roots), self._mean  # no weight is 0
            basis = basis.of_rows
        elif isinstance(basis, WeightedRepresentation):
            self._weights, self._sample_mean = self._cut(basis.weights), self._cut(basis.sample_mean)
            basis = basis.of_rows
        # What tasks receive besides their blocks.
        self._basis = replace(basis, partition=Whole((1,)), mean=np.zeros(1), components=np.zeros((k, 1), basis.dtype))

    def samples(self, x: Any) -> da.Array:
        """Return samples in memory, in a Dask array or in a store as a Dask array of these blocks."""
        x = x if isinstance(x, np.ndarray) else lazily_opened(x)
        if isinstance(x, np.ndarray):
            x = da.from_array(x, chunks=(1, *self._box))
        elif not isinstance(x, da.Array):
            # Chunks that are longer than a block are decoded once, and cut afterwards.
            unit = [math.ceil(b / c) * c for b, c in zip(self._box, x.chunks[1:], strict=True)]
            unit = [min(length, n) for length, n in zip(unit, self._shape, strict=True)]
            rows = self._rows(unit) // x.chunks[0] * x.chunks[0]
            x = lazy_chunks(x, (min(max(rows, x.chunks[0]), x.shape[0]), *unit))
        x = x.rechunk((min(self._rows(self._box), max(x.chunks[0])), *self._box))
        if self._superposition is not None:
            return superposed_lazily(x, self._superposition).rechunk(x.chunks)
        return x if self._weights is None else self._combined(scaled, x, working_dtype(x.dtype), self._weights)

    def _cut(self, x: Any) -> da.Array:
        """Return an array of the size of a sample in these blocks."""
        if isinstance(x, ArrayOnDisk):
            return x.as_dask(self._box)
        return da.from_array(x.reshape(self._shape), chunks=self._box)

    def _combined(self, function: Any, x: da.Array, dtype: Any, *constants: da.Array, **options: Any) -> da.Array:
        """Apply a function of samples and constant samples to each block."""
        axes = tuple(range(x.ndim))
        pairs = [(x, axes), *((constant, axes[1:]) for constant in constants)]
        given = (item for pair in pairs for item in pair)
        return da.blockwise(function, axes, *given, dtype=dtype, meta=np.empty((0,) * x.ndim, dtype), **options)

    def _rows(self, lengths: Any) -> int:
        """Return the number of samples of a task, for boxes of these lengths."""
        return max(1, _TASK_BYTES // (8 * math.prod(lengths)))

    def encode(self, x: da.Array) -> da.Array:
        """Return the scores (n, k) of samples, summed over blocks in float64. Costs 2 n d k operations."""
        axes = range(1, x.ndim)
        sums = self._apply(_partial_scores, (0, *axes, x.ndim), [(x, (0, *axes))])
        return sums.sum(axis=tuple(axes)).astype(self._basis.score_dtype(x.dtype))

    def decode(self, scores: da.Array, pixels: Pixels | None = None) -> da.Array:
        """Return the samples (n, *sample_shape) of scores (n, k'), of the first k' components."""
        dtype, n_axes = self._basis.decoded_dtype(scores.dtype), len(self._shape)
        rows = scores.rechunk((min(self._rows(self._box), max(scores.chunks[0])), -1))
        rounded = pixels if self._weights is None else None
        found = self._apply(
            _decoded,
            (0, *range(1, n_axes + 1)),
            [(rows, (0, n_axes + 2))],
            pixels=rounded,
            is_sum=False,
            dtype=dtype if rounded is None else rounded.dtype,
        )
        if self._weights is None:
            return found
        dtype = dtype if pixels is None else pixels.dtype
        return self._combined(_in_units, found, dtype, self._weights, self._sample_mean, pixels=pixels)

    def residuals(self, x: da.Array, scores: da.Array) -> da.Array:
        """Return the squared distances (n,) of samples from their reconstructions, float64."""
        axes = range(1, x.ndim)
        rows = scores.rechunk((x.chunks[0], -1))
        sums = self._apply(_squared_residuals, (0, *axes), [(x, (0, *axes)), (rows, (0, x.ndim + 1))])
        return sums.sum(axis=tuple(axes))

    def _apply(
        self,
        function: Any,
        out: tuple[int, ...],
        given: list[tuple[da.Array, tuple[int, ...]]],
        *,
        is_sum: bool = True,
        dtype: Any = np.float64,
        **options: Any,
    ) -> da.Array:
        """Apply a function of arrays, the mean and the components to each block; sums have one entry for each."""
        axes = tuple(range(1, len(self._shape) + 1))
        arrays = [*given, (self._mean, axes), (self._components, (len(axes) + 1, *axes))]
        return da.blockwise(
            function,
            out,
            *(item for pair in arrays for item in pair),
            basis=self._basis,
            concatenate=True,
            adjust_chunks=dict.fromkeys(axes, 1) if is_sum else None,
            dtype=dtype,
            meta=np.empty((0,) * len(out), dtype),
            **options,
        )


def _in_units(rows: Array, weights: Array, sample_mean: Array, *, pixels: Pixels | None) -> Array:
    samples = in_units(rows, weights, sample_mean)
    return samples if pixels is None else to_pixels(samples, *pixels)


def _grown(piece: tuple[int, ...], shape: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return the lengths of a box of whole pieces with up to ``most`` values, the last axes first."""
    box = [*piece]
    for axis in reversed(range(len(box))):
        times = min(math.ceil(shape[axis] / piece[axis]), max(1, most // math.prod(box)))
        box[axis] = min(times * piece[axis], shape[axis])
    return tuple(box)


def _of_block(basis: LinearRepresentation, mean: Array, components: Array) -> LinearRepresentation:
    return replace(basis, partition=Whole(mean.shape), mean=mean, components=components)


def _partial_scores(x: Array, mean: Array, components: Array, *, basis: LinearRepresentation) -> Array:
    scores = _of_block(basis, mean, components).encode(x)
    return scores.reshape(len(x), *(1,) * mean.ndim, len(components)).astype(np.float64)


def _decoded(
    scores: Array, mean: Array, components: Array, *, basis: LinearRepresentation, pixels: Pixels | None = None
) -> Array:
    return _of_block(basis, mean, components).leading(scores.shape[1]).decode(scores, pixels=pixels)


def _squared_residuals(
    x: Array, scores: Array, mean: Array, components: Array, *, basis: LinearRepresentation
) -> Array:
    check_finite(x, 0, "a chunk")
    left = x - _of_block(basis, mean, components).decode(scores)
    return np.square(left, dtype=np.float64).reshape(len(x), -1).sum(axis=1).reshape(len(x), *(1,) * mean.ndim)
