"""The planner: nothing left out, nothing twice, never above the budget."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.engine import FoldPlan, PlanError, plan_fold
from dpca.partition import CellGrid
from dpca.rules import CovariancePCA


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], CellGrid, int, int]:
    spatial = tuple(draw(st.integers(1, 60)) for _ in range(draw(st.integers(1, 2))))
    cell = tuple(draw(st.integers(1, min(s, 12))) for s in spatial)
    shape = (draw(st.integers(1, 5_000)), *spatial)
    chunks = tuple(draw(st.integers(1, s)) for s in shape)
    budget = draw(st.sampled_from([26, 30, 40, 100, 1000])) * 2**20
    return shape, chunks, CellGrid(spatial, cell), budget, draw(st.integers(1, 9))


@given(problems())
@settings(deadline=None, max_examples=150)
def test_every_partition_once_every_sample_once_within_the_budget(
    problem: tuple[tuple[int, ...], tuple[int, ...], CellGrid, int, int],
) -> None:
    shape, chunks, grid, budget, n_parallel = problem
    try:
        plan = plan_fold(shape, np.uint8, chunks, grid, CovariancePCA(1), budget=budget, n_parallel=n_parallel)
    except PlanError as error:
        assert "MB" in str(error)  # noqa: PT017 (whether it is raised depends on the example)
        return
    assert sorted(itertools.chain(*(g.partitions for g in plan.groups))) == list(range(grid.n_partitions))
    assert plan.segments[0][0] == 0
    assert plan.segments[-1][1] == shape[0]
    assert all(a[1] == b[0] for a, b in itertools.pairwise(plan.segments))
    assert plan.task_bytes <= budget
    for group in plan.groups:
        for i in group.partitions:
            inside = zip(grid.region(i), group.region, strict=True)
            assert all(low <= a and b <= high for (a, b), (low, high) in inside)


def lfw(cell: int, budget: int, n: int = 13_233, **kwargs: int) -> FoldPlan:
    grid = CellGrid((250, 250, 3), (cell, cell))
    return plan_fold((n, 250, 250, 3), np.uint8, (512, 50, 50, 3), grid, CovariancePCA(20), budget=budget, **kwargs)


def test_chunks_are_read_once_where_memory_allows() -> None:
    plan = lfw(10, 2**30)
    assert len(plan.groups) == 25
    assert plan.read_bytes == 13_233 * 187_500
    assert plan.segments == ((0, 13_233),)


def test_more_samples_take_no_more_memory() -> None:
    assert lfw(10, 2**30, n=132_330).task_bytes == lfw(10, 2**30).task_bytes


def test_little_memory_splits_the_work() -> None:
    roomy, tight = lfw(25, 2**30), lfw(25, 150 * 2**20)
    assert len(tight.groups) > len(roomy.groups)
    assert tight.task_bytes <= 150 * 2**20


def test_more_workers_than_groups_get_segments() -> None:
    grid = CellGrid((28, 28), (7, 7))
    plan = plan_fold((60_000, 28, 28), np.uint8, (1000, 28, 28), grid, CovariancePCA(5), budget=2**30, n_parallel=4)
    assert len(plan.groups) == 1
    assert len(plan.segments) == 4


def test_the_refusal_names_the_number_the_limit_and_the_remedy() -> None:
    with pytest.raises(PlanError, match=r"187,500 attributes.* needs [\d,]+ MB but .* 1,074 MB: .*smaller cells"):
        lfw(250, 2**30)
