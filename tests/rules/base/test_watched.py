"""How far the end of a stream moved the components: against angles that were put in, and scipy's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dpca.rules import CCIPCA, IPCA, IncrementalSVD, Oja
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.watched import Watched, moved
from dpca.rules.covariance.streaming_covariance import StreamingCovariance
from tests.rules.streams import fit, fold, planted


@pytest.mark.parametrize("angle", [1e-6, 1e-3, 0.3, 1.5, math.pi / 2])
def test_an_angle_that_was_put_in(angle: float) -> None:
    before = np.eye(3, 8)
    after = before.copy()
    after[2, 2], after[2, 5] = math.cos(angle), math.sin(angle)
    found, share = moved(before, after, np.array([6.0, 3.0, 1.0]))
    assert found == pytest.approx(angle, rel=1e-4)
    assert share == pytest.approx(math.sin(angle) ** 2 / 10, rel=1e-6)
    turn = scipy.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    assert moved(turn @ before, after, np.array([6.0, 3.0, 1.0])) == pytest.approx((found, share), rel=1e-4)


def test_random_subspaces_of_unequal_rank_have_scipys_largest_angle() -> None:
    rng = np.random.default_rng(1)
    a, b = (np.linalg.qr(rng.normal(size=(9, k)))[0].T for k in (2, 4))
    expected = scipy.linalg.subspace_angles(a.T, b.T)[0]
    assert moved(a, b, np.ones(4))[0] == pytest.approx(expected)
    assert moved(b, a, np.ones(2))[0] == pytest.approx(expected)
    # Two directions of four are new, and the others partly.
    assert moved(a, b, np.ones(4))[1] == pytest.approx(1 - np.linalg.norm(a @ b.T) ** 2 / 4)


def test_float32_rows_that_did_not_move_have_no_angle() -> None:
    rows = np.linalg.qr(np.random.default_rng(2).normal(size=(500, 5)))[0].T.astype(np.float32)
    angle, share = moved(rows, rows.copy(), np.ones(5))
    assert angle < 1e-7
    assert share < 1e-14
    assert moved(rows, rows, np.zeros(5))[1] == 0


@pytest.mark.parametrize("rule", [Oja(3, seed=1), CCIPCA(3), IPCA(3), IncrementalSVD(3, 4)])
def test_the_last_tenth_of_one_stream(rule: Any) -> None:
    x = planted(1000)
    watched = fit(Watched(rule, 1000), x, rows=50)
    plain, earlier = fit(rule, x, rows=50), fit(rule, x[:900], rows=50)
    for name, value in plain.items():
        np.testing.assert_array_equal(watched[name], value)
    expected = moved(earlier["components"], plain["components"], plain["explained_variance"])
    # Earlier directions of incremental SVD are not made orthonormal again, but span the same.
    assert (float(watched["angle_moved"]), float(watched["variance_moved"])) == pytest.approx(expected, rel=1e-9)
    assert 0 < expected[0] < 1


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_the_last_tenth_of_a_covariance(dtype: type) -> None:
    """Its earlier components are found without their bound, and are the same."""
    x = (20 * planted(1000) + 128).clip(0, 255).astype(dtype)
    rule = StreamingCovariance(3)
    watched, earlier = fit(Watched(rule, 1000), x, rows=50), fit(rule, x[:900], rows=50)
    expected = moved(earlier["components"], watched["components"], watched["explained_variance"])
    assert (float(watched["angle_moved"]), float(watched["variance_moved"])) == pytest.approx(expected, rel=1e-3)
    assert 0 < expected[0] < 1


def test_batches_that_reach_into_the_last_tenth_count_to_it() -> None:
    x = planted(1000)
    watched = fit(InBatches(Watched(Oja(3), 1000), 300), x, rows=70)
    earlier = fit(Oja(3), x[:900], rows=300)
    plain = fit(Oja(3), x, rows=300)
    assert float(watched["angle_moved"]) == moved(earlier["components"], plain["components"], np.ones(3))[0]
    one_batch = fit(Watched(Oja(3), 1000), x, rows=1000)
    assert np.isnan(one_batch["angle_moved"])
    assert np.isnan(one_batch["variance_moved"])


def test_a_merge_compares_with_what_came_before() -> None:
    rule, x = IncrementalSVD(3, 4), planted(1000)
    watch = InBatches(Watched(rule, 1000), 50)
    found = watch.finish(watch.merge(fold(watch, x[:500]), fold(watch, x[500:])))
    first = fit(rule, x[:500], rows=50)
    expected = moved(first["components"], found["components"], np.ones(3))[0]
    assert float(found["angle_moved"]) == pytest.approx(expected, rel=1e-9)
    alone = watch.finish(watch.merge(fold(watch, x), watch.init(30, float)))
    assert float(alone["angle_moved"]) == float(fit(watch, x)["angle_moved"])


@pytest.mark.parametrize("rule", [Oja(3), IncrementalSVD(3, 4)])
def test_the_memory_that_is_stated(rule: Any) -> None:
    watched = Watched(rule, 1000)
    state = fold(watched, planted(1000).astype(np.float32), rows=50)
    assert state.arrays["earlier_components"].shape == (3, 30)
    assert state.arrays["earlier_components"].dtype == np.float32
    assert state.nbytes <= watched.state_bytes(30, np.float32)
    # Incremental SVD copies its directions. Other rules finish a copy of their state.
    finished = 0 if isinstance(rule, IncrementalSVD) else state.nbytes - 360
    assert watched.work_bytes(50, 30, np.float32) >= rule.work_bytes(50, 30, np.float32) + finished


@pytest.mark.parametrize("rule", [Oja(3), StreamingCovariance(3), IncrementalSVD(3, 4)])
def test_components_so_far_leave_the_state_as_it_is(rule: Any) -> None:
    state = fold(rule, planted(1000)[:500], rows=50)
    before = {name: array.copy() for name, array in state.arrays.items()}
    components = rule.components_of(state)
    for name, array in before.items():
        np.testing.assert_array_equal(state.arrays[name], array)
    assert not any(np.shares_memory(components, array) for array in state.arrays.values())
    expected = rule.finish(state)["components"]
    np.testing.assert_allclose(np.abs((components * expected).sum(axis=1)), 1, rtol=1e-9)


def test_few_samples_have_as_many_earlier_directions() -> None:
    """Two centered samples have one direction, and the final components contain it."""
    x = np.random.default_rng(3).normal(size=(4, 30))
    watched = fit(Watched(IncrementalSVD(3, 4), 4), x, rows=2)
    assert float(watched["angle_moved"]) < 1e-6
    assert float(watched["variance_moved"]) > 0.1
