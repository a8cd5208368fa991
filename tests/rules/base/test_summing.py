"""Updates whose batch is summed in parts: the same as the batch in one piece."""

from __future__ import annotations

from functools import reduce
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
    ImplicitKrasulina,
    IncrementalSVD,
    Krasulina,
    Oja,
    Power,
    SimilarityMatching,
)
from dpca.rules.base.state import State
from tests.rules.streams import fit, leading, planted, same_span

RULES = [
    Oja(3, Power(0.1, 0.5), seed=2, unit=1.0),
    Oja(3, Power(0.1, 0.5), orthonormalize_every=3, seed=2, unit=1.0),
    BlockPower(3, seed=2),
    BlockPower(3, growth=1.3, seed=2),
    BlockPower(3, momentum=0.01, seed=2),
    AcceleratedBlockPower(3, seed=2),
    AcceleratedOja(3, seed=2),
]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)


def in_parts(rule: Any, state: State, parts: list[np.ndarray]) -> State:
    sums = [rule.partial_sums(state, part) for part in parts]
    return rule.apply(state, reduce(lambda a, b: rule.combine(state, a, b), sums))


def spread(rule: Any, x: np.ndarray, rows: int, n_parts: int) -> State:
    state = rule.init(x.shape[1], x.dtype)
    for start in range(0, len(x), rows):
        state = in_parts(rule, state, np.array_split(x[start : start + rows], n_parts))
    return state


def test_which_rules_sum() -> None:
    assert all(rule.summable for rule in RULES)
    others = [CCIPCA(2), IPCA(2), Krasulina(2), ImplicitKrasulina(2), IncrementalSVD(2), SimilarityMatching(2)]
    assert not any(rule.summable for rule in others)
    assert not Oja(2, online=True).summable


def test_sums_by_hand() -> None:
    """W X^T X about the mean of the samples, however they are cut."""
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, (11, 5))
    rule = BlockPower(2, seed=1)
    state = rule.init(5, np.float64)
    rows = state.arrays["components"]
    centered = x - x.mean(0)
    for cut in (0, 1, 4, 11):
        sums = rule.combine(state, rule.partial_sums(state, x[:cut]), rule.partial_sums(state, x[cut:]))
        np.testing.assert_allclose(sums.arrays["products"], rows @ centered.T @ centered, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(sums.arrays["mean"], x.mean(0), rtol=1e-13)
        assert float(sums.arrays["scatter"]) == pytest.approx(float(np.sum(centered**2)), rel=1e-13)
        assert sums.counts == {"n_samples": 11}


def test_the_step_sees_the_running_mean() -> None:
    """Of a second batch: W (X - m)^T (X - m) with the mean m of both."""
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(0, 1, (40, 5)), rng.normal(4, 1, (20, 5))])
    rule = Oja(2, Power(0.5, 0), seed=1, unit=1.0)
    state = in_parts(rule, rule.init(5, np.float64), [x[:40]])
    rows = state.arrays["components"].copy()
    state = in_parts(rule, state, [x[40:47], x[47:]])
    about = x[40:] - x.mean(0)
    assert same_span(state.arrays["components"], rows + 0.5 * rows @ about.T @ about / 20, 1e-12)
    np.testing.assert_allclose(state.arrays["mean"], x.mean(0), rtol=1e-13)
    assert float(state.arrays["scatter"]) == pytest.approx(float(np.sum((x - x.mean(0)) ** 2)), rel=1e-13)


@each_rule
@pytest.mark.parametrize("center", [True, False])
def test_parts_make_the_update_of_the_whole(rule: Any, center: bool) -> None:
    rule = type(rule)(**{**vars(rule), "center": center})
    x = planted(4000)
    whole = fit(rule, x, 200)
    for n_parts in (1, 3):
        found = rule.finish(spread(rule, x, 200, n_parts))
        assert same_span(found["components"], whole["components"], 1e-9)
        np.testing.assert_allclose(found["mean"], whole["mean"], rtol=1e-12)
        assert float(found["total_variance"]) == pytest.approx(float(whole["total_variance"]), rel=1e-12)
        # All but what the first few updates left in the running average.
        np.testing.assert_allclose(found["explained_variance"], whole["explained_variance"], rtol=1e-2)


@each_rule
def test_parts_in_float32(rule: Any) -> None:
    x = np.clip(planted(2000) * 20 + 100, 0, 255).astype(np.uint8)
    rule = type(rule)(**{**vars(rule), **({"unit": 60.0} if hasattr(rule, "unit") else {})})
    whole, found = fit(rule, x, 200), rule.finish(spread(rule, x, 200, 4))
    assert found["components"].dtype == np.float32
    assert same_span(found["components"], whole["components"], 1e-5)


@each_rule
def test_variances_are_known_after_few_updates(rule: Any) -> None:
    x = planted(4000)
    if isinstance(rule, Oja):
        rule = Oja(3, Power(100.0, 0.5), unit=1.0)
    found = rule.finish(spread(rule, x, 1000, 2))
    assert found["explained_variance"].sum() == pytest.approx(leading(x, 3)[0].sum(), rel=0.1)
    assert found["explained_variance"].sum() < 1.1 * leading(x, 3)[0].sum()


def test_no_samples_change_nothing() -> None:
    rule = Oja(2)
    state = rule.update(rule.init(6, np.float32), planted(30, 6).astype(np.float32))
    before = state.copy()
    after = in_parts(rule, state, [np.zeros((0, 6), np.float32)] * 2)
    assert after.counts == before.counts
    for name, array in before.arrays.items():
        np.testing.assert_array_equal(after.arrays[name], array)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.integers(1, 7),
    st.integers(1, 5),
    st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
)
def test_any_parts(lengths: list[int], d: int, k: int, dtype: type) -> None:
    rng = np.random.default_rng(sum(lengths))
    parts = [(100 * rng.random((n, d))).astype(dtype) for n in lengths]
    rule = Oja(k, Power(1e-4, 0.5), unit=1.0)
    before = rule.update(rule.init(d, dtype), (100 * rng.random((12, d))).astype(dtype))
    whole = rule.update(before.copy(), np.concatenate(parts))
    found = in_parts(rule, before.copy(), parts)
    assert found.counts == whole.counts
    for name in ("components", "mean", "scatter"):
        np.testing.assert_allclose(found.arrays[name], whole.arrays[name], rtol=1e-5, atol=1e-5)
