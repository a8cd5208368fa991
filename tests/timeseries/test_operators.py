"""Operators on time functions do to the field what they do to it directly, and what other libraries do."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.signal
from scipy.linalg import expm

from dpca import PCA, StreamingPCA, timeseries
from dpca.models import ConvergenceWarning
from dpca.timeseries.exponentials import _Fit
from tests.timeseries.field import N, waves

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
    # The variance is what a periodogram adds up to.
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


def linear(n: int, rates: Any, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return times and samples of a linear system with these rates, and their conjugates, in 12 attributes."""
    rng = np.random.default_rng(seed)
    blocks = np.zeros((2 * len(rates), 2 * len(rates)))
    for i, rate in enumerate(rates):
        blocks[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[rate.real, rate.imag], [-rate.imag, rate.real]]
    times = 0.2 * np.arange(n)
    courses = np.stack([expm(blocks * t) @ np.ones(len(blocks)) for t in times])
    return times, courses @ rng.normal(size=(len(blocks), 12))


RATES = np.array([-0.1 + 3j, 0.05 + 1j])


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


def test_modes_that_do_not_settle_are_told() -> None:
    noise = np.random.default_rng(0).normal(size=(40, 6))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        timeseries.dmd(noise, 6, method="optimized")
    assert not told or told[0].category is ConvergenceWarning


def test_derivatives_of_the_residual() -> None:
    rng = np.random.default_rng(0)
    values, since, x = rng.normal(size=(20, 3)), np.linspace(0, 1, 20), rng.normal(size=4)
    found = _Fit(values, since, x).jacobian()

    def residual(x: Any) -> Any:
        left = _Fit(values, since, x).residual
        return np.concatenate([left.real.ravel(), left.imag.ravel()])

    h = 1e-6 * np.eye(4)
    np.testing.assert_allclose(found.T, [(residual(x + e) - residual(x - e)) / 2e-6 for e in h], atol=1e-7)


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
    """Of an autoregressive process of first order, whose numbers are known."""
    r, n = np.array([0.0, 0.5, 0.9]), 40_000
    noise = np.random.default_rng(0).normal(size=(n, 3))
    functions = np.stack([scipy.signal.lfilter([1], [1, -a], x) for a, x in zip(r, noise.T, strict=True)], axis=1)
    found = timeseries.effective_samples(functions).count
    np.testing.assert_allclose(found, n * (1 - r) / (1 + r), rtol=0.1)
    found = timeseries.effective_samples(functions, of="variance").count
    np.testing.assert_allclose(found, n * (1 - r**2) / (1 + r**2), rtol=0.1)
    np.testing.assert_allclose(timeseries.effective_samples(np.ones((9, 1))).count, 1)


@pytest.mark.filterwarnings("ignore")  # theirs
def test_other_libraries_find_the_same() -> None:
    xeofs, pydmd = pytest.importorskip("xeofs"), pytest.importorskip("pydmd")
    import xarray

    data = xarray.DataArray(FLAT, dims=("time", "x"), coords={"time": np.arange(N), "x": np.arange(30)})
    scores, names = FULL.transform(FIELD), {"n_modes": 3, "solver": "full"}
    theirs = xeofs.single.HilbertEOF(**names).fit(data, "time")
    ours = timeseries.hilbert_eof(scores, 3, model=FULL)
    np.testing.assert_allclose(ours.explained_variance_ratio, theirs.explained_variance_ratio(), rtol=1e-6)
    np.testing.assert_allclose(alike(ours.modes.conj(), theirs.components()), 1, atol=1e-6)
    extended = xeofs.single.ExtendedEOF(tau=2, embedding=5, **names).fit(data, "time")
    lags = timeseries.extended_eof(scores, 3, 5, lag=2, model=FULL)
    np.testing.assert_allclose(lags.explained_variance_ratio, extended.explained_variance_ratio(), rtol=1e-6)
    np.testing.assert_allclose(
        alike(lags.modes, extended.components().transpose("mode", "embedding", "x")), 1, atol=1e-6
    )
    centered = FLAT - FLAT.mean(axis=0)
    exact = pydmd.DMD(svd_rank=4, exact=True, opt=True).fit(centered.T)
    found = timeseries.dmd(scores, 4, model=FULL, constant=False)
    nearest = [np.argmin(np.abs(np.log(exact.eigs.astype(complex)) - rate)) for rate in found.rates]
    np.testing.assert_allclose(np.exp(found.rates), exact.eigs[nearest], atol=1e-6)
    np.testing.assert_allclose(alike(found.modes, exact.modes.T[nearest]), 1, atol=1e-6)
    np.testing.assert_allclose(
        found.scores(np.arange(N)) @ FULL.components_, exact.reconstructed_data.real.T, atol=1e-6
    )
    times, samples = linear(80, RATES)
    samples = samples + 1e-3 * np.random.default_rng(0).normal(size=samples.shape)
    optimized = pydmd.BOPDMD(svd_rank=4, num_trials=0, use_proj=False, varpro_opts_dict={"tol": 1e-14, "maxiter": 200})
    optimized.fit(samples.T, times)
    rates = timeseries.dmd(samples, 4, time=times, method="optimized").rates
    assert max(np.abs(optimized.eigs - rate).min() for rate in rates) < 1e-6
