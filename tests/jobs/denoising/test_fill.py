"""`fill_store` writes what the class fills, for any chunks and memory, and resumes to the same bytes."""

import shutil
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray
import zarr

from dpca import PCA, BandPCA, CellPCA, Run
from dpca.cli import main
from dpca.jobs import fill_store
from dpca.jobs.denoising import fill_write
from dpca.jobs.denoising.fill import filling_model
from dpca.jobs.scores import boxes
from dpca.storage import ingest, open_stack, verify
from dpca.storage.arrays import layout
from dpca.storage.errors import DataError, PlanError, StoreError
from dpca.storage.ingest import content_of
from dpca.storage.readers import open_reader
from dpca.storage.survey import ReadOptions
from tests.helpers.interrupted import interrupt_at

MODEL = PCA(2, gaps="iterate", random_state=0)


def values(dtype: type = np.float32) -> tuple[Any, Any]:
    """Return samples with gaps, and where they are; some attributes have no value."""
    rng = np.random.default_rng(0)
    x = 100 + 10 * rng.normal(size=(60, 2)) @ np.cumsum(rng.normal(size=(2, 12 * 10)), axis=1)
    x = (x + rng.normal(size=x.shape)).reshape(60, 12, 10)
    missing = rng.random(x.shape) < 0.3
    missing[:, :2, :3] = True
    return (np.where(missing, -9999 if np.dtype(dtype).kind == "i" else np.nan, x).astype(dtype)), missing


def made(path: Path, chunks: tuple[int, ...] = (16, 12, 10), dtype: type = np.float32) -> tuple[Any, Any, Any]:
    x, missing = values(dtype)
    zarr.open_array(path, mode="w", shape=x.shape, chunks=chunks, dtype=x.dtype)[...] = x
    return open_stack(path), x, missing


def files(store: Path) -> dict[str, bytes]:
    return {str(file.relative_to(store)): file.read_bytes() for file in sorted(store.rglob("*")) if file.is_file()}


def check(path: Path, model: Any, x: Any, missing: Any) -> None:
    """Compare a filled stack with the class, and with what was there."""
    filled, group = open_stack(path).samples[...], zarr.open_group(path, mode="r")
    expected = model.fit(x)
    np.testing.assert_allclose(filled, expected.fill(x), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(group["standard_error"][...], expected.fill_errors(x), rtol=1e-3)
    kept = f"u{x.dtype.itemsize}"
    np.testing.assert_array_equal(filled[~missing].view(kept), x[~missing].view(kept))
    assert not group["standard_error"][...][~missing].any()
    assert verify(path) == []


@pytest.mark.parametrize("chunks", [(16, 12, 10), (1, 12, 10), (60, 5, 7)])
@pytest.mark.parametrize("cell", [None, 5])
def test_the_values_of_the_class_for_any_chunks(tmp_path: Path, chunks: tuple[int, ...], cell: int | None) -> None:
    stack, x, missing = made(tmp_path / "x.zarr", chunks)
    model = MODEL if cell is None else CellPCA(2, cell_shape=cell, gaps="iterate", random_state=0)
    fill_store(stack, tmp_path / "full.zarr", model)
    check(tmp_path / "full.zarr", model, x, missing)
    facts = zarr.open_group(tmp_path / "full.zarr", mode="r").attrs["dpca"]
    land = missing.all(axis=0)
    assert facts["left_missing"] == 60 * land.sum()
    assert facts["filled"] == missing.sum() - 60 * land.sum()
    errors = model.fill_errors(x)[missing & ~land]
    assert facts["mean_standard_error"] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-3)
    assert facts["held_out_rmse"] == pytest.approx(model.held_out_rmse_, rel=1e-3)
    filled = open_stack(tmp_path / "full.zarr")
    assert filled.data_range == (np.nanmin(filled.samples[...]), np.nanmax(filled.samples[...]))


def test_integers_with_a_number_for_missing_values(tmp_path: Path) -> None:
    stack, x, missing = made(tmp_path / "x.zarr", dtype=np.int16)
    model = PCA(2, gaps="iterate", missing_value=-9999, random_state=0)
    fill_store(stack, tmp_path / "full.zarr", model)
    check(tmp_path / "full.zarr", model, x, missing)
    filled = open_stack(tmp_path / "full.zarr")
    assert filled.dtype == np.int16
    assert (filled.samples[...] == -9999).sum() == 60 * missing.all(axis=0).sum()


@pytest.fixture
def small_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample is large, and divided into boxes of a few values, and groups of seven samples, read in parts."""
    monkeypatch.setattr(boxes, "LARGE_SAMPLE", 0)
    monkeypatch.setattr(boxes, "_LEAST_BOX", 20)
    monkeypatch.setattr(boxes, "_BOX_BYTES", 2000)
    monkeypatch.setattr(boxes, "_BLOCK_BYTES", 4 * 8 * 10)
    monkeypatch.setattr(boxes, "_UNIT_ROWS", 7)
    monkeypatch.setattr(layout, "_SPATIAL", {2: (6, 4, 8)})


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
@pytest.mark.parametrize("cell", [None, 5])
def test_boxes_of_large_samples(tmp_path: Path, small_boxes: None, cell: int | None, dtype: type) -> None:
    stack, x, missing = made(tmp_path / "x.zarr", dtype=dtype)
    number = -9999 if np.dtype(dtype).kind == "i" else None
    fill_store(stack, tmp_path / "full.zarr", filling_model(2, cell, number))
    filled = open_stack(tmp_path / "full.zarr").samples
    assert filled.shards[0] == 1
    assert np.prod(filled.shards) < 120
    check(tmp_path / "full.zarr", filling_model(2, cell, number), x, missing)
    facts = zarr.open_group(tmp_path / "full.zarr", mode="r").attrs["dpca"]
    land = missing.all(axis=0)
    assert (facts["filled"], facts["left_missing"]) == (missing.sum() - 60 * land.sum(), 60 * land.sum())
    values = filled[...][:, ~land]
    assert open_stack(tmp_path / "full.zarr").data_range == (values.min(), values.max())


def test_an_interrupted_pass_over_boxes_resumes(
    tmp_path: Path, small_boxes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, _, _ = made(tmp_path / "x.zarr", (20, 12, 10))
    fill_store(stack, tmp_path / "whole.zarr", MODEL)
    whole, target = files(tmp_path / "whole.zarr"), tmp_path / "again.zarr"
    for allowed in (6, 15, 11, 40):
        left = iter([True] * allowed)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            interrupt_at(patch, lambda unit, left=left: next(left, False))
            fill_store(stack, target, MODEL, run=Run(threads=1))
    fill_store(stack, target, MODEL)
    assert files(target) == whole


def test_little_memory(tmp_path: Path) -> None:
    stack, _, _ = made(tmp_path / "x.zarr")
    with pytest.raises(PlanError, match="memory"):
        fill_store(stack, tmp_path / "full.zarr", MODEL, run=Run(memory=2**20))
    assert not (tmp_path / "full.zarr").exists()


def test_the_same_bytes_wherever_a_run_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, _, _ = made(tmp_path / "x.zarr", (20, 12, 10))
    monkeypatch.setattr(fill_write, "choose_layout", lambda *given, **named: layout.Layout(*[(20, 12, 10)] * 2))
    fill_store(stack, tmp_path / "whole.zarr", MODEL)
    whole, allowed, target = files(tmp_path / "whole.zarr"), 0, tmp_path / "again.zarr"
    while True:
        left = iter([True] * allowed)  # threads share it
        with monkeypatch.context() as patch:
            interrupt_at(patch, lambda unit, left=left: next(left, False))
            try:
                fill_store(stack, target, MODEL, run=Run(threads=1))
                break
            except KeyboardInterrupt:
                allowed += 1
        fill_store(stack, target, MODEL)
        assert files(target) == whole
        shutil.rmtree(target)
    # Passes of the fit, the model, and three shards.
    assert allowed >= 8


def test_a_finished_job_is_recognized_and_others_are_not(tmp_path: Path) -> None:
    stack, _, _ = made(tmp_path / "x.zarr")
    target = tmp_path / "full.zarr"
    assert fill_store(stack, target, MODEL).bytes
    assert not fill_store(stack, target, MODEL).bytes
    others = (PCA(1, gaps="iterate", random_state=0), PCA(2, gaps="iterate", random_state=0, missing_value=3))
    for other in (*others, CellPCA(2, cell_shape=5, gaps="iterate", random_state=0)):
        with pytest.raises(StoreError, match="overwrite"):
            fill_store(stack, target, other)
    with pytest.raises(StoreError, match="overlap|input"):
        fill_store(stack, tmp_path / "x.zarr", MODEL, run=Run(overwrite=True))
    with pytest.raises(DataError, match="gaps"):
        fill_store(stack, tmp_path / "other.zarr", PCA(2))
    with pytest.raises(DataError, match="BandPCA"):
        fill_store(stack, tmp_path / "other.zarr", BandPCA(2, band_size=20, gaps="iterate"))


def test_a_complete_stack_is_copied(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (40, 12, 10), dtype=np.uint8)
    zarr.open_array(tmp_path / "x.zarr", mode="w", shape=x.shape, dtype=x.dtype)[...] = x
    fill_store(open_stack(tmp_path / "x.zarr"), tmp_path / "full.zarr", MODEL)
    np.testing.assert_array_equal(open_stack(tmp_path / "full.zarr").samples[...], x)
    assert not zarr.open_group(tmp_path / "full.zarr", mode="r")["standard_error"][...].any()


def test_fields_of_netcdf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Packed values and stated missing values; what was ingested does not stay."""
    x, missing = values()
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        for name, length in (("time", 60), ("lat", 12), ("lon", 10)):
            file.createDimension(name, length)
        variable = file.createVariable("sst", "i2", ("time", "lat", "lon"), fill_value=-32768)
        variable.scale_factor, variable.add_offset = 0.01, 50.0
        variable[...] = np.ma.array(np.nan_to_num(x), mask=missing)
    with netCDF4.Dataset(tmp_path / "x.nc") as file:
        packed = np.ma.filled(file["sst"][...].astype(np.float64), np.nan)
    command = ["fill", str(tmp_path / "x.nc"), str(tmp_path / "full.zarr"), "--components", "2", "--workers", "1"]
    assert main([*command, "--dry-run"]) == 0
    assert not (tmp_path / "full.zarr").exists()
    assert main(command) == 0
    assert "stay missing" in capsys.readouterr().out
    check(tmp_path / "full.zarr", MODEL, packed, missing)
    assert sorted(path.name for path in (tmp_path / "full.zarr").iterdir() if path.is_dir()) == [
        *("name", "samples", "standard_error"),
    ]
    opened = xarray.open_zarr(tmp_path / "full.zarr", consolidated=False)
    assert opened["samples"].dims[1:] == opened["standard_error"].dims[1:] == ("lat", "lon")
    assert main(command) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main([*command, "--missing-value", "3"]) == 4
    assert "--overwrite" in capsys.readouterr().err


def test_ingested_gaps(tmp_path: Path) -> None:
    x, missing = values()
    np.save(tmp_path / "x.npy", x)
    stack = ingest(tmp_path / "x.npy", tmp_path / "x.zarr", reading=ReadOptions(gaps=True))
    np.testing.assert_array_equal(stack.samples[...], x)
    assert verify(tmp_path / "x.zarr") == []
    assert stack.data_range == (np.nanmin(x), np.nanmax(x))
    with pytest.raises(DataError, match="missing"):
        ingest(tmp_path / "x.npy", tmp_path / "other.zarr")
    with pytest.raises(StoreError, match="overwrite"):
        ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    reader = open_reader(tmp_path / "x.npy")
    assert content_of(reader, ReadOptions(gaps=True)) != content_of(reader, ReadOptions())
    x[3, 4, 5] = np.inf
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(DataError, match="inf"):
        ingest(tmp_path / "x.npy", tmp_path / "third.zarr", reading=ReadOptions(gaps=True))
    assert missing.any()
