"""Samples larger than a shard: they are read and written in parts, if the source reads boxes."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca.storage import DataError, ingest, open_stack, verify
from dpca.storage.errors import PlanError
from dpca.storage.readers import open_reader
from dpca.storage.readers.permuted import Permuted
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.helpers.interrupted import interrupt_at

SHAPE = (5, 70, 66, 40)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard has at most 64 kB."""
    monkeypatch.setattr(sys.modules["dpca.storage.ingest"], "SHARD_BYTES", 1 << 16)
    monkeypatch.setattr(sys.modules["dpca.storage.survey"], "_LARGE_BYTES", 1 << 16)


def _npy(folder: Path, x: np.ndarray) -> str:
    np.save(folder / "x.npy", x)
    return str(folder / "x.npy")


def _fortran(folder: Path, x: np.ndarray) -> str:
    np.save(folder / "x.npy", np.asfortranarray(x))
    return str(folder / "x.npy")


def _npz(folder: Path, x: np.ndarray) -> str:
    np.savez(folder / "x.npz", x=x)
    return str(folder / "x.npz")


def _zarr(folder: Path, x: np.ndarray) -> str:
    zarr.create_array(folder / "x.zarr", data=x, chunks=(2, 30, 66, 7))
    return str(folder / "x.zarr")


def _hdf5(folder: Path, x: np.ndarray) -> str:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(1, 5, 20, 40), compression="gzip")
    return str(folder / "x.h5")


def _several(folder: Path, x: np.ndarray) -> list[str]:
    np.save(folder / "a.npy", x[:2])
    np.save(folder / "b.npy", x[2:])
    return [str(folder / "a.npy"), str(folder / "b.npy")]


def _nifti(folder: Path, x: np.ndarray) -> str:
    nibabel = pytest.importorskip("nibabel")
    nibabel.save(nibabel.Nifti1Image(x.transpose(3, 2, 1, 0), np.eye(4)), folder / "x.nii")
    return str(folder / "x.nii")


SOURCES: dict[str, Callable[[Path, np.ndarray], Any]] = {
    "npy": _npy,
    "fortran": _fortran,
    "npz": _npz,
    "zarr": _zarr,
    "hdf5": _hdf5,
    "several": _several,
    "nifti": _nifti,
}


def stack_values(dtype: Any = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 250, SHAPE).astype(dtype)


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_parts_make_the_same_stack(kind: str, dtype: Any, small_shards: None, tmp_path: Path) -> None:
    x = stack_values(dtype)
    reader = open_reader(SOURCES[kind](tmp_path, x))
    assert reader.reads_boxes
    stack = ingest(reader, tmp_path / "out.zarr")
    got = stack.samples[...]
    assert sorted(got.shape) == sorted(x.shape)
    expected = np.asarray(reader.fetch(range(len(reader))))
    np.testing.assert_array_equal(got, expected)
    assert prod(stack.samples.shards) < x[0].size
    assert stack.data_range == ((0, 255) if dtype == np.uint8 else (x.min(), x.max()))
    assert not verify(tmp_path / "out.zarr")


@pytest.mark.parametrize("lazy", [False, True])
def test_labelled_and_permuted_samples(lazy: bool, small_shards: None, tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    x = stack_values(np.float32)
    array = xarray.DataArray(x, dims=("time", "z", "y", "x"))
    array = array.chunk({"time": 2, "y": 20}) if lazy else array
    stack = ingest(array, tmp_path / "out.zarr")
    np.testing.assert_array_equal(stack.samples[...], x)
    assert prod(stack.samples.shards) < x[0].size
    shuffled = Permuted(open_reader(_npy(tmp_path, x)), 3)
    stack = ingest(shuffled, tmp_path / "shuffled.zarr")
    np.testing.assert_array_equal(stack.samples[...], x[shuffled.order])
    assert prod(stack.samples.shards) < x[0].size


@pytest.mark.parametrize("kind", ["npy", "zarr", "hdf5"])
def test_samples_along_another_axis(kind: str, small_shards: None, tmp_path: Path) -> None:
    x = stack_values()
    path = SOURCES[kind](tmp_path, np.ascontiguousarray(x.transpose(2, 0, 1, 3)))
    stack = ingest(path, tmp_path / "out.zarr", axes=("y", "sample", "z", "x"))
    assert stack.axes == ("sample", "y", "z", "x")
    np.testing.assert_array_equal(stack.samples[...], x.transpose(0, 2, 1, 3))
    assert prod(stack.samples.shards) < x[0].size


def test_cells_are_not_divided(small_shards: None, tmp_path: Path) -> None:
    stack = ingest(_npy(tmp_path, stack_values()), tmp_path / "out.zarr", cell_shape=(7, 11, 4))
    assert all(s % c == 0 or s >= n for s, c, n in zip(stack.samples.shards[1:], (7, 11, 4), SHAPE[1:], strict=True))
    assert prod(stack.samples.shards) < prod(SHAPE[1:])


def test_invalid_samples_are_named_or_left_out(small_shards: None, tmp_path: Path) -> None:
    x = stack_values(np.float32)
    x[1, 69, 65, 39], x[3, 2, 40, 5] = np.nan, np.inf
    path = _npy(tmp_path, x)
    with pytest.raises(DataError, match="69"):
        ingest(path, tmp_path / "out.zarr", run=Run(threads=1))
    for threads in (1, 3):
        stack = ingest(
            path, tmp_path / f"{threads}.zarr", reading=ReadOptions(on_error="skip"), run=Run(threads=threads)
        )
        np.testing.assert_array_equal(stack.samples[...], x[[0, 2, 4]])
        assert [name for name, _ in stack.rejected] == ["1", "3"]
        assert "(69, 65, 39)" in stack.rejected[0][1]
        assert not verify(tmp_path / f"{threads}.zarr")


@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupted_ingest_resumes(
    threads: int, small_shards: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = stack_values(np.float32)
    x[2, 0, 0, 0] = np.nan
    path, reading = _npy(tmp_path, x), ReadOptions(on_error="skip")
    for marks in (3, 6, 4):
        left = iter(range(marks))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            interrupt_at(patch, lambda unit, left=left: next(left, None) is not None)
            ingest(path, tmp_path / "out.zarr", reading=reading, run=Run(threads=threads))
    stack = ingest(path, tmp_path / "out.zarr", reading=reading, run=Run(threads=threads))
    np.testing.assert_array_equal(stack.samples[...], x[[0, 1, 3, 4]])
    assert not verify(tmp_path / "out.zarr")


def test_little_memory_divides_samples(tmp_path: Path) -> None:
    x = np.zeros((2, 3000, 2000), np.uint8)
    path = _npy(tmp_path, x)
    whole = ingest(path, tmp_path / "whole.zarr")
    assert whole.samples.shards[1:] == (3000, 2000)
    stack = ingest(path, tmp_path / "parts.zarr", run=Run(memory=2**25, threads=1))
    assert 4 * prod(stack.samples.shards) + (24 << 20) <= 2**25


def test_what_is_read_whole_is_refused_with_its_size(
    small_shards: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compressed file can only be read from its beginning, sample by sample."""
    x = np.zeros((2, 3000, 2000), np.uint8)
    np.savez_compressed(tmp_path / "x.npz", x=x)
    reader = open_reader(tmp_path / "x.npz")
    assert not reader.reads_boxes
    monkeypatch.setattr(type(reader), "stream", lambda *_: pytest.fail("a sample was read"))
    with pytest.raises(PlanError, match="49"):
        ingest(reader, tmp_path / "out.zarr", run=Run(memory=20_000_000, threads=1))
    assert not list(tmp_path.glob("out*"))


@pytest.mark.memory
def test_no_sample_is_in_memory(small_shards: None, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 250, (2, 4000, 4000), np.uint8)
    path = _npy(tmp_path, x)
    tracemalloc.start()
    ingest(path, tmp_path / "out.zarr", run=Run(threads=1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x[0].nbytes
    np.testing.assert_array_equal(open_stack(tmp_path / "out.zarr").samples[...], x)


@pytest.mark.parametrize("kind", ["npy", "zarr", "hdf5"])
def test_workers_write_parts(kind: str, small_shards: None, tmp_path: Path, cluster: Any) -> None:
    x = stack_values(np.float32)
    stack = ingest(SOURCES[kind](tmp_path, x), tmp_path / "out.zarr", run=Run(client=cluster))
    np.testing.assert_array_equal(stack.samples[...], x)
    assert prod(stack.samples.shards) < x[0].size
