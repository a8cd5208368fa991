"""Measured bases and the bounds that come with them, against dense eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.rules.covariance.covariance_product import RayleighRitz
from dpca.rules.covariance.measured import NextIterate
from tests.helpers.traced import traced_peak
from tests.rules.streams import fit, optimum


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    d=st.integers(2, 15),
    decay=st.floats(0.3, 1.0),
    steps=st.integers(0, 4),
    sizes=st.tuples(st.integers(1, 15), st.integers(1, 15)),
)
def test_measures_and_bounds_hold(seed, d, decay, steps, sizes):
    rng = np.random.default_rng(seed)
    q, k = sorted((min(sizes[0], d), min(sizes[1], d)), reverse=True)
    x = rng.normal(size=(40, d)) * decay ** np.arange(d) + 3
    covariance = np.cov(x, rowvar=False).reshape(d, d)
    exact = np.linalg.eigvalsh(covariance)[::-1]
    v = rng.normal(size=(d, q))
    for _ in range(steps):
        v = covariance @ np.linalg.qr(v)[0]
    v = np.linalg.qr(v)[0].T
    found = fit(RayleighRitz(v, x.mean(0) + 1, n_components=k), x, 17)
    rows, values = found["components"], found["explained_variance"]
    np.testing.assert_allclose(rows @ rows.T, np.eye(q), atol=1e-12)
    np.testing.assert_allclose(rows.T @ rows, v.T @ v, atol=1e-10)
    np.testing.assert_allclose(np.diag(rows @ covariance @ rows.T), values, atol=1e-10)
    np.testing.assert_allclose(found["product"], rows @ covariance, atol=1e-10)
    residual = rows @ covariance - values[:, None] * rows
    np.testing.assert_allclose(found["residual_norms"], np.linalg.norm(residual, axis=1), atol=1e-7)
    coupling = np.linalg.svd(residual[:k], compute_uv=False).sum()
    assert found["coupling"] == pytest.approx(coupling, abs=1e-6)
    best = exact[:k].sum()
    assert best <= optimum(found, k) * (1 + 1e-9) + 1e-12
    assert optimum(found, k) <= found["total_variance"] * (1 + 1e-9)
    assert found["total_variance"] == pytest.approx(np.trace(covariance), rel=1e-9)
    apart = np.eye(d) - v.T @ v
    outside = np.linalg.eigvalsh(apart @ covariance @ apart)[-1]
    known = fit(RayleighRitz(v, x.mean(0) + 1, n_components=k, outside=float(outside)), x, 17)
    assert best <= optimum(known, k) * (1 + 1e-9) + 1e-12
    assert optimum(known, k) <= optimum(found, k) * (1 + 1e-12)


def test_the_bound_is_tight_for_the_whole_space_and_for_eigenvectors():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 6)) * [5, 4, 3, 1, 0.01, 0.01]
    values, vectors = np.linalg.eigh(np.cov(x, rowvar=False))
    whole = fit(RayleighRitz(np.eye(6), x.mean(0), n_components=2), x)
    assert optimum(whole, 2) == pytest.approx(values[::-1][:2].sum(), rel=1e-7)
    leading = fit(RayleighRitz(vectors[:, ::-1][:, :4].T, x.mean(0), n_components=3), x)
    assert leading["coupling"] < 1e-6
    assert optimum(leading, 3) == pytest.approx(values[::-1][:3].sum(), rel=1e-6)
    # The second and third directions alone: what they miss has one direction better than theirs, seen in the residuals.
    later = fit(RayleighRitz(vectors[:, ::-1][:, 1:3].T, x.mean(0), n_components=1), x)
    assert optimum(later, 1) == pytest.approx(values[-1], rel=1e-6)


def test_with_a_bound_on_the_rest_what_is_missed_is_of_second_order():
    """A basis turned from the eigenvectors by a small angle: the variances lack its square, the bound as much."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 8)) * [9, 8, 7, 6, 2, 1, 1, 1]
    values, vectors = np.linalg.eigh(np.cov(x, rowvar=False))
    leading, others = vectors[:, ::-1][:, :4], vectors[:, ::-1][:, 4:]
    for angle in (1e-2, 1e-3):
        basis = (np.cos(angle) * leading + np.sin(angle) * others).T
        found = fit(RayleighRitz(basis, x.mean(0), n_components=3, outside=float(values[3]) * 1.01), x)
        best, captured = values[::-1][:3].sum(), found["explained_variance"][:3].sum()
        assert 0 < best - captured <= optimum(found, 3) - captured < 2 * (best - captured)
        assert best - captured < best * angle**2


def test_wrong_numbers_of_components():
    with pytest.raises(ValueError, match="n_components"):
        RayleighRitz(np.eye(2, 5), np.zeros(5), n_components=3)


@pytest.mark.parametrize("n", [12, 60])
def test_finishing_holds_as_many_bases_as_planned(n: int) -> None:
    """Also with fewer samples than directions, whose basis is completed."""
    d, q = 60_000, 16
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d)).astype(np.float32)
    rows = np.linalg.qr(rng.normal(size=(d, q)))[0].T.astype(np.float32)
    measured = RayleighRitz(rows, x.mean(axis=0, dtype=float), n_components=4)
    for rule in (measured, NextIterate(measured)):
        planned = rule.work_bytes(n, d, x.dtype) + rule.result_bytes(d, x.dtype)
        peak, _ = traced_peak(lambda rule=rule: rule.update(rule.init(d, x.dtype), x), rule.finish, planned)
        assert peak <= planned
        assert peak <= 4 * 8 * q * d
