"""Write shards until the mean error of all samples meets the goal.

The step is chosen on a few hundred samples. If their mean error differs from that of all samples by a few per cent,
some shards are written again, and their first samples get no dead zone. With the same step and the same components,
their error is some 10 to 20 % smaller. The choice of shards depends only on the measured errors, so that a resumed run
makes the same choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from dpca.codec.goal import Goal
from dpca.codec.waves import RUN
from dpca.kernels.algebra.types import Array

# First estimate of the share of the error that vanishes without a dead zone. If the excess is more than half of what
# this can gain, a finer step takes fewer bytes.
_GAINS, _ENOUGH = {"mse": 0.1, "psnr": 0.1, "ssim": 0.04}, 0.5
# Safety factor of the error that is to vanish.
_MORE = 1.1


def write_until_met(
    goal: Goal | None,
    shards: Iterable[int],
    write: Callable[[Mapping[int, int]], int],
    quality: Callable[[int, int], Mapping[str, Array]],
    before: Array | None = None,
) -> tuple[int, dict[int, int]]:
    """Write all shards; write some again if the mean error is too large and this can fix it.

    Parameters
    ----------
    goal : Goal or None
    shards : iterable of int
        Shards to write.
    write : callable (mapping from shards to numbers of samples)
        Writes each shard that has no done-marker, its first samples (this many) without a dead zone. Returns the peak
        memory of a process.
    quality : callable (shard, number of samples)
        Returns the quality of the samples of a shard that was written in this way.
    before : array (n,), optional
        Errors of samples that were written earlier and count for the goal.

    Returns
    -------
    int, dict of int to int
        The peak memory of a process; for each shard, its number of samples without a dead zone.
    """
    every = dict.fromkeys(shards, 0)
    peak = write(every)
    nearest: dict[int, int] = {}
    if goal is None or not goal.is_of_samples or goal.every_sample:
        return peak, every
    first = {shard: goal.errors(quality(shard, 0)) for shard in every}
    old = np.zeros(0) if before is None else before
    allowed = goal.allowed * (len(old) + sum(map(len, first.values())))
    while True:
        now = {s: goal.errors(quality(s, nearest[s])) if s in nearest else errors for s, errors in first.items()}
        excess = float(old.sum() + sum(errors.sum() for errors in now.values())) - allowed
        if excess <= 0:
            return peak, every | nearest
        tried = sum(first[s][:n].sum() for s, n in nearest.items())
        gain = 1 - sum(now[s][:n].sum() for s, n in nearest.items()) / tried if tried else _GAINS[goal.name]
        left = sum(errors[nearest.get(s, 0) :].sum() for s, errors in first.items())
        # Before the gain is measured, a large excess is left to a finer step.
        if not gain * left * (1 if nearest else _ENOUGH) > excess:
            return peak, every | nearest
        more = _nearest(first, nearest, _MORE * excess / gain)
        nearest |= more
        peak = max(peak, write(more))


def _nearest(first: Mapping[int, Array], nearest: Mapping[int, int], error: float) -> dict[int, int]:
    """Return shards with this much error in total, and numbers of their samples; unfinished shards, then the worst."""
    found: dict[int, int] = {}
    for shard in sorted(first, key=lambda s: (-nearest.get(s, 0), -first[s].sum(), s)):
        begin, errors = nearest.get(shard, 0), first[shard]
        if error <= 0 or begin == len(errors):
            continue
        few = 1 + int(np.searchsorted(errors[begin:].cumsum(), error))
        found[shard] = min(len(errors), -(-(begin + few) // RUN) * RUN)
        error -= float(errors[begin : found[shard]].sum())
    return found
