"""The report of data over time as a user runs it, on fields whose modes are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from PIL import Image

from dpca.models.base.store import load_any
from dpca.pipelines.studies.time.ocean import Ocean
from dpca.pipelines.studies.time.plots import in_motion
from dpca.pipelines.time_report import main
from dpca.storage import DataError, verify

N = 96
T = np.arange(N) * 0.25
SHARES = np.array([9.0, 4, 1])


def swinging(shape: tuple[int, ...]) -> np.ndarray:
    """Three orthogonal modes that swing at 1/3, 1/2 and 1 cycle a unit of time, with a little noise."""
    rng = np.random.default_rng(0)
    modes = np.linalg.qr(rng.normal(size=(int(np.prod(shape)), 3)))[0].T
    y = np.sqrt(2 * SHARES) * np.sin(2 * np.pi * T[:, None] * [1 / 3, 1 / 2, 1])
    return ((y @ modes).reshape(N, *shape) + rng.normal(0, 1e-3, (N, *shape))).astype(np.float32)


def report_of(folder: Path, *argv: str) -> dict[str, Any]:
    assert main([*argv, "--output", str(folder / "out.zarr"), "--modes", "3"]) == 0
    found: dict[str, Any] = json.loads((folder / "out.report" / "report.json").read_text())
    return found


@pytest.fixture
def served(scheduler: str) -> tuple[str, str]:
    return "--scheduler", scheduler


def test_a_file_whose_time_is_not_first(tmp_path: Path, served: Any, capsys: Any) -> None:
    field = xarray.DataArray(swinging((12, 14)), dims=("time", "lat", "lon"), name="t", coords={"time": 24 * T})
    field.time.attrs["units"] = "hours since 2001-01-01"
    field.transpose("lat", "time", "lon").to_netcdf(tmp_path / "t.nc", engine="scipy")
    argv = ("--source", str(tmp_path / "t.nc"), "--dim", "time", "--cell", "4", *served)
    report = report_of(tmp_path, *argv)
    assert report["peaks_per"] == "day"
    np.testing.assert_allclose(report["peaks"], [1 / 3, 1 / 2, 1], atol=1 / T[-1])
    np.testing.assert_allclose(report["leading_ratios"], SHARES / 14, atol=0.01)
    curves = report["curves"]
    assert list(curves) == ["whole samples", "cells 4 x 4", "bands by mean and variance", "bands at random"]
    # Each part of the attributes explains at least what whole samples do, and all do where nothing else moves.
    assert all(curve[k] >= curves["whole samples"][k] - 1e-6 for curve in curves.values() for k in range(3))
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    scores = load_any(tmp_path / "out.zarr" / "model").transform(field.values)
    np.testing.assert_allclose(group["time_functions"][...], scores, atol=1e-4)
    assert group["power"].shape == (*group["frequency"].shape, 3)
    assert verify(tmp_path / "out.zarr") == []
    with Image.open(tmp_path / "out.report" / "modes_in_motion.png") as motion:
        assert motion.n_frames == 40
    capsys.readouterr()
    assert report_of(tmp_path, *argv) == report
    assert "nothing to do" in capsys.readouterr().out
    assert main([*argv, "--output", str(tmp_path / "b.zarr"), "--dim", "day"]) == 3
    assert "--dim is 'day', but the dims are lat, time, lon" in capsys.readouterr().err
    assert main([*argv, "--output", str(tmp_path / "b.zarr"), "--segment", "97"]) == 3
    assert "segment is 97 samples but the record has only 96" in capsys.readouterr().err
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("b.")]


@pytest.mark.usefixtures("small_pictures")
def test_volumes_and_readings(tmp_path: Path, served: Any) -> None:
    for name, shape in (("volumes", (6, 7, 8)), ("readings", (50,))):
        folder = tmp_path / name
        folder.mkdir()
        np.save(folder / "x.npy", swinging(shape))
        report = report_of(folder, "--source", str(folder / "x.npy"), "--band-size", "20", *served)
        np.testing.assert_allclose(report["peaks"], 0.25 * np.array([1 / 3, 1 / 2, 1]), atol=1 / N)
        pictures = {path.stem for path in (folder / "out.report").glob("*.png")}
        always = {"time_functions", "modes", "frames", "explained_variance"}
        assert pictures == always | ({"modes_projected", "modes_in_motion"} if name == "volumes" else set())
        assert ("bands in raster order" in report["curves"]) == (name == "readings")


def test_the_embedded_ocean() -> None:
    ocean = Ocean(40, 16, seed=3)
    frames = ocean.fetch(range(40))
    np.testing.assert_array_equal(ocean.fetch([3, 17]), frames[[3, 17]])
    # A sum of traveling waves: each Fourier coefficient turns by the dispersion of deep water.
    waves = np.fft.fft2(frames)
    turned = np.angle(waves[1:, 1, 2] / waves[:-1, 1, 2])
    k = 2 * np.pi / 100 * np.hypot(1, 2)
    np.testing.assert_allclose(np.abs(turned), 0.5 * np.sqrt(9.81 * k), rtol=1e-4)
    assert 0.2 < frames.std() < 1
    assert ocean.fingerprint() != Ocean(40, 16).fingerprint()
    with pytest.raises(DataError, match="frames"):
        Ocean(1)


def test_projections_keep_signs_and_motion_is_an_animation() -> None:
    volume = np.zeros((3, 2, 2))
    volume[1, 0, 1], volume[2, 0, 1], volume[0, 1, 0] = -5, 3, 2
    made = in_motion(np.stack([volume, -volume]), np.array([[1.0, 0], [0, 1], [-1, 0]]))
    assert made[:8] == b"\x89PNG\r\n\x1a\n"
    assert b"acTL" in made
