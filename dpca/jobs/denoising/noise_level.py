"""The noise that a compressed store may lose a share of: given, or estimated in one pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sklearn.base import clone

from dpca.choices import NOISE_SHARE, RICIAN
from dpca.codec.goal import Goal
from dpca.engine.sources.source import Source, as_source
from dpca.engine.sources.tiled import TiledSource
from dpca.jobs.base.stages import NOTHING, StageCost, stopwatch
from dpca.models.cells.known_noise import check_noise, given_noise
from dpca.models.denoising.denoiser import Denoiser
from dpca.storage.errors import DataError
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.workspace import Workspace

# Name of a done-marker.
_NOISE = "noise level"


def check_noise_of(goal: Goal, noise: Denoiser | None) -> None:
    """Reject an estimator of the noise that does not belong to a goal.

    Raises
    ------
    DataError
    """
    if noise is not None and goal.name != NOISE_SHARE:
        raise DataError(f"noise is given with {goal.name}: it requires {NOISE_SHARE}")
    if noise is not None and noise.noise == RICIAN:
        raise DataError("noise is 'rician', whose variance depends on the signal: give sigma, a map of the noise")


def check_noise_plan(noise: Denoiser | None, source: Source, run: Run) -> None:
    """Check that the noise of samples can be estimated within the memory of a run, unless it is given.

    Raises
    ------
    DataError, PlanError
    """
    if isinstance(source, TiledSource):
        raise DataError(
            f"{NOISE_SHARE} is the goal, but samples of {source.source.shape[1:]} are in tiles, which have no steps "
            f"of noise: give max_error, or parts of the samples"
        )
    if noise is None or noise.sigma is None:
        (Denoiser() if noise is None else noise).plan(source, run)


def goal_with_noise(
    goal: Goal, stack: Stack, noise: Denoiser | None, run: Run, work: Workspace | None = None
) -> tuple[Goal, StageCost]:
    """Return a goal with the standard deviation of the noise, if it is a share of that, and the cost of the estimate.

    A workspace keeps the estimate, and the state of an interrupted one.

    Raises
    ------
    DataError
        If the noise is invalid, or cannot be estimated.
    PlanError
        If a cell of the estimate does not fit the memory.
    """
    check_noise_of(goal, noise)
    if goal.name != NOISE_SHARE:
        return goal, NOTHING
    check_noise_plan(noise, as_source(stack), run)
    model, shape, cost, spent = Denoiser() if noise is None else noise, tuple(stack.sample_shape), stopwatch(), NOTHING
    if work is not None and work.is_done(_NOISE):
        sigma = work.arrays(_NOISE)["sigma"]
    elif model.sigma is not None:
        given = np.asarray(given_noise(model.sigma))
        sigma = given[0] if given.shape == (1, *shape) else given
        check_noise(sigma, shape)
        sigma = np.broadcast_to(sigma, shape)
    else:
        if work is not None:
            run = replace(run, checkpoints=Checkpoints(str(work.scratch / "noise"), str(work.scratch)))
        fitted = clone(model).fit(stack, run=run)
        sigma, report = fitted.sigma_, fitted.fit_report_
        spent = cost(report.plan.read_bytes, report.peak_memory)
        if work is not None:
            work.mark_done(_NOISE, arrays={"sigma": sigma})
    if stack.dtype.kind == "f" and not sigma.any():
        raise DataError(f"'{stack.path}' has no noise: give another goal, such as max_error")
    known = replace(goal, sigma=sigma)
    try:
        known.noise_steps(stack.dtype)
    except ValueError as error:
        raise DataError(str(error)) from error
    return known, spent
