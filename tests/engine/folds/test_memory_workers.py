"""The measured memory of a cluster's worker over many tasks, compared with the plan."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from dpca.engine.folds.plan import plan_fold
from dpca.engine.sources.source import ZarrSource
from dpca.partition import CellGrid
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.rules.covariance.moments import Moments
from dpca.storage.arrays.layout import Layout
from tests.engine.folds.worker_memory import linked_stack, measured

pytestmark = [
    pytest.mark.memory,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process forget its peak"),
]


def test_a_long_stack_takes_no_more_than_was_planned_for_a_tenth_of_it(tmp_path: Path) -> None:
    layout = Layout((256, 30, 30, 3), (512, 60, 60, 3))
    grid, rule = CellGrid((60, 60, 3), (5, 5)), CovariancePCA(3)
    n = rule.batch_rows(np.uint8)
    tenth = ZarrSource("nowhere", (n, 60, 60, 3), np.dtype(np.uint8), layout.chunks)
    short = plan_fold(tenth, grid, rule, budget=2**30)
    grown, plan = measured(linked_stack(tmp_path, 10 * n, (60, 60, 3), np.uint8, layout), (5, 5), rule)
    assert 30e6 < grown <= plan.task_bytes <= short.task_bytes


def test_foreign_chunks_of_one_image_in_little_memory(tmp_path: Path) -> None:
    """Every group has to decode whole images to get at its cells."""
    path = linked_stack(tmp_path, 300, (128, 96, 3), np.float32, Layout((1, 128, 96, 3), (60, 128, 96, 3)))
    grown, plan = measured(path, (12, 12), CovariancePCA(4), budget=100 * 2**20)
    assert len(plan.groups) > 2
    assert 30e6 < grown <= plan.task_bytes <= 100 * 2**20


def test_moments_of_large_batches(tmp_path: Path) -> None:
    path = linked_stack(tmp_path, 2048, (128, 96), np.float32)
    grown, plan = measured(path, (128, 96), Moments())
    assert 80e6 < grown <= plan.task_bytes
