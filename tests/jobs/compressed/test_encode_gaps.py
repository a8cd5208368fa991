"""Compressed stores of samples with missing values."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from scipy.ndimage import gaussian_filter

import dpca
from dpca import CellPCA, open_compressed
from dpca.jobs import encode_store, fit_store
from dpca.jobs.compressed.decode import decode_store
from dpca.jobs.compressed.verify_quality import verify_quality
from dpca.kernels.algebra.types import Array
from dpca.storage import open_stack, verify
from dpca.storage.errors import DataError, StoreError

N, SHAPE = 100, (24, 30)
FORMAT = Path(dpca.__file__).parent / "storage" / "FORMAT.md"


def sea() -> Array:
    """Return a smooth field that changes, with noise."""
    rng, wave = np.random.default_rng(0), np.sin(np.arange(N) / 20)[:, None, None]
    truth = 15 + 5 * wave * np.hanning(SHAPE[0])[:, None] * np.hanning(SHAPE[1])
    found: Array = (truth + rng.normal(0, 0.1, truth.shape)).astype(np.float32)
    return found


def masks() -> dict[str, Array]:
    """Return which values are missing, in several ways."""
    rng, every = np.random.default_rng(1), np.zeros((N, *SHAPE), bool)
    field = gaussian_filter(rng.standard_normal(every.shape), (2, 4, 4))
    land = np.broadcast_to(gaussian_filter(rng.standard_normal(SHAPE), 5) < -0.02, every.shape)
    clouds = field < np.quantile(field, 0.3)
    one, sample = every.copy(), every.copy()
    one[:, 3, 4], sample[7] = True, True
    return {"land": land, "clouds": clouds, "both": land | clouds, "one attribute": one, "one sample": sample}


def encoded(folder: Path, x: Array, *, gaps: str = "iterate", **goal: Any) -> Path:
    """Fit and encode samples; return the path of the store."""
    zarr.create_array(str(folder / "x.zarr"), data=x, chunks=(20, *SHAPE))
    stack = open_stack(folder / "x.zarr")
    given: dict[str, Any] = {"random_state": 0, "gaps": gaps}
    fit_store(stack, folder / "model", CellPCA(3, cell_shape=12, **given))
    encode_store(stack, folder / "model", folder / "c", **goal)
    return folder / "c"


@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("goal", [{"max_error": 0.3}, {"ratio": 8.0}])
def test_missing_values_come_back(tmp_path: Path, name: str, goal: dict[str, Any]) -> None:
    """NaN everywhere it was and nowhere else, whole and in parts; goals and stated errors are those of values."""
    mask, x = masks()[name], sea()
    x[mask] = np.nan
    path = encoded(tmp_path, x, **goal)
    store = open_compressed(path)
    y = store[...]
    np.testing.assert_array_equal(np.isnan(y), mask)
    np.testing.assert_array_equal(store[95:3:-7, 5:20, [2, 9, 4]], y[95:3:-7, 5:20, [2, 9, 4]])
    if "max_error" in goal:
        assert np.nanmax(np.abs(y.astype(float) - x)) <= goal["max_error"]
    low, high = store.facts["data_range"]
    assert (low, high) == (np.nanmin(x), np.nanmax(x))
    there = ~mask.all(axis=(1, 2))
    expected = np.nanmean((y[there].astype(float) - x[there]) ** 2, axis=(1, 2)) / (high - low) ** 2
    np.testing.assert_allclose(store.quality["mse"][there], expected, rtol=1e-3)
    stack = open_stack(tmp_path / "x.zarr")
    assert verify(path) == []
    assert verify_quality(str(path), stack) == []
    decode_store(path, tmp_path / "back")
    np.testing.assert_array_equal(open_stack(tmp_path / "back").samples[...], y)
    assert verify(tmp_path / "back") == []


def test_without_missing_values_the_store_is_the_same(tmp_path: Path) -> None:
    """Byte for byte, with a model that supports missing values and with one that does not, except for its name."""
    folders = [tmp_path / gaps for gaps in ("iterate", "reject")]
    stores = []
    for folder in folders:
        folder.mkdir()
        stores.append(encoded(folder, sea(), gaps=folder.name, max_error=0.3))
    files = [{p.relative_to(s): p.read_bytes() for p in s.rglob("c/**/*") if p.is_file()} for s in stores]
    assert files[0] == files[1]
    assert open_compressed(stores[0]).facts["version"] == 1
    assert not (stores[0] / "gaps").exists()


def test_other_gaps_are_found(tmp_path: Path) -> None:
    """An original with other missing values, and bytes that are no mask."""
    x = sea()
    x[masks()["clouds"]] = np.nan
    path = encoded(tmp_path, x, max_error=0.3)
    x[5, 0, 0] = np.nan if np.isfinite(x[5, 0, 0]) else 15
    zarr.create_array(str(tmp_path / "other.zarr"), data=x, chunks=(20, *SHAPE))
    assert len(verify_quality(str(path), open_stack(tmp_path / "other.zarr"))) == 1
    gaps = zarr.open_array(str(path / "gaps"), mode="r+")
    gaps[...] = 7
    with pytest.raises(StoreError):
        open_compressed(path)[...]


def test_what_is_refused(tmp_path: Path) -> None:
    """Infinities, goals of each sample, and models that reject missing values."""
    x = sea()
    x[masks()["clouds"]] = np.nan
    encoded(tmp_path, x, max_error=0.3)
    stack = open_stack(tmp_path / "x.zarr")
    with pytest.raises(DataError, match="every_sample"):
        encode_store(stack, tmp_path / "model", tmp_path / "d", every_sample=True, mse=0.1)
    x[3, 4, 5] = np.inf
    zarr.create_array(str(tmp_path / "infinite.zarr"), data=x, chunks=(20, *SHAPE))
    with pytest.raises(DataError, match="infinite"):
        encode_store(open_stack(tmp_path / "infinite.zarr"), tmp_path / "model", tmp_path / "e", max_error=0.3)
    whole = tmp_path / "whole"
    whole.mkdir()
    encoded(whole, sea(), gaps="reject", max_error=0.3)
    with pytest.raises(DataError, match="finite"):
        encode_store(stack, whole / "model", tmp_path / "f", max_error=0.3)


@pytest.mark.parametrize("goal", [{"max_error": 0.3}, {"ratio": 8.0}])
def test_the_reader_of_the_description_finds_the_gaps(tmp_path: Path, goal: dict[str, Any]) -> None:
    """With nothing but the lines of FORMAT.md."""
    x = sea()
    x[masks()["both"]] = np.nan
    path = encoded(tmp_path, x, **goal)
    names: dict[str, Any] = {}
    exec("".join(re.findall(r"```python\n(.*?)```", FORMAT.read_text(), re.DOTALL)), names)
    np.testing.assert_allclose(names["read_compressed"](str(path)), open_compressed(path)[...], rtol=1e-5)


def test_a_replaced_model_is_loaded_again(tmp_path: Path) -> None:
    """Missing values are filled by the model under a path, not by one that was there before."""
    files: list[list[bytes]] = []
    x = sea()
    for name, folder in (("land", tmp_path), ("clouds", tmp_path), ("clouds", tmp_path / "new")):
        folder.mkdir(exist_ok=True)
        for old in ("x.zarr", "model", "c"):
            shutil.rmtree(folder / old, ignore_errors=True)
        path = encoded(folder, np.where(masks()[name], np.float32(np.nan), x), max_error=0.3)
        files.append([p.read_bytes() for p in sorted(path.rglob("c/**/*")) if p.is_file()])
    assert files[1] == files[2]


def test_a_damaged_mask_is_found(tmp_path: Path) -> None:
    store = encoded(tmp_path, np.where(masks()["clouds"], np.nan, sea()), max_error=0.3)
    shard = next(path for path in sorted((store / "gaps" / "c").rglob("*")) if path.is_file())
    content = bytearray(shard.read_bytes())
    content[len(content) // 3] ^= 1
    shard.write_bytes(content)
    assert [problem.partition("/")[0] for problem in verify(store)] == ["gaps"]
    with pytest.raises(StoreError, match="gaps"):
        open_compressed(store)[:]
