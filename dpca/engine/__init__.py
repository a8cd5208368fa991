"""Folds of rules over stores, on Dask: planning, reading ahead, merging, checkpoints, memory. Knows no PCA."""

from __future__ import annotations

from dpca.engine.fold import FoldReport, fold, plan_for
from dpca.engine.plan import FoldPlan, PlanError, plan_fold
from dpca.engine.rounds import Averaging, DataParallel
from dpca.engine.source import Source, as_source

__all__ = [
    "Averaging",
    "DataParallel",
    "FoldPlan",
    "FoldReport",
    "PlanError",
    "Source",
    "as_source",
    "fold",
    "plan_fold",
    "plan_for",
]
