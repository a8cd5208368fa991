"""What modes make of fields: scores of samples, maps, and fields of scores; those of large fields box by box."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from dask.delayed import delayed

from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.source import Source, batches
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.models.base.passes import run_of_fit
from dpca.models.eof.anomalies import Anomalies, AnomalySource
from dpca.models.eof.calendar import Calendar
from dpca.models.eof.eof_fit import interpolated, longest_gap
from dpca.models.eof.fields import Field
from dpca.models.eof.gaps import Expected, FilledSource
from dpca.models.eof.on_grid import GridAnomalies, GridAnomalySource
from dpca.representation.linear import LinearRepresentation
from dpca.representation.on_disk import ArrayOnDisk
from dpca.storage.arrays.layout import box_shape, boxes_of
from dpca.storage.remote.clusters import cluster_errors
from dpca.storage.remote.tasks import run_in_order
from dpca.storage.run import Run

# Size of the blocks of anomalies that are projected at once, and about the size of a task of a cluster.
_BLOCK_BYTES, _TASK_BYTES = 2**25, 2**28
# Bytes of the anomalies in floating point, or of the components, of a box.
_BOX_BYTES = 2**24


def scores_of(
    given: Field,
    calendar: Calendar,
    anomalies: Anomalies | GridAnomalies,
    basis: LinearRepresentation,
    *,
    interpolates: bool,
    expected: Expected | None = None,
    skip_gaps: bool = False,
) -> Any:
    """Return the scores (n, k) of the samples of a field, with the calendar and anomalies of a fit; see `projected`.

    Gaps are interpolated in time, or filled with their expectation, first.
    """
    source, n = given.source, given.source.shape[0]
    times = calendar.groups(given.along, n), calendar.trend(given.along, n)
    if interpolates and (longest := longest_gap(source, n)):
        source = interpolated(source, given, longest)
    if isinstance(anomalies, GridAnomalies):
        scores = _projected_by_boxes(GridAnomalySource(source, anomalies, *times, certain=True), basis, skip_gaps)
        return scores if source.as_dask() is not None else scores.compute(scheduler="threads")
    if expected is not None:
        source = FilledSource(source, anomalies, *times, expected)
    found = AnomalySource(source, anomalies, *times, certain=True)
    found.with_gaps = True  # samples without values remain NaN
    return projected(found, basis, run_of_fit(Run(), None), skip_gaps=skip_gaps)


def projected(anomalies: AnomalySource, basis: LinearRepresentation, run: Run, *, skip_gaps: bool = False) -> Any:
    """Return the scores (n, k) of anomalies; NaN for samples without values. A Dask array yields a Dask array.

    The workers of a cluster project samples on disk; threads of this process project others. With ``skip_gaps``,
    samples that miss some values have NaN, too; otherwise they raise `DataError`.
    """
    project, (n, d), k = _Projection(basis, anomalies.name, skip_gaps), anomalies.shape, len(basis.components)
    dtype = basis.score_dtype(anomalies.dtype)
    if (lazy := anomalies.as_dask()) is not None:
        return da.map_blocks(project, lazy, chunks=(lazy.chunks[0], k), dtype=dtype, meta=np.empty((0, 0), dtype))
    client = None if anomalies.in_process else run.client
    each, chunk = d * anomalies.dtype.itemsize, anomalies.chunks[0]
    spans = blocks(n, -(-max(1, (_BLOCK_BYTES if client is None else _TASK_BYTES) // each) // chunk) * chunk)
    rows, region, shared = max(1, _BLOCK_BYTES // each), ((0, d),), project
    if client is not None:
        with cluster_errors(client):
            shared = client.scatter(project, hash=False)

    def calls() -> Iterator[tuple[Any, ...]]:
        for few in spans:
            samples = few.start, few.stop
            piece = anomalies if client is None else anomalies.piece(samples, region)
            if client is not None and is_dask_collection(piece):  # a source of a source, made by a task of its own
                piece = client.compute(piece)
            yield piece, samples, rows, shared

    parts = run_in_order(_scores_between, calls(), client=client, threads=run.n_threads, name="projection")
    return np.concatenate([np.empty((0, k), dtype), *parts])


def _scores_between(anomalies: Source, samples: tuple[int, int], rows: int, project: _Projection) -> Array:
    region = tuple((0, length) for length in anomalies.shape[1:])
    return np.concatenate([project(block, first) for first, block in batches(anomalies, samples, region, rows)])


@dataclass(frozen=True, eq=False)
class _Projection:
    basis: LinearRepresentation
    name: str
    skip_gaps: bool

    def __call__(self, rows: Array, first: int = 0, block_info: Any = None) -> Array:
        if block_info:
            first = block_info[0]["array-location"][0][0]
        reduced = np.logical_or if self.skip_gaps else np.logical_and
        empty: Array = reduced.reduce(np.isnan(rows), axis=1)
        if empty.any():
            rows = np.where(empty[:, None], 0, rows)
        scores = self.basis.encode(rows, self.name, first)
        scores[empty] = np.nan
        return scores


def _projected_by_boxes(anomalies: GridAnomalySource, basis: LinearRepresentation, skip_gaps: bool) -> da.Array:
    """Return the scores (n, k), as `projected`, lazily: the sums of those of boxes, in float64."""
    n, *shape = anomalies.shape
    unit, step = tuple(anomalies.chunks[1:]), min(anomalies.chunks[0], n)
    each = math.prod(min(c, length) for c, length in zip(unit, shape, strict=True)) * anomalies.dtype.itemsize
    step *= max(1, _BOX_BYTES // (step * each))
    most = _BOX_BYTES // (anomalies.dtype.itemsize * max(min(step, n), len(basis.components)))
    regions = boxes_of(shape, box_shape(shape, most, unit))
    dtype, found = basis.score_dtype(anomalies.dtype), []
    for few in blocks(n, step):
        samples = few.start, few.stop
        parts = (
            delayed(_score_of_box, pure=False)(
                anomalies.piece(samples, region), samples, region, _of_box(basis, region)
            )
            for region in regions
        )
        finish = delayed(_sum_of_boxes, pure=False)
        scores = finish([*parts], anomalies.anomalies.n_places, anomalies.name, samples[0], skip_gaps).astype(dtype)
        shape_of = few.stop - few.start, len(basis.components)
        found.append(da.from_delayed(scores, shape_of, meta=np.empty((0, 0), dtype)))
    whole: da.Array = da.concatenate(found)
    return whole


def _of_box(basis: LinearRepresentation, region: Region) -> LinearRepresentation:
    """Return the basis of a box; that of components on disk is read in the task."""
    return basis if basis.is_by_blocks else basis.box(region)


def _score_of_box(
    anomalies: Source, samples: tuple[int, int], region: Region, basis: LinearRepresentation
) -> tuple[Array, Array]:
    """Return the part of the scores (m, k), float64, of a box, and the number of missing values of each sample."""
    rows = np.empty((samples[1] - samples[0], *(b - a for a, b in region)), anomalies.dtype)
    anomalies.reader()(samples, region, rows)
    missing = np.isnan(rows)
    counts = np.count_nonzero(missing.reshape(len(rows), -1), axis=1)
    if counts.any():
        rows[missing] = 0
    own = basis.box(region) if basis.is_by_blocks else basis
    return own.encode(rows, anomalies.name, samples[0]).astype(np.float64), counts


def _sum_of_boxes(parts: list[tuple[Array, Array]], n_places: int, name: str, first: int, skip_gaps: bool) -> Array:
    scores, counts = (np.sum(each, axis=0) for each in zip(*parts, strict=True))
    empty = counts > 0 if skip_gaps else counts == n_places
    scores[counts > 0] = np.nan
    check_finite(np.where(empty[:, None], 0, scores), first, name)
    return scores


def maps_of(anomalies: Anomalies | GridAnomalies, basis: LinearRepresentation, scale: Array) -> Any:
    """Return components times factors (k,) as maps (k, *sample_shape), NaN at grid points without data.

    They are a Dask array if components of a large field are on disk.
    """
    modes, factors = basis.components, scale.astype(basis.dtype)
    if not (isinstance(anomalies, GridAnomalies) and isinstance(modes, ArrayOnDisk)):
        modes = np.asarray(modes[:]).reshape(len(modes), -1)
        return anomalies.placed(modes * factors[:, None])
    there = da.from_array(anomalies.there, chunks=modes.edges[1:])
    maps = modes.as_dask((1, *modes.edges[1:])) * factors.reshape(-1, *(1,) * there.ndim)
    return da.where(there, maps, basis.dtype.type(np.nan))


def field_of(
    anomalies: Anomalies | GridAnomalies, basis: LinearRepresentation, scores: Array, groups: Array, trend: Array | None
) -> Any:
    """Return the samples (m, *sample_shape) of scores (m, k) of the first k components, NaN without data.

    They are a Dask array if components of a large field are on disk.
    """
    if isinstance(anomalies, GridAnomalies) and isinstance(basis.components, ArrayOnDisk):
        lazy = _LazyField(anomalies, basis, scores, groups, trend)
        box = basis.components.edges[1:]
        rows = max(1, _BOX_BYTES // (math.prod(box) * lazy.dtype.itemsize))
        chunks, meta = (min(rows, len(scores)), *box), np.empty((0,) * lazy.ndim, lazy.dtype)
        return da.from_array(lazy, chunks=chunks, name=False, fancy=False, meta=meta)
    rows = scores @ np.asarray(basis.components[: scores.shape[1]]).reshape(scores.shape[1], -1)
    rows += np.asarray(basis.mean[:]).ravel().astype(rows.dtype)
    if isinstance(anomalies, Anomalies):
        return anomalies.placed(anomalies.back(rows, groups, trend))
    field = anomalies.back(rows.reshape(-1, *anomalies.sample_shape), groups, trend)
    anomalies.hide(field)
    return field


@dataclass(frozen=True, eq=False)
class _LazyField:
    """The samples (m, *sample_shape) of scores; a slice reads its box of the components only."""

    anomalies: GridAnomalies
    basis: LinearRepresentation
    scores: Array
    groups: Array
    trend: Array | None

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.scores), *self.anomalies.sample_shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(self.scores.dtype, self.basis.dtype, np.float32)

    def __getitem__(self, selection: tuple[Any, ...]) -> Array:
        pairs = zip(selection, self.shape, strict=True)
        taken = [range(n)[s] if isinstance(s, slice) else range(s, s + 1) for s, n in pairs]
        few, *region = (slice(min(t), max(t) + 1) if len(t) else slice(0, 0) for t in taken)
        box = tuple((part.start, part.stop) for part in region)
        own, scores = self.anomalies.box(box), self.scores[few]
        rows = self.basis.box(box, scores.shape[1]).decode(scores).astype(self.dtype, copy=False)
        field = own.back(rows, self.groups[few], None if self.trend is None else self.trend[few])
        own.hide(field)
        own.release()
        steps = zip(selection, taken, strict=True)
        return field[tuple(slice(None, None, t.step) if isinstance(s, slice) else 0 for s, t in steps)]
