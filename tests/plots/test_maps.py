"""Maps of modes: signed colors, missing values in gray, the north at the top, and time series."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import cftime
import numpy as np
import pytest
import xarray
from matplotlib.collections import LineCollection

from dpca.plots.geography import coastlines
from dpca.plots.maps import mode_maps
from dpca.plots.panels import signed
from dpca.plots.scores import scores_over_time
from dpca.storage import DataError
from tests.plots.test_plots import pixels

MAPS = np.array([[[1.0, -2.0, np.nan], [0.0, 1.0, 0.5]], [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])


def test_maps_beside_time_series() -> None:
    series = np.arange(10.0).reshape(5, 2)
    figure = mode_maps(MAPS, series, latitude=[10, 20], times=np.arange(5), shares=[0.5, 0.25], units="K")
    image = figure.axes[0].images[0]
    np.testing.assert_array_equal(image.get_array().filled(9), np.nan_to_num(MAPS[0, ::-1], nan=9))
    assert image.get_clim() == (-2, 2)
    low, middle, high, nothing = image.cmap(image.norm(np.ma.masked_invalid([-2.0, 0.0, 2.0, np.nan])))
    np.testing.assert_allclose([low[:3], high[:3]], signed(np.array([-1.0, 1.0]), 1.0), atol=0.01)
    np.testing.assert_allclose(middle[:3], 1, atol=0.01)
    assert len(set(nothing[:3])) == 1
    curve = figure.axes[2].lines[1]
    np.testing.assert_array_equal(curve.get_ydata(), series[:, 0])
    texts = [text.get_text() for text in figure.texts]
    assert {"1", "2", "50.0%", "25.0%", "K"} <= set(texts)
    assert pixels(figure).size


@pytest.mark.cases(2)
@pytest.mark.parametrize("calendar", ["360_day", "noleap", "all_leap", "standard", "julian", "proleptic_gregorian"])
def test_times_of_every_calendar(calendar: str) -> None:
    """Models of the climate have years of 360 or 365 days, which are no dates of numpy."""
    times = cftime.num2date(np.arange(0, 800, 80), "days since 2000-02-28", calendar=calendar)
    series = np.zeros((10, 2))
    named = xarray.DataArray(times, dims="time")
    for figure in (
        mode_maps(MAPS, series, times=times),
        mode_maps(MAPS, series, times=named),
        scores_over_time(series, times=times),
        scores_over_time(xarray.DataArray(series, {"time": times}, ("time", "component"))),
    ):
        assert pixels(figure).size
        line = next(line for axes in figure.axes for line in axes.lines if len(line.get_xdata()) == 10)
        years = np.asarray(line.get_xdata(), float)
        assert (np.diff(years) > 0.2).all()
        if calendar == "360_day":
            np.testing.assert_allclose(years, 2000 + (57 + np.arange(0, 800, 80)) / 360, atol=1e-9)


def test_dates_of_python_and_what_is_no_time() -> None:
    series = np.zeros((3, 2))
    days = [datetime.date(2000, 1, day) for day in (1, 2, 3)]
    assert pixels(mode_maps(MAPS, series, times=days)).size
    for wrong, words in ((["x", "y", "z"], "numbers or dates"), ([None, 1, "y"], "numbers"), ([1, 2], "a time for")):
        with pytest.raises(DataError, match=words):
            mode_maps(MAPS, series, times=wrong)


def test_maps_alone_and_what_does_not_fit() -> None:
    upright = mode_maps(MAPS[:1], latitude=[20, 10]).axes
    np.testing.assert_array_equal(upright[0].images[0].get_array()[1], MAPS[0, 1])
    assert len(upright) == 2
    with pytest.raises(ValueError, match=r"maps.*\(2,.3\)"):
        mode_maps(MAPS[0])
    with pytest.raises(ValueError, match=r"\(4,.3\).*\(n,.2\)"):
        mode_maps(MAPS, np.zeros((4, 3)))


def field(**coords: object) -> xarray.DataArray:
    """Modes on latitudes from south to north, and longitudes."""
    places = {"lat": ("lat", [-30.0, 0.0, 45.0]), "lon": ("lon", [0.0, 90.0, 180.0, 270.0])}
    values = np.arange(24.0).reshape(2, 3, 4)
    values[0, 1, 2] = np.nan
    return xarray.DataArray(values, {**places, **coords}, ("mode", "lat", "lon"), attrs={"units": "K"})


def test_maps_with_coordinates_are_at_their_place() -> None:
    times = xarray.date_range("2000-01-30", periods=6, freq="MS", calendar="360_day", use_cftime=True)
    series = xarray.DataArray(np.zeros((6, 2)), {"time": times}, ("time", "mode"))
    for maps in (field(), field().transpose("lon", "mode", "lat"), field().isel(lat=slice(None, None, -1))):
        figure = mode_maps(maps, series)
        mesh = figure.axes[0].collections[0]
        corners = mesh.get_coordinates()
        np.testing.assert_allclose(corners[0, :, 0], [-45, 45, 135, 225, 315])
        np.testing.assert_allclose(corners[:, 0, 1], [-45, -15, 22.5, 67.5])  # rows of unequal heights
        np.testing.assert_array_equal(mesh.get_array().filled(-1), np.nan_to_num(field()[0].values, nan=-1))
        assert pixels(figure).size
        texts = {
            text.get_text() for axes in figure.axes[:1] for text in axes.get_xticklabels() + axes.get_yticklabels()
        }
        assert {"0\N{DEGREE SIGN}", "90\N{DEGREE SIGN}E", "90\N{DEGREE SIGN}W"} <= texts
        assert {"K"} <= {text.get_text() for text in figure.texts}
        assert float(figure.axes[2].lines[1].get_xdata()[0]) == pytest.approx(2000 + 30 / 360)


def test_projections_of_cartopy() -> None:
    with pytest.raises(DataError, match="projection"):
        mode_maps(MAPS, projection=1)
    crs = pytest.importorskip("cartopy.crs")
    figure = mode_maps(field(), projection=crs.Robinson(central_longitude=180))
    assert isinstance(figure.axes[0].projection, crs.Robinson)
    assert len(np.unique(pixels(figure).reshape(-1, pixels(figure).shape[-1]), axis=0)) > 20


def test_a_projection_requires_cartopy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cartopy.crs", None)
    with pytest.raises(DataError, match="cartopy"):
        mode_maps(field(), projection=1)


def test_coastlines_that_are_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of coastlines as cartopy downloads it; without it, maps have none, and nothing is downloaded."""
    cartopy = pytest.importorskip("cartopy")
    crs = pytest.importorskip("cartopy.crs")
    shapefile = pytest.importorskip("shapefile")
    monkeypatch.setitem(cartopy.config, "data_dir", tmp_path)
    assert coastlines() == []
    folder = tmp_path / "shapefiles" / "natural_earth" / "physical"
    folder.mkdir(parents=True)
    with shapefile.Writer(folder / "ne_110m_coastline.shp", shapefile.POLYLINE) as file:
        file.field("name")
        file.line([[[-90.0, 0.0], [-80.0, 20.0]]])
        file.record("a coast")
    (coast,) = coastlines()
    np.testing.assert_array_equal(coast, [[-90, 0], [-80, 20]])
    axes = mode_maps(field()).axes[0]
    lines = next(one for one in axes.collections if isinstance(one, LineCollection))
    starts = sorted(float(path.vertices[0, 0]) for path in lines.get_paths())
    assert starts == [-450, -90, 270]  # longitudes of the map are from 0 to 360
    assert axes.get_xlim() == (-45, 315)
    assert pixels(mode_maps(field(), projection=crs.PlateCarree())).size
