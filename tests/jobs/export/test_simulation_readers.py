"""Programs of simulations read exports of a compressed run: a program in C of the documentation, and readers of VTK."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import xarray

from dpca import CellPCA, open_compressed
from dpca.jobs import encode_store, export_store, fit_store
from dpca.storage import Appender, ingest, open_stack

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A compressed run with an error bound; the steps and the decoded steps (step, z, y, x)."""
    here = tmp_path_factory.mktemp("run")
    z, y, x = np.mgrid[:6, :10, :14] / 3.0
    steps = np.stack([np.sin(x - t / 3) * np.cos(2 * y) * np.exp(-z) + t / 9 for t in range(12)]).astype("f4")
    with Appender(here / "run.zarr", (6, 10, 14), "f4", axes="tzyx") as appender:
        for step in steps:
            appender.append(step)
    stack = open_stack(here / "run.zarr")
    fit_store(stack, here / "model.zarr", CellPCA(3, cell_shape=(3, 5, 7)))
    encode_store(stack, here / "model.zarr", here / "small.zarr", max_error=1e-3)
    decoded = open_compressed(here / "small.zarr")[...]
    assert np.abs(decoded - steps).max() <= 1e-3
    return here, steps, decoded


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("dtype", ["f4", "u1", "f8"])
def test_a_program_in_c(dtype: str, run: tuple[Path, Any, Any], tmp_path: Path) -> None:
    here, _, decoded = run
    if dtype == "f4":
        export_store(here / "small.zarr", tmp_path / "run.npy")
    else:
        decoded = (decoded * 50 % 256).astype(dtype)
        np.save(tmp_path / "run.npy", decoded)
    source = ROOT / "docs" / "examples" / "read_npy.c"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    subprocess.run(["gcc", *flags, "-o", tmp_path / "read", source], check=True, timeout=60)
    for step in (0, 7, 11):
        done = subprocess.run([tmp_path / "read", tmp_path / "run.npy", str(step)], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        np.testing.assert_array_equal(np.frombuffer(done.stdout, dtype).reshape(6, 10, 14), decoded[step])
        assert f"6 10 14 values of {np.dtype(dtype).itemsize} bytes in sample {step} of 12" in done.stderr.decode()
    for wrong in (["run.npy", "12"], ["read", "0"], ["nothing.npy", "0"]):
        done = subprocess.run([tmp_path / "read", tmp_path / wrong[0], wrong[1]], capture_output=True, timeout=60)
        assert (done.returncode, done.stdout) == (1, b"")


def test_the_reader_of_paraview_for_netcdf(run: tuple[Path, Any, Any], tmp_path: Path) -> None:
    """ParaView opens .nc by ``vtkNetCDFCFReader``."""
    pytest.importorskip("vtk", reason="needs vtk")
    pytest.importorskip("h5py", reason='needs pip install -e ".[hdf5]"')
    from vtkmodules.util.numpy_support import vtk_to_numpy
    from vtkmodules.vtkCommonExecutionModel import vtkStreamingDemandDrivenPipeline
    from vtkmodules.vtkIONetCDF import vtkNetCDFCFReader

    here, _, decoded = run
    export_store(here / "small.zarr", tmp_path / "run.nc")
    reader = vtkNetCDFCFReader()
    reader.SetFileName(str(tmp_path / "run.nc"))
    reader.SphericalCoordinatesOff()
    reader.UpdateInformation()
    times = reader.GetOutputInformation(0).Get(vtkStreamingDemandDrivenPipeline.TIME_STEPS())
    assert times == tuple(range(12))
    for step in (0, 7, 11):
        reader.UpdateTimeStep(times[step])
        values = reader.GetOutputDataObject(0).GetPointData().GetArray("samples")
        np.testing.assert_array_equal(vtk_to_numpy(values).reshape(6, 10, 14), decoded[step])


def test_times_and_places_of_a_field_in_paraview(tmp_path: Path) -> None:
    pytest.importorskip("vtk", reason="needs vtk")
    xarray = pytest.importorskip("xarray")
    from vtkmodules.vtkCommonExecutionModel import vtkStreamingDemandDrivenPipeline
    from vtkmodules.vtkIONetCDF import vtkNetCDFCFReader

    values = np.random.default_rng(0).normal(size=(4, 3, 5, 6)).astype("f4")
    coords = {"time": [0.0, 0.5, 1.0, 1.5], "z": [0.0, 0.1, 0.2], "y": np.arange(5) * 0.2, "x": np.arange(6) * 0.3}
    ingest(xarray.DataArray(values, coords, ("time", "z", "y", "x")), tmp_path / "run.zarr")
    export_store(tmp_path / "run.zarr", tmp_path / "run.nc")
    reader = vtkNetCDFCFReader()
    reader.SetFileName(str(tmp_path / "run.nc"))
    reader.SphericalCoordinatesOff()
    reader.UpdateInformation()
    found = reader.GetOutputInformation(0).Get(vtkStreamingDemandDrivenPipeline.TIME_STEPS())
    assert found == (0.0, 0.5, 1.0, 1.5)
    reader.UpdateTimeStep(0.5)
    np.testing.assert_allclose(reader.GetOutputDataObject(0).GetBounds(), [0, 1.5, 0, 0.8, 0, 0.2])


def test_frames_without_times_are_a_volume_in_paraview(tmp_path: Path) -> None:
    pytest.importorskip("vtk", reason="needs vtk")
    from vtkmodules.util.numpy_support import vtk_to_numpy
    from vtkmodules.vtkIONetCDF import vtkNetCDFCFReader

    values = np.random.default_rng(0).normal(size=(4, 5, 6)).astype("f4")
    np.save(tmp_path / "run.npy", values)
    ingest(tmp_path / "run.npy", tmp_path / "run.zarr")
    export_store(tmp_path / "run.zarr", tmp_path / "run.nc")
    reader = vtkNetCDFCFReader()
    reader.SetFileName(str(tmp_path / "run.nc"))
    reader.SphericalCoordinatesOff()
    reader.Update()
    found = reader.GetOutputDataObject(0).GetPointData().GetArray("samples")
    np.testing.assert_array_equal(vtk_to_numpy(found).reshape(values.shape), values)


def test_texts_beside_a_field(tmp_path: Path) -> None:
    """Names of samples and colors of channels are texts, of any characters, for xarray and in another export."""
    x = np.random.default_rng(0).integers(0, 4000, (3, 2, 6, 8)).astype("u2")
    channels = {"Channel": {"Name": ["DAPI", "GFP"], "Color": [65535, 16711935]}}  # blue, green
    tifffile.imwrite(tmp_path / "s.ome.tif", x, metadata={"axes": "TCYX"} | channels)
    (tmp_path / "parts").mkdir()
    for name, image in zip(("a", "b\u00e4", "c" * 40), x[:, 0], strict=True):
        tifffile.imwrite(tmp_path / "parts" / f"{name}.tif", image)
    for source in ("s.ome.tif", "parts"):
        export_store(ingest(tmp_path / source, tmp_path / f"{source}.zarr").path, tmp_path / f"{source}.nc")
    with xarray.open_dataset(tmp_path / "parts.nc") as found:
        assert found["name"].values.tolist() == ["a.tif", "b\u00e4.tif", f"{'c' * 40}.tif"]
        np.testing.assert_array_equal(found["samples"], x[:, 0])
        assert set(found["samples"].coords) == {"name"}
    with xarray.open_dataset(tmp_path / "s.ome.tif.nc") as found:
        assert found["channel_color"].values.tolist() == ["#0000ff", "#00ff00"]
        assert found["channel"].values.tolist() == ["DAPI", "GFP"]
    again = ingest(tmp_path / "s.ome.tif.nc", tmp_path / "again.zarr", key="samples").coordinates
    assert again is not None
    assert again.channel_colors == ["#0000ff", "#00ff00"]


@pytest.mark.parametrize("source", ["s.ome.tif", "parts"])
def test_texts_do_not_crash_the_reader_of_paraview(tmp_path: Path, source: str) -> None:
    pytest.importorskip("vtk", reason="needs vtk")
    test_texts_beside_a_field(tmp_path)
    # It crashed the process at texts of variable length.
    program = (
        "import sys; from vtkmodules.vtkIONetCDF import vtkNetCDFCFReader; r = vtkNetCDFCFReader();"
        "r.SetFileName(sys.argv[1]); r.Update(); d = r.GetAllDimensions();"
        "r.SetDimensions(max((d.GetValue(i) for i in range(d.GetNumberOfValues())), key=lambda n: n.count(','))); "
        ""
        "r.Update(); print(r.GetOutput().GetPointData().GetArrayName(0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / f"{source}.nc"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if source == "parts":  # it reads at most three axes that are no times
        assert done.stdout.split()[-1] == "samples"
