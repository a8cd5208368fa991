"""Writing until the mean error of all samples is small enough: a step is chosen by some hundred of them.

Where their mean misses that of all by a few per cent, some shards are written again, their first samples without a dead
zone: with the same step and the same components, these have some 10 to 20 % less error. Which shards follows from the
measured errors, so that an interrupted run resumes with the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from dpca.codec.goal import Goal
from dpca.codec.waves import RUN
from dpca.kernels.types import Array

# Share of their error that samples lose without a dead zone, until it is measured; and the share of what all can lose
# from which a finer step takes fewer bytes.
_GAINS, _ENOUGH = {"mse": 0.1, "psnr": 0.1, "ssim": 0.04}, 0.5
# So much more than should be enough is written again.
_MORE = 1.1


def write_until_met(
    goal: Goal | None,
    shards: Iterable[int],
    write: Callable[[Mapping[int, int]], int],
    record: Callable[[int, int], Mapping[str, Array]],
    before: Array | None = None,
) -> tuple[int, dict[int, int]]:
    """Write all shards, and some of them again where their mean error is too large and that helps.

    Parameters
    ----------
    goal : Goal or None
    shards : iterable of int
        What is to be written.
    write : callable (mapping from shards to numbers of samples)
        Writes each of the shards with no record yet, its first samples, that many, without a dead zone; returns the
        most memory that a process held.
    record : callable (shard, number of samples)
        Returns the quality of the samples of a shard that was written so.
    before : array (n,), optional
        Errors of samples that are written already, and count, too.

    Returns
    -------
    int, dict of int to int
        The most memory that a process held; shards whose first samples, so many, were written without a dead zone.
    """
    peak = write(dict.fromkeys(shards, 0))
    nearest: dict[int, int] = {}
    if goal is None or not goal.is_of_samples or goal.every_sample:
        return peak, nearest
    first = {shard: goal.errors(record(shard, 0)) for shard in shards}
    old = np.zeros(0) if before is None else before
    allowed = goal.allowed * (len(old) + sum(map(len, first.values())))
    while True:
        now = {s: goal.errors(record(s, nearest[s])) if s in nearest else errors for s, errors in first.items()}
        excess = float(old.sum() + sum(errors.sum() for errors in now.values())) - allowed
        if excess <= 0:
            return peak, nearest
        tried = sum(first[s][:n].sum() for s, n in nearest.items())
        gain = 1 - sum(now[s][:n].sum() for s, n in nearest.items()) / tried if tried else _GAINS[goal.name]
        left = sum(errors[nearest.get(s, 0) :].sum() for s, errors in first.items())
        # Before any was tried, a finer step is what a large excess takes.
        if not gain * left * (1 if nearest else _ENOUGH) > excess:
            return peak, nearest
        more = _nearest(first, nearest, _MORE * excess / gain)
        nearest |= more
        peak = max(peak, write(more))


def _nearest(first: Mapping[int, Array], nearest: Mapping[int, int], error: float) -> dict[int, int]:
    """Return shards that have so much error yet, and of how many of their samples: unfinished ones, then the worst."""
    found: dict[int, int] = {}
    for shard in sorted(first, key=lambda s: (-nearest.get(s, 0), -first[s].sum(), s)):
        begin, errors = nearest.get(shard, 0), first[shard]
        if error <= 0 or begin == len(errors):
            continue
        few = 1 + int(np.searchsorted(errors[begin:].cumsum(), error))
        found[shard] = min(len(errors), -(-(begin + few) // RUN) * RUN)
        error -= float(errors[begin : found[shard]].sum())
    return found
