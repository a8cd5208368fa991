"""What the planner adds up, and in which order it gives in when memory is short."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.engine.plan import FoldPlan, PlanError, decoded_row_bytes, plan_fold, read_rows
from dpca.partition import CellGrid
from dpca.rules import Covariance, CovariancePCA, Moments

MIB = 2**20


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    spatial = tuple(draw(st.integers(1, 40)) for _ in range(draw(st.integers(1, 3))))
    channels = draw(st.sampled_from([(), (1,), (3,)]))
    n = draw(st.sampled_from([1, 2, 17, 1000, 1023, 4097, 10**6, 10**9]))
    shape = (n, *spatial, *channels)
    return {
        "shape": shape,
        "dtype": draw(st.sampled_from([np.uint8, np.float32, np.float64])),
        "chunks": tuple(draw(st.integers(1, min(s, 3000))) for s in shape),
        "partition": CellGrid(shape[1:], tuple(draw(st.integers(1, min(s, 9))) for s in spatial)),
        "rule": draw(st.sampled_from([Covariance(), CovariancePCA(3), CovariancePCA(None), Moments()])),
        "budget": draw(st.integers(1, 400)) * MIB,
        "n_parallel": draw(st.integers(0, 40)),
        "held_whole": draw(st.sampled_from([None, MIB, 128 * MIB])),
    }


@given(problems())
@settings(deadline=None, max_examples=150, derandomize=True)
def test_a_plan_covers_everything_once_within_the_budget_or_is_refused(problem: dict[str, Any]) -> None:
    shape, grid = problem["shape"], problem["partition"]
    try:
        plan = plan_fold(**problem)
    except PlanError as error:
        # A budget that fits is named, and with it the plan is not refused again.
        found = re.search(r"needs ([\d,]+) MB but a task may take ([\d,]+) MB: allow at least ([\d,]+) MB", str(error))
        assert found is not None
        needed, allowed, remedy = (int(number.replace(",", "")) for number in found.groups())
        assert allowed == round(problem["budget"] / 1e6)
        assert allowed <= needed <= remedy
        plan = plan_fold(**{**problem, "budget": remedy * 10**6})
        assert plan.task_bytes <= remedy * 10**6
        return
    assert plan.task_bytes <= problem["budget"]
    assert sorted(itertools.chain(*(g.partitions for g in plan.groups))) == list(range(grid.n_partitions))
    assert plan.segments[0][0] == 0
    assert plan.segments[-1][1] == shape[0]
    assert all(a < b for a, b in plan.segments)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(plan.segments))
    # Batches and segments end where chunks do: none is decoded for two of them.
    whole = plan.batch_rows % problem["chunks"][0] == 0
    assert whole or plan.batch_rows == shape[0]
    assert all(start % plan.batch_rows == 0 for start, _ in plan.segments)
    for group in plan.groups:
        regions = [grid.region(i) for i in group.partitions]
        assert group.region == tuple(
            (min(a for a, _ in axis), max(b for _, b in axis)) for axis in zip(*regions, strict=True)
        )
    stack = math.prod(shape) * np.dtype(problem["dtype"]).itemsize
    assert stack <= plan.read_bytes <= 3 * stack
    results = (problem["rule"].result_bytes(grid.n_features(i), problem["dtype"]) for i in range(grid.n_partitions))
    assert plan.result_bytes == sum(results)


def plan(cell: int = 25, size: int = 250, n: int = 131_072, **options: Any) -> FoldPlan:
    """A stack of color images of 8 bits, one whole image a chunk as most people have it."""
    settings: dict[str, Any] = {"budget": 4 * 2**30, "chunks": (1, size, size, 3), "rule": CovariancePCA(20), **options}
    grid = CellGrid((size, size, 3), (cell, cell))
    return plan_fold((n, size, size, 3), np.uint8, partition=grid, **settings)


def test_states_batches_and_what_reading_takes_are_all_counted() -> None:
    found = plan(budget=10 * 2**30)
    assert len(found.groups) == 1
    states = 100 * 8 * 1875 * 1877
    batches = 2 * 1024 * 187_500
    assert found.batch_rows == 1024
    assert found.task_bytes > states + batches + 1024 * 1875 * 6 + 4 * 1875**2
    assert found.task_bytes < 1.5 * (states + batches) + 200e6


def test_states_that_wait_to_be_merged_are_counted() -> None:
    """On one worker a tree of 16 segments may hold five of them beside the one that is being filled."""
    alone, shared = (plan(size=50, budget=10 * 2**30, n_parallel=k) for k in (1, 16))
    assert (len(alone.segments), len(shared.segments)) == (1, 16)
    assert shared.task_bytes - alone.task_bytes >= 5 * 4 * 8 * 1875 * 1877


def test_more_workers_never_make_a_plan_fail() -> None:
    """Where states of several segments do not fit, samples stay in one segment."""
    budget = plan(size=25, n_parallel=1).task_bytes
    found = plan(size=25, n_parallel=64, budget=budget)
    assert len(found.segments) == 1
    assert len(plan(size=25, n_parallel=64).segments) == 64


def test_batches_are_shortened_first_but_not_so_far_that_updates_crawl() -> None:
    """Images one a chunk: batches of one sample would cost a whole pass over the covariance for each."""
    roomy, tight = plan(budget=10 * 2**30), plan(budget=1 * 2**30)
    assert roomy.batch_rows == 1024
    assert tight.batch_rows == 256
    assert len(tight.groups) > len(roomy.groups)
    # Nothing else helps a single cell, so then they are.
    assert plan(cell=250, budget=1000 * 2**30).batch_rows == 1024
    states = 8 * 187_500**2
    assert plan(cell=250, budget=int(1.25 * (1.6 * states))).batch_rows < 256


def test_groups_follow_the_chunks() -> None:
    found = plan(cell=10, chunks=(512, 50, 50, 3), n=10**6)
    assert len(found.groups) == 25
    assert found.read_bytes == 10**6 * 187_500
    for group in found.groups:
        assert all(a % 50 == 0 and b % 50 == 0 for a, b in group.region[:2])


def test_long_stacks_are_cut_so_that_no_task_is_endless() -> None:
    found = plan(cell=10, chunks=(512, 50, 50, 3), n=10**8)
    longest = max(b - a for a, b in found.segments)
    assert longest * 50 * 50 * 3 <= 17 * 2**30
    assert found.task_bytes < 1.2 * plan(cell=10, chunks=(512, 50, 50, 3), n=10**5).task_bytes + 200e6


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.data()), min_size=1, max_size=3),
    st.integers(1, 4000),
    st.sampled_from([1, 2, 4, 8]),
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_what_one_sample_of_a_box_decodes(axes: Any, rows: int, itemsize: int) -> None:
    """Counted chunk by chunk."""
    region, chunks, touched = [], [rows], 1
    for length, chunk, data in axes:
        start = data.draw(st.integers(0, length - 1))
        stop = data.draw(st.integers(start + 1, length))
        region.append((start, stop))
        chunks.append(chunk)
        touched *= len({i // chunk for i in range(start, stop)})
    expected = touched * math.prod(chunks[1:]) * itemsize
    assert decoded_row_bytes(tuple(region), chunks, itemsize) == expected
    at_once = read_rows(tuple(region), chunks, itemsize)
    assert at_once % rows == 0
    assert at_once == rows or at_once * expected <= 16 * MIB
    assert (at_once + rows) * expected > 16 * MIB


def test_a_refusal_says_what_would_fit() -> None:
    with pytest.raises(PlanError, match=r"62,500 attributes, read 1 samples .* may take 500 MB: .* smaller cells"):
        plan_fold(
            (10, 250, 250), np.float32, (1, 250, 250), CellGrid((250, 250), (250, 250)), Covariance(), budget=5 * 10**8
        )
