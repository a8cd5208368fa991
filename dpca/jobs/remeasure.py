"""Whether a compressed store still keeps what it promises, and states, of the samples that it was made from."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpca.engine.sampling import read_samples, spread_samples
from dpca.engine.source import Source, as_source
from dpca.jobs.encode_write import largest_errors
from dpca.kernels.quality import mse_per_sample
from dpca.kernels.types import Array
from dpca.representation.compressed import Compressed, open_compressed
from dpca.storage.errors import DataError
from dpca.storage.progress import Progress, no_progress
from dpca.storage.reading import array_in, open_group
from dpca.storage.stack import Stack
from dpca.storage.tasks import run_in_order

# Samples of a task.
_ROWS = 192
# Problems that are told one by one.
_TOLD = 10
# By how much a mean squared error may differ from the stated one: its type holds seven digits, and a value halfway
# between two integers may be rounded to either.
_NEAR = 1e-3


def remeasure(
    path: str,
    stack: Stack | None,
    *,
    sample: int | None = None,
    client: Any | None = None,
    progress: Progress = no_progress,
) -> list[str]:
    """Decode samples of a compressed store, compare them with the originals, and report what is wrong.

    Parameters
    ----------
    path : str
        A compressed store whose bytes `dpca.storage.verify` has found whole.
    stack : Stack or None
        The originals; without them, only what the store states is compared with what it promises.
    sample : int, optional
        Compare so many samples from all over the stack; default all.
    client, progress
        As for `dpca.storage.verify`.

    Returns
    -------
    list of str
        One sentence a problem: a value that is off by more than promised, or an error that is not the stated one.

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
        return [
            f"max_error: sample {int(np.argmin(stated))} is stated to be off by more than the promised {promised:g}"
        ]
    if stack is None:
        return []
    if (stack.shape, stack.dtype) != (store.shape, store.dtype):
        raise DataError(
            f"'{stack.path}' holds {stack.shape} {stack.dtype} but '{path}' was made of {store.shape} {store.dtype}: "
            f"give the stack that it was made of"
        )
    n = store.shape[0]
    chosen = np.arange(n) if sample is None else spread_samples(n, min(sample, n), np.random.default_rng(0))
    mse, source = array_in(group, "mse")[...], as_source(stack)
    blocks = np.split(chosen, np.flatnonzero(np.diff(chosen // _ROWS)) + 1)
    calls = [(store, source, block, mse[block]) for block in blocks]
    problems: list[str] = []
    stage = progress("measure", len(chosen), "samples")
    try:
        for block, found in zip(blocks, run_in_order(_wrong, calls, client=client, name="measure"), strict=True):
            problems += found
            stage.advance(len(block))
    finally:
        stage.close()
    more = len(problems) - _TOLD
    return problems if more <= 1 else [*problems[:_TOLD], f"and {more:,} more samples"]


def _wrong(store: Compressed, source: Source, numbers: Array, stated: Array) -> list[str]:
    """Compare some samples, the body of a task."""
    (low, high), promised = store.facts["data_range"], store.facts.get("max_error")
    x, y = np.concatenate(list(read_samples(source, numbers))), store[numbers]
    found, off = mse_per_sample(x, y, data_range=high - low), largest_errors(x, y)
    problems = []
    for number, error, most, said in zip(numbers.tolist(), found, off, stated, strict=True):
        if promised is not None and not most <= promised:
            problems.append(f"sample {number} is off by {most:g}, more than the promised {promised:g}")
        elif not np.isclose(error, said, rtol=_NEAR, atol=1e-12):
            problems.append(f"sample {number} has a mean squared error of {error:.6g}, not the stated {said:.6g}")
    return problems
