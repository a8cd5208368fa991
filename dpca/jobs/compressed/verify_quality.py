"""Verifies the quality that a compressed store states, on the original samples, and its error bound."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dpca.choices import NOISE_SHARE
from dpca.codec.masks import of_share, of_values
from dpca.engine.sources.sampling import chosen_samples, spread_samples
from dpca.engine.sources.source import Source, as_source
from dpca.jobs.compressed.encode_write import largest_errors
from dpca.kernels.algebra.types import Array, blocks
from dpca.kernels.quality import mse_per_sample
from dpca.representation.compressed.compressed import Compressed, TiledCompressed, open_compressed
from dpca.storage.arrays.reading import array_in, open_group
from dpca.storage.arrays.tiles import GROUP
from dpca.storage.errors import DataError
from dpca.storage.remote.tasks import map_shards
from dpca.storage.run import Run
from dpca.storage.stack import Stack

# Samples of a task.
_ROWS = 192
# Number of problems that are reported one by one.
_MOST_REPORTED = 10
# Relative tolerance for a stated mean squared error: its type has seven digits, and a value halfway between two
# integers can be rounded to either.
_NEAR = 1e-3


def verify_quality(
    path: str,
    stack: Stack | None,
    *,
    sample: int | None = None,
    run: Run = Run(),
) -> list[str]:
    """Decode samples of a compressed store, compare them with the originals, and report problems.

    Parameters
    ----------
    path : str
        A compressed store that `dpca.storage.verify` has checked.
    stack : Stack or None
        The originals. Without them, only the stated errors are compared with the error bound.
    sample : int, optional
        Compare this many samples, spread over the stack; default all.
    run : Run
        As for `dpca.storage.verify`.

    Returns
    -------
    list of str
        One sentence for each problem: an error above the bound, or one that differs from the stated error.

    Raises
    ------
    DataError
        If the stack has another shape or type.
    StoreError
        If the store or the stack is damaged.
    """
    store, group = open_compressed(path), open_group(path)
    promised = store.facts.get("max_error")
    if promised is not None and not (stated := array_in(group, "max_error")[...] <= promised).all():
        return [f"max_error: the stated error of sample {int(np.argmin(stated))} exceeds the error bound {promised:g}"]
    if stack is None:
        return []
    if (stack.shape, stack.dtype) != (store.shape, store.dtype):
        raise DataError(
            f"'{stack.path}' has {stack.shape} {stack.dtype} but '{path}' was made from {store.shape} {store.dtype}: "
            f"give the stack that the store was made from"
        )
    n = store.shape[0]
    chosen = np.arange(n) if sample is None else spread_samples(n, min(sample, n), np.random.default_rng(0))
    names, source = ("mse", NOISE_SHARE) if NOISE_SHARE in group else ("mse",), as_source(stack)
    stated = {name: array_in(group, name)[...] for name in names}
    source.with_gaps = store.has_gaps
    blocks = np.split(chosen, np.flatnonzero(np.diff(chosen // _ROWS)) + 1)
    found = map_shards(
        _problems_of,
        (
            (None, len(block), (store, source, block, {name: of[block] for name, of in stated.items()}))
            for block in blocks
        ),
        stage=run.progress("measure", len(chosen), "samples"),
        client=run.client,
        threads=run.threads,
        name="measure",
    )
    problems = [problem for of_a_block in found for problem in of_a_block]
    more = len(problems) - _MOST_REPORTED
    return problems if more <= 1 else [*problems[:_MOST_REPORTED], f"and {more:,} more samples"]


def _problems_of(store: Compressed, source: Source, numbers: Array, stated: Mapping[str, Array]) -> list[str]:
    """Compare some samples, the body of a task."""
    (low, high), promised = store.facts["data_range"], store.facts.get("max_error")
    lost = np.zeros(0)
    if isinstance(store, TiledCompressed):
        found, off, apart = _errors_by_tiles(store, source, numbers)
    else:
        x, y = chosen_samples(source, numbers), store[numbers]
        missing, apart = _without_gaps(x, y) if store.has_gaps else (None, np.zeros(len(x), bool))
        found, off = mse_per_sample(x, y, data_range=high - low), largest_errors(x, y)
        if missing is not None:
            found = of_values({"mse": found}, missing)["mse"]
        if store.codec.noise is not None:
            lost = store.codec.noise.shares(x, y, missing)
    if apart.any():
        return [f"sample {n} has missing values at other places" for n in numbers[apart].tolist()]
    problems, shares = [], stated.get(NOISE_SHARE, lost)
    for i, (number, error, most, expected) in enumerate(zip(numbers.tolist(), found, off, stated["mse"], strict=True)):
        if promised is not None and not most <= promised:
            problems.append(f"sample {number} has an error of {most:g}, above the error bound {promised:g}")
        elif not np.isclose(error, expected, rtol=_NEAR, atol=1e-12):
            problems.append(f"sample {number} has a mean squared error of {error:.6g}, not {expected:.6g} as stated")
        elif len(lost) and not np.isclose(lost[i], shares[i], rtol=_NEAR, atol=1e-12):
            problems.append(f"sample {number} lost {lost[i]:.6g} of the noise variance, not {shares[i]:.6g} as stated")
    return problems


def _without_gaps(x: Array, y: Array) -> tuple[Array, Array]:
    """Return where values of samples are missing, and become 0 in both, and which samples (n,) lack different ones.

    An infinity differs from NaN and from the other infinity.
    """
    missing, either = ~np.isfinite(y), ~(np.isfinite(x) & np.isfinite(y))
    apart = either & (x != y) & ~(np.isnan(x) & np.isnan(y))
    x[either] = y[either] = 0
    return missing, apart.reshape(len(x), -1).any(axis=1)


def _errors_by_tiles(store: TiledCompressed, source: Source, numbers: Array) -> tuple[Array, Array, Array]:
    """Return the mean squared and the largest error (n,) of samples, and which lack other values than the originals.

    A tile is in memory at a time.
    """
    (low, high), read = store.facts["data_range"], source.reader()
    found, off, there = np.zeros((3, len(numbers)))
    apart = np.zeros(len(numbers), bool)
    for core in store.tiles.cores:
        for few in blocks(len(numbers), GROUP):
            x = np.empty((few.stop - few.start, *(b - a for a, b in core)), store.dtype)
            for one, number in zip(x, numbers[few].tolist(), strict=True):
                read((number, number + 1), core, one[None])
            y = store.decoded(numbers[few], core)
            share = x[0].size / math.prod(store.shape[1:])
            there[few] += share
            if store.has_gaps:
                missing, other = _without_gaps(x, y)
                apart[few] |= other
                there[few] -= missing.reshape(len(x), -1).mean(axis=1) * share
            found[few] += mse_per_sample(x, y, data_range=high - low) * share
            off[few] = np.maximum(off[few], largest_errors(x, y))
    return of_share({"mse": found}, there)["mse"] if store.has_gaps else found, off, apart
