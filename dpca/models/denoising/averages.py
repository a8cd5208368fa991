"""The weighted average of the filters of all cells, which denoises boxes of samples, and maps of the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpca.choices import RICIAN
from dpca.kernels.algebra.types import Array, PickledByFields, Region
from dpca.models.denoising.filters import MEAN
from dpca.models.denoising.magnitudes import amplitudes
from dpca.models.denoising.time_filter import Series, filtered
from dpca.partition.shifted import ShiftedGrids
from dpca.storage.errors import DataError

# Squares of values below this lose precision in float64.
_LEAST = 1e-146


@dataclass(frozen=True)
class CellFilters(PickledByFields):
    """The weighted average of the filters of all cells, on whole samples or on boxes of them.

    Parameters
    ----------
    grids : ShiftedGrids
    filters : mapping of int to array (2 rank, d)
        Inputs and weighted outputs of cells.
    mean : array (*lengths of the box)
        The weighted mean that is added.
    box : Region
        The box of a sample for which there are filters and a mean.
    sigma : array (*lengths of the box), optional
        The level of the noise of magnitudes, whose bias is removed.
    """

    grids: ShiftedGrids
    filters: dict[int, Array]
    mean: Array
    box: Region
    sigma: Array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.mean.nbytes + sum(one.nbytes for one in self.filters.values())

    def within(self, region: Region, core: Region) -> BoxFilters:
        """Return the filters that denoise the box ``core`` of samples of a region that `ShiftedGrids.reach` returns."""
        # Neighbors of all grids follow each other, since they have the same values.
        parts = sorted(self.grids.overlapping(core), key=lambda part: self.grids.boxes[part])
        inputs, outputs = _Boxes(region, self.mean), _Boxes(core, self.mean)
        for part in parts:
            rows, box = self.filters[part], self.grids.boxes[part]
            if not (rank := len(rows) // 2):
                continue
            inner = tuple((max(a, c), min(b, e)) for (a, b), (c, e) in zip(box, core, strict=True))
            inputs.add(box, rows[:rank].ravel(), rank)
            made = rows[rank:].reshape(rank, *(b - a for a, b in box))[(slice(None), *places(inner, box))]
            outputs.add(inner, made.ravel(), rank)
        sigma = None if self.sigma is None else self.sigma[places(core, self.box)]
        return BoxFilters(inputs.finished(), outputs.finished(), self.mean[places(core, self.box)], sigma)


@dataclass(frozen=True)
class BoxFilters:
    """The filters that denoise a box of samples, see `CellFilters.within`.

    Parameters
    ----------
    inputs, outputs : sequence of arrays
        Boxes, starts of their runs, and vectors; see `dpca.kernels.boxes`.
    mean, sigma
        As those of `CellFilters`, for the box.
    """

    inputs: Sequence[Array]
    outputs: Sequence[Array]
    mean: Array
    sigma: Array | None

    def packed(self) -> dict[str, Array]:
        """Return all arrays by name."""
        level = {} if self.sigma is None else {"sigma": self.sigma}
        sides = {f"{side}_{i}": one for side in ("inputs", "outputs") for i, one in enumerate(getattr(self, side))}
        return {**sides, "mean": self.mean, **level}

    @classmethod
    def unpacked(cls, arrays: dict[str, Array]) -> BoxFilters:
        """Return filters from the arrays of `packed`."""
        inputs, outputs = ([arrays[f"{side}_{i}"] for i in range(3)] for side in ("inputs", "outputs"))
        return cls(inputs, outputs, arrays["mean"], arrays.get("sigma"))

    def apply(self, samples: Array, series: Series | None = None) -> Array:
        """Return the denoised box of samples (n, *lengths of the region).

        With a place in a series in time, scores are filtered along it, too.
        """
        from dpca.kernels.boxes import add_boxes, project_boxes

        x = np.ascontiguousarray(samples, self.mean.dtype).reshape(len(samples), -1)
        boxes = self.inputs[0]
        scores = np.empty((len(x), int(boxes[:, 4].sum())), x.dtype)
        project_boxes(x, *self.inputs, scores)
        if series is not None:
            scores = filtered(scores, series)
        out = np.repeat(self.mean[None], len(scores), axis=0)
        add_boxes(scores, *self.outputs, out.reshape(len(out), -1))
        return out if self.sigma is None else amplitudes(out, self.sigma)


class _Boxes:
    """Collects the boxes of a region and their vectors."""

    def __init__(self, region: Region, like: Array) -> None:
        self._region, self._run, self._weight, self._score = region, 0, 0, 0
        self._boxes: list[tuple[int, ...]] = []
        self._starts, self._weights = [np.zeros(0, np.int64)], [np.zeros(0, like.dtype)]

    def add(self, box: Region, weights: Array, rank: int) -> None:
        """Add a box with the vectors of its rank."""
        starts, length = runs_of(box, self._region)
        self._boxes.append((self._run, len(starts), length, self._weight, rank, self._score))
        self._starts.append(starts)
        self._weights.append(weights)
        self._run, self._weight, self._score = self._run + len(starts), self._weight + weights.size, self._score + rank

    def finished(self) -> tuple[Array, Array, Array]:
        """Return the table of boxes, the starts of runs, and all vectors."""
        return (
            np.array(self._boxes, np.int64).reshape(-1, 6),
            np.concatenate(self._starts),
            np.concatenate(self._weights),
        )


def runs_of(box: Region, region: Region) -> tuple[Array, int]:
    """Return where the contiguous runs of a box start in the values of a region, and their length."""
    whole = tuple(b - a for a, b in region)
    starts, length = _runs(tuple(b - a for a, b in box), whole)
    first = 0
    for (a, _), (o, _), size in zip(box, region, whole, strict=True):
        first = first * size + a - o
    return first + starts, length


@lru_cache(maxsize=256)
def _runs(lengths: tuple[int, ...], whole: tuple[int, ...]) -> tuple[Array, int]:
    """Return what `runs_of` does, for a box of some lengths at the start of a region."""
    # Axes that the box has whole belong to the runs.
    axis = next((k for k in reversed(range(len(whole))) if lengths[k] != whole[k]), 0)
    stride, starts = math.prod(whole[axis + 1 :]), np.zeros(1, np.int64)
    length = lengths[axis] * stride
    for k in reversed(range(axis)):
        stride *= whole[k + 1]
        starts = (np.arange(lengths[k])[:, None] * stride + starts).ravel()
    return starts, length


def places(box: Region, region: Region) -> tuple[slice, ...]:
    """Return the place of a box in an array of a region."""
    return tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(box, region, strict=True))


@dataclass(frozen=True)
class NoiseMaps:
    """Maps of the shape of a sample: noise, rank, and the share of the variance that is removed.

    ``level`` is the median level of the noise of all cells, in units of its scale.
    """

    sigma: Array
    rank: Array
    removed: Array
    level: float


def averaged(grids: ShiftedGrids, results: Sequence[dict[str, Array]], kind: str) -> tuple[CellFilters, NoiseMaps]:
    """Return the weighted average of the filters of all cells, and maps, for a kind of noise. The results are emptied.

    A cell of rank r has the weight 1 / (1 + r), since its estimate has about as much of the noise. Within a cell, the
    weight decreases as the square root of the distance to its borders, along each axis.
    """
    dtype, shape = results[0]["filter"].dtype, grids.sample_shape
    # Means, noise and removed shares; weights, ranks and weights of cells with noise.
    sums = np.zeros((6, *shape))
    for part, result in enumerate(results):
        rows, place = result["filter"], tuple(slice(a, b) for a, b in grids.boxes[part])
        rank, lengths = len(rows) // 2 - 1, tuple(b - a for a, b in grids.boxes[part])
        values = np.empty((6, *lengths))
        values[:3] = rows[MEAN:].reshape(3, *lengths)
        values[3], values[4], values[5] = 1, rank, values[1] > 0
        values *= _taper(lengths, len(grids.cell_shape)) / (1 + rank)
        inside = sums[(slice(None), *place)]
        inside += values
    mean, noise, removed, whole, ranks, measured = sums
    levels = np.array([float(result["level"]) for result in results])
    filters = {}
    for part, result in enumerate(results):
        rows, place = result.pop("filter")[:-3], tuple(slice(a, b) for a, b in grids.boxes[part])
        rank, lengths = len(rows) // 2, tuple(b - a for a, b in grids.boxes[part])
        weight = _taper(lengths, len(grids.cell_shape)) / (1 + rank) / whole[place]
        outputs = (rows[rank:] * weight.ravel()).astype(dtype)
        filters[part] = np.concatenate([rows[:rank], outputs])
    if 0 < (largest := float(np.abs(mean / whole).max())) < _LEAST:
        raise DataError(f"no mean exceeds {largest:.3g}, too little for squares in float64: multiply all values first")
    maps = NoiseMaps(
        sigma=(noise / np.maximum(measured, np.finfo(float).tiny)).astype(np.float32),
        rank=(ranks / whole).astype(np.float32),
        # Few samples with noise may vary less than their signal, by chance.
        removed=np.clip(removed / whole, 0, 1).astype(np.float32),
        level=float(np.median(levels[levels > 0])) if levels.any() else 0.0,
    )
    box = tuple((0, length) for length in shape)
    level = maps.sigma if kind == RICIAN else None
    return CellFilters(grids, filters, (mean / whole).astype(dtype), box, level), maps


@lru_cache(maxsize=256)
def _taper(lengths: tuple[int, ...], n_spatial: int) -> Array:
    """Return the square root of the distance to the borders of a cell along each spatial axis."""
    weight: Array = np.ones(())
    for axis, length in enumerate(lengths):
        along = np.arange(length) + 0.5
        near = np.sqrt(np.minimum(along, length - along)) if axis < n_spatial else np.ones(length)
        weight = weight[..., None] * near
    return weight
