"""The public measures: results and errors."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from dpca import analysis, metrics


def test_mse_and_psnr_by_hand() -> None:
    x, y = [[0.0, 0.0], [1.0, 1.0]], [[0.0, 2.0], [1.0, 1.0]]
    np.testing.assert_array_equal(metrics.mse(x, y), [2, 0])
    np.testing.assert_array_equal(metrics.mse(x, y, data_range=2), [0.5, 0])
    np.testing.assert_allclose(metrics.psnr(x, y, data_range=2), [10 * np.log10(2), np.inf])


@pytest.mark.parametrize(
    ("a", "b"), [(np.uint8, np.float64), (np.uint8, np.uint16), (np.float32, np.uint8), (bool, float)]
)
def test_arrays_of_two_dtypes(a: Any, b: Any) -> None:
    """An 8-bit original beside an unrounded reconstruction must not be rounded, nor wrap around."""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 2, (3, 16, 17)) * 200).astype(a), (rng.random((3, 16, 17)) * 255).astype(b)
    wide = [v.astype(float) for v in (x, y)]
    np.testing.assert_allclose(metrics.mse(x, y), ((wide[0] - wide[1]) ** 2).mean(axis=(1, 2)), rtol=1e-6)
    np.testing.assert_allclose(
        metrics.psnr(x, y, data_range=255),
        [peak_signal_noise_ratio(p, q, data_range=255) for p, q in zip(*wide, strict=True)],
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        metrics.ssim(x, y, data_range=255),
        [structural_similarity(p, q, data_range=255) for p, q in zip(*wide, strict=True)],
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("shape", "channel_axis", "n_spatial"),
    [
        ((9, 10), None, None),
        ((9, 10, 3), -1, None),
        ((9, 8, 7), None, None),
        ((9, 8, 7), -1, 2),
        ((9, 8, 7, 4), -1, None),
    ],
)
def test_which_axes_are_channels(shape: tuple[int, ...], channel_axis: int | None, n_spatial: int | None) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.random((2, 2, *shape))
    expected = [structural_similarity(p, q, data_range=1, channel_axis=channel_axis) for p, q in zip(x, y, strict=True)]
    np.testing.assert_allclose(metrics.ssim(x, y, data_range=1, n_spatial=n_spatial), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("shapes", "options", "says"),
    [
        (((2, 8, 8), (2, 8, 9)), {}, r"x has shape \(2, 8, 8\)"),
        (((2, 8, 8), (2, 8, 8)), {"data_range": 0}, "data_range is 0"),
        (((2, 8, 8), (2, 8, 8)), {"data_range": -1}, "data_range is -1"),
        (((2, 8, 8), (2, 8, 8)), {"data_range": float("nan")}, "data_range is nan"),
        (((2, 6, 8), (2, 6, 8)), {}, "at least 7 pixels"),
        (((8,), (8,)), {}, "n_spatial is"),
        (((2, 8, 8), (2, 8, 8)), {"n_spatial": 3}, "n_spatial is"),
        (((2, 8, 8), (2, 8, 8)), {"n_spatial": 0}, "n_spatial is"),
    ],
)
def test_what_cannot_be_compared(shapes: Any, options: dict[str, Any], says: str) -> None:
    x, y = map(np.zeros, shapes)
    with pytest.raises(ValueError, match=says):
        metrics.ssim(x, y, **{"data_range": 1, **options})


def test_shares_of_the_variance() -> None:
    np.testing.assert_allclose(metrics.explained_variance_ratio([6, 3], 12), [0.5, 0.75])
    # One row a cell; where nothing varies, nothing is left to explain.
    cells = metrics.explained_variance_ratio(np.array([[2.0, 1.0], [0.0, 0.0]]), np.array([4.0, 0.0]))
    np.testing.assert_allclose(cells, [[0.5, 0.75], [1, 1]])


def samples(n: int = 3000, d: int = 7) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples away from 0, their covariance, and its eigenvectors as rows, leading first."""
    x = 5 + np.random.default_rng(2).normal(size=(n, d)) * np.arange(d, 0, -1)
    covariance = np.cov(x, rowvar=False)
    return x, covariance, np.linalg.eigh(covariance)[1].T[::-1]


def test_convergence_and_loss_by_hand() -> None:
    """Variances 8, 1, 1: turning the first direction by 30 degrees leaves 8 * 3/4 + 1/4 of 8."""
    turned = [[np.sqrt(3) / 2, 0.5, 0]]
    covariance, best = np.diag([8.0, 1, 1]), np.eye(3)[:1]
    np.testing.assert_allclose(metrics.convergence(turned, best, covariance=covariance), np.log10(1 - 6.25 / 8))
    np.testing.assert_allclose(metrics.excess_loss(turned, best, covariance=covariance), 100 * 1.75 / 2)
    np.testing.assert_allclose(metrics.principal_angles(turned, best), [np.pi / 6])


def test_convergence_from_samples_and_from_their_covariance() -> None:
    x, covariance, best = samples()
    rough = best[:3] + 1e-4 * np.random.default_rng(3).normal(size=(3, 7))
    skew = np.random.default_rng(4).normal(size=(3, 3)) @ rough
    expected = metrics.convergence(rough, best[:3], covariance=covariance)
    assert -9 < expected < -7
    np.testing.assert_allclose(metrics.convergence(skew, 3 * best[:3], x), expected, rtol=1e-6)
    np.testing.assert_allclose(
        metrics.excess_loss(skew, best[:3], x), metrics.excess_loss(rough, best[:3], covariance=covariance), rtol=1e-6
    )


def test_nothing_lost() -> None:
    x, covariance, best = samples()
    assert metrics.convergence(best[:2], best[:2], covariance=covariance) == -np.inf
    assert metrics.excess_loss(best[:2], best[:2], x) == 0
    assert metrics.excess_loss(np.eye(7), best, covariance=covariance) == 0
    assert metrics.excess_loss(best[:6], best, covariance=covariance) == np.inf


def test_principal_angles_of_planes() -> None:
    a, b = np.eye(4)[:2], [[1.0, 0, 0, 0], [0, np.cos(1e-9), np.sin(1e-9), 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(metrics.principal_angles(a, b), [0, 1e-9], atol=1e-15)
    np.testing.assert_allclose(metrics.principal_angles(a, np.eye(4)[2:]), [np.pi / 2, np.pi / 2])
    np.testing.assert_allclose(metrics.principal_angles(a, [[5.0, 0, 0, 0], [3, 0, 0, 0]]), [0], atol=1e-15)
    assert metrics.principal_angles(a, np.zeros((2, 4))).shape == (0,)


def test_components_that_cannot_be_compared() -> None:
    x, covariance, best = samples()
    for options in ({}, {"x": x, "covariance": covariance}):
        with pytest.raises(ValueError, match="covariance"):
            metrics.convergence(best[:2], best[:2], **options)
    with pytest.raises(ValueError, match=r"\[6,.7\]"):
        metrics.excess_loss(best[:2, :6], best[:2], x)
    with pytest.raises(ValueError, match=r"rows.*\b6\b.*\b7\b"):
        metrics.principal_angles(best[:2, :6], best[:2])


def test_excess_where_little_is_left_out() -> None:
    """Of variances 1, 1/2 and 1/10,000 the best two leave out the last, the others one half."""
    eye, covariance = np.eye(3), np.diag([1, 0.5, 1e-4])
    found = metrics.excess_loss(eye[[0, 2]], eye[:2], covariance=covariance)
    assert found == pytest.approx(100 * (0.5 - 1e-4) / 1e-4)


def test_independent_clusterings() -> None:
    """Two bits that know nothing of each other are 2 log 2 apart; one that is a function of both is log 2 from each."""
    a, b = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    assert metrics.variation_of_information(a, b) == pytest.approx(2 * np.log(2))
    assert metrics.variation_of_information(2 * a + b, a) == pytest.approx(np.log(2))


@pytest.mark.parametrize("module", [metrics, analysis])
def test_modules_show_public_names_only(module: ModuleType) -> None:
    shown = {name for name in dir(module) if not name.startswith("__")}
    defined = {name for name, found in vars(module).items() if getattr(found, "__module__", "") == module.__name__}
    assert shown == {name for name in defined if not name.startswith("_")}
