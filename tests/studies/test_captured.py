"""The variance that given bases capture, against the covariance itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.metrics import convergence
from dpca.pipelines.studies.captured import Captured


def measured(rule: Captured, x: np.ndarray, cuts: list[int]) -> dict[str, np.ndarray]:
    states = []
    for part in np.split(x, sorted(cuts)):
        states.append(rule.update(rule.init(x.shape[1], x.dtype), part))
    state = states[0]
    for other in states[1:]:
        state = rule.merge(state, other)
    return rule.finish(state)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 600),
    d=st.integers(3, 40),
    dtype=st.sampled_from(["uint8", "int16", "float32", "float64"]),
    center=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_is_the_trace_of_the_projected_covariance(n: int, d: int, dtype: str, center: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 200, (n, d)).astype(dtype)
    bases = [np.linalg.qr(rng.normal(size=(d, k)))[0].T for k in (1, 3)]
    mean = x.mean(axis=0) + rng.normal(size=d)
    found = measured(Captured(bases, mean, center), x, rng.integers(0, n, 2).tolist())
    exact = x.astype(np.float64)
    exact -= exact.mean(axis=0) if center else 0
    covariance = exact.T @ exact / (n - 1)
    np.testing.assert_allclose(found["captured"], [np.trace(b @ covariance @ b.T) for b in bases], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["total_variance"], np.trace(covariance), rtol=1e-9)


def test_any_basis_of_a_subspace_captures_the_same() -> None:
    rng = np.random.default_rng(0)
    x, basis = rng.normal(size=(50, 6)), rng.normal(size=(3, 6))
    turned = np.array([[2.0, 1, 0], [0, 0.01, 3], [1, 1, 1]]) @ basis
    a, b = measured(Captured([basis, turned], np.zeros(6)), x, [])["captured"]
    assert a == pytest.approx(b, rel=1e-12)
    everything = measured(Captured([rng.normal(size=(6, 6))], np.zeros(6)), x, [])
    assert everything["captured"][0] == pytest.approx(float(everything["total_variance"]), rel=1e-12)


def test_float32_bases_are_measured_in_float64() -> None:
    # A basis 1e-4 off loses 1e-8 of the variance, less than float32 could tell.
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4000, 300)) * np.linspace(3, 0.1, 300)
    exact = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[2][:4]
    off = (exact + 1e-4 * rng.normal(size=exact.shape) / np.sqrt(300)).astype(np.float32)
    found = measured(Captured([exact, off], np.zeros(300)), x, [1000])["captured"]
    assert np.log10(1 - found[1] / found[0]) == pytest.approx(convergence(off, exact, x), abs=0.01)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ValueError, match="bases"):
        Captured([np.eye(5)], np.zeros(4))
    with pytest.raises(ValueError, match="least"):
        Captured([], np.zeros(4))
    rule = Captured([np.eye(1, 4)], np.zeros(4))
    with pytest.raises(ValueError, match=r"\b1.sample"):
        rule.finish(rule.update(rule.init(4, float), np.ones((1, 4))))
