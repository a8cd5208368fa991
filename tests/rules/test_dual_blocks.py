"""The dual form over a stream against the SVD."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.rules.dual import Dual
from dpca.rules.dual_blocks import BlockGram, DualComponents
from dpca.rules.state import State
from tests.rules.streams import fit


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_gram_matrices_add_up_and_components_follow(center, dtype):
    rng = np.random.default_rng(0)
    x = np.clip(100 + (rng.normal(size=(20, 20)) * 30 * 0.7 ** np.arange(20)) @ rng.normal(size=(20, 90)), 0, 255)
    x = x.astype(dtype)
    grams = [fit(BlockGram(20, center), np.ascontiguousarray(part), 7)["gram"] for part in (x[:, :50], x[:, 50:])]
    precision = np.asarray(np.finfo(np.float64 if dtype is np.float64 else np.float32).eps, float)
    found = Dual(4, center).finish(State({"gram": grams[0] + grams[1], "precision": precision}))
    wide = x.astype(float) - (x.mean(0, dtype=float) if center else 0)
    _, s, v = np.linalg.svd(wide, full_matrices=False)
    tolerance = 1e-9 if dtype is np.float64 else 1e-5
    np.testing.assert_allclose(found["explained_variance"], s[:4] ** 2 / 19, rtol=tolerance)
    result = fit(DualComponents(found["weights"], 4, center), x, 7)
    np.testing.assert_allclose(result["mean"], x.mean(0, dtype=float) if center else np.zeros(90), rtol=1e-6)
    np.testing.assert_allclose(np.abs(np.sum(result["components"] * v[:4], axis=1)), 1, rtol=tolerance)


def test_rows_beyond_the_rank_complete_the_basis():
    x = np.arange(12.0).reshape(4, 3)
    weights = np.array([[-3.0, -1, 1, 3]]) / np.sqrt(20 * 27)
    rows = fit(DualComponents(weights, 3), x, 2)["components"]
    np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-14)
    np.testing.assert_allclose(rows[0], np.full(3, np.sqrt(1 / 3)), rtol=1e-14)


def test_too_many_and_too_few_samples():
    with pytest.raises(ValueError, match="5 samples came but 4"):
        fit(BlockGram(4), np.ones((5, 2)))
    with pytest.raises(ValueError, match="3 samples came but 4"):
        fit(BlockGram(4), np.ones((3, 2)))
    with pytest.raises(ValueError, match="weights of 4"):
        fit(DualComponents(np.ones((1, 4)), 1), np.ones((3, 2)))
