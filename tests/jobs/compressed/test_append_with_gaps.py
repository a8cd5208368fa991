"""Samples are appended to compressed stores with missing values: whole samples, and tiles of large ones."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from scipy.ndimage import gaussian_filter

import dpca
from dpca import CellPCA
from dpca.jobs import CompressionSettings, append_store, compress, encode_store, fit_store
from dpca.jobs.base.stages import NOTHING
from dpca.jobs.compressed.verify_quality import verify_quality
from dpca.jobs.plans import shard_plan
from dpca.kernels.algebra.types import Array
from dpca.representation.compressed.compressed import TiledCompressed
from dpca.representation.compressed.compressed_form import StoreForm
from dpca.storage import DataError, Stack, open_stack, verify
from dpca.storage.run import Run
from tests.helpers.interrupted import interrupt_at
from tests.helpers.pictures import leave_pictures_empty
from tests.jobs.compressed.test_append import tree
from tests.jobs.compressed.test_encode_tiles import FORMAT
from tests.jobs.compressed.test_tiles_with_gaps import field

SHAPE = (47, 52)


@pytest.fixture(params=["whole", "tiles"], autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    leave_pictures_empty(monkeypatch.setattr)
    if request.param == "tiles":
        monkeypatch.setattr(shard_plan, "LARGE_SAMPLE", 2**10)
        monkeypatch.setattr(shard_plan, "_TILE_VALUES", [600])
    else:
        monkeypatch.setattr(StoreForm, "rows", 16)
        monkeypatch.setattr(StoreForm, "shard_rows", 32)
    return str(request.param)


def samples(n: int) -> Array:
    """Return samples of which the first few lack some values, later ones other values, and one all."""
    shape = (n, *SHAPE)
    x = field(shape=shape)
    x[:, gaussian_filter(np.random.default_rng(1).standard_normal(SHAPE), 6) < 0] = np.nan
    x[: n // 2, :20, 30:] = np.nan
    x[n // 2 + 1] = np.nan
    return x


def stored(folder: Path, name: str, values: Array) -> Stack:
    zarr.create_array(str(folder / f"{name}.zarr"), data=values, chunks=(4, 20, 60))
    return open_stack(folder / f"{name}.zarr")


def made(folder: Path, first: Stack, goal: dict[str, float], components: int = 6) -> Path:
    model = CellPCA(components, cell_shape=6, gaps="iterate", random_state=0)
    compress(first, folder / "c.zarr", CompressionSettings(model, goal=goal))
    return folder / "c.zarr"


@pytest.mark.parametrize("goal", [{"max_error": 0.1}, {"psnr": 36.0}, {"max_error": 1e-4}])
@pytest.mark.parametrize("ends", [(20, 32, 41), (7, 33, 36)])
def test_samples_with_gaps_are_appended(tmp_path: Path, goal: dict[str, float], ends: tuple[int, ...]) -> None:
    """Earlier values stay, and new ones have their gaps and the bound; quality is that of values."""
    x = samples(ends[-1])
    path = made(tmp_path, stored(tmp_path, "first", x[: ends[0]]), goal)
    for start, stop in itertools.pairwise(ends):
        before, new = dpca.open_compressed(path)[...], stored(tmp_path, f"{start}", x[start:stop])
        assert append_store(path, new, drift="accept").samples == stop - start
        np.testing.assert_array_equal(dpca.open_compressed(path)[:start], before)
        assert append_store(path, new).cost is NOTHING
    store = dpca.open_compressed(path)
    y = store[...]
    np.testing.assert_array_equal(np.isnan(y), np.isnan(x))
    low, high = store.facts["data_range"]
    there = ~np.isnan(x).all(axis=(1, 2))
    mse = np.nanmean((y[there].astype(float) - x[there]) ** 2, axis=(1, 2)) / (high - low) ** 2
    np.testing.assert_allclose(store.quality["mse"][there], mse, rtol=1e-3)
    if "max_error" in goal:
        assert np.nanmax(np.abs(y.astype(float) - x)) <= goal["max_error"]
    if len(store.codec.cell):
        n = np.array([ends[-1] // 2 + 1])  # no value is there, so the mean stands for it
        tiled = isinstance(store, TiledCompressed)
        empty = np.array([store.tiles.entries(i, n)[0] for i in range(store.tiles.n_tiles)]) if tiled else n
        filled = store.entries.filled(np.sort(empty), tuple((0, length) for length in store.entries.shape[1:]))
        apart = filled - store.codec.components.offset
        assert np.sqrt(np.mean(apart**2)) < 0.1 * x[~np.isnan(x)].std()
    assert verify(path) == []
    assert verify_quality(str(path), stored(tmp_path, "all", x)) == []
    np.testing.assert_array_equal(store[ends[-1] - 1 : 2 : -3, 3:29, [2, 50]], y[ends[-1] - 1 : 2 : -3, 3:29, [2, 50]])
    names: dict[str, Any] = {}
    exec("".join(re.findall(r"```python\n(.*?)```", FORMAT.read_text(), re.DOTALL)), names)
    read = names["read_tiled" if isinstance(store, TiledCompressed) else "read_compressed"]
    np.testing.assert_allclose(read(str(path)), y, rtol=1e-4)


def test_an_interrupted_append_of_samples_with_gaps_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = samples(40)
    path, more = made(tmp_path, stored(tmp_path, "first", x[:18]), {"psnr": 36.0}), stored(tmp_path, "more", x[18:])
    calm = tmp_path / "calm"
    calm.mkdir()
    shutil.copytree(path, calm / "c.zarr")
    shutil.copytree(tmp_path / "c.report", calm / "c.report")
    append_store(calm / "c.zarr", more, drift="accept", run=Run(threads=1))
    files = tree(path)
    for _ in range(3):
        left = iter([True] * 1 + [False] * 100)
        with monkeypatch.context() as patch:
            interrupt_at(patch, lambda unit, left=left: next(left))
            with pytest.raises(KeyboardInterrupt):
                append_store(path, more, drift="accept", run=Run(threads=1))
        assert tree(path) == files
    append_store(path, more, drift="accept", run=Run(threads=1))
    assert tree(path) == tree(calm / "c.zarr")


def test_samples_with_gaps_are_refused_or_all_are_fitted_again(tmp_path: Path, form: str) -> None:
    """Upside down, they do not suit the components of each cell, and as noise none that cells share."""
    x, noise, tiled = samples(30), np.random.default_rng(0).normal(0, 3, (10, *SHAPE)), form == "tiles"
    first = stored(tmp_path, "first", x[:20])
    path = made(tmp_path, first, {"psnr": 36.0}, 36 if tiled else 12)
    other = stored(tmp_path, "other", (x[20:] + noise).astype("f4") if tiled else x[20:, ::-1, ::-1])
    with pytest.raises(DataError, match="psnr"):
        append_store(path, other)
    assert append_store(path, other, drift="refit", original=first).refitted
    both = np.concatenate([first.samples[...], other.samples[...]])
    store = dpca.open_compressed(path)
    np.testing.assert_array_equal(np.isnan(store[...]), np.isnan(both))
    assert -10 * np.log10(store.quality["mse"].mean()) >= 36
    assert verify(path) == []
    assert verify_quality(str(path), stored(tmp_path, "both", both)) == []


def test_a_store_without_gaps_gets_none(tmp_path: Path) -> None:
    """Its masks would be missing for earlier samples, and an infinite value is an error of its sample."""
    x = samples(20)
    path = made(tmp_path, stored(tmp_path, "first", np.nan_to_num(x[:12], nan=15)), {"max_error": 0.1})
    with pytest.raises(DataError, match="finite"):
        append_store(path, stored(tmp_path, "more", x[12:]))
    gappy = tmp_path / "gappy"
    gappy.mkdir()
    path = made(gappy, stored(gappy, "first", x[:12]), {"max_error": 0.1})
    x[15, 3, 4] = np.inf
    with pytest.raises(DataError, match="infinite"):
        append_store(path, stored(gappy, "more", x[12:]))


def test_an_encoded_store_with_gaps_grows(tmp_path: Path) -> None:
    """A store that `encode_store` made states no settings."""
    x = samples(30)
    first = stored(tmp_path, "first", x[:20])
    fit_store(first, tmp_path / "model", CellPCA(3, cell_shape=12, gaps="iterate", random_state=0))
    encode_store(first, tmp_path / "model", tmp_path / "c.zarr", max_error=0.1)
    append_store(tmp_path / "c.zarr", stored(tmp_path, "more", x[20:]))
    y = dpca.open_compressed(tmp_path / "c.zarr")[...]
    np.testing.assert_array_equal(np.isnan(y), np.isnan(x))
    assert np.nanmax(np.abs(y.astype(float) - x)) <= 0.1
