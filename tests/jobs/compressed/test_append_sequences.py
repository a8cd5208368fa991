"""Samples that follow each other are appended: as runs of waves of their own, with their times behind the others'."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

import dpca
from dpca import CellPCA
from dpca.jobs import append_store, encode_store
from dpca.jobs.compressed.verify_quality import verify_quality
from dpca.representation.compressed.compressed import Compressed
from dpca.representation.compressed.compressed_form import StoreForm
from dpca.storage import DataError, Stack, ingest, verify
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.jobs.compressed.test_append import tree
from tests.jobs.compressed.test_encode import read_as_described
from tests.jobs.compressed.test_encode_sequences import drifting

# The last run is not full, ends with its shard, is not full again.
N, *LATER = ENDS = (41, 44, 51, 107)
ROWS, VALUES = 32, drifting(ENDS[-1])


def field(start: int, stop: int, **others: np.ndarray) -> xarray.DataArray:
    """Some of the maps, and their times."""
    days = np.datetime64("2001-01-01", "ns") + np.arange(start, stop) * np.timedelta64(1, "D")
    coords = {"time": days, "lat": np.linspace(60, -60, 24), "weight": ("time", np.arange(start, stop) / 2), **others}
    return xarray.DataArray(VALUES[start:stop], coords, ("time", "lat", "lon"), name="air")


def made(folder: Path, name: str, given: xarray.DataArray) -> Stack:
    return ingest(given, folder / f"{name}.zarr", reading=ReadOptions(data_range=(-6, 6)), run=Run(threads=1))


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of the first maps: with an error bound, and with a mean error."""
    folder = tmp_path_factory.mktemp("before")
    stack = made(folder, "first", field(0, N))
    CellPCA(12, cell_shape=8, shared=True).fit(VALUES).save(folder / "model.zarr")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoreForm, "rows", ROWS)
        patch.setattr(StoreForm, "shard_rows", ROWS)
        encode_store(stack, folder / "model.zarr", folder / "promised.zarr", max_error=0.01)
        encode_store(stack, folder / "model.zarr", folder / "mean.zarr", psnr=45.0)
    return folder


@pytest.fixture(scope="module", params=["promised", "mean"])
def grown(request: pytest.FixtureRequest, before: Path) -> tuple[Compressed, np.ndarray]:
    """A longer store, and all that is in it."""
    path = shutil.copytree(before / f"{request.param}.zarr", before / f"longer-{request.param}.zarr")
    for start, stop in itertools.pairwise(ENDS):
        append_store(path, made(before, f"{request.param}-{start}", field(start, stop)))
    store = dpca.open_compressed(path)
    return store, store[...]


@pytest.mark.cases(1)
def test_waves_go_on(before: Path, grown: tuple[Compressed, np.ndarray], tmp_path: Path) -> None:
    store, whole = grown
    old = before / Path(store.path).name.removeprefix("longer-")
    assert store.facts["waves"]
    assert store.facts["breaks"] == [N, *LATER[:-1]]
    assert whole.shape == VALUES.shape
    assert (whole[:N] == dpca.open_compressed(old)[...]).all()
    if "max_error" in store.facts:
        assert np.abs(whole.astype(float) - VALUES).max() <= 0.01
    assert -10 * np.log10(np.square((whole - VALUES) / 12).mean()) > 44.5
    assert verify_quality(store.path, made(tmp_path, "all", field(0, ENDS[-1]))) == []
    assert verify(store.path) == []
    assert (np.abs(read_as_described(Path(store.path)) - whole) <= 2 * np.spacing(np.abs(whole))).all()
    files, there = tree(old), tree(Path(store.path))
    full = {name for name in files if name in ("codes/c/0/0/0", "residual/c/0/0/0")}
    assert full
    assert all(there[name] == files[name] for name in full)


@settings(deadline=None, max_examples=15)
@given(index=hnp.basic_indices(VALUES.shape, allow_newaxis=False, allow_ellipsis=False))
def test_parts_are_those_of_the_whole_for_all_readers(grown: tuple[Compressed, np.ndarray], index: Any) -> None:
    store, whole = grown
    np.testing.assert_array_equal(store[index], whole[index])
    parts = index if isinstance(index, tuple) else (index,)
    if all(not isinstance(part, slice) or (part.step or 1) > 0 for part in parts):  # zarr goes forwards only
        np.testing.assert_array_equal(zarr.open_array(f"dpca::{store.path}", mode="r").oindex[index], whole[index])


def test_others_read_the_times_behind_each_other(grown: tuple[Compressed, np.ndarray]) -> None:
    store, whole = grown
    url, all_of = f"dpca::{store.path}", field(0, ENDS[-1])
    np.testing.assert_array_equal(da.from_zarr(url).compute(scheduler="threads"), whole)
    np.testing.assert_array_equal(store[[106, 2, N, 2]], whole[[106, 2, N, 2]])
    for found in (store.xarray(), xarray.open_zarr(url).samples):
        np.testing.assert_array_equal(found.values, whole)
        for name in ("time", "weight", "lat"):
            np.testing.assert_array_equal(found[name].values, all_of[name].values)


def test_other_coordinates_are_refused(before: Path, tmp_path: Path) -> None:
    path = shutil.copytree(before / "mean.zarr", tmp_path / "small.zarr")
    files = tree(path)
    for name, more, why in (
        ("timeless", field(N, 60).drop_vars("time"), "'time' of each sample"),
        ("elsewhere", field(N, 60, lat=np.linspace(0, 60, 24)), "'lat' along the axes"),
    ):
        with pytest.raises(DataError, match=why):
            append_store(path, made(tmp_path, name, more))
    assert tree(path) == files
