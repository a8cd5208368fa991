"""Steps that lose a share of the noise: against errors that numpy counts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dpca.codec.noise import NoiseSteps, lost_variance, step_of_integers


@pytest.mark.parametrize("step", [0.3, 1.0, 1.25, 2.0, 2.7, 3.0, 4.0, 9.6])
@pytest.mark.parametrize("whole", [False, True])
def test_the_lost_variance_is_what_rounding_loses(step: float, whole: bool) -> None:
    """Predictions that are no integers, multiples of a step added to them, and a second rounding of integers."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 500, 400_000) if whole else rng.uniform(0, 500, 400_000)
    predicted = rng.uniform(0, 500, x.size)
    found = predicted + np.rint((x - predicted) / step) * step
    errors = (np.rint(found) if whole else found) - x
    assert np.mean(errors**2) == pytest.approx(lost_variance(np.array(step), whole=whole), rel=0.01, abs=1e-12)


def test_steps_and_lost_variances_are_inverse() -> None:
    """The variances of odd steps are known: those of the whole numbers up to half of a step."""
    variances = np.array([0.0, 0.01, 0.3, 2 / 3, 1.0, 2.0, 4.0, 77.7, 1e9])
    np.testing.assert_allclose(lost_variance(step_of_integers(variances), whole=True), variances, rtol=1e-6)
    odd = np.array([1.0, 3, 5, 7, 1001])
    known = np.array([np.mean(np.arange(-(n // 2), n // 2 + 1) ** 2) for n in odd.astype(int)])
    np.testing.assert_allclose(lost_variance(odd, whole=True), known)
    np.testing.assert_allclose(step_of_integers(known), odd)
    assert all(a < b for a, b in pairwise(step_of_integers(np.linspace(0, 9, 200))))


def test_attributes_without_noise() -> None:
    """Integers are lossless, and do not count; other values have the smallest step of the others."""
    sigma = np.array([[0.0, 1e-9], [3.0, 40.0]])
    whole = NoiseSteps.of(sigma, 0.01, whole=True)
    assert whole.steps.dtype == np.float32
    assert whole.steps[0].tolist() == [31 / 32, 31 / 32]
    x = np.arange(12).reshape(3, 2, 2)
    y = x + np.array([[5, 5], [0, 2]])
    np.testing.assert_allclose(whole.shares(x, y), (4 / whole.variance[1, 1]) / 2)
    missing = np.broadcast_to(sigma == 40, y.shape)
    np.testing.assert_array_equal(whole.shares(x, y, missing), 0)
    real = NoiseSteps.of(sigma, 0.01, whole=False)
    assert real.steps[0, 0] == real.steps[0, 1]


@pytest.mark.parametrize("whole", [False, True])
def test_rounded_steps_change_the_variance_little(whole: bool) -> None:
    """Their mean is what was asked for, and none differs by more than the last bit."""
    sigma = np.random.default_rng(0).uniform(10, 100, 5000)
    found = NoiseSteps.of(sigma, 0.02, whole=whole)
    assert (np.float32(found.steps).view(np.uint32) & 0x7FFF == 0).all()
    ratio = found.variance / sigma**2
    assert abs(ratio.mean() - 1) < 1e-3
    assert np.abs(ratio - 1).max() < (0.02 if whole else 0.005)


def test_steps_near_1_are_rounded_down() -> None:
    """Their losses differ by many times, and none is larger than asked for."""
    sigma = np.linspace(0.05, 2, 400)
    lost = lost_variance(NoiseSteps.of(sigma, 0.1, whole=True).steps.astype(float), whole=True)
    assert (lost <= 0.1 * sigma**2 * 1.004).all()
    with pytest.raises(ValueError, match="multiply"):
        NoiseSteps.of(sigma * 1e-60, 0.1, whole=False)
    with pytest.raises(ValueError, match="multiply"):
        NoiseSteps.of(sigma * 1e60, 0.1, whole=False)
