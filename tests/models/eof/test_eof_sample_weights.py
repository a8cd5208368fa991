"""Weights of samples in `EOF`: repeated samples, and numpy's weighted covariance and least squares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from dpca import EOF
from dpca.storage import DataError
from tests.models.eof.sea import COSLAT, SST, N

RNG = np.random.default_rng(0)
COUNTS = RNG.integers(0, 3, N)
COUNTS[:3] = 0, 2, 1
SHARES = np.where(np.arange(N) % 5 == 1, 0, RNG.random(N) * 3)
SEA = SST.notnull().all("time").values.ravel()
EVERYTHING: dict[str, Any] = {"climatology": "season", "detrend": True, "standardize": True}


def repeated(field: xr.DataArray, counts: np.ndarray) -> xr.DataArray:
    return field.isel(time=np.repeat(np.arange(len(counts)), counts))


@pytest.mark.parametrize("solver", ["streaming", "dual"])
@pytest.mark.parametrize("options", [{"weights": "coslat"}, EVERYTHING], ids=["plain", "everything"])
def test_a_weight_of_2_is_a_sample_twice(solver: str, options: dict[str, Any]) -> None:
    eof = EOF(3, solver=solver, random_state=0, **options)
    found, known = eof.fit(SST, sample_weight=COUNTS).to_xarray(), EOF(**eof.get_params()).fit(repeated(SST, COUNTS))
    assert eof.n_samples_seen_ == known.n_samples_seen_ == COUNTS.sum()
    assert eof.total_variance_ == known.total_variance_
    xr.testing.assert_identical(found.drop_dims("time"), known.to_xarray().drop_dims("time"))
    # The time series have a value for each given sample, not for each repetition.
    xr.testing.assert_identical(found["time"], SST["time"])
    xr.testing.assert_equal(repeated(found["pcs"], COUNTS), known.pcs())


@pytest.mark.parametrize("solver", ["streaming", "auto", "dual"])
@pytest.mark.parametrize("everything", [False, True])
def test_any_weights_are_those_of_numpys_covariance(solver: str, everything: bool) -> None:
    options = EVERYTHING if everything else {}
    eof = EOF(4, weights="coslat", solver=solver, random_state=0, **options).fit(SST, sample_weight=SHARES)
    x, total = SST.values.reshape(N, -1)[:, SEA], SHARES.sum()
    columns = np.ones((N, 1))
    if everything:
        seasons = np.unique(SST["time"].dt.season, return_inverse=True)[1]
        days = (SST["time"].values - SST["time"].values[0]) / np.timedelta64(1, "D")
        columns = np.column_stack([np.eye(4)[seasons], days / days[-1]])
    root = np.sqrt(SHARES)[:, None]
    anomalies = x - columns @ np.linalg.lstsq(root * columns, root * x, rcond=None)[0]
    if everything:
        anomalies /= np.sqrt(np.average(anomalies**2, axis=0, weights=SHARES))
    anomalies *= COSLAT.ravel()[SEA]
    covariance = np.cov(anomalies, rowvar=False, aweights=SHARES, ddof=0) * total / (total - 1)
    values, vectors = np.linalg.eigh(covariance)
    np.testing.assert_allclose(eof.explained_variance_, values[:-5:-1], rtol=1e-6)
    np.testing.assert_allclose(eof.total_variance_, values.sum(), rtol=1e-6)
    modes = eof.eofs().values.reshape(4, -1)[:, SEA]
    np.testing.assert_allclose(np.abs((modes @ vectors[:, :-5:-1]).diagonal()), 1, rtol=1e-6)
    np.testing.assert_allclose(eof.pcs(), anomalies @ modes.T, atol=1e-6 * np.abs(anomalies).max() * 9)
    assert eof.n_samples_seen_ == (SHARES > 0).sum()


def test_samples_of_weight_0_are_left_out_with_their_gaps() -> None:
    """A trend of samples without coordinates keeps their numbers."""
    x, left_out = RNG.normal(size=(30, 6)) + np.arange(30)[:, None], np.arange(30) == 7
    x[left_out, 2] = np.nan
    used = xr.DataArray(x[~left_out], {"time": np.flatnonzero(~left_out)}, ("time", "place"))
    known = EOF(2, detrend=True).fit(used)
    for weight in (1, 0.5):
        eof = EOF(2, detrend=True).fit(x, sample_weight=~left_out * weight)
        assert eof.n_places_ == 6
        assert np.array_equal(np.isnan(eof.pcs()).all(axis=1), left_out)
        np.testing.assert_allclose(np.abs((eof.eofs() @ known.eofs().values.T).diagonal()), 1, rtol=1e-9)
        expected = x[~left_out] - known.reconstruct().values
        np.testing.assert_allclose(x[~left_out] - eof.reconstruct()[~left_out], expected, atol=1e-6)


def test_a_sample_without_values_has_no_weight() -> None:
    field = SST.where(SST.time != SST.time[4])
    assert SHARES[4] > 0
    known = EOF(2, standardize=True).fit(field.drop_isel(time=4), sample_weight=np.delete(SHARES, 4))
    found = EOF(2, standardize=True).fit(field, sample_weight=SHARES)
    xr.testing.assert_allclose(found.eofs(), known.eofs(), rtol=1e-9)
    xr.testing.assert_allclose(found.explained_variance_, known.explained_variance_, rtol=1e-9)


@pytest.mark.parametrize("how", ["interpolate", "iterate"])
@pytest.mark.parametrize("weights", [COUNTS, COUNTS + 0.5 * (COUNTS > 1)], ids=["whole", "any"])
def test_gaps(how: str, weights: np.ndarray) -> None:
    """Interpolation is in time, whatever the weights. Filling by modes is that of repeated samples."""
    kept = RNG.random(SST.shape) > 0.02
    kept[[0, -1]] = True  # so that interpolate_na fills all gaps
    gappy = SST.where(kept)
    eof = EOF(3, gaps=how, solver="auto", standardize=True).fit(gappy, sample_weight=weights)
    if how == "interpolate":
        filled = gappy.interpolate_na("time")
        known = EOF(3, solver="auto", standardize=True).fit(filled, sample_weight=weights)
    else:
        twice = (2 * weights).astype(int)
        known = EOF(3, gaps=how, solver="auto", standardize=True).fit(repeated(gappy, twice))
    ratio = known.explained_variance_ratio_.values
    np.testing.assert_allclose(eof.explained_variance_ratio_.values, ratio, rtol=1e-4)
    np.testing.assert_allclose(np.abs((eof.eofs() * known.eofs()).sum(("lat", "lon"))), 1, rtol=1e-4)


def test_a_store_and_tests_of_significance(tmp_path: Path) -> None:
    eof = EOF(2).fit(SST, sample_weight=3 * COUNTS)
    eof.pcs()
    eof.save(tmp_path / "eof")
    for one in (eof, EOF.load(tmp_path / "eof")):
        xr.testing.assert_identical(one.to_xarray(), eof.to_xarray())
        np.testing.assert_array_equal(one.north_test(n_eff=False)["n_eff"], 3 * COUNTS.sum())
        for test in (one.north_test, one.bootstrap):
            with pytest.raises(DataError, match="sample_weight"):
                test()


def test_several_variables_and_what_is_shown() -> None:
    seen: list[Any] = []
    pair = {"a": SST, "b": SST.isel(lat=slice(3)) ** 2}
    eof = EOF(2, standardize="variable", random_state=0).fit(pair, sample_weight=COUNTS, callback=seen.append)
    known = EOF(2, standardize="variable", random_state=0).fit({k: repeated(x, COUNTS) for k, x in pair.items()})
    xr.testing.assert_identical(eof.eofs()["b"], known.eofs()["b"])
    assert all(progress.model.pcs().sizes["time"] == N for progress in seen)


@pytest.mark.parametrize(
    ("weights", "word"),
    [(np.ones(N - 1), f"{N}"), (np.full(N, np.nan), "nan"), (np.arange(N) == 3, "2"), (np.full(N, 1e-3), "sum")],
)
def test_weights_that_are_rejected(weights: Any, word: str) -> None:
    with pytest.raises(DataError, match=word):
        EOF(1).fit(SST, sample_weight=weights)
