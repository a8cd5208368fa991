"""The main job on samples with missing values: one command from a file to a compressed store."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from dpca import BandPCA, CellPCA, Run, open_compressed
from dpca.cli import main
from dpca.jobs import CompressionSettings, compress, encode_store, plan_job
from dpca.storage import ingest, verify
from dpca.storage.errors import DataError
from dpca.storage.input import open_input
from dpca.storage.survey import ReadOptions
from tests.conftest import smooth_images
from tests.helpers.interrupted import interrupt_at
from tests.jobs.compressed.test_encode_gaps import masks, sea

pytestmark = pytest.mark.usefixtures("small_pictures")
CELLS = CellPCA(3, cell_shape=12, gaps="iterate", random_state=0)


def seen(folder: Path) -> Any:
    """Write samples with land and clouds, and return them."""
    x = np.where(masks()["both"], np.float32(np.nan), sea())
    np.save(folder / "x.npy", x)
    return x


def files(store: Path) -> dict[str, bytes]:
    return {str(file.relative_to(store)): file.read_bytes() for file in sorted(store.rglob("*")) if file.is_file()}


def test_missing_values_come_back_from_one_job(tmp_path: Path) -> None:
    x = seen(tmp_path)
    result = compress(tmp_path / "x.npy", tmp_path / "c.zarr", CompressionSettings(CELLS, goal={"max_error": 0.3}))
    found = open_compressed(tmp_path / "c.zarr")[...]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(x))
    assert np.nanmax(np.abs(found - x)) <= 0.3
    assert result.report["samples"] == len(x)
    assert verify(tmp_path / "c.zarr") == []
    again = compress(tmp_path / "x.npy", tmp_path / "c.zarr", CompressionSettings(CELLS, goal={"max_error": 0.3}))
    assert again.already_done


def test_a_goal_that_takes_more_components_is_fitted_again(tmp_path: Path) -> None:
    x = seen(tmp_path)
    few = CompressionSettings(CellPCA(1, cell_shape=12, gaps="iterate", random_state=0), goal={"psnr": 45})
    compress(tmp_path / "x.npy", tmp_path / "c.zarr", few)
    found, span = open_compressed(tmp_path / "c.zarr")[...], np.nanmax(x) - np.nanmin(x)
    assert 10 * np.log10(span**2 / np.nanmean((found - x) ** 2)) >= 45


def test_the_same_bytes_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen(tmp_path)
    settings = CompressionSettings(CELLS, goal={"max_error": 0.3})
    compress(tmp_path / "x.npy", tmp_path / "whole.zarr", settings)
    for allowed in (1, 3, 5):
        left = iter([True] * allowed)
        with monkeypatch.context() as patch:
            interrupt_at(patch, lambda unit, left=left: next(left, False))
            with pytest.raises(KeyboardInterrupt):
                compress(tmp_path / "x.npy", tmp_path / "again.zarr", settings, run=Run(threads=1))
    compress(tmp_path / "x.npy", tmp_path / "again.zarr", settings)
    assert files(tmp_path / "again.zarr") == files(tmp_path / "whole.zarr")


@pytest.mark.parametrize(
    "settings",
    [
        CompressionSettings(CELLS, goal={"psnr": 40}, choose_cells=True),
        CompressionSettings(CELLS, goal={"psnr": 40}, every_sample=True),
        CompressionSettings(CELLS, goal={"noise_share": 0.01}),
    ],
)
def test_what_does_not_support_missing_values(tmp_path: Path, settings: CompressionSettings) -> None:
    seen(tmp_path)
    with pytest.raises(DataError, match="gaps"):
        compress(tmp_path / "x.npy", tmp_path / "c.zarr", settings)
    assert not (tmp_path / "c.zarr").exists()


def test_other_jobs_reject_missing_values(tmp_path: Path) -> None:
    seen(tmp_path)
    for settings in (
        CompressionSettings(CELLS),
        CompressionSettings(CellPCA(3, cell_shape=12), goal={"psnr": 40}),
        CompressionSettings(BandPCA(3, band_size=40, gaps="iterate"), goal={"psnr": 40}),
    ):
        with pytest.raises(DataError, match="finite|CellPCA"):
            compress(tmp_path / "x.npy", tmp_path / "c.zarr", settings)
    with pytest.raises(DataError, match="gaps"):
        plan_job(open_input(tmp_path / "x.npy"), CompressionSettings(CELLS, goal={"psnr": 40}))


def test_missing_values_are_read_only_where_the_model_fills_them() -> None:
    assert CompressionSettings(CELLS, goal={"psnr": 40}).reading == ReadOptions(gaps=True)
    assert CompressionSettings(CELLS).reading == ReadOptions()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = seen(tmp_path)[:40]
    source, target = str(tmp_path / "sea.nc"), str(tmp_path / "c.zarr")
    xr.DataArray(x, dims=("time", "lat", "lon"), name="sst").to_netcdf(source)
    given = ["compress", source, target, "--quality", "max-error=0.3"]
    assert main(given) != 0
    assert "--gaps" in capsys.readouterr().err
    assert main([*given, "--gaps", "iterate"]) == 0
    found = open_compressed(target)[...]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(x))
    assert np.nanmax(np.abs(found - x)) <= 0.3


@pytest.mark.parametrize("dtype", ["i2", "f4"])
def test_numbers_that_mark_missing_values_are_not_rounded(dtype: str, tmp_path: Path) -> None:
    """Within an error bound, a mark would come back as another number."""
    x = np.round(smooth_images(30, (12, 16)).astype(float)).astype(dtype)
    x[3, 4:8] = -999
    np.save(tmp_path / "x.npy", x)
    model = CellPCA(2, cell_shape=4, gaps="iterate", missing_value=-999, random_state=0)
    with pytest.raises(DataError, match="-999"):
        compress(tmp_path / "x.npy", tmp_path / "small.zarr", CompressionSettings(model, goal={"max_error": 1}))
    model.fit(x).save(tmp_path / "model.zarr")
    with pytest.raises(DataError, match="-999"):
        encode_store(
            ingest(tmp_path / "x.npy", tmp_path / "x.zarr"),
            tmp_path / "model.zarr",
            tmp_path / "small.zarr",
            max_error=1,
        )
    assert not (tmp_path / "small.zarr").exists()


def test_a_source_in_memory_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="path"):
        compress(np.zeros((9, 8, 8)), tmp_path / "c.zarr", CompressionSettings(CELLS, goal={"max_error": 1}))  # type: ignore[arg-type]
