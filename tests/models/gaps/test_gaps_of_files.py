"""Values that a file states as missing are gaps, also of integers, in estimators and commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from sklearn.base import clone

import dpca
from dpca import EOF, PCA, BandPCA, CellPCA, StreamingPCA
from dpca.cli import main
from dpca.storage import DataError, ReadOptions, ingest
from dpca.storage.stack import open_stack

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

N, SHAPE, MARK = 30, (8, 6), -999
GAPS: dict[str, Any] = {"gaps": "iterate", "random_state": 0}
MODELS = [
    PCA(2, **GAPS),
    CellPCA(2, cell_shape=4, **GAPS),
    BandPCA(2, band_size=24, **GAPS),
    StreamingPCA(2, **GAPS),
]
ENCODINGS: dict[str, dict[str, Any]] = {
    "int16": {"dtype": "int16", "_FillValue": MARK},
    "int32": {"dtype": "int32", "_FillValue": MARK},
    "packed": {"dtype": "int16", "_FillValue": MARK, "scale_factor": 0.5, "add_offset": 3.0},
    "float32": {"dtype": "float32", "_FillValue": MARK},
}


def field() -> np.ndarray[Any, Any]:
    """Whole numbers of rank 2 and noise, with a fifth of their values missing."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 2)) @ rng.normal(size=(2, 48)) * 100 + rng.normal(size=(N, 48))
    x = np.rint(x).reshape(N, *SHAPE)
    x[rng.random(x.shape) < 0.2] = np.nan
    return x


@pytest.fixture(scope="module", params=[(name, engine) for name in ENCODINGS for engine in ("netcdf4", "scipy")])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A netCDF file, of version 4 or 3."""
    (name, engine), path = request.param, str(tmp_path_factory.mktemp("files") / "field.nc")
    data = xr.Dataset({"v": (("time", "y", "x"), field())})
    data.to_netcdf(path, encoding={"v": ENCODINGS[name]}, engine=engine)
    return path


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_models_of_files_are_those_of_arrays(path: str, model: Any) -> None:
    found = clone(model).fit(path)
    x = field().astype(found.components_.dtype)
    known = clone(model).fit(x)
    for name in ("mean_", "explained_variance_"):
        np.testing.assert_allclose(getattr(found, name), getattr(known, name), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(np.asarray(found.transform(path)), known.transform(x), rtol=1e-2, atol=0.5)
    eof, expected = EOF(2, gaps="iterate").fit(path), EOF(2, gaps="iterate").fit(field())
    np.testing.assert_allclose(eof.explained_variance_, expected.explained_variance_, rtol=1e-4)


def test_without_gaps_they_are_rejected(path: str, tmp_path: Path) -> None:
    for call in (lambda: PCA(2).fit(path), lambda: ingest(path, tmp_path / "a.zarr")):
        with pytest.raises(DataError, match="missing"):
            call()


def test_ingestion_fills_and_compresses_them(path: str, tmp_path: Path) -> None:
    stack, x = ingest(path, tmp_path / "x.zarr", reading=ReadOptions(gaps=True)), field()
    assert stack.dtype.kind == "f"
    np.testing.assert_array_equal(stack.samples[:], x.astype(stack.dtype))
    filled, store = str(tmp_path / "filled.zarr"), str(tmp_path / "s.zarr")
    assert main(["fill", path, filled, "--components", "2"]) == 0
    values = open_stack(filled).samples[:]
    assert np.isfinite(values).all()
    np.testing.assert_array_equal(values[~np.isnan(x)], x[~np.isnan(x)].astype(values.dtype))
    assert main(["compress", path, store, "--gaps", "iterate", "--quality", "high"]) == 0
    np.testing.assert_array_equal(np.isnan(dpca.open(store)[:]), np.isnan(x))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", ENCODINGS)
def test_zarr_arrays_of_xarray(name: str, zarr_format: Any, tmp_path: Path) -> None:
    data = xr.Dataset({"v": (("time", "y", "x"), field())})
    data.to_zarr(tmp_path / "v.zarr", encoding={"v": ENCODINGS[name]}, zarr_format=zarr_format, consolidated=False)
    stack = ingest(tmp_path / "v.zarr", tmp_path / "x.zarr", reading=ReadOptions(gaps=True))
    np.testing.assert_array_equal(stack.samples[:], field().astype(stack.dtype))
    path = str(tmp_path / "v.zarr")
    for model in MODELS:
        known = clone(model).fit(stack)
        for given, key in ((path, "v"), (f"{path}/v", None), (zarr.open_group(path, mode="r")["v"], None)):
            found = clone(model).fit(given, key=key)
            np.testing.assert_allclose(found.mean_, known.mean_, rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(found.explained_variance_, known.explained_variance_, rtol=1e-3)
            np.testing.assert_allclose(found.transform(given), known.transform(stack), rtol=1e-2, atol=0.5)
    with pytest.raises(DataError, match="ingest"):
        PCA(2).fit(path, key="v")


def test_integers_without_such_a_statement_stay_integers(tmp_path: Path) -> None:
    x = np.arange(N * 48, dtype="int16").reshape(N, *SHAPE)
    xr.Dataset({"v": (("time", "y", "x"), x)}).to_netcdf(tmp_path / "x.nc")
    assert ingest(tmp_path / "x.nc", tmp_path / "x.zarr", reading=ReadOptions(gaps=True)).dtype == np.int16
