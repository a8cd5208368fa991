"""Compressed stores of large samples with missing values, in tiles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from scipy.ndimage import gaussian_filter
from skimage.metrics import structural_similarity

import dpca
from dpca import CellPCA
from dpca.cli import main
from dpca.engine.sources.source import as_source
from dpca.jobs import CompressionSettings, compress
from dpca.jobs.base.filled_samples import tiled_stack
from dpca.jobs.compressed.decode import decode_store
from dpca.jobs.compressed.verify_quality import verify_quality
from dpca.jobs.plans import shard_plan
from dpca.kernels.algebra.types import Array
from dpca.representation.compressed.compressed import TiledCompressed
from dpca.storage import DataError, open_stack, verify
from dpca.storage.arrays.tiles import Tiles
from dpca.storage.run import Run
from tests.helpers.interrupted import interrupt_at
from tests.helpers.pictures import leave_pictures_empty
from tests.helpers.traced import traced_peak
from tests.jobs.compressed.test_append import tree
from tests.jobs.compressed.test_encode_tiles import FORMAT, measured_tasks

SHAPE, TILE = (5, 130, 110), 2500


@pytest.fixture(autouse=True)
def _large_from_few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_plan, "LARGE_SAMPLE", 2**14)
    monkeypatch.setattr(shard_plan, "_TILE_VALUES", [TILE])
    leave_pictures_empty(monkeypatch.setattr)


def field(dtype: str = "f4", shape: tuple[int, ...] = SHAPE) -> Array:
    """Return waves of several lengths that move, with noise."""
    rng = np.random.default_rng(0)
    axes = np.meshgrid(np.arange(shape[0]), *(np.arange(n) / 8 for n in shape[1:]), indexing="ij", sparse=True)
    values = sum(np.sin((i + 1) * axis / 3 + axes[0] / 4) for i, axis in enumerate(axes[1:]))
    values = values + np.cos(sum(axes[1:])) + 0.02 * rng.normal(size=shape)
    found: Array = (15 + 5 * values).astype(dtype)
    return found


def masks(shape: tuple[int, ...] = SHAPE) -> dict[str, Array]:
    """Return which values are missing, in several ways. Of all but "one", whole tiles are missing."""
    rng, every = np.random.default_rng(1), np.zeros(shape, bool)
    land = np.broadcast_to(gaussian_filter(rng.standard_normal(shape[1:]), 9) < 0.01, shape).copy()
    land[:, :60, :60] = True
    clouds = gaussian_filter(rng.standard_normal(shape), (1, *[8] * (len(shape) - 1))) < 0
    clouds[2, 40:] = True
    one, sample = every.copy(), clouds.copy()
    one[3, 129, 109], sample[1] = True, True
    return {"land": land, "clouds": clouds, "both": land | clouds, "one": one, "sample": sample}


def stored(folder: Path, x: Array, name: str = "x", **more: Any) -> Path:
    zarr.create_array(str(folder / f"{name}.zarr"), data=x, chunks=(1, *(40 for _ in x.shape[1:])), **more)
    return folder / f"{name}.zarr"


def made(source: Path, goal: dict[str, float], run: Run = Run(), name: str = "c.zarr", **more: Any) -> TiledCompressed:
    cells = CellPCA(8, cell_shape=10, gaps="iterate", random_state=0).set_params(**more)
    compress(source, source.parent / name, CompressionSettings(cells, goal=goal), run=run)
    store = dpca.open_compressed(source.parent / name)
    assert isinstance(store, TiledCompressed)
    return store


@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("goal", [{"max_error": 0.05}, {"psnr": 40.0}, {"ssim": 0.97}, {"ratio": 12.0}])
def test_missing_values_come_back_from_tiles(tmp_path: Path, name: str, goal: dict[str, float]) -> None:
    """NaN where it was and nowhere else; goals and stated quality are those of values, by definition."""
    mask = masks()[name]
    x = np.where(mask, np.float32(np.nan), field())
    path = stored(tmp_path, x)
    store = made(path, goal)
    y = store[...]
    np.testing.assert_array_equal(np.isnan(y), mask)
    low, high = store.facts["data_range"]
    assert (low, high) == (np.nanmin(x), np.nanmax(x))
    there = ~mask.all(axis=(1, 2))
    mse = np.zeros(len(x))
    mse[there] = np.nanmean((y[there].astype(float) - x[there]) ** 2, axis=(1, 2)) / (high - low) ** 2
    np.testing.assert_allclose(store.quality["mse"], mse, rtol=1e-4)
    decoded = store.filled(np.arange(len(x)), tuple((0, n) for n in x.shape[1:]))
    for i, (one, other) in enumerate(zip(np.where(mask, decoded, x), decoded, strict=True)):
        ssim = structural_similarity(one.astype(float), other.astype(float), data_range=high - low) if there[i] else 1
        share = 1 - mask[i].mean() if there[i] else 1
        np.testing.assert_allclose(1 - store.quality["ssim"][i], (1 - ssim) / share, atol=2e-5)
    if "max_error" in goal:
        largest = [np.nanmax(np.abs(y[i].astype(float) - x[i])) if there[i] else 0 for i in range(len(x))]
        stated = store.quality["max_error"]  # also that of parts of tiles which overlap
        assert (largest <= stated * (1 + 1e-6)).all()
        assert stated.max() <= goal["max_error"]
        np.testing.assert_allclose(stated, largest, rtol=1e-2)
    elif "psnr" in goal:
        assert -10 * np.log10(mse.mean()) >= goal["psnr"]
    elif "ssim" in goal:
        assert store.quality["ssim"].mean() >= goal["ssim"]
    np.testing.assert_array_equal(store[4:0:-2, 5:70, [2, 109, 4]], y[4:0:-2, 5:70, [2, 109, 4]])
    assert verify(tmp_path / "c.zarr") == []
    assert verify_quality(str(tmp_path / "c.zarr"), open_stack(path)) == []


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(4, 26, 24, 23), (3, 70, 80, 3), (20, 5000)])
def test_volumes_channels_and_vectors(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    """All of them keep their bound, decode to a stack, and are read as the format says."""
    x = field(dtype, shape)
    x[:, 4:21] = np.nan
    x[2, -9:] = np.nan
    store = made(stored(tmp_path, x), {"max_error": 0.2}, cell_shape=8)
    y = store[...]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(np.isnan(y), np.isnan(x))
    assert np.nanmax(np.abs(y.astype(float) - x)) <= 0.2
    assert store.facts["version"] == 3
    decode_store(tmp_path / "c.zarr", tmp_path / "back")
    np.testing.assert_array_equal(open_stack(tmp_path / "back").samples[...], y)
    if dtype == "f4":
        names: dict[str, Any] = {}
        exec("".join(re.findall(r"```python\n(.*?)```", FORMAT.read_text(), re.DOTALL)), names)
        np.testing.assert_allclose(names["read_tiled"](str(tmp_path / "c.zarr")), y, rtol=1e-5)


def test_without_missing_values_tiles_are_the_same(tmp_path: Path) -> None:
    """The same codes and residuals as from a model that rejects missing values, and no masks."""
    source = stored(tmp_path, field())
    made(source, {"max_error": 0.05})
    made(source, {"max_error": 0.05}, name="reject.zarr", gaps="reject", shared=True)
    files = [
        {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("c/**/*") if p.is_file()}
        for name in ("c.zarr", "reject.zarr")
    ]
    assert files[0] == files[1]
    assert dpca.open_compressed(tmp_path / "c.zarr").facts["version"] == 2
    assert not (tmp_path / "c.zarr" / "gaps").exists()


def test_land_costs_almost_nothing(tmp_path: Path) -> None:
    """A mask that is the same in all samples, and cells without any value."""
    x = field(shape=(16, 130, 110))
    land = masks((16, 130, 110))["land"]
    store = made(stored(tmp_path, np.where(land, np.float32(np.nan), x)), {"max_error": 0.05})
    bits = 8 * sum(p.stat().st_size for p in (tmp_path / "c.zarr" / "gaps").rglob("c/**/*") if p.is_file())
    assert bits < 0.04 * x.size  # of few values that are 16 masks of 9 tiles; of large samples less than 0.001
    empty = land[0, :50, :40].reshape(5, 10, 4, 10).all(axis=(1, 3)).ravel()
    assert store.tiles.tile_shape == (50, 40)
    at = np.isin(store.codec.cell, np.flatnonzero(empty))
    codes = store.entries.codes(np.arange(len(store.codec.cell)), np.arange(16))
    assert at.any()
    assert not codes[at].any()


def test_tiles_with_gaps_have_the_same_bytes_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = stored(tmp_path, np.where(masks()["both"], np.float32(np.nan), field()))
    made(source, {"psnr": 40.0}, name="whole.zarr", run=Run(threads=3))
    for allowed in (1, 1, 2, 2):
        left = iter([True] * allowed)
        with monkeypatch.context() as patch:
            interrupt_at(patch, lambda unit, left=left: next(left, False))
            with pytest.raises(KeyboardInterrupt):
                made(source, {"psnr": 40.0}, run=Run(threads=1))
    made(source, {"psnr": 40.0}, run=Run(threads=1))
    assert tree(tmp_path / "c.zarr") == tree(tmp_path / "whole.zarr")


def test_peaks_of_tiles_with_gaps_are_at_most_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_plan, "_TILE_VALUES", [2**16])
    shape = (5, 400, 420)
    source = stored(tmp_path, np.where(masks(shape)["both"], np.float32(np.nan), field(shape=shape)))
    measured = measured_tasks(monkeypatch)
    made(source, {"max_error": 0.05}, Run(threads=1))
    assert measured.keys() == {"EncodeJob", "MeasureJob"}
    assert all(peak <= planned for pairs in measured.values() for peak, planned in pairs), measured


def test_a_reader_of_many_tiles_fills_few_at_a_time(tmp_path: Path) -> None:
    shape = (100, 200, 180)
    x = np.where(masks(shape)["both"], np.float32(np.nan), field(shape=shape))
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(1, 100, 90))
    source = as_source(tiled_stack(open_stack(tmp_path / "x.zarr"), Tiles(len(x), shape[1:], (100, 90)), gaps=True))
    read, out = source.reader(), np.empty(source.shape, source.dtype)
    region = tuple((0, length) for length in source.shape[1:])
    read((0, len(out)), region, out)  # compiles
    peak, _ = traced_peak(lambda: None, lambda _: read((0, len(out)), region, out), 2**30)
    assert peak <= source.extra_bytes(region)
    assert not np.isnan(out).any()


@pytest.mark.parametrize("chunk", [1, 3])
def test_parts_of_tiles_are_filled_as_whole_ones(tmp_path: Path, chunk: int) -> None:
    """A fit in blocks of cells reads parts; values that are there stay, and others lie in the data range."""
    x = np.where(masks()["both"], np.float32(np.nan), field())
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(chunk, 40, 40))
    tiles = Tiles(len(x), x.shape[1:], (50, 40))
    source = as_source(tiled_stack(open_stack(tmp_path / "x.zarr", data_range=(5, 20)), tiles, gaps=True))
    read, whole = source.reader(), np.empty(source.shape, "f4")
    read((0, len(whole)), ((0, 50), (0, 40)), whole)
    read((4, 31), ((7, 50), (3, 22)), part := np.empty((27, 43, 19), "f4"))
    np.testing.assert_array_equal(part, whole[4:31, 7:50, 3:22])
    assert whole.shape == tiles.shape
    for tile, region in enumerate(tiles.regions):
        given = x[(slice(None), *(slice(*ends) for ends in region))]
        filled, there = whole[tiles.entries(tile, np.arange(len(x)))], ~np.isnan(given)
        np.testing.assert_array_equal(filled[there], given[there])
        assert ((filled[~there] >= 5) & (filled[~there] <= 20)).all()


def test_other_missing_values_of_tiles_are_found(tmp_path: Path) -> None:
    x = np.where(masks()["clouds"], np.float32(np.nan), field())
    made(stored(tmp_path, x), {"max_error": 0.05})
    x[4, 129, 109] = np.nan if np.isfinite(x[4, 129, 109]) else 15
    (problem,) = verify_quality(str(tmp_path / "c.zarr"), open_stack(stored(tmp_path, x, "other")))
    assert "sample 4" in problem


def test_what_tiles_with_gaps_refuse(tmp_path: Path) -> None:
    """Goals of each sample, overlaps and other marks, before anything is written; infinities and no values at all."""
    x = np.where(masks()["clouds"], np.float32(np.nan), field())
    source = stored(tmp_path, x)
    for more, word in (({"overlap": 3}, "overlap"), ({"missing_value": -1}, "missing_value")):
        with pytest.raises(DataError, match=word):
            made(source, {"psnr": 40.0}, **more)
    settings = CompressionSettings(CellPCA(8, cell_shape=10, gaps="iterate"), goal={"psnr": 40}, every_sample=True)
    with pytest.raises(DataError, match="every_sample"):
        compress(source, tmp_path / "c.zarr", settings)
    assert [path.name for path in tmp_path.iterdir()] == ["x.zarr"]
    x[3, 100, 5] = np.inf
    with pytest.raises(DataError, match=r"infinit|infinity"):
        made(stored(tmp_path, x, "infinite"), {"max_error": 0.05})
    x[...] = np.nan
    with pytest.raises(DataError, match="missing|value"):
        made(stored(tmp_path, x, "nothing"), {"max_error": 0.05}, name="d.zarr")
    assert not (tmp_path / "c.zarr").exists()
    assert not (tmp_path / "d.zarr").exists()


def test_the_command_divides_large_samples_with_gaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.where(masks()["both"], np.float32(np.nan), field())
    given = [str(stored(tmp_path, x)), str(tmp_path / "c.zarr")]
    assert main(["compress", *given, "--quality", "max-error=0.05", "--gaps", "iterate"]) == 0
    assert "tiles" in capsys.readouterr().out
    found = dpca.open_compressed(tmp_path / "c.zarr")[...]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(x))
    assert np.nanmax(np.abs(found - x)) <= 0.05
    assert main(["verify", str(tmp_path / "c.zarr"), "--stack", str(tmp_path / "x.zarr")]) == 0
