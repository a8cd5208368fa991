"""A few samples of a stack, spread over the whole stack."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.source import BatchReader, Source
from dpca.kernels.algebra.types import Array

# Most bytes of one read around the chosen samples. In memory, copying this many bytes is as fast as indexing.
_SPAN_BYTES, _COPIED_BYTES = 64 * 2**20, 2**20


def spread_samples(n_samples: int, count: int, rng: np.random.Generator) -> Array:
    """Choose ``count`` of ``n_samples`` samples, a random one in each of ``count`` equal parts; ascending.

    Stacks are often sorted by person, class or time, so the first samples and equidistant ones are not representative.
    """
    edges = np.arange(count + 1) * n_samples // count
    return rng.integers(edges[:-1], edges[1:])


def first_samples(source: Source, most_bytes: int) -> Array:
    """Read the first samples, of at most ``most_bytes`` bytes but at least one.

    Raises
    ------
    DataError
        At a value that is not finite.
    """
    shape = source.shape[1:]
    rows = max(1, most_bytes // max(1, math.prod(shape) * source.dtype.itemsize))
    first = np.empty((min(rows, source.shape[0]), *shape), source.dtype)
    source.reader()((0, len(first)), tuple((0, length) for length in shape), first)
    check_finite(first, 0, source.name)
    return first


def read_samples(source: Source, chosen: Array) -> Iterator[Array]:
    """Yield the chosen samples (ascending), some at a time, as arrays (m, *sample_shape).

    Chunks without chosen samples are not read. A chunk with many is decoded once for each 64 MiB of it.

    Raises
    ------
    DataError
        At a value that is not finite.
    """
    read = source.reader()
    for span in _spans(source, chosen):
        yield _read_span(source, read, span, np.empty((len(span), *source.shape[1:]), source.dtype))


def chosen_samples(source: Source, chosen: Array) -> Array:
    """Return the chosen samples (ascending) as one array, as `read_samples`."""
    found, filled, read = np.empty((len(chosen), *source.shape[1:]), source.dtype), 0, source.reader()
    for span in _spans(source, chosen):
        _read_span(source, read, span, found[filled : filled + len(span)])
        filled += len(span)
    return found


def _spans(source: Source, chosen: Array) -> list[Array]:
    """Divide chosen samples (ascending) into those that one read includes."""
    each = math.prod(source.shape[1:]) * source.dtype.itemsize
    rows = max(1, _SPAN_BYTES // each)
    # No span crosses the border of a chunk. Arrays in memory have no chunks.
    chunk = max(source.chunks[0], _COPIED_BYTES // each) if source.in_process else source.chunks[0]
    starts = np.arange(0, source.shape[0], chunk)[:, None] + np.arange(0, chunk, min(rows, chunk))
    spans = np.searchsorted(starts.ravel(), chosen, side="right")
    return np.split(chosen, np.flatnonzero(np.diff(spans)) + 1)


def _read_span(source: Source, read: BatchReader, span: Array, out: Array) -> Array:
    """Read the samples of a span into ``out``, and return it."""
    first, last = int(span[0]), int(span[-1]) + 1
    block = out if last - first == len(span) else np.empty((last - first, *source.shape[1:]), source.dtype)
    read((first, last), tuple((0, length) for length in source.shape[1:]), block)
    if not source.with_gaps:
        check_finite(block, first, source.name)
    if block is not out:
        np.take(block, span - first, axis=0, out=out)
    return out


def spread_runs(source: Source, most: int, run: int) -> Array:
    """Read runs of consecutive samples, spread over the source: at most ``most`` samples, but at least one run."""
    n_runs = source.shape[0] // run
    firsts = run * spread_samples(n_runs, min(max(1, most // run), n_runs), np.random.default_rng(0))
    return chosen_samples(source, (firsts[:, None] + np.arange(run)).ravel())
