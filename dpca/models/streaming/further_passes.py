"""Further passes of `StreamingPCA`: each multiplies the directions of the previous pass by the covariance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpca.engine.folds.plan import PlanError
from dpca.engine.folds.spread import plan_spread
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.models.base.passes import Passes
from dpca.partition.whole import Whole
from dpca.rules.covariance.covariance_product import RayleighRitz, refinement
from dpca.rules.covariance.measured import NextIterate, refined


def plan_further(first: Any, passes: Passes) -> None:
    """Plan the further passes of a fit before its first one begins, if they multiply all directions of that.

    Parameters
    ----------
    first : Rule
        The rule of the first pass.
    passes : Passes

    Raises
    ------
    PlanError
        If they do not fit, not even spread over blocks of attributes.
    """
    shape, dtype = tuple(passes.source.shape[1:]), working_dtype(passes.source.dtype)
    if not getattr(first, "wide", False):
        return
    d, k = math.prod(shape), first.n_components
    nothing = np.broadcast_to(np.zeros((), dtype), (min(k + first.oversampling, d), d))
    rule = RayleighRitz(nothing, nothing[0], first.center, n_components=k)
    try:
        passes.plan(Whole(shape), rule)
    except PlanError:
        if passes.run.n_parallel() < 2:
            raise
        plan_spread(NextIterate(rule), passes.source, passes.run)


def further_pass(
    passes: Passes, found: dict[str, Array], before: Array, stage: str, *, center: bool
) -> dict[str, Array]:
    """Return the result of a pass, from that of the previous one.

    If its products do not fit into a task, they are spread over blocks of attributes.

    Parameters
    ----------
    passes : Passes
    found : dict
        Result of the previous pass.
    before : array (k, d)
        Its components.
    stage : str
        Name of the pass in progress and checkpoints.
    center : bool

    Raises
    ------
    PlanError
        If the pass does not fit.
    """
    rule = refinement(found, before, found["mean"], center)
    try:
        (product,) = passes.over(Whole(tuple(passes.source.shape[1:])), rule, stage=stage)
    except PlanError:
        if not rule.spreadable or passes.run.n_parallel() < 2:
            raise
        return passes.spread(NextIterate(rule), stage=stage)
    return refined(product, len(before), before.dtype)
