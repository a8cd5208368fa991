"""Arrays of xarray in, arrays of xarray out: the numbers of the numpy path, under the right names."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from dask import delayed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from dpca import PCA, BandPCA, CellPCA, StreamingPCA
from dpca.storage import DataError, StoreError, ingest, verify
from tests.conftest import DATA

MODELS: dict[str, Any] = {
    "PCA": PCA(3, solver="covariance"),
    "whitened": PCA(3, whiten=True),
    "streaming": StreamingPCA(3, method="incremental-svd", oversampling=5, random_state=0),
    "cells": CellPCA(2, cell_shape=(4, 5)),
    "bands": BandPCA(2, band_size=30),
}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
KEPT = {"standard_name": "air_temperature", "units": "K"}


def field(dtype: Any = "f4", n: int = 40) -> xr.DataArray:
    """Temperatures (time, lat, lon), of some structure and some noise."""
    rng = np.random.default_rng(0)
    values = 280 + rng.normal(size=(n, 4)) @ rng.normal(size=(4, 96)) * 5 + rng.normal(size=(n, 96))
    coords = {
        "time": pd.date_range("2001-01-01", periods=n, freq="MS"),
        "season": ("time", np.array(["winter", "summer"])[np.arange(n) // 6 % 2]),
        "lat": ("lat", np.linspace(-70, 70, 8), {"units": "degrees_north"}),
        "lon": np.arange(0.0, 360, 30),
        "land": (("lat", "lon"), rng.random((8, 12)) > 0.5),
        "height": 2.0,
    }
    clipped = np.clip(values - 150, 0, 255) if np.dtype(dtype).itemsize == 1 else values
    return xr.DataArray(
        clipped.reshape(n, 8, 12).astype(dtype), coords, ("time", "lat", "lon"), name="tas", attrs=dict(KEPT)
    )


FIELD = field()


def never(shape: tuple[int, ...]) -> da.Array:
    """A Dask array that cannot be computed."""

    def fail() -> None:
        raise AssertionError("something was computed")

    return da.from_delayed(delayed(fail)(), shape, np.float32).rechunk((10, *shape[1:]))


# -- the numbers


@pytest.mark.long
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.permutations(["time", "lat", "lon"]),
    chunks=st.none() | st.fixed_dictionaries({"time": st.integers(7, 50), "lat": st.integers(3, 8)}),
    dtype=st.sampled_from(["f4", "f8", "i2", "u1", ">f4"]),
    name=st.sampled_from(list(MODELS)),
)
def test_any_order_and_chunks_of_dims_give_the_numbers_of_numpy(
    order: list[str], chunks: dict[str, int] | None, dtype: str, name: str
) -> None:
    x = field(dtype).transpose(*order)
    dims = ("time", *(dim for dim in order if dim != "time"))  # the attributes stay in their order
    ordered = x.transpose(*dims)
    x = x if chunks is None else x.chunk(chunks)
    model, truth = clone(MODELS[name]).fit(x, sample_dim="time"), clone(MODELS[name]).fit(ordered.values)
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=2e-4)
    scores = model.transform(x)
    plain = model.transform(ordered.values)
    most = float(abs(plain).max())
    close = {"rtol": 0} if chunks is None else {"rtol": 1e-4, "atol": 1e-5 * most}  # BLAS rounds by the shape of blocks
    np.testing.assert_allclose(scores.values, plain, **close)
    assert (scores.chunks is None) == (chunks is None)
    assert scores.dtype == plain.dtype
    back = model.inverse_transform(scores)
    assert back.dims == x.dims
    assert (back.chunks is None) == (chunks is None)
    truth = model.inverse_transform(plain)
    np.testing.assert_allclose(back.transpose(*dims).values, truth, **close)
    assert model.score(x) == pytest.approx(model.score(ordered.values))


@every_model
def test_what_is_in_memory_gives_the_bytes_of_numpy(model: Any) -> None:
    labelled, plain = clone(model).fit(FIELD), clone(model).fit(FIELD.values)
    np.testing.assert_array_equal(labelled.components_, plain.components_)
    np.testing.assert_array_equal(labelled.mean_, plain.mean_)


@every_model
def test_lazy_in_lazy_out(model: Any) -> None:
    fitted = clone(model).fit(FIELD)
    x = FIELD.copy(data=never(FIELD.shape)).transpose("lon", "time", "lat")
    back = fitted.inverse_transform(fitted.transform(x))
    assert back.chunks is not None
    if hasattr(fitted, "score_samples"):
        assert fitted.score_samples(x).chunks is not None
        assert fitted.score_samples(x).name is None
    with pytest.raises(AssertionError, match="computed"):
        back.compute()


@pytest.mark.parametrize("name", ["streaming", "cells"])
def test_batches_are_those_of_numpy(name: str) -> None:
    model, truth = clone(MODELS[name]), clone(MODELS[name])
    x = FIELD.transpose("lat", "time", "lon")
    for part in (slice(0, 20), slice(20, 40)):
        model.partial_fit(x.isel(time=part), sample_dim="time")
        truth.partial_fit(FIELD.values[part])
    np.testing.assert_array_equal(model.components_, truth.components_)
    assert model.transform(x).dims[0] == "time"


def test_real_fields_by_hand() -> None:
    """The first modes of a century's temperatures, weighted by area, by a decomposition in numpy."""
    path = DATA / "climate" / "A1B_north_america.nc"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    h5py = pytest.importorskip("h5py")
    with h5py.File(path) as file:
        values, lat = file["air_temperature"][()], file["latitude"][()]
        x = xr.DataArray(
            values, {"latitude": lat, "longitude": file["longitude"][()]}, ("year", "latitude", "longitude")
        )
    weighted = x * np.sqrt(np.cos(np.deg2rad(x["latitude"])))
    model = PCA(4).fit(weighted.transpose("latitude", "longitude", "year").chunk(latitude=10), sample_dim="year")
    rows = (values * np.sqrt(np.cos(np.deg2rad(lat)))[:, None]).reshape(240, -1).astype(np.float64)
    u, s, vt = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    learned = model.to_xarray()
    np.testing.assert_allclose(learned["explained_variance"], s[:4] ** 2 / 239, rtol=1e-4)
    scores = model.transform(weighted)
    for j in range(4):
        assert abs((learned["components"][j].values.ravel() * vt[j]).sum()) == pytest.approx(1, abs=1e-4)
        assert abs(np.corrcoef(scores.sel(component=j), u[:, j])[0, 1]) == pytest.approx(1, abs=1e-4)
    truth = rows.mean(0) + (u[:, :4] * s[:4]) @ vt[:4]
    back = model.inverse_transform(scores).transpose("year", "latitude", "longitude")
    np.testing.assert_allclose(back.values.reshape(240, -1), truth, atol=0.02)
    # a path of the same file, whose time counts days of a calendar of 360
    assert PCA(2).fit(path).to_xarray()["components"].dims == ("component", "latitude", "longitude")


# -- the names


def test_scores_have_the_coordinates_of_samples() -> None:
    scores = PCA(3).fit(FIELD).transform(FIELD)
    assert scores.dims == ("time", "component")
    assert scores.attrs == {"units": "K"}
    assert set(scores.coords) == {"time", "season", "height", "component"}
    xr.testing.assert_identical(scores["season"].drop_vars("height"), FIELD["season"].drop_vars("height"))
    assert scores.sel(time="2002", component=0).shape == (12,)
    assert PCA(3, whiten=True).fit(FIELD).transform(FIELD).attrs == {}


@pytest.mark.filterwarnings("ignore::dpca.models.ConvergenceWarning")
def test_reconstructions_are_like_the_samples() -> None:
    for model in MODELS.values():
        fitted = clone(model).fit(FIELD)
        back = fitted.inverse_transform(fitted.transform(FIELD))
        assert (back.name, back.attrs) == ("tas", KEPT)
        xr.testing.assert_identical(back.coords.to_dataset(), FIELD.coords.to_dataset())
        assert float(abs(back - FIELD).mean()) < 5


def test_the_data_set_of_a_model_decodes_scores() -> None:
    model = PCA(3).fit(FIELD.transpose("lat", "lon", "time"), sample_dim="time")
    learned = model.to_xarray()
    assert learned["components"].dims == ("component", "lat", "lon")
    assert learned["mean"].attrs == KEPT
    xr.testing.assert_equal(learned["lat"], FIELD["lat"].drop_vars("height").assign_coords(height=2.0))
    scores = model.transform(FIELD)
    by_hand = learned["mean"] + xr.dot(scores, learned["components"], dim="component")
    xr.testing.assert_allclose(
        by_hand.transpose("time", "lat", "lon"),
        model.inverse_transform(scores).transpose("time", "lat", "lon"),
        atol=1e-3,
    )
    share = learned["explained_variance"] / learned["total_variance"]
    xr.testing.assert_allclose(share, learned["explained_variance_ratio"])


def test_cells_lie_at_the_centers_of_their_coordinates() -> None:
    model = CellPCA(2, cell_shape=(3, 4)).fit(FIELD)
    scores = model.transform(FIELD)
    assert scores.dims == ("time", "cell_lat", "cell_lon", "component")
    np.testing.assert_allclose(scores["cell_lat"], [-50, 10, 60])  # 3 + 3 + 2 of 20 degrees
    np.testing.assert_allclose(scores["cell_lon"], FIELD["lon"].coarsen(lon=4).mean())
    assert scores["cell_lat"].attrs == {"units": "degrees_north"}
    assert model.to_xarray()["explained_variance"].dims == ("cell_lat", "cell_lon", "component")
    dates = FIELD.assign_coords(lat=pd.date_range("2000-01-01", periods=8, freq="2D"))
    centers = CellPCA(2, cell_shape=(4, 4)).fit(dates).transform(dates)["cell_lat"]
    assert centers.values.tolist() == pd.to_datetime(["2000-01-04", "2000-01-12"]).values.tolist()


def test_several_dims_count_samples_together() -> None:
    x = xr.DataArray(FIELD.values.reshape(10, 4, 8, 12), dims=("time", "member", "lat", "lon")).transpose(
        "member", "lat", "time", "lon"
    )
    model = PCA(3).fit(x.chunk(time=5), sample_dim=("time", "member"))
    np.testing.assert_allclose(model.explained_variance_, PCA(3).fit(FIELD.values).explained_variance_, rtol=1e-4)
    scores = model.transform(x)
    assert dict(scores.sizes) == {"member": 4, "time": 10, "component": 3}
    assert model.inverse_transform(scores).dims == x.dims
    np.testing.assert_allclose(
        scores.transpose("time", "member", "component").values.reshape(40, 3), model.transform(FIELD.values), rtol=1e-4
    )


def test_a_land_mask_is_left_out_as_the_sentence_says() -> None:
    sea = FIELD.where(~FIELD["land"])
    for fit in (
        clone(MODELS["PCA"]).fit,
        MODELS["cells"].fit,
        MODELS["streaming"].partial_fit,
        clone(MODELS["PCA"]).fit_transform,
    ):
        for x in (sea, sea.chunk(time=7)):
            with pytest.raises(DataError, match=r"x\.where\(x\.notnull\(\)\.all.*dropna\("):
                fit(x)
    with pytest.raises(DataError, match="sample.0.*'tas'.*finite"):
        PCA(2).fit(sea)
    places = sea.stack(place=("lat", "lon")).dropna("place")
    filled = sea.where(sea.notnull().all("time"), 0)
    model, truth = PCA(3).fit(places), PCA(3).fit(filled)
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-5)
    maps = model.to_xarray()["components"].unstack("place").transpose("component", "lat", "lon")
    assert bool((maps.isnull().any("component") == FIELD["land"]).all())
    other = truth.to_xarray()["components"].where(~FIELD["land"])
    np.testing.assert_allclose(abs(maps), abs(other), atol=1e-4)


def test_channels_come_last_whatever_their_place() -> None:
    rng = np.random.default_rng(0)
    x = xr.DataArray(rng.integers(0, 256, (30, 3, 8, 8), dtype="u1"), dims=("time", "rgb", "y", "x"))
    model = CellPCA(3, cell_shape=4).fit(x)
    assert model.sample_shape_ == (8, 8, 3)
    assert model.transform(x).dims == ("time", "cell_y", "cell_x", "component")
    assert model.inverse_transform(model.transform(x)).dims == x.dims
    # what has another name is no channel, however few there are
    levels = x.rename(rgb="level").transpose("time", "y", "x", "level")
    assert CellPCA(3, cell_shape=(4, 4, 3)).fit(levels).transform(levels).dims[3] == "cell_level"


def test_tables_and_flat_scores() -> None:
    model = CellPCA(2, cell_shape=4, flatten=True).fit(FIELD)
    scores = model.transform(FIELD)
    assert scores.dims == ("time", "score")
    assert scores["score"].values.tolist() == model.get_feature_names_out().tolist()
    np.testing.assert_array_equal(model.inverse_transform(scores), model.inverse_transform(scores.values))
    table = PCA(2).set_output(transform="pandas").fit(FIELD).transform(FIELD)
    assert list(table.columns) == ["pca0", "pca1"]


@every_model
def test_a_stored_model_knows_the_names(model: Any, tmp_path: Path) -> None:
    x = FIELD.transpose("lat", "time", "lon")
    fitted = clone(model).fit(x, sample_dim="time")
    fitted.save(tmp_path / "m.zarr")
    fitted.save(tmp_path / "m.zarr")  # is known to be the same
    read = type(fitted).load(tmp_path / "m.zarr")
    assert verify(tmp_path / "m.zarr") == []
    xr.testing.assert_identical(read.transform(x), fitted.transform(x))
    own = fitted.to_xarray()
    xr.testing.assert_identical(read.to_xarray(), own)
    assert read.inverse_transform(read.transform(x)).attrs == KEPT
    again = pickle.loads(pickle.dumps(fitted))
    xr.testing.assert_identical(again.transform(x), fitted.transform(x))
    renamed = clone(model).fit(x.rename(lat="latitude"), sample_dim="time")
    with pytest.raises(StoreError, match="input"):
        renamed.save(tmp_path / "m.zarr")


def test_a_model_of_a_stack_knows_the_names(tmp_path: Path) -> None:
    ingest(FIELD, tmp_path / "s.zarr")
    model = PCA(3).fit(tmp_path / "s.zarr")
    learned = model.to_xarray()
    assert learned["components"].dims == ("component", "lat", "lon")
    np.testing.assert_array_equal(learned["lat"], FIELD["lat"])
    assert learned["mean"].attrs["units"] == "K"
    scores = model.transform(FIELD)
    xr.testing.assert_allclose(scores, PCA(3).fit(FIELD).transform(FIELD), atol=1e-3)
    assert isinstance(model.transform(tmp_path / "s.zarr"), da.Array)


def test_models_of_plain_samples_take_arrays_of_xarray() -> None:
    model = CellPCA(2, cell_shape=4).fit(FIELD.values)
    assert model.transform(FIELD).dims == ("time", "cell_lat", "cell_lon", "component")
    assert model.to_xarray()["components"].dims == ("component", "y", "x")
    plain = model.transform(FIELD).rename(cell_lat="cell_y", cell_lon="cell_x").drop_vars(["cell_y", "cell_x"])
    assert model.inverse_transform(plain).dims == ("time", "y", "x")
    clone(model).fit(FIELD).fit(FIELD.values)  # forgets the names
    assert model.transform(FIELD.rename(lat="a")).dims[1] == "cell_a"


# -- what is refused

WRONG: dict[str, tuple[Any, str]] = {
    "a data set": (
        lambda m: m.fit(FIELD.to_dataset()),
        "a Dataset .*'tas'",
    ),
    "no such dim": (
        lambda m: m.fit(FIELD, sample_dim="year"),
        "sample_dim is 'year'",
    ),
    "dims of numpy": (lambda m: m.fit(FIELD.values, sample_dim="time"), "sample_dim is"),
    "only samples": (
        lambda m: m.fit(FIELD, sample_dim=FIELD.dims),
        "at least one axis of attributes|samples on axis 0",
    ),
    "a flipped axis": (lambda m: m.transform(FIELD[:, ::-1]), r"along 'lat' than the model .8 from 70.0"),
    "another grid": (lambda m: m.transform(FIELD.isel(lon=slice(6))), r"other coordinates along 'lon'"),
    "another dim": (lambda m: m.score(FIELD.rename(lat="y")), r"lacks 'lat'"),
    "one sample": (lambda m: m.transform(FIELD[0]), r"no dim of samples"),
    "turned scores": (
        lambda m: m.inverse_transform(m.transform(FIELD)[:, ::-1]),
        "other coordinates along 'component'",
    ),
    "no scores": (lambda m: m.inverse_transform(FIELD), "lacks 'component'"),
    "a name twice": (
        lambda m: m.transform(FIELD.rename(time="component")),
        r"'component' is a dim of the samples .*rename it",
    ),
    "complex": (lambda m: m.fit(FIELD * 1j), "Complex data not supported"),
    "texts": (lambda m: m.fit(FIELD.astype(str)), "convert it to integers or real"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("lazy", [False, True])
def test_wrong_calls_end_in_one_sentence(wrong: str, lazy: bool) -> None:
    call, sentence = WRONG[wrong]
    with pytest.raises(DataError, match=sentence) as error:
        call(PCA(3, random_state=0).fit(FIELD.chunk(time=9) if lazy else FIELD))
    assert "\n" not in str(error.value)


def test_rounded_coordinates_are_the_same() -> None:
    model = PCA(2).fit(FIELD)
    x = FIELD.assign_coords(lat=FIELD["lat"].astype("f4") + np.float32(1e-6))
    np.testing.assert_array_equal(model.transform(x), model.transform(FIELD))


def test_fewer_components_give_back_the_same_dims() -> None:
    model = PCA(3).fit(FIELD)
    scores = model.transform(FIELD)
    back = model.inverse_transform(scores, n_components=2)
    np.testing.assert_array_equal(back, model.inverse_transform(scores.values, n_components=2))
