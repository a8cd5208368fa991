"""The offset of a camera, from lines of known slope and zero, and from movies of known photons."""

from typing import Any

import dask.array as da
import numpy as np
import pytest

from dpca import Denoiser
from dpca.engine.sources.source import as_source
from dpca.models.denoising.camera import MOST_SAMPLES, offset_of, some_samples
from dpca.storage.errors import DataError
from tests.helpers.phantoms import Floats, movie


def cells(gain: float, offset: float, read_noise: float = 0, n: int = 20, errors: float = 0) -> list[dict[str, Any]]:
    """Return mean and level of n cells on the line of a camera."""
    mean = offset + np.linspace(10, 50, n) * gain
    variance = gain * (mean - offset) + read_noise**2
    variance = variance * (1 + errors * np.random.default_rng(0).normal(size=n))
    return [{"mean": one, "level": np.sqrt(other)} for one, other in zip(mean, variance, strict=True)]


def camera(gain: float, offset: float, read_noise: float, n: int = 400) -> Floats:
    """Return a movie of integers."""
    rng, photons = np.random.default_rng(1), movie(n, 48, 12)[0]
    found: Floats = np.rint(gain * rng.poisson(photons) + rng.normal(offset, read_noise, photons.shape))
    return found.astype(np.uint16)


@pytest.mark.parametrize(("gain", "offset", "read_noise"), [(1, 100, 0), (2.5, 40, 3), (30, -7, 10), (0.01, 1, 0)])
def test_the_line_through_cells_is_zero_at_the_offset(gain: float, offset: float, read_noise: float) -> None:
    zero = offset - read_noise**2 / gain
    assert offset_of(cells(gain, offset, read_noise), None, 0) == pytest.approx(zero, rel=1e-6)
    assert offset_of(cells(gain, offset, read_noise), gain, read_noise) == pytest.approx(offset, rel=1e-6)


def test_cells_whose_signal_was_taken_for_noise_do_not_count() -> None:
    found = cells(2, 100, errors=0.01, n=40)
    for one in found[::8]:
        one["level"] = 2 * one["level"]
    assert offset_of(found, None, 0) == pytest.approx(100, abs=2)


def test_an_offset_that_is_compatible_with_0_is_0() -> None:
    assert offset_of(cells(2, 0, errors=0.01), None, 0) == 0
    assert offset_of(cells(2, 0, errors=0.01), 2, 0) == 0
    assert offset_of(cells(2, 100, errors=0.01), 2, 0) > 0
    assert offset_of(cells(2, 100, n=7), None, 0) == 0, "with few cells, the error of a line is unknown"
    assert offset_of([{"mean": 5.0, "level": 1.0}] * 20, None, 0) == 0, "cells of equal brightness"
    assert offset_of([{"mean": 5.0, "level": 0.0}] * 20, None, 0) == 0, "cells without noise"


def test_no_cell_is_below_the_offset() -> None:
    found = cells(2, 100, errors=0.01, n=40)
    found[0]["mean"] = np.float64(90)
    assert offset_of(found, None, 0) == 90


@pytest.mark.parametrize("slope", [0.0, -0.5])
def test_noise_that_does_not_increase_with_the_mean_is_not_of_photons(slope: float) -> None:
    jitter = 1 + 0.01 * np.random.default_rng(0).normal(size=20)
    found = [{"mean": m, "level": np.sqrt((100 + slope * m) * e)} for m, e in zip(range(20, 40), jitter, strict=True)]
    with pytest.raises(DataError, match="gaussian"):
        offset_of(found, None, 0)


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
