"""The filter along a series in time, against Wiener's equations, known processes, and the traces of a movie."""

from typing import Any

import numpy as np
import pytest
from scipy.linalg import solve_toeplitz
from scipy.ndimage import gaussian_filter1d
from scipy.signal import lfilter

from dpca import Denoiser
from dpca.models.denoising.time_filter import Series, context, filtered, in_context
from tests.helpers.phantoms import Floats, movie, rmse


def whole(scores: Floats) -> Floats:
    """Return the filtered scores of a whole series."""
    found: Floats = filtered(scores, Series(0, 0, len(scores), len(scores)))
    return found


def process(n: int, phi: float, power: float, seed: int = 0) -> tuple[Floats, Floats]:
    """Return a first-order autoregressive signal of a variance, and the signal with white noise of variance 1."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(0, np.sqrt(power * (1 - phi**2)), (n + 500, 1))
    signal = lfilter([1], [1, -phi], steps, axis=0)[500:]
    return signal, signal + rng.normal(size=signal.shape)


def test_equations_of_wiener() -> None:
    """A series of three windows has one filter in all of them."""
    _, scores = process(150, 0.9, 5)
    z = scores[:, 0] - scores.mean()
    c = np.array([z[: 150 - lag] @ z[lag:] / 150 for lag in range(9)])
    of_signal = np.r_[c[4:0:-1], c[0] - 1, c[1:5]]
    h = solve_toeplitz(c, of_signal)
    expected = scores.mean() + np.convolve(np.pad(z, 4, mode="reflect"), h[::-1], mode="valid")
    np.testing.assert_allclose(whole(scores)[:, 0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("phi", "power"), [(0.9, 2.0), (0.98, 10.0), (0.5, 5.0)])
def test_the_error_of_the_best_filter_is_nearly_reached(phi: float, power: float) -> None:
    signal, scores = process(20_000, phi, power)
    lags = power * phi ** np.arange(9)
    near = power * phi ** np.abs(np.arange(-4, 5))
    best = power - near @ solve_toeplitz(lags + np.eye(9)[0], near)
    error = float(np.mean((whole(scores) - signal) ** 2))
    assert best * 0.95 < error < 1.15 * best


def test_noise_alone_mostly_goes() -> None:
    scores = np.random.default_rng(0).normal(size=(5000, 3))
    assert whole(scores).var() < 0.15


def test_strong_and_constant_series_stay() -> None:
    strong = 1e6 * np.random.default_rng(0).normal(size=(400, 2))
    np.testing.assert_allclose(whole(strong), strong, rtol=1e-3, atol=1e2)
    np.testing.assert_allclose(whole(np.full((400, 1), 7.0)), 7, rtol=1e-6)
    np.testing.assert_array_equal(whole(np.zeros((400, 1))), 0)


def test_short_series_stay() -> None:
    scores = np.random.default_rng(0).normal(size=(16, 2))
    np.testing.assert_array_equal(whole(scores), scores)


@pytest.mark.parametrize("n", [17, 64, 100, 191, 192, 193, 500, 640])
@pytest.mark.parametrize(("part", "rows"), [(7, 1), (64, 64), (100, 130), (640, 64)])
def test_any_division_gives_the_same_values(n: int, part: int, rows: int) -> None:
    scores = process(n, 0.9, 5)[1]
    expected = whole(scores)
    for span in ((0, n), (n // 3, n // 2), (n - 1, n), (n // 2, n)):
        low, high = context(*span, n)
        parts = ((at, scores[at : min(at + part, high)]) for at in range(low, high, part))
        found, at = [], span[0]
        for series, values in in_context(parts, span, n, rows):
            assert series.start == at
            found.append(filtered(values, series))
            at = series.stop
        assert at == span[1]
        np.testing.assert_array_equal(np.concatenate(found), expected[slice(*span)])


def test_a_movie_is_closer_to_the_truth_and_so_are_its_traces() -> None:
    """Traces are means over cells. Those of the noisy movie are worse with any of several widths of smoothing."""
    truth, footprints, _ = movie(1000, 48, 10)
    x = np.random.default_rng(1).poisson(truth).astype(np.uint16)
    plain, clean = (Denoiser(noise="poisson", time_filter=on).fit_transform(x) for on in (False, True))
    assert rmse(clean, truth) < 0.8 * rmse(plain, truth)

    def similar(values: Any, width: float = 0) -> Floats:
        traces = [np.stack([np.mean(y[:, f > 0.5], axis=1) for f in footprints]) for y in (values, truth)]
        traces[0] = gaussian_filter1d(traces[0], width, axis=1) if width else traces[0]
        return np.array([np.corrcoef(one, other)[0, 1] for one, other in zip(*traces, strict=True)])

    best = np.max([similar(x, width) for width in (0.5, 0.7, 1, 1.3, 1.6, 2, 3)], axis=0)
    assert (similar(clean) >= best - 1e-4).all()
    assert similar(clean).mean() > best.mean()


def test_samples_without_noise_stay() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 256))
    x = np.round(x * 64).reshape(300, 16, 16) / 64
    x[:, 8:] = 3
    clean = Denoiser(8, time_filter=True, sigma=1e-6).fit_transform(x)
    np.testing.assert_allclose(clean, x, atol=1e-3)
