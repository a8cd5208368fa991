"""Several variables in one EOF analysis: against the SVD of all of them side by side, in every form and source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca import EOF, MCA, timeseries
from dpca.engine.folds.plan import PlanError
from dpca.storage import DataError, verify
from dpca.storage.run import Run

N, K = 48, 3
RNG = np.random.default_rng(0)
SERIES = np.linalg.qr(RNG.normal(size=(N, K)))[0] * [30, 15, 5]


def made(shape: tuple[int, ...], scale: float) -> np.ndarray:
    d = int(np.prod(shape))
    return (scale * (SERIES @ RNG.normal(size=(K, d)) + 0.05 * RNG.normal(size=(N, d)) + 7)).reshape(N, *shape)


WIND, PRESSURE = made((5, 6), 1.0), made((2, 4, 3), 1000.0)
WIND[:, 1:3, 2] = np.nan  # land
TIME = pd.date_range("2000-01-01", periods=N, freq="MS")
LAT = ("lat", np.linspace(-60, 60, 5), {"units": "degrees_north"})
U = xr.DataArray(
    WIND,
    {"time": TIME, "lat": LAT, "lon": np.arange(0, 360, 60.0)},
    ("time", "lat", "lon"),
    "u",
    {"units": "m/s", "long_name": "wind"},
)
P = xr.DataArray(
    PRESSURE,
    {"time": TIME, "level": [500.0, 850.0], "y": np.arange(4.0), "x": np.arange(3.0)},
    ("time", "level", "y", "x"),
    "p",
    {"units": "Pa"},
)
FORMS: dict[str, Any] = {
    "list": [U, P],
    "tuple": (U, P),
    "dict": {"u": U, "p": P},
    "Dataset": xr.Dataset({"u": U, "p": P}),
    "arrays": [WIND, PRESSURE],
    "Dask": [U.chunk(time=10), P.chunk(time=7)],
    "mixed": [WIND, P],
}


def parts(found: Any) -> list[np.ndarray]:
    """The values of each variable, whatever the form."""
    values = found.values() if isinstance(found, dict | xr.Dataset) else found
    return [np.asarray(x) for x in (values() if callable(values) else values)]


def side_by_side(variables: list[np.ndarray]) -> np.ndarray:
    flat = np.concatenate([x.reshape(len(x), -1) for x in variables], axis=1)
    return flat[:, ~np.isnan(flat[0])]


def truth(standardize: Any, weights: tuple[Any, Any] = (1, 1)) -> tuple[np.ndarray, np.ndarray]:
    blocks = []
    for x, w in zip((WIND, PRESSURE), weights, strict=True):
        a = (x - x.mean(axis=0)) * np.broadcast_to(1.0, x.shape[1:])
        a = a / x.std(axis=0) if standardize is True else a
        a = side_by_side([a * np.broadcast_to(w, x.shape[1:])])
        blocks.append(a / np.sqrt(a.var(axis=0).sum()) if standardize == "variable" else a)
    _, s, rows = np.linalg.svd(np.concatenate(blocks, axis=1), full_matrices=False)
    return s[:K] ** 2 / (N - 1), rows[:K]


@pytest.mark.cases(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("standardize", [False, True, "variable"])
def test_modes_are_those_of_all_side_by_side(form: str, standardize: Any, tmp_path: Path) -> None:
    x = FORMS[form]
    eof = EOF(K, standardize=standardize, solver="auto", random_state=0).fit(x)
    variances, rows = truth(standardize)
    np.testing.assert_allclose(eof.explained_variance_, variances, rtol=1e-6)
    maps = eof.eofs()
    assert type(maps) is type(x)
    assert [part.shape[1:] for part in parts(maps)] == [(5, 6), (2, 4, 3)]
    np.testing.assert_allclose(np.abs((side_by_side(parts(maps)) * rows).sum(axis=1)), 1, atol=1e-6)
    largest = np.sqrt(variances[0] * N)
    np.testing.assert_allclose(np.asarray(eof.project(x)), np.asarray(eof.pcs()), atol=1e-6 * largest)
    for found, expected in zip(parts(eof.reconstruct()), (WIND, PRESSURE), strict=True):
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        np.testing.assert_allclose(found, expected, atol=0.4 * np.nanstd(expected) / 5)
    # In a store, and back.
    eof.save(tmp_path / "eof.zarr")
    assert verify(tmp_path / "eof.zarr") == []
    again = EOF.load(tmp_path / "eof.zarr")
    for ours, theirs in ((again.eofs(2), eof.eofs(2)), (again.reconstruct(), eof.reconstruct())):
        assert type(ours) is type(theirs)
        for a, b in zip(parts(ours), parts(theirs), strict=True):
            np.testing.assert_array_equal(a, b)
    if form in ("list", "dict", "Dataset"):
        both = [m["u"] if form != "list" else m[0] for m in (again.eofs(2), eof.eofs(2))]
        xr.testing.assert_identical(*both)
        assert both[0].attrs.get("units") == (None if standardize else "m/s")
        xr.testing.assert_identical(again.project(x), eof.project(x))


def test_results_have_the_names_of_their_variable() -> None:
    eof = EOF(2, climatology="season").fit(FORMS["list"])
    u, p = eof.eofs()
    assert (u.dims, p.dims) == (("mode", "lat", "lon"), ("mode", "level", "y", "x"))
    assert "wind" in u.attrs["long_name"]
    np.testing.assert_array_equal(u.lat, U.lat)
    assert eof.pcs().dims == ("time", "mode")
    np.testing.assert_array_equal(eof.pcs().time, U.time)
    assert {*eof.to_xarray().data_vars} == {"u", "p", "pcs", "explained_variance", "explained_variance_ratio"}
    assert [x.dims for x in eof.reconstruct()] == [U.dims, P.dims]
    assert eof.rotate().eofs()[1].dims == p.dims
    assert eof.north_test().error.dims == ("mode",)
    # Other times, other order of the variables of a dict.
    later = EOF(2).fit(FORMS["dict"])
    xr.testing.assert_allclose(later.project({"p": P[30:], "u": U[30:]}), later.project(FORMS["dict"])[30:], atol=1e-6)
    with pytest.raises(DataError, match="coordinates"):
        EOF(2).fit([U, U.assign_coords(lat=("lat", U.lat.values + 1))]).to_xarray()
    assert len(timeseries.spectrum(eof.pcs(), time=1 / 12).power) > 0


@pytest.mark.parametrize("standardize", [False, "variable"])
def test_weights_are_those_of_each_variable(standardize: Any, tmp_path: Path) -> None:
    area = np.sqrt(np.cos(np.deg2rad(U.lat.values)))[:, None]
    levels = xr.DataArray([1.0, 2.0], {"level": P.level})
    cases: list[tuple[Any, tuple[Any, Any]]] = [
        ([2, 0.5], (2, 0.5)),
        (["coslat", levels], (area, np.array([1.0, 2])[:, None, None])),
        ({"p": None, "u": "coslat"}, (area, 1)),
    ]
    for weights, expected in cases:
        eof = EOF(K, weights=weights, standardize=standardize, solver="auto").fit([U, P])
        variances, rows = truth(standardize, expected)
        np.testing.assert_allclose(eof.explained_variance_, variances, rtol=1e-6)
        np.testing.assert_allclose(np.abs((side_by_side(parts(eof.eofs())) * rows).sum(axis=1)), 1, atol=1e-6)
        eof.save(tmp_path / "eof.zarr", overwrite=True)
        again = EOF.load(tmp_path / "eof.zarr")
        assert [np.shape(w) for w in again.weights] == [(5, 6), (2, 4, 3)]
        np.testing.assert_array_equal(again.fit([U, P]).explained_variance_, eof.explained_variance_)


@settings(max_examples=25, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4),
    share=st.sampled_from([0.0, 0.1]),
    gaps=st.sampled_from(["drop", "interpolate", "iterate"]),
    standardize=st.booleans(),
    seed=st.integers(0, 99),
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_analysis_is_that_of_one_field(shapes: Any, share: float, gaps: str, standardize: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(20, 2))
    variables = []
    for shape in shapes:
        d = int(np.prod(shape))
        x = z @ rng.normal(size=(2, d)) + 0.1 * rng.normal(size=(20, d))
        x[rng.random(x.shape) < share] = np.nan
        variables.append(x.reshape(20, *shape))
    flat = np.concatenate([x.reshape(20, -1) for x in variables], axis=1)
    options: dict[str, Any] = {"gaps": gaps, "standardize": standardize, "random_state": 0}
    try:
        expected = EOF(1, **options).fit(flat)
    except DataError as error:
        with pytest.raises(DataError, match=str(error).split()[0]):
            EOF(1, **options).fit(variables)
        return
    found = EOF(1, **options).fit(variables)
    np.testing.assert_array_equal(found.explained_variance_, expected.explained_variance_)
    for ours, theirs in ((found.eofs(), expected.eofs()), (found.reconstruct(), expected.reconstruct())):
        joined = np.concatenate([part.reshape(len(part), -1) for part in ours], axis=1)
        np.testing.assert_array_equal(joined, theirs)


def test_large_variables_are_read_by_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    z, shapes = rng.normal(size=(12, 2)), ((40, 60, 50), (200, 300))
    values = []
    for i, shape in enumerate(shapes):
        d = int(np.prod(shape))
        values.append((z @ rng.normal(size=(2, d)) + 0.1 * rng.normal(size=(12, d))).reshape(12, *shape).astype("f4"))
        chunks = (1, *(max(1, length // 2) for length in shape))
        zarr.create_array(tmp_path / f"{i}.zarr", data=values[-1], chunks=chunks)
    paths = [tmp_path / "0.zarr", tmp_path / "1.zarr"]
    given = {"a": paths[0], "b": paths[1]}
    exact = EOF(2, solver="auto").fit(values)
    small = EOF(2, random_state=0).fit(given, run=Run(threads=1, memory=60 * 10**6))
    assert small.model_.solver_ == "dual"  # by blocks of grid points
    np.testing.assert_allclose(small.explained_variance_, exact.explained_variance_, rtol=1e-5)
    for ours, theirs in zip(parts(small.eofs()), exact.eofs(), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a * np.sign((a * b).sum()), b, atol=1e-5)
    with pytest.raises(PlanError, match="MB"):
        EOF(2, batch_size=4).fit(given, run=Run(threads=1, memory=10**5))


def test_several_batches_of_incremental_svd() -> None:
    rng = np.random.default_rng(2)
    z, shapes = rng.normal(size=(90, K)) * [9, 5, 2], ((60, 100), (2, 40, 50))
    values = [
        (z @ rng.normal(size=(K, int(np.prod(shape)))) + rng.normal(size=(90, int(np.prod(shape))))).reshape(90, *shape)
        for shape in shapes
    ]
    eof = EOF(K, batch_size=15, oversampling=4, random_state=0).fit([x.astype("f4") for x in values])
    assert eof.model_.method_ == "incremental-svd"  # six batches, each of more than 2 (K + 4) samples
    flat = np.concatenate([x.reshape(90, -1) for x in values], axis=1)
    _, s, rows = np.linalg.svd(flat - flat.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(eof.explained_variance_, s[:K] ** 2 / 89, rtol=1e-3)
    np.testing.assert_allclose(np.abs((side_by_side(eof.eofs()) * rows[:K]).sum(axis=1)), 1, atol=1e-3)


def test_variables_of_a_file(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    xr.Dataset({"u": U, "p": P}).to_netcdf(tmp_path / "both.nc", engine="scipy")
    eof = EOF(2, random_state=0).fit(tmp_path / "both.nc", key=["u", "p"])
    expected = EOF(2, random_state=0).fit(FORMS["dict"])
    np.testing.assert_allclose(eof.explained_variance_, expected.explained_variance_)
    maps = eof.eofs()
    assert maps["u"].dims == ("mode", "lat", "lon")
    np.testing.assert_allclose(maps["p"], expected.eofs()["p"], atol=1e-9)
    both = xr.open_dataset(tmp_path / "both.nc", engine="scipy")
    assert {*EOF(2).fit(both, key=["u", "p"]).eofs().data_vars} == {"u", "p"}


DTYPES = ["?", "u1", "u2", ">i2", "i4", "f2", "f4", "f8"]


@pytest.mark.cases(2)
@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("second", ["u1", "u2", "f4"])
def test_variables_of_any_types(first: str, second: str) -> None:
    x = (np.nan_to_num(WIND, nan=7) * 4 + 100).clip(0, 250)
    x = x > 128 if first == "?" else x.astype(first)
    y = (PRESSURE / 250 + 100).clip(0, 250).astype(second)
    eof = EOF(K, solver="auto").fit([x, y])
    flat = np.concatenate([x.reshape(N, -1).astype(float), y.reshape(N, -1).astype(float)], axis=1)
    values = np.linalg.svd(flat - flat.mean(axis=0), compute_uv=False)[:K] ** 2 / (N - 1)
    np.testing.assert_allclose(eof.explained_variance_, values, rtol=2e-6)
    assert [part.shape for part in eof.eofs()] == [(K, 5, 6), (K, 2, 4, 3)]


def test_samples_without_times_belong_to_those_with_times() -> None:
    found = EOF(2).fit([U, P.drop_vars("time")])
    np.testing.assert_array_equal(found.pcs().time, U.time)
    np.testing.assert_array_equal(found.pcs(), EOF(2).fit([U, P]).pcs())


@pytest.mark.parametrize("lazy", [False, True])
def test_masked_values_are_missing(lazy: bool) -> None:
    land = np.zeros(WIND.shape, bool)
    land[:, 0] = True
    masked: Any = np.ma.array(WIND, mask=land)
    if lazy:
        masked = da.ma.masked_array(da.from_array(WIND, chunks=7), mask=da.from_array(land, chunks=7))
    gappy = np.where(land, np.nan, WIND)
    for samples, known in ((masked, gappy), ([masked, PRESSURE], [gappy, PRESSURE])):
        found, expected = EOF(2, random_state=0).fit(samples), EOF(2, random_state=0).fit(known)
        np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_)
        np.testing.assert_allclose(found.project(samples), expected.project(known), atol=1e-6)
    coupled = MCA(2).fit(masked, PRESSURE)
    np.testing.assert_allclose(coupled.singular_values_, MCA(2).fit(gappy, PRESSURE).singular_values_)


def test_wrong_input_is_named() -> None:
    model, single = EOF(2).fit(FORMS["list"]), EOF(2).fit(U)
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: EOF(2).fit([U, P[:40]]), "40"),
        (lambda: EOF(2).fit([U, P.assign_coords(time=TIME + pd.Timedelta(days=3))]), "align"),
        (lambda: EOF(2).fit(xr.Dataset({"u": U, "mask": U[0]})), "'mask'"),
        (lambda: EOF(2).fit(xr.Dataset({"u": U, "p": P}), key=["u", "v"]), "'v'"),
        (lambda: EOF(2).fit(U, key=["u"]), "key"),
        (lambda: EOF(2).fit([U, "path"]), "variables"),
        (lambda: EOF(2).fit([SERIES[:, 0], SERIES[:, 1]]), "variables"),
        (lambda: EOF(2).fit({}), "dict"),
        (lambda: EOF(2).fit({"wind": U, "index": SERIES[:, 0]}), "variable index"),
        (lambda: EOF(2).fit({"wind": np.where(WIND > 0, np.inf, WIND), "p": PRESSURE}), "wind and p"),
        (lambda: EOF(2, weights=[1]).fit([U, P]), "list"),
        (lambda: EOF(2, weights=3.0).fit([U, P]), "weights"),
        (lambda: EOF(2, weights={"u": 1, "q": 2}).fit([U, P]), "u, q"),
        (lambda: EOF(2, weights="coslat").fit([U, P]), "variable p"),
        (lambda: EOF(2, weights="coslat").fit([WIND, WIND]), "^variable.0: "),
        (lambda: EOF(2, standardize="each").fit([U, P]), "standardize"),
        (lambda: model.project(U), "all"),
        (lambda: model.project([U]), "u, p"),
        (lambda: model.project([P, U]), "lacks"),
        (lambda: model.project([WIND, WIND]), "shape"),
        (lambda: single.project([U, P]), "one"),
    ]
    for call, word in wrong:
        with pytest.raises(DataError, match=word):
            call()
