"""The parts of an EOF analysis, each compared with values computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr

from dpca import EOF, PCA
from dpca.engine.sources.source import as_source
from dpca.models.base.labelled import Labels
from dpca.models.eof.anomalies import Anomalies, AnomalySource
from dpca.models.eof.calendar import _AT_ONCE, Calendar
from dpca.models.eof.eof_fit import gap_expectation, interpolated
from dpca.models.eof.field_survey import SurveySource
from dpca.models.eof.fields import Field
from dpca.models.eof.gaps import Expected, FilledSource, InterpolatedSource
from dpca.models.weights.attribute_weights import field_weights
from dpca.partition.cells import CellGrid
from dpca.storage import DataError
from tests.helpers.traced import traced_peak
from tests.models.eof.sea import COSLAT, SST

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("longest", [1, 3, 5])
def test_gaps_are_filled_whichever_samples_are_read_at_once(longest: int) -> None:
    """Interpolation equals numpy at each grid point, and the halo of the longest gap suffices."""
    n, times = 30, np.cumsum(RNG.random(30) + 0.1)
    x = RNG.normal(size=(n, 6))
    expected = x.copy()
    for place in range(5):  # the last place has no gap
        for start in (0, 8 + place, n - longest):
            x[start : start + longest, place] = np.nan
        there = ~np.isnan(x[:, place])
        expected[:, place] = np.interp(times, times[there], x[there, place])
    read = InterpolatedSource(as_source(x), times, longest).reader()
    for rows in (1, 4, n):
        for start in range(0, n, rows):
            stop = min(start + rows, n)
            read((start, stop), ((0, 6),), found := np.empty((stop - start, 6)))
            np.testing.assert_allclose(found, expected[start:stop], rtol=1e-12)


def test_what_is_expected_of_missing_values_is_their_mean_given_the_others() -> None:
    """Of a Gaussian with covariance V^T diag(l) V + s I."""
    components = np.linalg.qr(RNG.normal(size=(7, 2)))[0].T
    variances, noise, mean = np.array([5.0, 2.0]), 0.3, RNG.normal(size=7)
    # Components of probabilistic PCA have the variance l + s in all.
    covariance = components.T @ np.diag(variances) @ components + noise * np.eye(7)
    row, missing = RNG.normal(size=7), np.array([1, 4, 5])
    there = np.setdiff1d(np.arange(7), missing)
    gain = covariance[np.ix_(missing, there)] @ np.linalg.inv(covariance[np.ix_(there, there)])
    known = mean[missing] + gain @ (row - mean)[there]
    found = row.copy()
    found[missing] = np.nan
    Expected(components, mean, noise / variances).fill(found, missing)
    np.testing.assert_allclose(found[missing], known, rtol=1e-10)
    np.testing.assert_array_equal(found[there], row[there])


def test_noise_is_what_the_modes_leave_of_each_other_direction() -> None:
    x = RNG.normal(size=(200, 10)) * [9, 1, *[0.5] * 8]
    model = PCA(2).fit(x)
    values = np.linalg.eigvalsh(np.cov(x, rowvar=False))[::-1]
    np.testing.assert_allclose(gap_expectation(model).ridge, values[2:].mean() / values[:2], rtol=1e-6)


def grid(latitudes: Any, **attributes: str) -> Labels | None:
    x = xr.DataArray(np.zeros((2, len(latitudes))), {"lat": ("lat", latitudes, attributes)}, ("time", "lat"))
    return Field.of(x, "time", None).labels


def test_weights_of_latitudes() -> None:
    # Single precision may put a pole a little beyond 90 degrees.
    weights = field_weights("coslat", grid([-90.00005, -60, 0, 90.00005]), (4,))
    assert weights is not None
    np.testing.assert_allclose(weights, [0, np.sqrt(0.5), 1, 0], atol=1e-7)
    radians = np.linspace(-np.pi / 2, np.pi / 2, 5)
    with pytest.raises(DataError, match=r"1\.5708"):
        field_weights("coslat", grid(radians), (5,))
    # A strip along the equator says that these are degrees.
    assert field_weights("coslat", grid(radians, units="degrees_north"), (5,)) is not None
    assert field_weights("coslat", grid([-1.1, 1.1]), (2,)) is not None


def test_a_weight_that_is_nan_is_none() -> None:
    weights = COSLAT.copy()
    weights[2, 3] = 0
    holed = weights.copy()
    holed[2, 3] = np.nan
    np.testing.assert_array_equal(field_weights(holed, None, holed.shape), weights)


@pytest.mark.parametrize("detrend", [False, True])
def test_places_of_weight_0_come_back_as_far_as_they_are_known(detrend: bool) -> None:
    """Without a level they are NaN; with a level they have their own trend."""
    x = RNG.normal(size=(20, 3)) + np.arange(20)[:, None]
    field = EOF(2, weights=np.array([1.0, 0, 1]), detrend=detrend, solver="auto").fit(x).reconstruct()
    line = np.polyval(np.polyfit(np.arange(20), x[:, 1], 1), np.arange(20))
    np.testing.assert_allclose(field[:, 1], line if detrend else np.nan, rtol=1e-9)
    np.testing.assert_allclose(field[:, [0, 2]], x[:, [0, 2]])


def test_an_infinite_value_is_named_by_its_number_in_the_field() -> None:
    x = RNG.normal(size=(9, 4))
    x[7, 2] = np.inf
    read = SurveySource(as_source(x), np.zeros(4), CellGrid((4,), (4,))).reader()
    read((0, 5), ((0, 6),), np.empty((5, 6)))
    with pytest.raises(DataError, match="sample.7.*infinite"):
        read((5, 9), ((0, 6),), np.empty((4, 6)))


def test_a_gap_too_long_to_read_over_is_refused() -> None:
    field = np.broadcast_to(np.float32(0), (60, 2**20))
    given = Field.of(field, "time", None)
    interpolated(given.source, given, 32)  # 2 * 32 samples of 4 MiB
    with pytest.raises(DataError, match=r"\b33\b.*\b277.MB"):
        interpolated(given.source, given, 33)


def test_times_that_stand_still() -> None:
    gappy = SST.where(SST.time != SST.time[3])
    still = gappy.assign_coords(time=gappy.time.where(gappy.time != gappy.time[5], gappy.time[4]))
    still = xr.where(
        np.isnan(still) & (np.random.default_rng(0).random(still.shape) < 0.5), 280.0, still, keep_attrs=True
    )
    with pytest.raises(DataError, match="ascend"):
        EOF(2, gaps="interpolate").fit(still)
    same = SST.assign_coords(time=SST.time.where(SST.time == SST.time[0], SST.time[0]))
    found, known = EOF(2, detrend=True).fit(same), EOF(2).fit(SST)
    np.testing.assert_allclose(found.explained_variance_, known.explained_variance_, rtol=1e-6)


@pytest.mark.parametrize("solver", ["streaming", "auto"])
def test_no_more_modes_than_places_or_samples(solver: str) -> None:
    sea = int(SST.notnull().all("time").sum())
    assert sea < len(SST)
    with pytest.raises(DataError, match=rf"n_modes.*\b{sea}$"):
        EOF(sea + 1, solver=solver).fit(SST)
    assert EOF(sea, solver=solver).fit(SST).eofs().sizes["mode"] == sea


def test_attributes_are_true_of_results() -> None:
    field = SST.assign_attrs(standard_name="sea_surface_temperature", valid_min=270.0, cell_methods="time: mean")
    what = "empirical orthogonal functions", "principal components"
    maps, series = ({"long_name": f"{name} of sea surface temperature"} for name in what)
    standardized, plain = EOF(2, standardize=True).fit(field), EOF(2).fit(field)
    assert (standardized.eofs(2).attrs, standardized.pcs().attrs) == (maps, series)
    assert (plain.eofs(2).attrs, plain.pcs().attrs) == (maps | {"units": "K"}, series | {"units": "K"})
    assert (plain.eofs(1).attrs, plain.pcs(1).attrs) == (maps, series)
    own = EOF(2, weights=np.full(SST.shape[1:], 2.0)).fit(field)  # weights may have units
    assert (own.eofs(2).attrs, own.pcs().attrs) == (maps, series)
    assert plain.reconstruct().attrs == field.attrs
    turned = plain.rotate()
    assert turned.eofs().attrs == {"long_name": "rotated modes of sea surface temperature"}
    assert turned.pcs().attrs["long_name"] == "time series of rotated modes of sea surface temperature"


def test_results_are_labelled_by_mode() -> None:
    eof, plainly = (EOF(3, random_state=0).fit(given) for given in (SST, SST.values))
    for name in ("explained_variance_", "explained_variance_ratio_"):
        assert list(getattr(eof, name)["mode"]) == [1, 2, 3]
        np.testing.assert_allclose(getattr(eof, name), getattr(plainly, name))
        assert isinstance(getattr(plainly, name), np.ndarray)
    for named, arrays in (
        (eof.north_test(), plainly.north_test()),
        (eof.rule_n(n_trials=20), plainly.rule_n(n_trials=20)),
    ):
        assert isinstance(named, xr.Dataset)
        for name, values in vars(arrays).items():
            assert named[name].dims == ("mode",)
            np.testing.assert_allclose(named[name], values)
    assert set(eof.bootstrap(n_trials=5).data_vars) == {"low", "high", "congruence", "least_congruence"}
    assert eof.rotate().explained_variance_ratio_.dims == ("mode",)


def test_dim_and_sample_dim_are_one() -> None:
    plain = EOF(2).fit(SST)
    for names in ({"dim": "time"}, {"sample_dim": "time"}):
        np.testing.assert_array_equal(EOF(2).fit(SST, **names).eofs(), plain.eofs())
    filled = SST.fillna(0).transpose("lat", "time", "lon")
    expected = PCA(2).fit(filled, sample_dim="time").components_
    np.testing.assert_array_equal(PCA(2).fit(filled, dim="time").components_, expected)
    with pytest.raises(DataError, match="sample_dim"):
        PCA(2).fit(filled, sample_dim="time", dim="time")
    with pytest.raises(DataError, match="dim"):
        EOF(2).fit(SST, sample_dim="lat")


@pytest.mark.parametrize("scaling", [0, 1, 2])
def test_a_data_set_in_a_netcdf_file(scaling: int, tmp_path: Path) -> None:
    pytest.importorskip("netCDF4")
    times = xr.date_range("1999-12-30", periods=len(SST), freq="MS", calendar="360_day", use_cftime=True)
    field = SST.assign_coords(time=times)
    eof = EOF(2, climatology="month", detrend=True, weights="coslat").fit(field)
    eof.to_xarray(scaling).to_netcdf(tmp_path / "modes.nc")
    decode = xr.coders.CFDatetimeCoder(use_cftime=True)
    with xr.open_dataset(tmp_path / "modes.nc", decode_times=decode) as found:
        assert found["time"].dt.calendar == "360_day"
        np.testing.assert_array_equal(found["time"], times)
        xr.testing.assert_allclose(found["explained_variance"], eof.explained_variance_)
        anomalies = (found["pcs"] * found["eofs"]).sum("mode")
    plain = (eof.pcs() * eof.eofs()).sum("mode")
    np.testing.assert_allclose(anomalies.transpose(*plain.dims), plain, atol=1e-6)
    with pytest.raises(DataError, match="DataArray"):
        EOF(2).fit(SST.values).to_xarray()


def test_a_calendar_of_360_days_from_fit_to_store(tmp_path: Path) -> None:
    times = xr.date_range("2000-01-30", periods=len(SST), freq="10D", calendar="360_day", use_cftime=True)
    field = SST.assign_coords(time=times)
    eof = EOF(2, climatology="month", gaps="interpolate").fit(field)
    months, values = np.array([time.month for time in times]), SST.values[:, SST.notnull().all("time").values]
    assert set(months) == {*range(1, 13)}
    assert (np.array([time.day for time in times]) == 30).sum() == len(SST) // 3  # also of February
    means = np.stack([values[months == month].mean(0) for month in months])
    expected = np.linalg.svd(values - means, compute_uv=False)[:2] ** 2 / (len(values) - 1)
    np.testing.assert_allclose(eof.explained_variance_, expected, rtol=1e-5)
    eof.pcs()
    eof.save(tmp_path / "eof.zarr")
    again = EOF.load(tmp_path / "eof.zarr")
    xr.testing.assert_identical(again.pcs()["time"], eof.pcs()["time"])
    xr.testing.assert_allclose(again.project(field), eof.pcs(), atol=1e-5)


def test_rotated_shares_are_of_all_variance() -> None:
    eof = EOF(4, solver="auto").fit(SST)
    turned = eof.rotate("varimax", 3)
    np.testing.assert_allclose(turned.explained_variance_ratio_, turned.explained_variance_ / eof.total_variance_)
    assert turned.explained_variance_ratio_.sum() == pytest.approx(eof.explained_variance_ratio_[:3].sum())
    with pytest.raises(DataError, match="rotate"):
        EOF(1, solver="auto").fit(SST).rotate()


def test_a_task_is_given_the_times_of_its_own_samples() -> None:
    """Also where sources that each hold times read through each other, and one reads beyond the samples of a task."""
    n, x = 60, RNG.normal(size=(60, 4))
    x[RNG.random((n, 4)) < 0.2] = np.nan
    times, groups, trend = (
        np.cumsum(RNG.random(n) + 0.1),
        RNG.integers(0, 3, n).astype(np.uint16),
        np.linspace(-1, 1, n),
    )
    known = Anomalies(np.arange(4), (4,), np.full(4, 2.0), RNG.normal(size=(3, 4)), RNG.normal(size=4))

    def made(given: Any) -> AnomalySource:
        filled = FilledSource(InterpolatedSource(as_source(given), times, 3), known, groups, trend, None)
        return AnomalySource(filled, known, groups, trend, certain=True)

    whole, region = np.empty((n, 4)), ((0, 4),)
    made(x).reader()((0, n), region, whole)
    assert sum({id(values): values.nbytes for values in made(x).held()}.values()) == n * (8 + 2 + 8)
    for given in (x, da.from_array(x, chunks=(7, 4))):
        for start, stop in ((0, 20), (20, 45), (45, 60)):
            (piece,) = da.compute(made(given).piece((start, stop), region), scheduler="sync")
            assert [len(values) for values in piece.held()][1:] == [stop - start] * 4
            piece.reader()((start, stop), region, found := np.empty((stop - start, 4)))
            np.testing.assert_array_equal(found, whole[start:stop])


@pytest.mark.parametrize("climatology", ["month", "season", "dayofyear", "hour"])
def test_times_are_looked_at_some_at_a_time(monkeypatch: pytest.MonkeyPatch, climatology: str) -> None:
    times = xr.DataArray(np.datetime64("2001-03-01", "ns") + np.arange(0, 16_000, 31).astype("m8[h]"), dims="time")
    whole = Calendar.of(times, len(times), "time", climatology, True)
    groups, trend = whole.groups(times, len(times)), whole.trend(times, len(times))
    parts = np.asarray(getattr(times.dt, climatology))
    np.testing.assert_array_equal(whole.parts[groups], parts)
    days = np.asarray(times.astype(np.int64)) / 864e11
    np.testing.assert_allclose(trend, (days - days.mean()) / np.abs(days - days.mean()).max(), atol=1e-12)
    monkeypatch.setattr("dpca.models.eof.calendar._AT_ONCE", 5)
    again = Calendar.of(times, len(times), "time", climatology, True)
    assert (again.origin, again.unit) == (whole.origin, whole.unit)
    np.testing.assert_array_equal(again.parts, whole.parts)
    np.testing.assert_array_equal(again.groups(times, len(times)), groups)
    np.testing.assert_array_equal(again.trend(times, len(times)), trend)
    times[12] = np.datetime64("NaT", "ns")
    with pytest.raises(DataError, match="sample.12.*date"):
        again.groups(times, len(times))


@pytest.mark.parametrize(("climatology", "detrend", "each"), [(None, False, 2), ("month", False, 2), (None, True, 10)])
def test_times_take_what_is_planned(climatology: str | None, detrend: bool, each: int) -> None:
    n = 3_000_000
    times = xr.DataArray(np.datetime64("1990-01-01", "ns") + np.arange(n).astype("m8[m]"), dims="time")

    def learned(times: Any) -> Any:
        calendar = Calendar.of(times, n, "time", climatology, detrend)
        return calendar.groups(times, n), calendar.trend(times, n)

    peak, found = traced_peak(lambda: times, learned, each * n)
    assert sum(values.nbytes for values in found if values is not None) == each * n
    # Temporary arrays do not grow with the times.
    assert peak < each * n + 80 * _AT_ONCE
    eof = EOF(1, climatology=climatology, detrend=detrend)
    x = xr.DataArray(np.random.default_rng(0).normal(size=(50, 3)), {"time": times[:50]}, ("time", "place"))
    assert eof.fit(x).model_.fit_report_.plan.held_bytes == each * 50
