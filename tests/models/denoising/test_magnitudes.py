"""Rician noise against SciPy's distribution, and against phantoms of known truth."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import rice

from dpca import Denoiser
from dpca.models.denoising.magnitudes import amplitudes, level_of, variances
from tests.helpers.phantoms import Floats, diffusion, rmse


def magnitudes(amplitude: Floats, sigma: Any, seed: int = 1) -> Floats:
    """Return the magnitudes of values with noise in the real and the imaginary part."""
    real, imaginary = np.random.default_rng(seed).normal(size=(2, *amplitude.shape))
    return np.hypot(amplitude + sigma * real, sigma * imaginary)


@pytest.mark.parametrize("ratio", [0.0, 0.4, 1.0, 2.5, 7.0, 30.0])
def test_the_mean_and_the_variance_of_rician_values(ratio: float) -> None:
    mean, variance = (float(value) for value in rice.stats(ratio, moments="mv"))
    sigma = np.full(1, 2.5)
    np.testing.assert_allclose(amplitudes(np.full(1, mean) * sigma, sigma), ratio * 2.5, atol=0.003, rtol=1e-5)
    np.testing.assert_allclose(variances(np.full(1, mean)), variance, rtol=1e-3)


@pytest.mark.parametrize("ratio", [39.9, 40.1, 300.0])
def test_the_mean_of_rician_values_far_above_the_noise(ratio: float) -> None:
    """By the asymptotic series, since that of SciPy overflows."""
    mean = ratio + 1 / (2 * ratio) + 1 / (8 * ratio**3)
    np.testing.assert_allclose(amplitudes(np.full(1, mean), np.ones(1)), ratio, rtol=1e-6)


def test_amplitudes_below_the_mean_of_noise_and_without_noise() -> None:
    found = amplitudes(np.array([0.0, 1.2, 5.0], np.float32), np.array([1, 1, 0], np.float32))
    np.testing.assert_array_equal(found, [0, 0, 5])
    assert found.dtype == np.float32


@pytest.mark.parametrize("amplitude", [0.0, 3.0, 12.0])
def test_the_level_follows_from_the_variance_of_magnitudes(amplitude: float) -> None:
    x = magnitudes(np.full((400, 100), amplitude), 2.0)
    assert level_of(np.full(x.shape, x.mean()), float(x.var()), 1) == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(("shape", "n", "noise"), [((16, 16, 12), 45, 0.03), ((16, 16, 16), 60, 0.08)])
def test_phantoms_of_magnitudes(shape: tuple[int, ...], n: int, noise: float) -> None:
    truth = diffusion(shape, n)
    x, inside = magnitudes(truth, noise), truth[0] > 0
    model = Denoiser(noise="rician")
    clean, plain = model.fit_transform(x), Denoiser().fit_transform(x)
    assert np.median(model.sigma_) == pytest.approx(noise, rel=0.02)
    assert np.median(model.sigma_[~inside]) == pytest.approx(noise, rel=0.02)
    assert np.median(model.sigma_[inside]) == pytest.approx(noise, rel=0.03)
    assert rmse(clean, truth) < 0.5 * rmse(plain, truth)
    bias = abs((clean - truth)[:, inside].mean())
    assert bias < 0.1 * abs((plain - truth)[:, inside].mean())
    known = Denoiser(noise="rician", sigma=noise)
    assert rmse(known.fit_transform(x), truth) < 0.5 * rmse(plain, truth)
    assert (known.sigma_ == np.float32(noise)).all()


def test_a_map_of_rician_noise() -> None:
    """The receivers of a scanner have more noise far from them."""
    truth = diffusion((18, 18, 12), 60)
    noise = np.linspace(0.02, 0.08, 18)[:, None, None] * np.ones((18, 18, 12))
    x, inside = magnitudes(truth, noise), truth[0] > 0
    estimated, known = Denoiser(noise="rician"), Denoiser(noise="rician", sigma=noise)
    errors = [rmse(model.fit_transform(x)[:, inside], truth[:, inside]) for model in (estimated, known)]
    assert errors[1] < 1.02 * errors[0]
    assert errors[0] < 0.7 * rmse(x[:, inside], truth[:, inside])
    near = np.median(estimated.sigma_[:4] / noise[:4]), np.median(estimated.sigma_[-4:] / noise[-4:])
    np.testing.assert_allclose(near, 1, rtol=0.05)
