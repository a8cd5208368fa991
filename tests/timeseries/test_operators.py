"""Operators in time: their results on scores equal those on the field, and those of other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.signal

from dpca import PCA, StreamingPCA, timeseries
from dpca.kernels.analytic import _padded
from dpca.models import ConvergenceWarning
from dpca.timeseries.exponentials import _Fit
from dpca.timeseries.results import phase_factors
from tests.fixtures.other_libraries import known
from tests.timeseries.field import RATES, N, linear, noisy, waves

FIELD = waves()
FLAT = FIELD.reshape(N, -1)
FULL = PCA(30).fit(FIELD)
FEW = PCA(4).fit(FIELD)


def alike(a: Any, b: Any) -> Any:
    """Return the moduli of the cosines between rows (m, ...) of two arrays."""
    a, b = (np.asarray(x).reshape(len(x), -1) for x in (a, b))
    return np.abs(np.einsum("ij,ij->i", a.conj(), b)) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def test_spectra_are_those_of_the_field() -> None:
    for segment, window in ((None, "boxcar"), (32, "hann")):
        found = timeseries.spectrum(FULL.transform(FIELD), model=FULL, time=0.5, segment=segment, window=window)
        frequencies, power = scipy.signal.welch(FLAT, 2.0, window, nperseg=segment or N, axis=0)
        np.testing.assert_allclose(found.frequencies, frequencies)
        np.testing.assert_allclose(found.total, power.sum(axis=1), rtol=1e-10, atol=1e-20)
    # The sum of a periodogram is the variance.
    plain = timeseries.spectrum(FULL.transform(FIELD), model=FULL, time=0.5, window="boxcar")
    assert plain.total.sum() * plain.frequencies[1] == pytest.approx(FLAT.var(axis=0).sum(), rel=1e-10)
    few = timeseries.spectrum(FEW.transform(FIELD), model=FEW, time=0.5, segment=40)
    np.testing.assert_allclose(few.peaks[:3], [0.1, 0.1, 0.25])
    assert few.share == pytest.approx(FEW.explained_variance_ratio_.sum()) != 1


def test_modes_that_propagate_are_those_of_the_field() -> None:
    signal = scipy.signal.hilbert(FLAT - FLAT.mean(axis=0), axis=0)
    left, sizes, right = np.linalg.svd(signal - signal.mean(axis=0), full_matrices=False)
    variances = sizes**2 / (N - 1)
    found = timeseries.hilbert_eof(FULL.transform(FIELD), 5, model=FULL, padding=None)
    np.testing.assert_allclose(found.explained_variance, variances[:5], rtol=1e-9)
    np.testing.assert_allclose(found.explained_variance_ratio, variances[:5] / variances.sum(), rtol=1e-9)
    np.testing.assert_allclose(alike(found.modes, right[:5]), 1, atol=1e-9)
    field = found.scores @ found.modes.compute().reshape(5, -1)
    np.testing.assert_allclose(field, (left[:, :5] * sizes[:5]) @ right[:5], atol=1e-8)
    few = timeseries.hilbert_eof(FEW.transform(FIELD), 2, model=FEW, padding=None)
    lost = 1 - few.share
    np.testing.assert_allclose(few.explained_variance_ratio, variances[:2] / variances.sum(), atol=lost)
    assert (1 - alike(few.modes, right[:2]) < lost).all()
    # A wave that travels has one mode, of the same amplitude everywhere.
    wave = timeseries.hilbert_eof(FEW.transform(FIELD), 2, model=FEW)
    assert wave.explained_variance_ratio[0] == pytest.approx(4.5 / (4.5 + 0.7), abs=0.03)
    amplitudes = np.abs(wave.modes[0].compute())
    assert np.ptp(amplitudes) < 0.1 * amplitudes.mean()


@pytest.mark.parametrize("padding", ["exponential", None])
@pytest.mark.parametrize("direction", [1, -1])
def test_phases_say_where_a_wave_travels(padding: str | None, direction: int) -> None:
    """The wave is the real part of exp(i w t) exp(-i x), of which x follows t, or of exp(i w t) exp(i x)."""
    t, x = np.arange(200)[:, None], np.linspace(0, 2 * np.pi, 24, endpoint=False)
    field = np.cos(direction * x - t * np.pi / 10)
    found = timeseries.hilbert_eof(field, 2, padding=padding)
    along = np.unwrap(np.angle(found.modes[0].compute()))
    np.testing.assert_allclose(along - along[0], -direction * x, atol=0.05)
    in_time = np.unwrap(np.angle(found.scores[:, 0]))
    np.testing.assert_allclose(np.diff(in_time)[20:-20], np.pi / 10, rtol=0.15)
    # The real part of the reconstruction is the field minus its mean, for any padding.
    back = (found.scores @ found.modes.compute()).real
    np.testing.assert_allclose(back, field - field.mean(axis=0), atol=1e-9)


def test_what_continues_a_record() -> None:
    """The trend continues, and the deviation from it at an end decays to 1/e within a share of the record."""
    n, decay = 40, 0.25
    line = 3 + 0.5 * np.arange(-n, 2 * n)[:, None]
    np.testing.assert_allclose(_padded(line[n : 2 * n], decay), line, atol=1e-10)
    bump = np.zeros((n, 1))
    bump[0] = bump[-1] = 1  # as much on both sides: no slope
    rest = _padded(bump, decay) - bump.mean()
    fall = (1 - bump.mean()) * np.exp(-np.arange(n) / 10)[:, None]
    np.testing.assert_allclose(rest, np.concatenate([fall[::-1], bump - bump.mean(), fall]), atol=1e-12)


def test_modes_over_lags_are_those_of_the_field() -> None:
    windows = np.stack([FLAT[j * 2 : N - 6 + j * 2] for j in range(4)], axis=1).reshape(N - 6, -1)
    variances = np.linalg.svd(windows - windows.mean(axis=0), compute_uv=False) ** 2 / (N - 7)
    exact = PCA(3).fit(timeseries.lagged(FIELD, 4, lag=2))
    np.testing.assert_allclose(exact.explained_variance_, variances[:3], rtol=1e-9)
    for model in (FULL, FEW):
        scores = model.transform(FIELD)
        found = timeseries.extended_eof(scores, 3, 4, lag=2, model=model)
        lost = 1e-9 if model is FULL else 1 - found.share
        np.testing.assert_allclose(found.explained_variance_ratio, variances[:3] / variances.sum(), atol=lost)
        assert (1 - alike(found.modes, exact.components_) < lost).all()
        np.testing.assert_allclose(found.scores.var(axis=0, ddof=1), found.explained_variance)
    streamed = StreamingPCA(3, method="incremental-svd", n_passes=2, batch_size=10, oversampling=10)
    streamed.fit(timeseries.lagged(FIELD, 4, lag=2))
    np.testing.assert_allclose(streamed.explained_variance_, variances[:3], rtol=7e-5)


@pytest.mark.parametrize("method", ["exact", "optimized"])
def test_dynamics_of_a_linear_system(method: str) -> None:
    times, samples = linear(60, RATES)
    model = PCA(12).fit(samples)
    # The scores lack the mean, so that the system rests elsewhere than at 0.
    for given, rest in (({"scores": samples}, 0), ({"scores": model.transform(samples), "model": model}, 1)):
        found = timeseries.dmd(**given, time=times + 5, method=method)
        assert len(found.rates) == 4 + rest
        for rate in (*RATES, *RATES.conj(), *[0] * rest):
            assert np.abs(found.rates - rate).min() < 1e-8
        assert found.residual < 1e-10
        later = found.scores([65.0]) @ found_rows(given) + (model.mean_ if rest else 0)
        np.testing.assert_allclose(later, linear(301, RATES)[1][300:], rtol=1e-6)
        assert found.share == pytest.approx(1)
    np.testing.assert_allclose(np.sort(found.frequencies)[-1], 3 / (2 * np.pi))
    assert found.growth.max() == pytest.approx(0.05)


def found_rows(given: dict[str, Any]) -> Any:
    return given["model"].components_ if "model" in given else np.eye(12)


def test_noise_damps_exact_rates_and_uneven_times_do_not_matter_to_optimized_ones() -> None:
    times, samples = linear(150, RATES)
    rng = np.random.default_rng(0)
    noisy = samples + 0.3 * rng.normal(size=samples.shape)
    some = np.sort(rng.choice(150, 110, replace=False))
    errors = []
    for chosen, method in ((slice(None), "exact"), (slice(None), "optimized"), (some, "optimized")):
        rates = timeseries.dmd(noisy[chosen], 4, time=times[chosen], method=method).rates
        errors.append(max(np.abs(rates - rate).min() for rate in RATES))
    assert errors[0] > 10 * max(errors[1:])
    assert max(errors[1:]) < 0.01


def test_the_better_of_two_first_guesses_counts() -> None:
    """The residual is at most that of the true rates; from the first guess alone it is a quarter larger."""
    times, samples = linear(60)
    samples = samples + np.random.default_rng(4).normal(size=samples.shape)
    courses = np.exp(times[:, None] * np.concatenate([RATES, RATES.conj()]))
    left = samples - courses @ np.linalg.lstsq(courses, samples.astype(complex), rcond=None)[0]
    found = timeseries.dmd(samples, 4, time=times, method="optimized")
    assert found.residual <= np.linalg.norm(left) / np.linalg.norm(samples)
    assert found.residual == pytest.approx(np.linalg.norm(samples - found.scores(times)) / np.linalg.norm(samples))


def test_modes_come_by_their_part_in_the_record_and_positive_frequencies_first() -> None:
    t = 0.1 * np.arange(200)[:, None]
    large, small = (
        np.cos(w * t) * a + np.sin(w * t) * b for w, a, b in ((2, [9, 0, 1], [0, 8, 2]), (5, [1, 1, 0], [0, 1, 1]))
    )
    for method in ("exact", "optimized"):
        found = timeseries.dmd(np.concatenate([large + small, small * 0.5], axis=1), 4, time=0.1, method=method)
        np.testing.assert_allclose(found.rates, [2j, -2j, 5j, -5j], atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(found.coefficients, axis=1), 1)
        size = np.abs(found.coefficients)
        largest = np.take_along_axis(found.coefficients, size.argmax(axis=1)[:, None], axis=1)
        np.testing.assert_allclose(largest[:, 0], size.max(axis=1), atol=1e-5)


def test_modes_that_do_not_settle_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    times, samples = noisy()
    timeseries.dmd(samples, 4, time=times, method="optimized")  # these do, and warnings are errors
    monkeypatch.setattr("dpca.timeseries.exponentials._STEPS", 1)
    with pytest.warns(ConvergenceWarning, match=r"\b4\b.*converged"):
        timeseries.dmd(samples, 4, time=times, method="optimized")


def test_derivatives_of_the_residual() -> None:
    rng = np.random.default_rng(0)
    values, since, x = rng.normal(size=(20, 3)), np.linspace(0, 1, 20), rng.normal(size=4)
    found = _Fit(values, since, x).jacobian()

    def residual(x: Any) -> Any:
        left = _Fit(values, since, x).residual
        return np.concatenate([left.real.ravel(), left.imag.ravel()])

    h = 1e-6 * np.eye(4)
    np.testing.assert_allclose(found.T, [(residual(x + e) - residual(x - e)) / 2e-6 for e in h], atol=1e-7)


def test_phases_by_which_the_largest_entry_is_positive() -> None:
    """Entries that are equal up to rounding error are ties, and the first one counts."""
    given = np.array([[0.95, -1], [1 - 1e-9, -1], [-2, 1]])
    np.testing.assert_array_equal(phase_factors(given), [[-1], [1], [-1]])
    np.testing.assert_allclose(phase_factors(np.array([[1j, 3 + 4j]])) * (3 + 4j), 5)


def test_signs_of_scores_go_with_those_of_their_maps() -> None:
    """Of two functions that are one but for their signs, and for rounding."""
    x = np.random.default_rng(0).normal(size=50)
    functions = np.stack([x, -x * (1 + 1e-8)], axis=1)
    found = timeseries.extended_eof(functions, 1, 1)
    assert found.coefficients[0, 0, 0] > 0
    expected = (functions - functions.mean(axis=0)) @ found.coefficients[0, 0]
    np.testing.assert_allclose(found.scores[:, 0], expected, atol=1e-9)


def test_shares_of_all_modes_together_are_what_the_model_keeps() -> None:
    scores = FEW.transform(FIELD)
    lags = timeseries.extended_eof(scores, 8, 2, lag=3, model=FEW, time=0.5)
    for found in (timeseries.hilbert_eof(scores, 4, model=FEW), lags):
        assert found.explained_variance_ratio.sum() == pytest.approx(found.share)
        assert found.share < 1
    np.testing.assert_allclose(lags.lags, [0, 1.5])


def test_peaks_leave_out_what_does_not_vary() -> None:
    t = np.arange(64)
    functions = np.stack([9 + np.cos(t * np.pi / 4), 9 + np.cos(t * np.pi / 2)], axis=1)
    found = timeseries.spectrum(functions, time=0.5, window="boxcar", detrend=False)
    np.testing.assert_allclose(found.peaks, [0.25, 0.5])


def test_cosines() -> None:
    t = (np.arange(200) + 0.5) / 200
    functions = np.stack([np.cos(np.pi * t), np.cos(2 * np.pi * t) + np.cos(5 * np.pi * t), 0 * t], axis=1)
    found = timeseries.cosine_content(functions)
    np.testing.assert_allclose(found.content, [1, 0.5, 0], atol=1e-12)
    # A random walk in many dimensions (Hess 2000).
    walk = np.random.default_rng(0).normal(size=(300, 200)).cumsum(axis=0)
    model = PCA(3).fit(walk)
    assert (timeseries.cosine_content(model.transform(walk), model=model).content > 0.9).all()


def test_independent_samples() -> None:
    """Effective numbers of a first-order autoregressive process, for which they are known."""
    r, n = np.array([0.0, 0.5, 0.9]), 40_000
    noise = np.random.default_rng(0).normal(size=(n, 3))
    functions = np.stack([scipy.signal.lfilter([1], [1, -a], x) for a, x in zip(r, noise.T, strict=True)], axis=1)
    found = timeseries.effective_samples(functions).count
    np.testing.assert_allclose(found, n * (1 - r) / (1 + r), rtol=0.1)
    found = timeseries.effective_samples(functions, of="variance").count
    np.testing.assert_allclose(found, n * (1 - r**2) / (1 + r**2), rtol=0.1)
    np.testing.assert_allclose(timeseries.effective_samples(np.ones((9, 1))).count, 1)


@pytest.mark.parametrize("n", [4, 9, 30])
@pytest.mark.parametrize("of", ["mean", "variance"])
def test_independent_samples_by_hand(n: int, of: str) -> None:
    """The sum over pairs of Geyer 1992, in loops."""
    values = np.random.default_rng(n).normal(size=(n, 20)).cumsum(axis=0)
    values[:, 0] = (-1) ** np.arange(n)  # counts as more than n
    values[:, 1] = np.arange(n)
    for x, found in zip(values.T, timeseries.effective_samples(values, of=of).count, strict=True):
        y = x - x.mean()
        r = [sum(y[i] * y[i + j] for i in range(n - j)) / (y @ y) for j in range(n)] + [0.0]
        total, j = 0.0, 0
        while j < n and r[j] + r[j + 1] > 0:
            for i in (j, j + 1):
                total += (1 - i / n) * r[i] ** (1 if of == "mean" else 2)
            j += 2
        assert found == pytest.approx(min(max(n / (2 * total - 1), 1), n) if total > 0.5 else n)


def test_as_xeofs_does() -> None:
    theirs, scores = known("xeofs"), FULL.transform(FIELD)
    ours = timeseries.hilbert_eof(scores, 3, model=FULL)
    np.testing.assert_allclose(ours.explained_variance_ratio, theirs["hilbert ratios"], rtol=1e-6)
    # A wave is the sum of scores times the conjugate of their maps.
    np.testing.assert_allclose(alike(ours.modes.conj(), theirs["hilbert maps"]), 1, atol=1e-6)
    np.testing.assert_allclose(alike(ours.scores.T, theirs["hilbert scores"]), 1, atol=1e-6)
    lags = timeseries.extended_eof(scores, 3, 5, lag=2, model=FULL)
    np.testing.assert_allclose(lags.explained_variance_ratio, theirs["extended ratios"], rtol=1e-6)
    np.testing.assert_allclose(alike(lags.modes, theirs["extended maps"]), 1, atol=1e-6)


def test_as_pydmd_does() -> None:
    theirs = known("pydmd")
    found = timeseries.dmd(FULL.transform(FIELD), 4, model=FULL, constant=False)
    nearest = [np.argmin(np.abs(np.log(theirs["eigenvalues"]) - rate)) for rate in found.rates]
    np.testing.assert_allclose(np.exp(found.rates), theirs["eigenvalues"][nearest], atol=1e-6)
    np.testing.assert_allclose(alike(found.modes, theirs["modes"].T[nearest]), 1, atol=1e-6)
    np.testing.assert_allclose(found.scores(np.arange(N)) @ FULL.components_, theirs["reconstruction"].T, atol=1e-6)
    times, samples = noisy()
    rates = timeseries.dmd(samples, 4, time=times, method="optimized").rates
    assert max(np.abs(theirs["optimized rates"] - rate).min() for rate in rates) < 1e-6
