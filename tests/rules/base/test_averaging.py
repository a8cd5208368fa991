"""Streams that part from one state and are averaged: by hand, at the limits, and with every sample counted once."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.rules import (
    CCIPCA,
    IPCA,
    AcceleratedBlockPower,
    AcceleratedOja,
    BlockPower,
    ExplicitKrasulina,
    ImplicitKrasulina,
    IncrementalSVD,
    Krasulina,
    Oja,
    OjaSubspace,
    Power,
    Sanger,
    SimilarityMatching,
)
from dpca.rules.base.basis import BasisRule
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.state import State
from tests.rules.streams import lost_variance, planted

RULES = [
    Oja(3, Power(0.1, 0.5), seed=2, unit=1.0),
    OjaSubspace(3, Power(0.1, 0.5), seed=2, unit=1.0),
    Sanger(3, Power(0.1, 0.5), seed=2, unit=1.0),
    Krasulina(3, Power(0.1, 0.5), seed=2, unit=1.0),
    ImplicitKrasulina(3, seed=2),
    ImplicitKrasulina(3, online=True, seed=2),
    ExplicitKrasulina(3, Power(0.1, 0.5), seed=2, unit=1.0),
    AcceleratedOja(3, seed=2),
]
NAMES = [f"{type(rule).__name__}{'-online' * rule.online}" for rule in RULES]
each_rule = pytest.mark.parametrize("rule", RULES, ids=NAMES)


def streams(rule: Any, parts: list[np.ndarray], before: State, rows: int = 20) -> list[State]:
    states = [before.copy() for _ in parts]
    for i, part in enumerate(parts):
        for start in range(0, len(part), rows):
            states[i] = rule.update(states[i], part[start : start + rows])
    return states


def resume_from(rule: Any, x: np.ndarray) -> State:
    return rule.update(rule.init(x.shape[1], x.dtype), x)


def test_which_rules_average() -> None:
    assert all(rule.averageable for rule in RULES)
    others = [CCIPCA(2), IPCA(2), BlockPower(2), AcceleratedBlockPower(2), IncrementalSVD(2), SimilarityMatching(2)]
    assert not any(rule.averageable for rule in others)
    assert InBatches(Oja(2), 5).averageable
    assert not InBatches(CCIPCA(2), 5).averageable


@pytest.mark.parametrize("kind", [Oja, Krasulina, AcceleratedOja])
def test_bases_are_averaged_by_samples_and_orthonormalized(kind: type[BasisRule]) -> None:
    """Two rows in three dimensions; streams of 3 and 1 samples turn the second row by 0 and 60 degrees."""
    rule = kind(2)
    before = rule.init(3, np.float64)
    states = [before.copy(), before.copy()]
    for state, n, angle in zip(states, (3, 1), (0.0, np.pi / 3), strict=True):
        state.counts |= {"n_samples": n, "n_updates": n, "n_projected": n}
        state.arrays["components"][...] = [[1, 0, 0], [0, np.cos(angle), np.sin(angle)]]
    found = rule.average(before, states).arrays["components"]
    mixed = np.array([0, 3 + 0.5, np.sqrt(3) / 2])
    np.testing.assert_allclose(found, [[1, 0, 0], mixed / np.linalg.norm(mixed)], atol=1e-14)


@pytest.mark.parametrize("kind", [OjaSubspace, Sanger, ImplicitKrasulina, ExplicitKrasulina])
def test_other_bases_are_averaged_as_they_are(kind: type[BasisRule]) -> None:
    rule = kind(1)
    before = rule.init(2, np.float64)
    states = [before.copy(), before.copy()]
    for state, n, rows in zip(states, (1, 3), ([[2.0, 0.0]], [[0.0, 4.0]]), strict=True):
        state.counts["n_samples"] = n
        state.arrays["components"][...] = rows
    np.testing.assert_allclose(rule.average(before, states).arrays["components"], [[0.5, 3.0]], rtol=1e-14)


def test_implicit_bases_are_averaged_as_they_are() -> None:
    """Equation 18 of Amid & Warmuth (2020): no orthonormalization, and a pseudo-inverse that fits."""
    rule, rng = ImplicitKrasulina(2), np.random.default_rng(0)
    before = rule.init(5, np.float64)
    a, b = rng.normal(size=(2, 2, 5))
    states = [before.copy(), before.copy()]
    for state, n, rows in zip(states, (30, 10), (a, b), strict=True):
        state.counts |= {"n_samples": n, "n_updates": n}
        state.arrays["components"][...] = rows
    found = rule.average(before, states).arrays
    np.testing.assert_allclose(found["components"], 0.75 * a + 0.25 * b, rtol=1e-12)
    np.testing.assert_allclose(found["inverse"].T, np.linalg.pinv(0.75 * a + 0.25 * b), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found["gram"], found["components"] @ found["components"].T, rtol=1e-12)


@each_rule
def test_each_sample_is_counted_once(rule: BasisRule) -> None:
    x = planted(1000)
    before = resume_from(rule, x[:100])
    n_updates = before.counts["n_updates"]
    parts = [x[100:500], x[500:760], x[760:760], x[760:1000]]
    states = streams(rule, parts, before)
    kept = [state.copy() for state in (before, *states)]
    averaged = rule.average(before, states)
    assert averaged.counts["n_samples"] == 1000
    # Step sizes and gains go on from those of the longest stream.
    assert averaged.counts["n_projected"] == 500
    assert averaged.counts["n_updates"] == n_updates + (400 if rule.online else 20)
    np.testing.assert_allclose(averaged.arrays["mean"], x.mean(0), rtol=1e-12)
    scatter = float(np.sum((x - x.mean(0)) ** 2))
    assert float(averaged.arrays["scatter"]) == pytest.approx(scatter, rel=1e-12)
    for state, old in zip((before, *states), kept, strict=True):
        assert state.counts == old.counts
        for name, array in old.arrays.items():
            np.testing.assert_array_equal(state.arrays[name], array)


@each_rule
def test_one_stream_stays_as_it_is(rule: BasisRule) -> None:
    x = planted(200)
    before = resume_from(rule, x[:50])
    (alone,) = streams(rule, [x[50:]], before)
    assert rule.average(before, [alone]) is alone


@each_rule
def test_equal_streams_average_to_themselves(rule: BasisRule) -> None:
    x = planted(300).astype(np.float32)
    before = resume_from(rule, x[:100])
    (one,) = streams(rule, [x[100:]], before)
    averaged = rule.average(before, [one.copy(), one.copy(), one.copy()])
    a, b = rule.finish(averaged), rule.finish(one.copy())
    np.testing.assert_allclose(a["components"], b["components"], atol=1e-5)
    # The same mean squares, for 700 samples and for 300.
    divisors = (700 / 699) / (300 / 299)
    np.testing.assert_allclose(a["explained_variance"], b["explained_variance"] * divisors, rtol=1e-5)


@each_rule
def test_streams_that_saw_nothing_change_nothing(rule: BasisRule) -> None:
    x = planted(100)
    before = resume_from(rule, x)
    averaged = rule.average(before, [before.copy(), before.copy()])
    assert averaged.counts == before.counts
    for name, array in before.arrays.items():
        np.testing.assert_array_equal(averaged.arrays[name], array)


@each_rule
def test_four_streams_do_better_than_one_of_them(rule: BasisRule) -> None:
    x = planted(8000)
    state = rule.init(x.shape[1], x.dtype)
    for start in range(0, len(x), 800):
        state = rule.average(state, streams(rule, np.split(x[start : start + 800], 4), state))
    found, (alone,) = rule.finish(state), streams(rule, [x[:2000]], rule.init(x.shape[1], x.dtype))
    lost = lost_variance(found["components"], x)
    assert lost < 0.05
    assert lost < lost_variance(rule.finish(alone)["components"], x)
    captured = np.var(x @ found["components"].T, axis=0)
    np.testing.assert_allclose(found["explained_variance"], captured, rtol=0.2)
    assert found["total_variance"] == pytest.approx(x.var(0, ddof=1).sum(), rel=1e-10)


def test_without_centering_the_total_is_about_zero() -> None:
    x = planted(400)
    rule = Oja(2, Power(0.1, 0.5), center=False, unit=1.0)
    before = resume_from(rule, x[:100])
    averaged = rule.average(before, streams(rule, [x[100:300], x[300:]], before))
    assert not averaged.arrays["mean"].any()
    assert float(averaged.arrays["scatter"]) == pytest.approx(float(np.sum(x**2)), rel=1e-12)


def test_what_waits_for_a_batch_is_counted_too() -> None:
    x = planted(300)
    rule = InBatches(Oja(3, Power(0.1, 0.5), unit=1.0), 20)
    before = rule.init(x.shape[1], x.dtype)
    states = [rule.update(before.copy(), part) for part in (x[:150], x[150:])]
    averaged = rule.average(before, states)
    assert averaged.counts["n_samples"] == 300
    assert averaged.counts["n_held"] == 0
    assert [state.counts["n_held"] for state in states] == [10, 10]
    np.testing.assert_allclose(averaged.arrays["mean"], x.mean(0), rtol=1e-12)
    averaged = rule.update(averaged, x[:30])
    assert averaged.counts["n_held"] == 10
    alone = rule.update(before.copy(), x[:150])
    assert rule.average(before, [alone]) is alone


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=2, max_size=5),
    st.integers(0, 30),
    st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
    st.floats(0, 100),
)
def test_moments_of_any_streams(lengths: list[int], n_before: int, dtype: type, offset: float) -> None:
    rng = np.random.default_rng(sum(lengths) + n_before)
    x = (offset + 20 * rng.random((n_before + sum(lengths), 6))).astype(dtype)
    rule = ImplicitKrasulina(2)
    before = resume_from(rule, x[:n_before])
    edges = n_before + np.cumsum([0, *lengths])
    states = streams(rule, [x[a:b] for a, b in itertools.pairwise(edges)], before)
    averaged = rule.average(before, states)
    assert averaged.counts["n_samples"] == len(x)
    if len(x):
        exact = x.astype(np.float64)
        np.testing.assert_allclose(averaged.arrays["mean"], exact.mean(0), rtol=1e-6)
        scatter = float(np.sum((exact - exact.mean(0)) ** 2))
        assert float(averaged.arrays["scatter"]) == pytest.approx(scatter, rel=1e-5, abs=1e-3)
    assert np.isfinite(averaged.arrays["inverse"]).all()
