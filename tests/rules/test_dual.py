"""The dual form against the SVD."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.rules.dual import Dual, dual_components, dual_pca


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
@pytest.mark.parametrize(("n", "d", "k"), [(5, 40, 3), (60, 2500, 10), (250, 1100, 4)])
@pytest.mark.parametrize("center", [True, False])
def test_against_the_svd(dtype: type, n: int, d: int, k: int, center: bool) -> None:
    rng = np.random.default_rng(0)
    x = 100 + (rng.normal(size=(n, n)) * 40 * 0.8 ** np.arange(n)) @ rng.normal(size=(n, d)) / 4
    x = np.clip(x, 0, 255).astype(dtype)
    found = dual_pca(x, k, center=center)
    wide = x.astype(float) - (x.mean(0, dtype=float) if center else 0)
    _, s, v = np.linalg.svd(wide, full_matrices=False)
    # The eigensolver promises the captured variance to 1e-9 of itself.
    tolerance = 1e-7 if dtype is np.float64 else 2e-5
    np.testing.assert_allclose(found["mean"], x.mean(0, dtype=float) if center else np.zeros(d))
    np.testing.assert_allclose(found["explained_variance"], s[:k] ** 2 / (n - 1), rtol=tolerance)
    np.testing.assert_allclose(found["total_variance"], (s**2).sum() / (n - 1), rtol=tolerance)
    np.testing.assert_allclose(found["components"] @ found["components"].T, np.eye(k), atol=tolerance)
    np.testing.assert_allclose(np.linalg.svd(found["components"] @ v[:k].T, compute_uv=False), 1, atol=tolerance)
    assert (found["components"][np.arange(k), np.abs(found["components"]).argmax(1)] > 0).all()


def test_attributes_in_any_blocks() -> None:
    x = np.random.default_rng(1).normal(5, 2, (30, 200))
    rule = Dual(4)
    a, b = rule.init(30, x.dtype), rule.init(30, x.dtype)
    a = rule.update(rule.update(a, x[:, 120:]), x[:, :0])
    b = rule.update(b, x[:, :120])
    merged = rule.merge(a, b)
    assert merged.counts == {"n_attributes": 200}
    assert merged.nbytes == rule.state_bytes(30, x.dtype)
    weights = rule.finish(merged)["weights"]
    parts = [dual_components(weights, x[:, columns])[1] for columns in (slice(90), slice(90, 200))]
    np.testing.assert_allclose(np.abs(np.hstack(parts)), np.abs(dual_pca(x, 4)["components"]), atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_more_components_than_the_rank(dtype: type) -> None:
    x = np.repeat(np.random.default_rng(2).normal(size=(4, 50)), 3, axis=0).astype(dtype)
    assert dual_pca(x, 9)["components"].shape == (3, 50)
    flat = dual_pca(np.full((6, 50), 7, dtype), 2)
    assert flat["components"].shape == (0, 50)
    assert flat["total_variance"] == 0


def test_what_has_no_answer() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        dual_pca(np.ones((1, 5)), 1)
    with pytest.raises(ValueError, match="n_components is 0"):
        Dual(0)
