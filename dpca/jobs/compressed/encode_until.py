"""Write shards until the mean error of all samples meets the goal.

The step is chosen on a few hundred samples. If their mean error differs from that of all samples by a few per cent,
some shards are written again, and their first samples get no dead zone. With the same step and the same components,
their error is some 10 to 20 % smaller. The choice of shards depends only on the measured errors, so that a resumed run
makes the same choice.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpca.codec.goal import Goal
from dpca.codec.waves import RUN
from dpca.jobs.base.shards import ShardJob, ShardPass
from dpca.kernels.algebra.types import Array

# First estimate of the share of the error that vanishes without a dead zone. If the excess is more than half of what
# this can gain, a finer step takes fewer bytes.
_GAINS, _ENOUGH = {"mse": 0.1, "psnr": 0.1, "ssim": 0.04}, 0.5
# Safety factor of the error that is to vanish.
_MORE = 1.1


def write_until_met(
    job: ShardJob, shards: range, writing: ShardPass, goal: Goal | None, before: Array | None = None
) -> tuple[int, list[dict[str, Array]]]:
    """Write all shards; write some again if the mean error is too large and this can fix it.

    Parameters
    ----------
    job : ShardJob
        Writes a shard with its first samples, as many as its second argument says, without a dead zone.
    shards : range
        Shards to write.
    writing : ShardPass
    goal : Goal or None
    before : array (n,), optional
        Errors of samples that were written earlier and count for the goal.

    Returns
    -------
    int, list of dict
        The peak memory of a process, and the quality of the samples of each shard.
    """
    peak = writing.write(job, ((shard, 0) for shard in shards))
    nearest: dict[int, int] = {}
    if goal is not None and goal.is_of_samples and not (goal.every_sample or goal.has_residual):
        while more := _to_write_again(goal, shards, writing, nearest, before):
            nearest |= more
            peak = max(peak, writing.write(job, more.items()))
    return peak, [writing.quality(shard, nearest.get(shard, 0)) for shard in shards]


def _to_write_again(
    goal: Goal, shards: range, written: ShardPass, nearest: Mapping[int, int], before: Array | None
) -> dict[int, int]:
    """Return the shards to write again, each with its number of samples without a dead zone.

    Empty if the goal is met, or if this cannot fix it. ``nearest`` has the numbers so far.
    """
    first = {shard: goal.errors(written.quality(shard, 0)) for shard in shards}
    now = first | {shard: goal.errors(written.quality(shard, count)) for shard, count in nearest.items()}
    old = np.zeros(0) if before is None else before
    allowed = goal.allowed * (len(old) + sum(map(len, first.values())))
    excess = float(old.sum() + sum(errors.sum() for errors in now.values())) - allowed
    if excess <= 0:
        return {}
    tried = sum(first[s][:n].sum() for s, n in nearest.items())
    gain = 1 - sum(now[s][:n].sum() for s, n in nearest.items()) / tried if tried else _GAINS[goal.name]
    left = sum(errors[nearest.get(s, 0) :].sum() for s, errors in first.items())
    # Before the gain is measured, a large excess is left to a finer step.
    if not gain * left * (1 if nearest else _ENOUGH) > excess:
        return {}
    return _nearest(first, nearest, _MORE * excess / gain)


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
