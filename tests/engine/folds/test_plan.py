"""The planner: nothing left out, nothing twice, never above the budget."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.engine.folds.plan import FoldPlan, PlanError, plan_fold
from dpca.engine.sources.source import Source, ZarrSource
from dpca.models.streaming.streaming_methods import RuleStream, make_rule
from dpca.partition import Bands, CellGrid, LappedGrid, Whole, map_at_random
from dpca.rules.covariance.covariance import Covariance, CovariancePCA
from dpca.rules.covariance.snapshots import SnapshotPCA


def stack(shape: tuple[int, ...], chunks: tuple[int, ...]) -> Source:
    return ZarrSource("nowhere", shape, np.dtype(np.uint8), chunks)


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], CellGrid | Bands, int, int]:
    spatial = tuple(draw(st.integers(1, 60)) for _ in range(draw(st.integers(1, 2))))
    cell = tuple(draw(st.integers(1, min(s, 12))) for s in spatial)
    shape = (draw(st.integers(1, 5_000)), *spatial)
    chunks = tuple(draw(st.integers(1, s)) for s in shape)
    budget = draw(st.sampled_from([26, 30, 40, 100, 1000])) * 2**20
    bands = map_at_random(spatial, draw(st.integers(1, 900)), np.random.default_rng(0))
    ways: list[CellGrid | Bands] = [CellGrid(spatial, cell), bands]
    if max(cell) >= 4:
        ways.append(LappedGrid(spatial, cell, max(cell) // 2))
    return shape, chunks, draw(st.sampled_from(ways)), budget, draw(st.integers(1, 9))


@given(problems())
@settings(deadline=None, max_examples=80)
def test_every_partition_once_every_sample_once_within_the_budget(
    problem: tuple[tuple[int, ...], tuple[int, ...], CellGrid | Bands, int, int],
) -> None:
    shape, chunks, grid, budget, n_parallel = problem
    try:
        plan = plan_fold(stack(shape, chunks), grid, CovariancePCA(1), budget=budget, n_parallel=n_parallel)
    except PlanError as error:
        assert "MB" in str(error)  # noqa: PT017 (whether it is raised depends on the example)
        return
    assert sorted(itertools.chain(*(g.partitions for g in plan.groups))) == list(range(grid.n_parts))
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
    return plan_fold(stack((n, 250, 250, 3), (512, 50, 50, 3)), grid, CovariancePCA(20), budget=budget, **kwargs)


def test_chunks_are_read_once_where_memory_allows() -> None:
    plan = lfw(10, 2**30)
    assert len(plan.groups) == 25
    assert plan.read_bytes == 13_233 * 187_500
    assert plan.segments == ((0, 13_233),)


def test_an_overlap_reads_no_more_than_its_share_of_attributes() -> None:
    shape, chunks, rule = (13_233, 250, 250, 3), (16, 250, 250, 3), CovariancePCA(20)
    for budget in (150 * 2**20, 2**30, 2**32):
        lapped, plain = (
            plan_fold(stack(shape, chunks), grid, rule, budget=budget)
            for grid in (LappedGrid(shape[1:], (10, 10), 2), CellGrid(shape[1:], (10, 10)))
        )
        assert lapped.task_bytes <= budget
        # Boxes of groups that are no rectangles are read whole, with and without an overlap.
        assert lapped.read_bytes <= 1.4**2 * plain.read_bytes


@pytest.mark.parametrize(("budget", "times"), [(300, 2.0), (1000, 1.5), (4000, 1.2)])
@pytest.mark.parametrize("grid", [LappedGrid((4096, 4096), (16, 16), 4), CellGrid((4096, 4096), (18, 18))])
def test_neighbors_in_the_same_chunks_are_read_together(grid: CellGrid, budget: int, times: float) -> None:
    """Rows of cells over the whole width would decode each chunk four times with the least memory."""
    source = stack((12, 4096, 4096), (1, 512, 512))
    plan = plan_fold(source, grid, SnapshotPCA(12, 2), budget=budget * 10**6, n_parallel=2)
    decoded = sum(source.decoded_bytes(group.region) for group in plan.groups)
    assert decoded <= times * 4096**2


def test_more_samples_take_no_more_memory() -> None:
    assert lfw(10, 2**30, n=132_330).task_bytes == lfw(10, 2**30).task_bytes


def test_little_memory_splits_the_work() -> None:
    roomy, tight = lfw(25, 2**30), lfw(25, 150 * 2**20)
    assert len(tight.groups) > len(roomy.groups)
    assert tight.task_bytes <= 150 * 2**20


def test_more_workers_than_groups_get_segments() -> None:
    grid = CellGrid((28, 28), (7, 7))
    plan = plan_fold(stack((60_000, 28, 28), (1000, 28, 28)), grid, CovariancePCA(5), budget=2**30, n_parallel=4)
    assert len(plan.groups) == 1
    assert len(plan.segments) == 4


@pytest.mark.parametrize(("workers", "segments"), [(1, 5), (2, 6), (4, 8), (5, 5)])
def test_each_worker_gets_as_many_segments(workers: int, segments: int) -> None:
    """Segments have up to 256 GiB, and the stack has a sample more than four of them."""
    source = ZarrSource("large", (4 * 2**38 // 196_608 + 1, 256, 256, 3), np.dtype(np.uint8), (64, 256, 256, 3))
    rule = make_rule("incremental-svd", 5, center=True, batch_size=None, seed=0)
    plan = plan_fold(source, Whole((256, 256, 3)), rule, budget=2**34, n_parallel=workers)
    assert len(plan.segments) == segments


def lfw_bands(budget: float, n_parallel: int, n: int = 13_233) -> FoldPlan:
    """100 bands of 1,875 attributes, with covariances of 2.8 GB."""
    bands = map_at_random((250, 250, 3), 1_875, np.random.default_rng(0), together=3)
    stored = stack((n, 250, 250, 3), (512, 50, 50, 3))
    return plan_fold(stored, bands, CovariancePCA(125), budget=int(budget), n_parallel=n_parallel)


def test_bands_take_turns_rather_than_small_batches() -> None:
    # All covariances at once would leave room for batches of 512 samples, and add 2.8 GB to them 26 times.
    plan = lfw_bands(4.0e9, 1)
    assert len(plan.groups) == 2
    assert plan.batch_rows >= 2048
    assert plan.read_bytes == 2 * 13_233 * 187_500
    assert lfw_bands(10e9, 1).read_bytes == 13_233 * 187_500


def test_two_workers_share_the_bands_and_not_the_samples() -> None:
    plan = lfw_bands(8e9, 2)
    assert len(plan.groups) == 2
    assert plan.segments == ((0, 13_233),)


def test_many_workers_share_the_samples_of_a_large_stack() -> None:
    # A hundred groups of one band would decode 600 GB a hundred times.
    plan = lfw_bands(40e9, 100, n=3_000_000)
    assert plan.read_bytes <= 4 * 3_000_000 * 187_500
    assert len(plan.groups) * len(plan.segments) >= 100


@pytest.mark.parametrize("budget", [1.0, 1.2, 1.5, 2.0, 4.0, 16.0])
@pytest.mark.parametrize("workers", [1, 2, 7])
def test_little_memory_leaves_no_worker_idle_and_no_checkpoint_far(budget: float, workers: int) -> None:
    """The default of StreamingPCA on 600 GB of photographs: states that wait to be merged take most of the memory."""
    source = ZarrSource("lsun", (3_033_042, 256, 256, 3), np.dtype(np.uint8), (64, 256, 256, 3))
    rule = make_rule(
        "incremental-svd", 50, center=True, batch_size=None, seed=0, stream=RuleStream(n_features=256 * 256 * 3)
    )
    plan = plan_fold(source, Whole((256, 256, 3)), rule, budget=int(budget * 2**30), n_parallel=workers)
    assert len(plan.segments) >= workers
    assert plan.task_bytes <= budget * 2**30
    assert 2 * 2**30 < plan.checkpoint_rows * 256 * 256 * 3 <= 4 * 2**30


def test_the_refusal_names_the_number_the_limit_and_the_remedy() -> None:
    with pytest.raises(PlanError, match=r"187,500.*1,074.MB"):
        lfw(250, 2**30)


PLANS = json.loads((Path(__file__).parent / "plans.json").read_text())


class Cost(Covariance):
    """What the planner asks a rule, with numbers of its own."""

    def __init__(self, mergeable: bool, k: int) -> None:
        self.__dict__.update(merges=mergeable, k=k)

    @property
    def mergeable(self) -> bool:
        return self.merges

    def batch_rows(self, dtype: Any) -> int:
        return 2048 if self.merges else 256

    def state_bytes(self, n_features: int, dtype: Any) -> int:
        return 8 * n_features * (n_features if self.merges else 60 + self.k)

    def work_bytes(self, n_rows: int, n_features: int, dtype: Any) -> int:
        return 4 * n_rows * n_features + 8 * n_features * self.k

    def result_bytes(self, n_features: int, dtype: Any) -> int:
        return 8 * n_features * self.k


def text(plan: FoldPlan) -> str:
    groups = [(group.partitions, group.region) for group in plan.groups]
    numbers = (plan.batch_rows, plan.task_bytes, plan.read_bytes, plan.result_bytes, plan.threads)
    return repr((groups, plan.segments, *numbers))


@pytest.mark.parametrize("problem", PLANS["problems"], ids=itertools.count())
def test_plans_stay_what_they_were(problem: list[Any]) -> None:
    """Other plans give other bytes: the sums of a group's samples depend on where batches and segments end."""
    p = dict(zip(PLANS["fields"], problem, strict=True))
    sample, cell = tuple(p["shape"][1:]), tuple(p["cell"])
    grid = CellGrid(sample, cell) if cell else map_at_random(sample, p["band"], np.random.default_rng(0))
    rule = Cost(p["mergeable"], p["k"])
    source = ZarrSource("nowhere", tuple(p["shape"]), np.dtype(p["dtype"]), tuple(p["chunks"]))
    source.buffered_rows, source.n_readers = p["buffered_rows"], p["readers"]
    source.segment_bytes = 128 * 2**20 if p["whole"] else None
    try:
        plan = plan_fold(source, grid, rule, budget=p["budget"], n_parallel=p["n_parallel"], threads=p["threads"])
    except PlanError as error:
        numbers = re.findall(r"[0-9][0-9,]*", str(error).replace(", ", " "))
        assert " ".join(numbers) == p["plan"]
    else:
        assert blake2b(text(plan).encode(), digest_size=6).hexdigest() == p["plan"]


@pytest.mark.parametrize("cells", [25, 50, 100])
def test_planning_looks_at_each_cell_once_and_at_each_group_a_few_times(cells: int) -> None:
    """Of an array in memory every cell is a tile of its own."""
    asked: Counter[str] = Counter()

    class Counting(CellGrid):
        def region(self, index: int) -> Any:
            asked["region"] += 1
            return super().region(index)

    class Rule(CovariancePCA):
        def work_bytes(self, n_rows: int, n_features: int, dtype: Any) -> int:
            asked["task"] += 1
            return super().work_bytes(n_rows, n_features, dtype)

    side = 5 * cells
    stored = stack((500, side, side, 3), (1, 1, 1, 1))
    plan = plan_fold(stored, Counting((side, side, 3), (5, 5)), Rule(5), budget=2**31, n_parallel=2)
    assert sum(len(group.partitions) for group in plan.groups) == cells**2
    assert asked["region"] == cells**2
    assert asked["task"] <= 40 * len(plan.groups)
