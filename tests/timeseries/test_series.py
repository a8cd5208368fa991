"""Time series analyses: their input, the retained share of the variance, and the errors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import cftime
import dask.array as da
import numpy as np
import pytest
import xarray
import zarr

from dpca import EOF, PCA, BandPCA, CellPCA, KernelPCA, timeseries
from dpca.jobs import transform_store
from dpca.storage import DataError, ingest, open_stack
from dpca.timeseries.results import Modes
from dpca.timeseries.series import ScoreSeries, score_series
from tests.timeseries.field import SHAPE, N, waves

FIELD = waves()
MODEL = PCA(4).fit(FIELD)
SCORES = MODEL.transform(FIELD)


def test_scores_in_any_form_are_the_same_functions(tmp_path: Path) -> None:
    np.save(tmp_path / "field.npy", FIELD)
    ingest(tmp_path / "field.npy", tmp_path / "field.zarr")
    model = PCA(4).fit(tmp_path / "field.zarr")
    model.save(tmp_path / "model.zarr")
    transform_store(open_stack(tmp_path / "field.zarr"), tmp_path / "model.zarr", tmp_path / "scores.zarr")
    array = zarr.create_array(zarr.storage.MemoryStore(), data=SCORES, chunks=(50, 4))
    for scores in (SCORES, da.from_array(SCORES), array, xarray.DataArray(SCORES), SCORES.astype(np.float32)):
        np.testing.assert_allclose(score_series(scores, MODEL, None).values, SCORES, atol=1e-5)
    stored = score_series(tmp_path / "scores.zarr", model, 0.5)
    np.testing.assert_allclose(np.abs(stored.values), np.abs(SCORES), atol=1e-4)
    assert (stored.step, stored.share) == (0.5, pytest.approx(MODEL.explained_variance_ratio_.sum()))


@pytest.mark.parametrize(
    "model",
    [PCA(3), PCA(3, whiten=True), CellPCA(3, cell_shape=(3, 4)), CellPCA(2, cell_shape=4, overlap=2, flatten=True)],
    ids=["whole", "whitened", "cells", "lapped, flat"],
)
def test_maps_are_those_of_the_model(model: Any) -> None:
    """The time series are coordinates in an orthonormal basis: with their maps they yield the reconstruction."""
    scores = model.fit(FIELD).transform(FIELD)
    found = score_series(scores, model, None)
    every = np.eye(found.values.shape[1])
    maps = Modes(found.share, every, found.grid).modes
    assert maps.chunks[0] == (1,) * len(every)
    rows = maps.compute().reshape(len(every), -1)
    back = model.inverse_transform(scores) - model.mean_.reshape(SHAPE)
    np.testing.assert_allclose(found.values @ rows, back.reshape(N, -1), atol=1e-10)
    lengths = np.diagonal(rows @ rows.T)
    np.testing.assert_allclose(rows @ rows.T, np.diag(lengths.round()), atol=1e-10)
    kept = ((back - back.mean(axis=0)) ** 2).sum() / ((FIELD - FIELD.mean(axis=0)) ** 2).sum()
    assert found.share == pytest.approx(kept, rel=1e-9)


def test_names_come_back(tmp_path: Path) -> None:
    years = np.arange("2000", "2120", dtype="M8[Y]").astype("M8[ns]")
    coords = {"time": years, "lat": np.linspace(-60, 60, 5), "lon": np.arange(6) * 60.0}
    field = xarray.DataArray(FIELD, coords, ("time", "lat", "lon"), "sst", {"units": "K"})
    model = PCA(4).fit(field)
    with pytest.raises(DataError, match=r"365.*366.*time=STEP"):
        timeseries.spectrum(model.transform(field), model=model)
    found = timeseries.hilbert_eof(model.transform(field), 2, model=model, time=1).to_xarray()
    assert (found.dims, found.dtype) == (("mode", "lat", "lon"), np.complex128)
    np.testing.assert_array_equal(found["lat"], coords["lat"])
    extended = timeseries.extended_eof(model.transform(field), 2, 3, model=model, time=2.0).to_xarray()
    assert extended.shape == (2, 3, 5, 6)
    assert extended["lag"].values.tolist() == [0, 2, 4]
    assert timeseries.hilbert_eof(SCORES, 2, model=MODEL).to_xarray().dims == ("mode", "y", "x")


def test_fields_with_gaps() -> None:
    """Return the modes of weighted anomalies at grid points with data, on the grid."""
    field = xarray.DataArray(FIELD, {"lat": np.linspace(-60, 60, 5)}, ("time", "lat", "lon")).copy()
    field[:, 1:3, 2] = np.nan
    eof = EOF(4, weights="coslat", solver="dual").fit(field)
    there = ~np.isnan(field[0].values)
    weighted = (FIELD * np.sqrt(np.cos(np.deg2rad(field["lat"].values)))[:, None])[:, there]
    plain = PCA(4, solver="dual").fit(weighted)
    for analyze in (timeseries.hilbert_eof, lambda x, k, model: timeseries.extended_eof(x, k, 3, model=model)):
        found, known = analyze(eof.pcs(), 2, model=eof), analyze(plain.transform(weighted), 2, model=plain)
        np.testing.assert_allclose(found.explained_variance_ratio, known.explained_variance_ratio)
        maps = found.to_xarray()
        assert maps.dims[-2:] == ("lat", "lon")
        np.testing.assert_array_equal(np.isnan(maps.values), np.broadcast_to(~there, maps.shape))
        inner = np.einsum("...i,...i->...", maps.values[..., there].conj(), known.modes.compute())
        np.testing.assert_allclose(np.abs(inner.reshape(2, -1).sum(axis=1)), 1, atol=1e-9)


def test_what_time_is() -> None:
    def steps(along: Any) -> float:
        scores = xarray.DataArray(SCORES[:4], dims=("time", "component"), coords={"time": along})
        return score_series(scores, MODEL, None).step

    day = np.datetime64("2000-02-27")
    assert steps(day + np.arange(4)) == 1
    assert steps(np.datetime64("2000-01-01T00") + 6 * np.arange(4) * np.timedelta64(1, "h")) == 0.25
    assert steps([cftime.DatetimeNoLeap(2000, 2, 27) + timedelta(i) for i in range(4)]) == 1
    assert steps(np.arange(4) * 0.1) == pytest.approx(0.1)
    assert steps(list("abcd")) == steps(np.array(list("abcd"), object)) == steps([3, 2, 1, 0]) == 1
    for hour in (timedelta(hours=1), np.timedelta64(1, "h")):
        assert score_series(SCORES, MODEL, hour).step == pytest.approx(1 / 24)
    assert score_series(SCORES, MODEL, np.arange(N) / 3).step == pytest.approx(1 / 3)
    # Long steps that differ by rounding.
    assert score_series(SCORES, MODEL, 1e9 * np.arange(N) + np.arange(N) % 2).step == pytest.approx(1e9)


GIVEN: dict[str, tuple[Callable[[], object], str]] = {
    "too few": (lambda: timeseries.spectrum(SCORES[:3]), "3 samples: .* 4"),
    "no functions": (lambda: timeseries.dmd(SCORES[:, :0]), r"has shape \(120, 0\) and so no values"),
    "one axis": (lambda: timeseries.spectrum(SCORES[:, 0]), r"the scores has shape \(120,\)"),
    "not finite": (lambda: timeseries.dmd(np.where(SCORES > 5, np.nan, SCORES)), "sample .* not finite"),
    "uneven": (
        lambda: timeseries.dmd(SCORES, time=np.arange(N) ** 1.1),
        "time steps of 120 samples vary from 1 to ",
    ),
    "uneven in short steps": (
        lambda: timeseries.dmd(SCORES, time=1e-9 * np.arange(N) ** 1.1),
        "time steps .* 1e-09 to ",
    ),
    "a time for two": (
        lambda: timeseries.dmd(SCORES, time=np.arange(N) // 2),
        r"time has shape \(120,\)",
    ),
    "descending": (lambda: timeseries.dmd(SCORES, time=-np.arange(N)), r"time has shape \(120,\)"),
    "no time": (lambda: timeseries.spectrum(SCORES, time="day"), "time has dtype <U3"),
    "no times": (lambda: timeseries.spectrum(SCORES, time=[None] * N), "time has dtype object"),
    "uneven spectrum": (
        lambda: timeseries.spectrum(SCORES, time=np.arange(N) ** 1.1),
        "^the time steps of 120 samples",
    ),
    "gone": (lambda: timeseries.dmd(np.eye(3, 1)), "vanish after one sample"),
    "no step": (lambda: timeseries.dmd(SCORES, time=0), "time is 0"),
    "long segment": (
        lambda: timeseries.spectrum(SCORES, segment=121),
        "segment is 121 .* 120",
    ),
    "window": (lambda: timeseries.spectrum(SCORES, window="hnn"), "window is 'hnn'"),
    "long window": (
        lambda: timeseries.extended_eof(SCORES, 1, 7, lag=20),
        "n_lags is 7 .* 121 samples.* 120",
    ),
    "a single window": (
        lambda: timeseries.extended_eof(SCORES[:103], 1, 7, lag=17),
        "n_lags is 7 .* 103 samples.* 103",
    ),
    "as many modes as windows": (
        lambda: timeseries.extended_eof(SCORES[:6], 3, 4),
        "n_modes is 3 but 3 windows .* 2 modes",
    ),
    "more modes than samples": (
        lambda: timeseries.hilbert_eof(FIELD[:5], 6),
        "n_modes is 6 .* 5 modes",
    ),
    "long lags": (
        lambda: timeseries.lagged(FIELD, 121),
        "121 samples",
    ),
    "no lag": (lambda: timeseries.extended_eof(SCORES, 1, 0), "n_lags is 0"),
    "modes": (
        lambda: timeseries.hilbert_eof(SCORES, 5),
        "n_modes is 5 .* 4 modes",
    ),
    "no modes": (lambda: timeseries.extended_eof(SCORES, 0, 2), "n_modes is 0 but 119 windows"),
    "all 0": (lambda: timeseries.dmd(SCORES * 0), "all 120 samples of the scores are 0"),
    "method": (lambda: timeseries.dmd(SCORES, method="best"), "method is 'best'"),
    "padding": (lambda: timeseries.hilbert_eof(SCORES, 1, padding="zeros"), "padding is 'zeros'"),
    "decay": (lambda: timeseries.hilbert_eof(SCORES, 1, decay=0), "decay is 0"),
    "cosines": (lambda: timeseries.cosine_content(SCORES[:4]), "4 time series require at least 5 samples"),
    "of": (lambda: timeseries.effective_samples(SCORES, of="all"), "of is 'all'"),
    "other scores": (
        lambda: timeseries.spectrum(np.ones((9, 5)), model=MODEL),
        r"scores have shape \(9, 5\): .*\(4,\)",
    ),
    "kernel": (
        lambda: timeseries.spectrum(SCORES, model=KernelPCA(2).fit(FIELD.reshape(N, -1))),
        "KernelPCA has no components",
    ),
}


@pytest.mark.parametrize("case", GIVEN)
def test_refused_in_one_sentence(case: str) -> None:
    call, words = GIVEN[case]
    with pytest.raises(DataError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_the_first_functions_hold_less() -> None:
    found = score_series(SCORES[:, :2], MODEL, None)
    assert found.share == pytest.approx(MODEL.explained_variance_ratio_[:2].sum())
    assert timeseries.hilbert_eof(SCORES[:, :2], 1, model=MODEL).modes.shape == (1, *SHAPE)


def test_bands_and_fields_without_a_model() -> None:
    model = BandPCA(2, band_size=10).fit(FIELD)
    found = timeseries.hilbert_eof(model.transform(FIELD), 3, model=model)
    assert found.modes.shape == (3, *SHAPE)
    whole = timeseries.hilbert_eof(FIELD, 3)
    assert (whole.share, whole.modes.shape) == (1.0, (3, *SHAPE))
    assert isinstance(score_series(FIELD, None, None), ScoreSeries)
