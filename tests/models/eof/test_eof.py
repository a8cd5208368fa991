"""EOF analysis against singular vectors, by hand and by other libraries, however the field is stored and cut."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.signal
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca import EOF, PCA
from dpca.models import GapWarning
from dpca.storage import DataError
from dpca.storage.run import Run
from dpca.timeseries import lagged
from tests.fixtures.other_libraries import known
from tests.models.eof.sea import COSLAT, SST

N, LAT, LON = SST.shape
SMALL_BATCHES = {"batch_size": 5, "oversampling": 10, "n_passes": 3}


SEA = SST.notnull().all("time").values.ravel()


def truth(anomalies: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return eigenvalues, modes and PC time series of anomalies (n, d)."""
    left, values, rows = np.linalg.svd(anomalies, full_matrices=False)
    signs = np.sign(rows[np.arange(len(rows)), np.abs(rows).argmax(axis=1)])
    return values[:k] ** 2 / (len(anomalies) - 1), rows[:k] * signs[:k, None], (left * values * signs)[:, :k]


def plain(field: xr.DataArray = SST, weights: np.ndarray | None = COSLAT) -> np.ndarray:
    rows = field.transpose("time", "lat", "lon").values.reshape(len(field["time"]), -1)[:, SEA]
    return (rows - rows.mean(axis=0)) * (1 if weights is None else weights.ravel()[SEA])


def of(maps: xr.DataArray) -> np.ndarray:
    """Return maps at grid points with data only."""
    rows = maps.transpose("mode", "lat", "lon").values.reshape(maps.sizes["mode"], -1)
    assert np.isnan(rows[:, ~SEA]).all()
    return rows[:, SEA]


@pytest.mark.parametrize(("solver", "close"), [("auto", 1e-9), ("dual", 1e-9), ("streaming", 1e-4)])
def test_eigenvalues_maps_and_time_series(solver: str, close: float) -> None:
    options = SMALL_BATCHES if solver == "streaming" else {}
    eof = EOF(10, weights="coslat", solver=solver, random_state=0, **options).fit(SST)
    values, rows, series = truth(plain(), 10)
    np.testing.assert_allclose(eof.explained_variance_, values, rtol=close)
    np.testing.assert_allclose(eof.explained_variance_ratio_.sum(), values.sum() / (plain() ** 2).sum() * (N - 1))
    root = np.sqrt(values)
    for scaling, scale in ((0, 1), (1, 1 / root), (2, root)):
        maps, pcs = eof.eofs(scaling), eof.pcs(scaling)
        np.testing.assert_allclose(of(maps), rows * np.reshape(scale, (-1, 1)), atol=2 * close * np.max(scale))
        np.testing.assert_allclose(pcs, series * scale, atol=close * np.abs(series * scale).max())
    assert maps.dims == ("mode", "lat", "lon")
    assert list(maps["mode"]) == list(range(1, 11))
    xr.testing.assert_identical(maps["lat"], SST["lat"])
    xr.testing.assert_identical(pcs["time"], SST["time"])
    names = {"long_name": "empirical orthogonal functions of sea surface temperature"}
    assert maps.attrs == {**names, "units": "K"}
    assert eof.eofs().attrs == names
    assert eof.explained_variance_.dims == eof.explained_variance_ratio_.dims == ("mode",)
    xr.testing.assert_allclose(eof.project(SST), eof.pcs(), atol=1e-6)
    assert 1 - 1e-6 < eof.captured_bound_ <= 1
    assert eof.n_places_ == SEA.sum()


def test_as_eofs_does() -> None:
    theirs = known("eofs")
    eof = EOF(6, weights="coslat", solver="auto").fit(SST)
    np.testing.assert_allclose(eof.explained_variance_, theirs["eigenvalues"], rtol=1e-9)
    np.testing.assert_allclose(eof.north_test(n_eff=False).error, theirs["north"], rtol=1e-9)
    for scaling in (0, 1, 2):
        maps, pcs = theirs[f"eofs {scaling}"], theirs[f"pcs {scaling}"]
        np.testing.assert_allclose(abs(eof.eofs(scaling)), abs(maps), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(abs(eof.pcs(scaling)), abs(pcs), atol=1e-8)


def test_as_xeofs_does() -> None:
    theirs = known("xeofs")
    eof = EOF(6, weights="coslat", standardize=True, solver="auto").fit(SST)
    np.testing.assert_allclose(eof.explained_variance_, theirs["variances"], rtol=1e-9)
    for method, power in (("varimax", 1), ("promax", 2)):
        ours = eof.rotate(method, power=power)
        np.testing.assert_allclose(ours.explained_variance_, theirs[f"{method} variances"], rtol=1e-4)
        np.testing.assert_allclose(abs(ours.eofs()), abs(theirs[f"{method} maps"]), atol=1e-4)
        np.testing.assert_allclose(abs(ours.pcs()), abs(theirs[f"{method} pcs"]), atol=1e-4)


@pytest.mark.long
@settings(deadline=None, max_examples=8)
@given(
    time=st.integers(3, N),
    lat=st.integers(1, LAT),
    order=st.permutations(["time", "lat", "lon"]),
    how=st.sampled_from(["dask", "zarr", "dataset"]),
)
def test_any_chunks_in_time_and_space_give_the_same_modes(time: int, lat: int, order: list[str], how: str) -> None:
    eof = EOF(5, weights=COSLAT if how == "zarr" else "coslat", **SMALL_BATCHES)
    if how == "zarr":
        stored = zarr.create_array(zarr.storage.MemoryStore(), data=SST.values, chunks=(time, lat, LON))
        pcs = eof.fit(stored).pcs()
        assert isinstance(pcs, np.ndarray)
    else:
        x = SST.chunk(time=time, lat=lat).transpose(*order)
        x = x.to_dataset() if how == "dataset" else x
        eof.fit(x)
        assert eof.project(x).chunks is not None
        pcs = eof.pcs().values
        np.testing.assert_allclose(eof.project(x).values, pcs, atol=1e-6)
    _, rows, series = truth(plain(), 5)
    found = eof.eofs() if how == "zarr" else eof.eofs().transpose("mode", "lat", "lon").values
    found = np.reshape(found, (5, -1))[:, SEA]
    assert np.linalg.svd(found @ rows.T, compute_uv=False).min() > 1 - 1e-10  # angles below 1e-5
    np.testing.assert_allclose(pcs, series, atol=1e-4 * np.abs(series).max())


def test_on_workers_from_a_path(tmp_path: Path, cluster: Any) -> None:
    zarr.create_array(str(tmp_path / "sst.zarr"), data=SST.values, chunks=(10, 3, LON))
    eof = EOF(3, weights=COSLAT, detrend=True, **SMALL_BATCHES).fit(str(tmp_path / "sst.zarr"), run=Run(client=cluster))
    expected = EOF(3, weights=COSLAT, detrend=True, **SMALL_BATCHES).fit(SST.values)
    np.testing.assert_allclose(eof.explained_variance_, expected.explained_variance_, rtol=1e-8)


def test_what_is_subtracted_and_divided_by() -> None:
    rows = SST.values.reshape(N, -1)[:, SEA]
    months = SST.groupby("time.month")
    by_month = (months - months.mean()).values.reshape(N, -1)[:, SEA]
    days = (SST.time.values - SST.time.values[0]) / np.timedelta64(1, "D")
    trend = np.stack([np.ones(N), days], axis=1)
    straight = rows - trend @ np.linalg.lstsq(trend, rows, rcond=None)[0]
    both = np.concatenate([np.eye(12)[SST.time.dt.month.values - 1], days[:, None]], axis=1)
    neither = rows - both @ np.linalg.lstsq(both, rows, rcond=None)[0]
    centered = rows - rows.mean(axis=0)
    for options, anomalies in (
        ({"climatology": "month"}, by_month),
        ({"detrend": True}, straight),
        ({"detrend": True, "climatology": "month"}, neither),
        ({"standardize": True}, centered / centered.std(axis=0)),
        ({"standardize": True, "detrend": True}, straight / straight.std(axis=0)),
    ):
        eof = EOF(5, solver="auto", **options).fit(SST)
        values, maps, series = truth(anomalies, 5)
        np.testing.assert_allclose(eof.explained_variance_, values, rtol=1e-8, err_msg=str(options))
        np.testing.assert_allclose(of(eof.eofs()), maps, atol=1e-8)
        np.testing.assert_allclose(eof.pcs(), series, atol=1e-7)
        # Later years are anomalies of the same climatology.
        np.testing.assert_allclose(eof.project(SST[13:30]), eof.pcs()[13:30], atol=1e-8)
        whole = EOF(int(SEA.sum()), solver="covariance", **options).fit(SST)
        back = whole.reconstruct()
        xr.testing.assert_allclose(back, SST, atol=1e-8)
        assert back.attrs == SST.attrs
        xr.testing.assert_allclose(whole.reconstruct(whole.pcs()[4:9]), SST[4:9], atol=1e-8)
    plainly = EOF(3, solver="auto", detrend=True).fit(SST.values)  # without dates by the numbers of samples
    np.testing.assert_allclose(plainly.explained_variance_, truth(scipy.signal.detrend(rows, axis=0), 3)[0], rtol=1e-9)


def with_gaps(share: float, seed: int = 1) -> xr.DataArray:
    holes = np.random.default_rng(seed).random(SST.shape) < share
    return SST.where(~holes)


def test_places_with_gaps_are_left_out_and_counted() -> None:
    x = SST.copy(deep=True)
    x[5, 3, 4] = x[40, 2, 2] = 270.0
    x[5:9, 3, 4] = np.nan
    x[30] = np.nan  # a step without any value
    sea = x[np.arange(N) != 30].notnull().all("time").values.ravel()
    with pytest.warns(GapWarning, match=r"^1\b"):
        eof = EOF(4, solver="auto").fit(x)
    rows = np.delete(x.values.reshape(N, -1), 30, axis=0)[:, sea]
    values, _, series = truth(rows - rows.mean(axis=0), 4)
    np.testing.assert_allclose(eof.explained_variance_, values, rtol=1e-9)
    np.testing.assert_allclose(np.delete(eof.pcs().values, 30, axis=0), series, atol=1e-9)
    assert np.isnan(eof.pcs()[30]).all()
    xr.testing.assert_allclose(eof.project(x.chunk(time=10)).compute(), eof.pcs())
    assert eof.n_samples_seen_ == N - 1


def test_a_gap_beside_a_value_over_land_is_still_a_gap() -> None:
    x = SST.copy(deep=True)
    (land, *_), (sea, *_) = (np.argwhere(there.reshape(LAT, LON)) for there in (~SEA, SEA))
    x[3, *land], x[3, *sea] = 280.0, np.nan  # as many values as in any other sample
    with pytest.warns(GapWarning, match=r"^2\b"):
        eof = EOF(2, solver="auto").fit(x)
    assert eof.n_places_ == SEA.sum() - 1


def test_a_source_of_ones_own_takes_gaps_from_eof_only() -> None:
    source = lagged(SST.values, 2)
    EOF(2).fit(source)
    with pytest.raises(DataError, match="sample.0.*finite"):
        PCA(2).fit(source)


@pytest.mark.parametrize("chunks", [None, {"time": 11, "lat": 4}])
def test_gaps_between_values_are_filled_along_time(chunks: Any) -> None:
    x = with_gaps(0.15)
    table = pd.DataFrame(x.values.reshape(N, -1), index=x.time.values).interpolate("time", limit_direction="both")
    filled = x.copy(data=table.values.reshape(x.shape))
    x = x if chunks is None else x.chunk(chunks)
    for options in ({}, {"climatology": "season"}):
        eof = EOF(4, gaps="interpolate", solver="auto", **options).fit(x)
        expected = EOF(4, solver="auto", **options).fit(filled)
        np.testing.assert_allclose(eof.explained_variance_, expected.explained_variance_, rtol=1e-9)
        xr.testing.assert_allclose(eof.eofs(), expected.eofs(), atol=1e-9)
        xr.testing.assert_allclose(eof.project(x).compute(), expected.pcs(), atol=1e-8)


def test_modes_fill_gaps_of_fields_that_they_explain() -> None:
    rng = np.random.default_rng(3)
    low = rng.normal(size=(N, 3)) @ rng.normal(size=(3, LAT * LON)) + 5
    noisy = (low + 0.01 * rng.normal(size=low.shape)).reshape(N, LAT, LON)
    x = np.where(rng.random(noisy.shape) < 0.2, np.nan, noisy)
    eof = EOF(3, gaps="iterate", solver="auto").fit(x)
    values, rows, series = truth(noisy.reshape(N, -1) - noisy.reshape(N, -1).mean(axis=0), 3)
    np.testing.assert_allclose(eof.explained_variance_, values, rtol=2e-3)
    np.testing.assert_allclose(eof.eofs().reshape(3, -1), rows, atol=2e-3)
    np.testing.assert_allclose(eof.pcs(), series, atol=0.02 * series.std())
    np.testing.assert_allclose(eof.project(x), eof.pcs(), atol=1e-9)
    x[7] = np.nan
    other = EOF(3, gaps="iterate", solver="auto", detrend=True, standardize=True).fit(x)
    assert other.n_places_ == LAT * LON
    assert np.flatnonzero(np.isnan(other.pcs()).all(axis=1)).tolist() == [7]


@pytest.mark.parametrize("method", ["varimax", "promax"])
def test_rotated_modes_still_add_up_to_the_field(method: str) -> None:
    eof = EOF(4, weights="coslat", solver="auto").fit(SST)
    turned = eof.rotate(method)
    shape = (4, -1)
    before = eof.pcs().values @ np.nan_to_num(eof.eofs()).reshape(shape)
    maps, pcs = np.nan_to_num(turned.eofs(2)).reshape(shape), turned.pcs(1).values
    np.testing.assert_allclose(pcs @ maps, before, atol=1e-8)
    np.testing.assert_allclose(np.cov(pcs, rowvar=False), turned.correlation_, atol=1e-8)
    np.testing.assert_allclose(turned.project(SST), turned.pcs(), atol=1e-9)
    assert (np.diff(turned.explained_variance_) <= 0).all()
    if method == "varimax":
        np.testing.assert_allclose(turned.rotation_.T @ turned.rotation_, np.eye(4), atol=1e-10)
        assert turned.explained_variance_.sum() == pytest.approx(eof.explained_variance_.sum())
        # No turn of two modes makes the squares vary more.
        raw = eof.rotate(kaiser=False)
        loadings = raw.loadings
        most = (loadings**2).var(axis=0).sum()
        for angle in (-0.01, 0.01):
            c, s = np.cos(angle), np.sin(angle)
            other = loadings.copy()
            other[:, :2] = loadings[:, :2] @ np.array([[c, -s], [s, c]])
            assert (other**2).var(axis=0).sum() < most


def test_noise_and_signals_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(200, 5, 6))
    eof = EOF(4, solver="auto", random_state=0).fit(noise)
    # The quantiles of fields that are made.
    trials = np.array([np.linalg.svd(z - z.mean(0), compute_uv=False) ** 2 for z in rng.normal(size=(300, 200, 30))])
    shares = trials[:, :4] / trials.sum(axis=1, keepdims=True)
    found = eof.rule_n(n_trials=300)
    np.testing.assert_allclose(found.threshold, np.quantile(shares, 0.95, axis=0), rtol=0.03)
    assert not found.significant.all()
    wave = np.cos(np.arange(200) / 20)[:, None, None] * 3
    both = EOF(2, solver="auto", random_state=0).fit(noise + wave)
    assert both.rule_n(n_trials=100).significant.tolist() == [True, False]
    north, boot = both.north_test(), both.bootstrap(n_trials=200, block_length=5)
    assert north.n_eff[0] < 50 < north.n_eff[1] <= 200
    assert north.separated[0]
    assert boot.low[0] < both.explained_variance_[0] < boot.high[0]
    assert boot.congruence[0] > 0.99


def relabelled(**changes: Any) -> xr.DataArray:
    return SST.assign_coords(**changes)


@pytest.mark.parametrize(
    ("x", "options", "sentence"),
    [
        (SST.rename(time="t"), {}, "dim is 'time'"),
        (SST * np.nan, {}, "NaN"),
        (SST[:1], {}, "1 sample along 'time'"),
        (SST.where(SST.time == SST.time[3]), {}, "1 of 72 samples"),
        (relabelled(lat=np.deg2rad(SST.lat.values)), {"weights": "coslat"}, "units=.degrees_north"),
        (relabelled(lat=np.linspace(0, 700, LAT)), {"weights": "coslat"}, "latitudes 'lat' go to 700"),
        (SST.drop_vars("lat"), {"weights": "coslat"}, "no latitudes"),
        (SST.values, {"weights": "coslat"}, "no latitudes"),
        (SST, {"weights": -COSLAT}, "weights range from -"),
        (SST, {"weights": COSLAT[:3, :2]}, r"weights have shape \(3, 2\)"),
        (SST, {"weights": [1, [2, 3]]}, "weights are not an array"),
        (SST, {"weights": 1j * COSLAT}, "weights hold complex128 values"),
        (relabelled(time=SST.time.where(SST.time != SST.time[3])), {"climatology": "season"}, "sample 3 .* date"),
        (SST, {"weights": 0 * COSLAT}, "0 everywhere"),
        (SST, {"weights": "area"}, "weights"),
        (SST, {"weights": SST.lat.rename(lat="y")}, r"dims \('y',\)"),
        (SST, {"weights": SST.lat[:3] * 0 + 1}, "other coordinates"),
        (
            SST.where((SST.time != SST.time[3]) | SST.isnull(), np.inf),
            {},
            "sample 3 of the DataArray 'sst' .* not finite",
        ),
        (
            SST.where(SST.time != SST.time[3], np.inf),
            {"detrend": True},
            "sample 3 of the DataArray 'sst' .* infinite",
        ),
        (SST, {"gaps": "guess"}, "gaps is 'guess'"),
        (SST, {"solver": "best"}, "solver is 'best'"),
        (SST, {"climatology": "moon"}, "climatology is 'moon'"),
        (SST.values, {"climatology": "month"}, "requires dates"),
        (relabelled(time=np.arange(N)), {"climatology": "month"}, "int64"),
        (SST, {"detrend": "linear"}, "detrend is 'linear'"),
        (SST, {"n_modes": 0}, "n_modes is 0"),
        (SST, {"n_modes": 1000, "solver": "auto"}, "n_modes is 1000"),
        (SST.where(np.random.default_rng(0).random(SST.shape) < 0.5), {}, "no grid point"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(x: Any, options: dict[str, Any], sentence: str) -> None:
    with warnings.catch_warnings(), pytest.raises(DataError, match=sentence) as told:
        warnings.simplefilter("ignore")
        EOF(**{"n_modes": 2, **options}).fit(x)
    assert "\n" not in str(told.value)


def test_trends_along_lengths_of_time() -> None:
    days = SST.time - SST.time[0]
    found, known = (EOF(2, detrend=True).fit(SST.assign_coords(time=t)) for t in (days, SST.time))
    np.testing.assert_allclose(found.explained_variance_, known.explained_variance_, rtol=1e-9)


def test_what_does_not_go_with_a_fit_is_refused() -> None:
    eof = EOF(2, detrend=True, climatology="month").fit(SST[:11])
    with pytest.raises(DataError, match="month"):
        eof.project(SST)
    with pytest.raises(DataError, match="'lat'"):
        eof.project(SST[:5].isel(lat=slice(0, 5)))
    with pytest.raises(DataError, match="trend"):
        EOF(2, detrend=True).fit(SST.values).project(SST.values)
    with pytest.raises(DataError, match=r"\(3,.9\)"):
        EOF(2).fit(SST.values).project(SST.values[:, :3])
    numbered = relabelled(time=np.arange(N))
    for fitted, other, sentence in (
        (SST.values, SST, "have dates .* fitted to no coordinate"),
        (numbered, SST, "have dates .* fitted to numbers"),
        (SST, numbered, "have numbers .* fitted to dates"),
        (SST, SST.convert_calendar("noleap"), "'noleap' .* fitted to dates"),
    ):
        with pytest.raises(DataError, match=sentence):
            EOF(2, detrend=True).fit(fitted).project(other)
    x = SST.copy(deep=True)
    x[3, *np.argwhere(SEA.reshape(LAT, LON))[0]] = np.nan
    with pytest.raises(DataError, match="sample.3.*'sst'"):
        EOF(2).fit(SST).project(x)
    for call, sentence in (
        (lambda: eof.eofs(3), "scaling is 3"),
        (lambda: eof.rotate("equamax"), "method is 'equamax'"),
        (lambda: eof.rotate(n_modes=3), "2 to 2"),
        (lambda: eof.rule_n(level=95), "level is 95"),
        (lambda: eof.rule_n(level=1.0), "level is 1"),
        (lambda: eof.bootstrap(block_length=100), "block_length is 100"),
        (lambda: eof.reconstruct(np.zeros((3, 1))), "2 modes"),
        (lambda: eof.reconstruct(np.zeros((3, 2))), "11 samples"),
        (lambda: eof.reconstruct(eof.pcs()[3]), r"dims \('mode',\)"),
        (lambda: eof.reconstruct(eof.pcs()[:, ::-1]), "modes 2, 1"),
        (lambda: eof.reconstruct(eof.pcs().to_dataset()), "a Dataset was given"),
    ):
        with pytest.raises(DataError, match=sentence):
            call()


def test_dim_may_be_given_to_fit_as_in_xeofs() -> None:
    field = xr.DataArray(np.random.default_rng(0).normal(size=(9, 4, 5)), dims=("t", "lat", "lon"))
    model = EOF(2, dim="t", random_state=0)
    np.testing.assert_array_equal(model.fit(field, dim="t").eofs(), EOF(2, dim="t", random_state=0).fit(field).eofs())
    with pytest.raises(DataError, match=r"dim='t'"):
        EOF(2).fit(field, dim="t")
