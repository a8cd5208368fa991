"""`Denoiser` at the ends of what it may be given: a result that is right, or one sentence."""

from typing import Any

import numpy as np
import pytest

from dpca import Denoiser
from dpca.models.denoising.magnitudes import amplitudes, magnitudes
from dpca.storage.errors import DataError
from tests.helpers.phantoms import Floats, rmse

NOISES: list[dict[str, Any]] = [
    {},
    {"sigma": 3.0},
    {"sigma": np.full((8, 10), 3.0)},
    {"noise": "poisson"},
    {"noise": "poisson", "gain": 0.09},
    {"noise": "poisson", "gain": 0.05, "offset": -10.0, "read_noise": 2.0},
    {"noise": "rician"},
    {"noise": "rician", "sigma": 3.0},
]
ESTIMATED = [given for given in NOISES if "sigma" not in given and "gain" not in given]
KNOWN = [given for given in NOISES if "sigma" in given or "gain" in given]


def waves(n: int, shape: tuple[int, ...] = (8, 10), sigma: float = 3.0) -> tuple[Floats, Floats]:
    """Return a wave of one shape on a mean of 100, and with white noise."""
    shade = np.hanning(shape[0] + 2)[1:-1, None] * np.hanning(shape[1] + 2)[1:-1]
    signal = 100 + 20 * np.sin(np.arange(n) / 3)[:, None, None] * shade
    return signal, signal + np.random.default_rng(0).normal(0, sigma, signal.shape)


def checked(x: Floats, **given: Any) -> tuple[Denoiser, Floats]:
    """Denoise in cells of 4 x 5, without a warning; all results are finite, and shares are shares."""
    model = Denoiser((4, 5), **given)
    with np.errstate(all="raise", under="ignore"):
        clean = model.fit_transform(x)
    for values in (clean, model.sigma_, model.rank_, model.removed_):
        assert np.isfinite(values).all()
    assert model.removed_.min() >= 0
    assert model.removed_.max() <= 1 + 1e-6
    return model, clean


@pytest.mark.parametrize("given", ESTIMATED)
@pytest.mark.parametrize("n", [15, 40])
def test_samples_without_noise_stay_as_they_are(given: dict[str, Any], n: int) -> None:
    """Eigenvalues of rounding errors are not signal, and with few samples their vectors are arbitrary."""
    for x in (waves(n, sigma=0)[0], np.outer(np.arange(n) + 1.0, np.ones(80)).reshape(n, 8, 10)):
        model, clean = checked(x, **given)
        np.testing.assert_allclose(clean, x, rtol=1e-9)
        assert model.rank_.max() <= 2
        assert model.sigma_.max() == 0
        assert model.removed_.max() < 1e-9


@pytest.mark.parametrize("given", NOISES)
def test_samples_that_repeat(given: dict[str, Any]) -> None:
    x = np.repeat(waves(2)[1], 8, axis=0)
    assert np.abs(checked(x, **given)[1] - x).max() < (10 if "sigma" in given or "gain" in given else 1e-9)


@pytest.mark.parametrize("given", KNOWN)
@pytest.mark.parametrize("n", [2, 3])
def test_few_samples_of_known_noise(given: dict[str, Any], n: int) -> None:
    signal, x = waves(n)
    assert rmse(checked(x, **given)[1], signal) < 3


def test_values_of_very_different_noise() -> None:
    """The standard deviation of Poisson noise follows the mean, here over 10 orders of magnitude."""
    ends = np.iinfo(np.int64)
    x = np.where(np.random.default_rng(0).random((15, 8, 10)) < 0.5, ends.min, ends.max)
    clean = checked(x, noise="poisson", gain=1.0)[1]
    assert np.abs(clean).max() < 2 * float(ends.max)


@pytest.mark.parametrize("given", NOISES)
@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        (np.uint8, 0),
        (np.uint8, 255),
        (np.uint16, 65535),
        (np.int16, -32768),
        (np.int64, -(2**63)),
        (np.float32, -9.96921e36),
        (np.float64, 1e20),
    ],
)
def test_a_mask_at_the_end_of_the_range(dtype: type, fill: float, given: dict[str, Any]) -> None:
    """A constant background is kept, whatever it is, and the cells beside it are denoised."""
    signal, x = waves(40)
    signal[:, :, :3] = fill
    x = np.where(np.arange(10) < 3, fill, np.rint(x)).astype(dtype)
    model, clean = checked(x, **given)
    np.testing.assert_allclose(clean[:, :, :3], x[:, :, :3].astype(clean.dtype), rtol=1e-6)
    assert rmse(clean[:, :, 3:], signal[:, :, 3:]) < 2
    assert model.sigma_[:, :3].max() == 0


@pytest.mark.parametrize("given", NOISES)
@pytest.mark.parametrize(("dtype", "end"), [(np.uint8, 0), (np.uint8, 255), (np.uint16, 65535), (np.int16, -32768)])
def test_noise_that_is_clipped_at_an_end_of_the_range(dtype: type, end: int, given: dict[str, Any]) -> None:
    ends = np.iinfo(dtype)
    x = np.clip(np.rint(end + waves(40)[1] - 100), ends.min, ends.max).astype(dtype)
    if end < 0 and "noise" in given:
        with pytest.raises(DataError, match="offset|negative"):
            checked(x, **given)
    else:
        assert rmse(checked(x, keep_dtype=True, **given)[1], x) < 5


@pytest.mark.parametrize("given", NOISES)
@pytest.mark.parametrize("scale", [1e-202, 1e202])
def test_squares_beyond_the_range_of_floats(scale: float, given: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="float64"):
        Denoiser((4, 5), **{**given, "offset": 0.0} if "offset" in given else given).fit(waves(12)[1] * scale)


@pytest.mark.parametrize("given", NOISES)
def test_an_outlier_beyond_the_range_of_sums(given: dict[str, Any]) -> None:
    x = waves(12)[1].astype(np.float32)
    x[3, 4, 5] = 3e38
    with pytest.raises(DataError, match="float32"):
        Denoiser((4, 5), **given).fit(x)


def test_noise_below_the_range_of_squares() -> None:
    with pytest.raises(DataError, match="float64"):
        Denoiser((4, 5), sigma=1e-300).fit(waves(12)[1])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_in_other_samples(value: float) -> None:
    x = waves(12)[1]
    model = Denoiser((4, 5)).fit(x)
    x[7, 3, 3] = value
    with pytest.raises(DataError, match=r"sample.7"):
        model.transform(x)


def test_magnitudes_of_large_values_do_not_overflow() -> None:
    large, level = np.array([1e30, 1e20, 50], np.float32), np.ones(3, np.float32)
    with np.errstate(all="raise"):
        np.testing.assert_allclose(magnitudes(large, level), large, rtol=1e-3)
        np.testing.assert_allclose(amplitudes(large, level), large, rtol=1e-3)


@pytest.mark.parametrize("given", [{"offset": 500.0}, {"gain": 1.0, "offset": 500.0}, {"gain": 2.0, "read_noise": 1.0}])
def test_a_mean_below_the_offset_of_poisson_noise(given: dict[str, Any]) -> None:
    x = waves(12)[1] - (0 if "offset" in given else 200)
    with pytest.raises(DataError, match="offset"):
        Denoiser((4, 5), noise="poisson", **given).fit(x)
    dark = np.random.default_rng(0).normal(0, 2, x.shape)
    checked(dark, noise="poisson", gain=2.0, read_noise=2.0)
    for n, cell in ((2, 2), (12, 1)):
        Denoiser(cell, noise="poisson", gain=2.0, read_noise=2.0).fit(dark[:n])


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_a_map_with_a_wrong_value(value: float) -> None:
    sigma = np.ones((8, 10))
    sigma[3, 4] = value
    with pytest.raises(DataError, match=rf"{value}\b.*3,.4"):
        Denoiser(sigma=sigma).fit(waves(12)[1])


@pytest.mark.parametrize("given", ESTIMATED)
def test_many_small_samples(given: dict[str, Any]) -> None:
    """Noise of two of 20 directions stays in each cell, less by the average of overlapping cells."""
    signal, x = waves(20_000)
    model, clean = checked(x, **given)
    np.testing.assert_allclose(model.sigma_, 3, rtol=0.02)
    assert rmse(clean, signal) < 3 * np.sqrt(2 / 20)
