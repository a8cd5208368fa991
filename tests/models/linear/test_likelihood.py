"""Densities of Gaussian models that are written out, also where a direction has no variance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from dpca.models.linear.likelihood import Likelihood, log_likelihoods
from dpca.partition import Whole
from dpca.representation.linear import LinearRepresentation

EPSILON = np.finfo(float).eps


def model(variances: list[float], total: float, d: int, n: int, turn: np.ndarray | None = None) -> Likelihood:
    turn = np.eye(d) if turn is None else turn
    basis = LinearRepresentation(Whole((d,)), np.zeros(d), turn[: len(variances)])
    return Likelihood.of(basis, np.array(variances), np.array(total), n)


def density(x: np.ndarray, variances: list[float]) -> np.ndarray:
    """Of independent attributes."""
    return sum(norm.logpdf(x[:, i], scale=np.sqrt(variance)) for i, variance in enumerate(variances))


def turned(d: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(d).normal(size=(d, d)))[0]


@pytest.mark.parametrize(
    ("variances", "total", "d", "n", "noise"),
    [
        ([5.0, 3.0], 11.0, 6, 50, 3 / 4),
        ([5.0, 3.0], 11.0, 6, 4, 3 / 2),  # 4 samples have 4 eigenvalues
        ([5.0, 3.0, 1.0, 0.5], 10.5, 6, 4, 1 / 2),  # all of them are known: what is left is that of other directions
        ([5.0, 0.25], 9.25, 6, 50, 1.0),  # a component of less variance than the noise has that of the noise
    ],
)
def test_the_noise_is_what_components_leave(variances: list[float], total: float, d: int, n: int, noise: float) -> None:
    turn, x = turned(d), np.random.default_rng(0).normal(size=(20, d)) * 2
    # As scikit-learn's PCA.get_covariance has it.
    rows = turn[: len(variances)]
    covariance = rows.T @ np.diag(np.maximum(np.array(variances) - noise, 0)) @ rows + noise * np.eye(d)
    expected = multivariate_normal(np.zeros(d), covariance).logpdf(x)
    np.testing.assert_allclose(log_likelihoods(model(variances, total, d, n, turn), x), expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("variances", "total", "floored"),
    [
        ([4.0, 1.0], 5.0, [4.0, 1.0, 4 * EPSILON]),
        ([4.0, 1.0], 5.0 - 1e-15, [4.0, 1.0, 4 * EPSILON]),  # rounding left less than nothing
        ([4.0, 1.0, 0.0], 5.0, [4.0, 1.0, 4 * EPSILON]),
        ([0.0], 0.0, [1e-200] * 3),
    ],
)
def test_no_variance_is_below_the_rounding_error_of_the_largest(
    variances: list[float], total: float, floored: list[float]
) -> None:
    x = np.array([[0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [0.0, 0.0, 1e-8], [0.3, 0.0, 1.0]])
    found = log_likelihoods(model(variances, total, 3, 50), x)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, density(x, floored), rtol=1e-9)


def test_all_components_leave_no_noise_to_raise_them() -> None:
    """Those of a streaming rule may explain less than the total; there is no other direction that had the rest."""
    x = np.random.default_rng(1).normal(size=(9, 2))
    np.testing.assert_allclose(log_likelihoods(model([4.0, 0.5], 8.5, 2, 50), x), density(x, [4.0, 0.5]), rtol=1e-12)
