"""IPCA against its arrow matrix, the full scatter where nothing is dropped, and itself sample by sample."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.rules.incremental.ipca import IPCA
from tests.rules.streams import fit, fold, leading, lost_variance, planted, same_span


def reference(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Equations 2.20 and 2.21 as they stand, columns, in all d coordinates."""
    w, s = np.zeros((x.shape[1], 0)), np.zeros(0)
    for sample in x:
        y = w.T @ sample
        r = sample - w @ y
        length = np.linalg.norm(r)
        q = np.block([[np.diag(s) + np.outer(y, y), length * y[:, None]], [length * y[None], np.array([[length**2]])]])
        s, u = np.linalg.eigh(q)
        w = np.column_stack([w, r / length]) @ u
        w, s = w[:, ::-1][:, :k], s[::-1][:k]
    return w.T, s


def test_two_samples_by_hand() -> None:
    """(2, 0), then (1, 1): Q = [[4 + 1, 1], [1, 1]], the larger eigenvalue 3 + sqrt(5)."""
    rule = IPCA(1, center=False)
    state = rule.update(rule.init(2, np.dtype(float)), np.array([[2.0, 0.0], [1.0, 1.0]]))
    np.testing.assert_allclose(state.arrays["eigenvalues"], 3 + np.sqrt(5))
    expected = np.array([2 + np.sqrt(5), 1])
    np.testing.assert_allclose(np.abs(state.arrays["components"][0]), expected / np.linalg.norm(expected))


@pytest.mark.parametrize("d", [12, 300])
@pytest.mark.parametrize("rows", [1, 7, 200])
def test_blocks_are_samples_one_by_one(d: int, rows: int) -> None:
    """Both ways of holding coordinates: all d of them, and those of the span of a block."""
    x = planted(200, d)
    state = fold(IPCA(4, center=False), x, rows)
    w, s = reference(x, 4)
    np.testing.assert_allclose(state.arrays["eigenvalues"], s, rtol=1e-9)
    assert same_span(state.arrays["components"], w, 1e-7)
    np.testing.assert_allclose(np.abs(np.sum(state.arrays["components"] * w, axis=1)), 1)


def test_nothing_is_lost_when_k_holds_everything() -> None:
    x = planted(100, 6)
    found = fit(IPCA(6), x)
    values, components = leading(x, 6)
    np.testing.assert_allclose(found["explained_variance"], values, rtol=1e-9)
    np.testing.assert_allclose(np.abs(np.sum(found["components"] * components, axis=1)), 1)


def test_eigenvalues_and_ordered_eigenvectors() -> None:
    x = planted(3000).astype(np.float32)
    found = fit(IPCA(3), x)
    values, components = leading(x, 3)
    np.testing.assert_allclose(found["explained_variance"], values, rtol=0.02)
    assert found["components"].dtype == np.float32
    assert np.abs(np.sum(found["components"] * components, axis=1)).min() > 0.99
    assert lost_variance(found["components"], x) < 1e-3


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("n", "d", "k", "rows"), [(1, 5, 3, 1), (2, 5, 3, 2), (40, 3, 9, 7), (40, 200, 50, 11)])
def test_shapes_and_dtypes(dtype: type, n: int, d: int, k: int, rows: int) -> None:
    x = np.random.default_rng(0).integers(0, 100, (n, d)).astype(dtype)
    found = fit(IPCA(k), x, rows)
    kept = min(k, d, n)
    assert found["components"].shape == (kept, d)
    assert all(np.isfinite(a).all() for a in found.values())
    exact = found["components"].astype(float)
    assert np.abs(exact @ exact.T - np.eye(kept)).max() < 2e-6
    assert (np.diff(found["explained_variance"]) <= 0).all()
    np.testing.assert_allclose(found["mean"], x.astype(float).mean(0), rtol=1e-5)


def test_duplicates_and_constants() -> None:
    """Samples that bring no new direction do not grow the basis; what is missing is completed with zero variance."""
    x = np.repeat(planted(4, 9), 30, axis=0)[np.random.default_rng(0).permutation(120)]
    state = fold(IPCA(6, center=False), x)
    assert state.counts["rank"] == 4
    found = IPCA(6, center=False).finish(state)
    assert found["components"].shape == (6, 9)
    np.testing.assert_allclose(found["explained_variance"][4:], 0)
    assert found["explained_variance"].sum() == pytest.approx(found["total_variance"])
    flat = fit(IPCA(2), np.full((50, 4), 3, np.uint8))
    assert not flat["explained_variance"].any()
    np.testing.assert_allclose(flat["components"] @ flat["components"].T, np.eye(2), atol=1e-6)
