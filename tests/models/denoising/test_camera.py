"""The offset of a camera, from lines of known slope and zero, and from movies of known photons."""

from typing import Any

import dask.array as da
import numpy as np
import pytest

from dpca import Denoiser
from dpca.engine.sources.source import as_source
from dpca.models.denoising.camera import MOST_SAMPLES, camera_in_words, offset_of, some_samples
from dpca.storage.errors import DataError
from tests.helpers.phantoms import Floats, movie


def points(gain: float, offset: float, read_noise: float = 0, n: int = 20, errors: float = 0) -> Floats:
    """Return n points on the line of a camera: mean, variance and degrees of freedom."""
    mean = offset + np.linspace(10, 50, n) * gain
    variance = gain * (mean - offset) + read_noise**2
    variance = variance * (1 + errors * np.random.default_rng(0).normal(size=n))
    return np.stack([mean, variance, np.full(n, 2 / max(errors, 1e-9) ** 2)], axis=1)


def camera(gain: float, offset: float, read_noise: float, n: int = 400) -> Floats:
    """Return a movie of integers."""
    rng, photons = np.random.default_rng(1), movie(n, 48, 12)[0]
    found: Floats = np.rint(gain * rng.poisson(photons) + rng.normal(offset, read_noise, photons.shape))
    return found.astype(np.uint16)


@pytest.mark.parametrize(("gain", "offset", "read_noise"), [(1, 100, 0), (2.5, 40, 3), (30, -7, 10), (0.01, 1, 0)])
def test_the_line_is_zero_at_the_offset(gain: float, offset: float, read_noise: float) -> None:
    zero = offset - read_noise**2 / gain
    given = points(gain, offset, read_noise)
    assert offset_of(given, None, 0)[0] == pytest.approx(zero, rel=1e-6)
    assert offset_of(given, gain, read_noise)[0] == pytest.approx(offset, rel=1e-6)


def test_points_whose_signal_was_taken_for_noise_do_not_count() -> None:
    found = points(2, 100, errors=0.01, n=40)
    found[::8, 1] *= 4
    assert offset_of(found, None, 0)[0] == pytest.approx(100, abs=2)


def test_points_count_by_their_degrees_of_freedom() -> None:
    found, rough = points(2, 100, errors=0.01, n=40), points(2, 100, errors=0.5, n=400)
    alone, both = (offset_of(one, None, 0) for one in (found, np.concatenate([found, rough])))
    assert alone[1] is not None
    assert both[0] == pytest.approx(alone[0], abs=alone[1])
    assert both[1] == pytest.approx(alone[1], rel=0.2)


def test_few_points_that_agree_by_chance_are_no_better_than_their_degrees_of_freedom() -> None:
    by_chance = np.stack([np.linspace(5, 5.1, 20), np.linspace(1, 1.05, 20), np.full(20, 100)], axis=1)
    assert offset_of(by_chance, None, 0) == (0, None)


def test_samples_without_noise_do_not_determine_the_offset() -> None:
    x = 100 + np.outer(np.arange(300) % 7, np.arange(36 * 16)).reshape(300, 24, 24) / 64
    assert Denoiser(noise="poisson").fit(x).offset_error_ is None


def test_an_offset_that_is_compatible_with_0_is_0() -> None:
    for gain in (None, 2):
        zero, error = offset_of(points(2, 0, errors=0.01), gain, 0)
        assert zero == 0
        assert error is not None
        assert 0 < error < 1
    assert offset_of(points(2, 100, errors=0.01), 2, 0)[0] > 0


def test_the_error_of_an_offset_is_that_of_repeated_estimates() -> None:
    rng, found = np.random.default_rng(0), []
    for _ in range(100):
        given = points(2, 100, 3, n=60)
        given[:, 1] *= 1 + rng.normal(0, 0.05, 60)
        given[:, 2] = 2 / 0.05**2
        found.append(offset_of(given, None, 0))
    offsets, errors = np.array(found, float).T
    assert np.median(errors) == pytest.approx(offsets.std(), rel=0.25)


def test_noise_that_does_not_determine_the_offset() -> None:
    nothing = (0.0, None)
    assert offset_of(points(2, 100, errors=0.01, n=7), None, 0) == nothing, "with few points, errors are unknown"
    flat = np.tile([5.0, 1.0, 100.0], (20, 1))
    assert offset_of(flat, None, 0) == nothing, "equal brightness"
    assert offset_of(np.zeros((0, 3)), None, 0) == nothing, "no noise"
    flat[:, 0] += 1e-3 * np.arange(20)
    flat[:, 1] *= 1 + 0.1 * np.random.default_rng(0).normal(size=20)
    assert offset_of(flat, None, 0) == nothing, "hardly different brightness"
    assert offset_of(flat, 1, 0)[0] == pytest.approx(4, abs=0.1), "of a known gain"


def test_nothing_is_below_the_offset() -> None:
    found = points(2, 100, errors=0.01, n=40)
    found[0, 0] = 90
    assert offset_of(found, None, 0)[0] == 90


@pytest.mark.parametrize("slope", [0.0, -0.5])
def test_noise_that_does_not_increase_with_the_mean_is_not_of_photons(slope: float) -> None:
    mean, jitter = np.arange(20.0, 40), 1 + 0.01 * np.random.default_rng(0).normal(size=20)
    with pytest.raises(DataError, match="gaussian"):
        offset_of(np.stack([mean, (100 + slope * mean) * jitter, np.full(20, 2e4)], axis=1), None, 0)


def spots(width: float, n: int = 200, dark: float = 5, size: int = 56, bright: float = 20) -> Floats:
    """Return the expected photons of a movie of blinking spots on a dark background."""
    rng, (y, x) = np.random.default_rng(1), np.mgrid[:size, :size]
    photons = np.full((n, size, size), float(dark))
    for row, column, period in zip(*rng.uniform(4, size - 4, (2, 12)), rng.uniform(3, 20, 12), strict=True):
        spot = bright * np.exp(-((y - row) ** 2 + (x - column) ** 2) / (2 * width**2))
        photons += (1 + np.sin(np.arange(n) / period))[:, None, None] * spot
    return photons


@pytest.mark.pairwise
@pytest.mark.parametrize("bright", [20, 400])
@pytest.mark.parametrize("width", [1.2, 4])
@pytest.mark.parametrize("rule", ["covariance", "samples"])
def test_spots_as_small_as_cells(width: float, bright: float, rule: str) -> None:
    n = 200 if rule == "covariance" else 60
    x = (2 * np.random.default_rng(2).poisson(spots(width, n, bright=bright)) + 100).astype(np.uint16)
    model = Denoiser(noise="poisson").fit(x)
    assert model.gain_ == pytest.approx(2, rel=0.03)
    assert model.offset_ == pytest.approx(100, abs=0.5)


def test_saturated_spots_and_a_mask() -> None:
    photons = spots(2, bright=200)
    x = np.minimum(2 * np.random.default_rng(2).poisson(photons) + 100, 400).astype(np.uint16)
    x[:, :20, :9] = 0
    model = Denoiser(noise="poisson").fit(x)
    assert model.gain_ == pytest.approx(2, rel=0.06)
    assert model.offset_ == pytest.approx(100, abs=0.5)


def test_a_dim_movie_whose_pixels_count_few_photons() -> None:
    x = (2 * np.random.default_rng(2).poisson(spots(1.5, 400, dark=0.3, bright=2)) + 100).astype(np.uint16)
    model = Denoiser(noise="poisson").fit(x)
    assert model.gain_ == pytest.approx(2, rel=0.03)
    assert model.offset_ == pytest.approx(100, abs=0.05)


def test_read_noise_of_a_gradient_is_not_of_photons() -> None:
    """Errors of the means, with noise that has no skewness, would lower the slope within cells."""
    light = np.linspace(18, 22, 64)
    rng = np.random.default_rng(0)
    x = 2 * rng.poisson(np.tile(light, (400, 64, 1))) + rng.normal(100, 10, (400, 64, 64))
    model = Denoiser(noise="poisson").fit(np.rint(x).astype(np.uint16))
    assert model.offset_ == pytest.approx(50, abs=3 * model.offset_error_)
    assert model.offset_error_ < 10


def test_an_equally_bright_stack_does_not_determine_the_offset() -> None:
    x = (2 * np.random.default_rng(0).poisson(20, (50, 24, 24)) + 100).astype(np.uint16)
    model = Denoiser(noise="poisson").fit(x)
    assert (model.offset_, model.offset_error_) == (0, None)
    assert "not determine" in camera_in_words({"gain": model.gain_, "offset": 0.0, "offset_error": None})
    assert Denoiser(noise="poisson", offset=100).fit(x).offset_error_ == 0


@pytest.mark.parametrize(("gain", "offset", "read_noise"), [(3, 100, 4), (0.5, 30, 1)])
def test_gain_and_offset_of_a_camera_are_estimated(gain: float, offset: float, read_noise: float) -> None:
    x = camera(gain, offset, read_noise)
    model = Denoiser(noise="poisson").fit(x)
    # Rounding adds a variance of 1/12.
    zero = offset - (read_noise**2 + 1 / 12) / gain
    assert model.gain_ == pytest.approx(gain, rel=0.03)
    assert model.offset_ == pytest.approx(zero, abs=gain)
    known = Denoiser(noise="poisson", gain=gain, offset=offset, read_noise=read_noise).fit(x)
    assert np.median(model.sigma_ / known.sigma_) == pytest.approx(1, rel=0.02)
    of_gain = Denoiser(noise="poisson", gain=gain, read_noise=read_noise).fit(x)
    assert of_gain.offset_ == pytest.approx(offset, abs=gain)
    in_chunks = Denoiser(noise="poisson").fit(da.from_array(x, chunks=(70, 20, 48)))
    assert in_chunks.offset_ == model.offset_


def test_counts_of_photons_have_no_offset() -> None:
    x = camera(1, 0, 0)
    model, given = (Denoiser(noise="poisson", offset=offset).fit(x) for offset in (None, 0))
    assert model.offset_ == 0
    np.testing.assert_array_equal(model.sigma_, given.sigma_)


def test_few_samples_have_no_estimate() -> None:
    x = camera(2, 50, 0, n=3)
    assert Denoiser(noise="poisson", gain=2).fit(x).offset_ == 0


@pytest.mark.parametrize("lazy", [False, True])
def test_the_samples_of_the_estimate_are_spread(lazy: bool) -> None:
    values = np.arange(5000, dtype=np.float64)[:, None]
    given: Any = da.from_array(values, chunks=(64, 1)) if lazy else values
    few = some_samples(as_source(given))
    assert few.shape[0] == pytest.approx(MOST_SAMPLES, rel=0.1)
    found = np.empty(few.shape)
    if few.as_dask() is None:
        few.reader()((0, few.shape[0]), ((0, 1),), found)
    else:
        found[...] = few.as_dask()
    assert (np.diff(found[:, 0]) > 0).all()
    assert np.diff(found[:, 0]).max() < 300


def test_an_offset_without_photons_is_rejected() -> None:
    with pytest.raises(DataError, match="poisson"):
        Denoiser(offset=0).fit(np.random.default_rng(0).normal(size=(20, 8, 8)))
