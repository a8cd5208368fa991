"""Readers of arrays: .npy, .npz, IDX, HDF5 and Zarr."""

from __future__ import annotations

import gzip
import importlib
import io
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from dpca.storage.errors import DataError, StoreError
from dpca.storage.readers import Reader, open_reader
from tests.storage.sources.made_sources import LFW, write_idx

VALUES = np.random.default_rng(0).integers(0, 256, (11, 6, 5, 3), dtype=np.uint8)
Array = np.ndarray[Any, Any]


def check(reader: Reader, expected: Array) -> None:
    """Hold a reader's rows against an array in memory."""
    assert not reader.encoded
    assert reader.sample_shape == expected.shape[1:]
    assert len(reader) == len(expected)
    assert reader.dtype == expected.dtype
    assert reader.dtype.isnative
    whole = list(range(len(expected)))
    requests = [whole[:1], whole[1:4], [*whole[5:7], whole[9]], whole[10:]]
    for indices, block in zip(requests, reader.stream(iter(requests)), strict=True):
        assert isinstance(block, np.ndarray)
        assert block.dtype == expected.dtype
        assert block.flags.c_contiguous
        np.testing.assert_array_equal(block, expected[indices])
    if reader.random_access:
        part = pickle.loads(pickle.dumps(reader.part([2, 3, 7])))
        np.testing.assert_array_equal(part(), expected[[2, 3, 7]])
        assert len(pickle.dumps(reader.part(whole))) < 1500
    np.testing.assert_array_equal(reader.fetch([10]), expected[10:])


def save_npy(path: Path, values: Array) -> Path:
    np.save(path / "a.npy", values)
    return path / "a.npy"


def save_npz(path: Path, values: Array) -> Path:
    np.savez(path / "a.npz", values=values, extra=np.arange(3))
    return path / "a.npz"


def save_compressed(path: Path, values: Array) -> Path:
    np.savez_compressed(path / "a.npz", values=values)
    return path / "a.npz"


def save_hdf5(path: Path, values: Array) -> Path:
    with h5py.File(path / "a.h5", "w") as file:
        file.create_dataset("deep/values", data=values, chunks=(4, *values.shape[1:]), compression="gzip")
        file["note"] = "text"
    return path / "a.h5"


def save_zarr(version: Any) -> Callable[[Path, Array], Path]:
    def save(path: Path, values: Array) -> Path:
        array = zarr.create_array(
            path / "a.zarr",
            shape=values.shape,
            dtype=values.dtype,
            chunks=(4, *values.shape[1:]),
            zarr_format=version,
        )
        array[:] = values
        return path / "a.zarr"

    return save


SAVERS = {
    "npy": save_npy,
    "npz": save_npz,
    "npz compressed": save_compressed,
    "hdf5": save_hdf5,
    "zarr 2": save_zarr(2),
    "zarr 3": save_zarr(3),
}


@pytest.mark.parametrize("kind", SAVERS)
@pytest.mark.parametrize("dtype", ["u1", ">u2", "<i4", "f4", ">f8"])
def test_rows(kind: str, dtype: str, tmp_path: Path) -> None:
    values = (VALUES * 1.5).astype(dtype)
    reader = open_reader(SAVERS[kind](tmp_path, values))
    check(reader, values.astype(values.dtype.newbyteorder("=")))
    assert reader.random_access == (kind != "npz compressed")
    assert reader.kind == kind.split()[0]


@pytest.mark.parametrize("kind", SAVERS)
def test_truth_values_become_bytes(kind: str, tmp_path: Path) -> None:
    reader = open_reader(SAVERS[kind](tmp_path, VALUES > 100))
    check(reader, (VALUES > 100).astype(np.uint8))
    assert reader.data_range == (0.0, 1.0)


@pytest.mark.parametrize("kind", [kind for kind in SAVERS if kind != "npz compressed"])
def test_samples_on_another_axis(kind: str, tmp_path: Path) -> None:
    path = SAVERS[kind](tmp_path, np.moveaxis(VALUES, 0, 2))
    reader = open_reader(path, axes=("y", "x", "sample", "channel"))
    check(reader, VALUES)
    assert reader.axes == ("y", "x", "channel")


def test_axes_of_one_sample_can_be_named(tmp_path: Path) -> None:
    path = save_npy(tmp_path, VALUES)
    assert open_reader(path, axes=("lat", "lon", "channel")).axes == ("lat", "lon", "channel")
    for axes in (("y", "x"), ("sample", "y", "x"), ("y", "y", "x"), ("sample", "y", "x", "y")):
        with pytest.raises(DataError, match="^axes"):
            open_reader(path, axes=axes)


def test_a_compressed_array_is_cut_along_its_first_axis_only(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="first"):
        open_reader(save_compressed(tmp_path, VALUES), axes=("y", "sample", "x", "channel"))


@pytest.mark.parametrize("save", [save_npy, save_npz])
def test_fortran_order(save: Callable[[Path, Array], Path], tmp_path: Path) -> None:
    check(open_reader(save(tmp_path, np.asfortranarray(VALUES))), VALUES)
    with pytest.raises(DataError, match=r"numpy.ascontiguousarray"):
        open_reader(save_compressed(tmp_path, np.asfortranarray(VALUES)))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("code", "dtype"), [(8, ">u1"), (9, ">i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")]
)
def test_idx(suffix: str, code: int, dtype: str, tmp_path: Path) -> None:
    values = VALUES[..., 0].astype(dtype)
    path = write_idx(tmp_path / f"train-images-idx3-ubyte{suffix}", values, code)
    check(open_reader(path), values.astype(values.dtype.newbyteorder("=")))
    assert open_reader(path).labels is None
    labels = np.arange(11, dtype=np.uint8)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", labels)
    np.testing.assert_array_equal(open_reader(path).labels, labels)
    whole = write_idx(tmp_path / "train-labels-idx1-ubyte.gz", labels)
    whole.write_bytes(gzip.compress(gzip.decompress(whole.read_bytes())[:-1]))
    with pytest.raises(DataError, match="truncated"):
        open_reader(path)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", labels[:-1])
    with pytest.raises(DataError, match=r"labels.*\(10,\).*\b11\b"):
        open_reader(path)


def test_mnist_as_published() -> None:
    folder = LFW / "mnist"
    if not folder.is_dir():
        pytest.skip("needs MNIST (mnist/*.gz) in ../shared/data from the project root")
    with gzip.open(folder / "t10k-images-idx3-ubyte.gz") as file:
        assert struct.unpack(">IIII", file.read(16)) == (2051, 10000, 28, 28)
        images = np.frombuffer(file.read(), np.uint8).reshape(10000, 28, 28)
    reader = open_reader(folder / "t10k-images-idx3-ubyte.gz")
    blocks: list[Any] = list(reader.stream([range(9), range(100, 5000), range(5000, 10000)]))
    np.testing.assert_array_equal(np.concatenate(blocks), images[[*range(9), *range(100, 10000)]])
    assert reader.labels is not None
    assert np.bincount(reader.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_cifar_and_usps_in_npz() -> None:
    if not LFW.is_dir():
        pytest.skip("needs cifar10-5085.npz and usps/zip_train.npz in ../shared/data from the project root")
    for name in ("cifar10-5085.npz", "usps/zip_train.npz"):
        with np.load(LFW / name) as file:
            images, labels = file["images"], file["labels"]
        reader = open_reader(LFW / name)
        assert reader.sample_shape == images.shape[1:]
        np.testing.assert_array_equal(reader.fetch(range(len(images))), images)
        np.testing.assert_array_equal(reader.labels, labels)


class TestKey:
    def test_is_needed_where_several_could_be_meant(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", a=VALUES, b=VALUES[:, 0], c=np.arange(3))
        with pytest.raises(DataError, match=r"a.\(11,.6,.5,.3\).*--key"):
            open_reader(tmp_path / "a.npz")
        check(open_reader(tmp_path / "a.npz", key="b"), VALUES[:, 0])
        with pytest.raises(DataError, match="'z'"):
            open_reader(tmp_path / "a.npz", key="z")

    def test_obvious_names_win(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", masks=VALUES[:, 0], images=VALUES)
        check(open_reader(tmp_path / "a.npz"), VALUES)

    def test_chooses_in_hdf5_and_zarr(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["x/a"], file["x/b"] = VALUES, VALUES[:, 0]
        group = zarr.create_group(tmp_path / "a.zarr")
        group.create_array("x/a", data=VALUES)
        group.create_array("x/b", data=VALUES[:, 0])
        for name in ("a.h5", "a.zarr"):
            with pytest.raises(DataError, match="x/a|x/b|axes"):
                open_reader(tmp_path / name)
            check(open_reader(tmp_path / name, key="x/b"), VALUES[:, 0])

    def test_means_nothing_for_images(self, tmp_path: Path) -> None:
        (tmp_path / "a.jpg").write_bytes(b"")
        with pytest.raises(DataError, match="images"):
            open_reader(tmp_path, key="b")


@pytest.mark.parametrize("shape", [(11,), (11, 1)])
def test_labels_beside_the_array(shape: tuple[int, ...], tmp_path: Path) -> None:
    labels = np.arange(11).reshape(shape)
    np.savez_compressed(tmp_path / "a.npz", images=VALUES, labels=labels)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g/images"], file["g/y"] = VALUES, labels
    for name in ("a.npz", "a.h5"):
        np.testing.assert_array_equal(open_reader(tmp_path / name).labels, np.arange(11))
    np.savez(tmp_path / "b.npz", images=VALUES, labels=np.arange(12))
    assert open_reader(tmp_path / "b.npz").labels is None


def test_a_stack_store_keeps_names_and_labels(make_stack: Callable[..., Path], tmp_path: Path) -> None:
    reader = open_reader(make_stack(tmp_path / "s.zarr", VALUES, data_range=[3, 200]))
    check(reader, VALUES)
    assert reader.names[4] == "person/004.jpg"
    assert reader.data_range == (3.0, 200.0)
    assert reader.axes == ("y", "x", "channel")


def test_a_url_is_a_zarr_store(tmp_path: Path) -> None:
    save_zarr(3)(tmp_path, VALUES)
    check(open_reader(f"file://{tmp_path}/a.zarr"), VALUES)


@pytest.mark.parametrize("kind", [kind for kind in SAVERS if not kind.startswith("zarr")])
@pytest.mark.parametrize("cut", [3, 0.5])
def test_cut_files_are_refused(kind: str, cut: float, tmp_path: Path) -> None:
    path = SAVERS[kind](tmp_path, np.random.default_rng(1).integers(0, 256, (60, 30, 20), dtype=np.uint8))
    content = path.read_bytes()
    path.write_bytes(content[: -int(cut if cut > 1 else len(content) * cut)])
    with pytest.raises(DataError, match="truncated") as caught:
        list(open_reader(path).stream([range(60)]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", [0.3, 0.9])
def test_a_damaged_compressed_array_is_refused(place: float, tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 256, (60, 30, 20), dtype=np.uint8)
    write_idx(tmp_path / "images.gz", values)
    for path in (save_compressed(tmp_path, values), tmp_path / "images.gz"):
        content = bytearray(path.read_bytes())
        content[int(len(content) * place)] ^= 0x10
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"sample.\d+.*\b60\b"):
            list(open_reader(path).stream([range(60)]))


def test_an_idx_file_that_goes_on_is_refused(tmp_path: Path) -> None:
    write_idx(tmp_path / "a.gz", VALUES[..., 0])
    content = gzip.decompress((tmp_path / "a.gz").read_bytes())
    (tmp_path / "a.gz").write_bytes(gzip.compress(content + b"x"))
    with pytest.raises(DataError, match="more.bytes"):
        list(open_reader(tmp_path / "a.gz").stream([range(11)]))


@pytest.mark.parametrize("kind", ["npy", "npz", "idx"])
def test_an_array_that_is_not_as_long_as_its_file_is_refused(kind: str, tmp_path: Path) -> None:
    """One header more or less, and what lies behind the array would be read as samples, or samples left out."""
    values = np.random.default_rng(1).integers(0, 256, (60, 30, 20), dtype=np.uint8)
    content = io.BytesIO()
    np.save(content, values)
    for claimed, words in ((b"(61, 30, 20), }", "is truncated"), (b"(59, 30, 20), }", "more bytes")):
        lying = content.getvalue().replace(b"(60, 30, 20), }", claimed)
        if kind == "npy":
            (tmp_path / "a.npy").write_bytes(lying)
        elif kind == "npz":
            with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
                archive.writestr("values.npy", lying)
                archive.writestr("more.txt", bytes(10_000))
        else:
            header = bytes((0, 0, 8, 3)) + np.array((int(claimed[1:3]), 30, 20), ">u4").tobytes()
            (tmp_path / "a.idx").write_bytes(header + values.tobytes())
        with pytest.raises(DataError, match=words):
            open_reader(tmp_path / f"a.{kind}")


def test_a_damaged_member_of_a_plain_npz_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", values=np.zeros((40, 64, 1024), np.uint8))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz/values.*CRC-32"):
        open_reader(tmp_path / "a.npz").fetch(range(2))


def test_a_cut_lmdb_does_not_kill_the_process(tmp_path: Path) -> None:
    from tests.storage.sources.made_sources import write_lsun

    path = write_lsun(tmp_path / "l", {b"%03d" % i: bytes(9000) for i in range(50)})
    content = (path / "data.mdb").read_bytes()
    (path / "data.mdb").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="'l'.*truncated"):
        open_reader(path)


def test_a_missing_library_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "h5py":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    real = importlib.import_module
    path = save_hdf5(tmp_path, VALUES)
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(DataError, match=r"dask-dpca\[hdf5\]"):
        open_reader(path)


def test_optional_libraries_are_not_imported_early() -> None:
    import subprocess

    code = "import sys, dpca.storage.ingest; sys.exit(bool({'h5py', 'lmdb'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.arange(5), "sample axis"),
        (np.zeros((3, 0, 4)), "samples are empty"),
        (np.zeros((3, 4), complex), "complex128"),
        (np.zeros((3, 4), "U5"), "<U5"),
        (np.zeros((3, 4), "M8[s]"), "datetime64"),
        (np.array([[1, "a"]], object), "Python objects"),
    ],
)
def test_arrays_that_are_no_stack_are_refused(values: Array, words: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(DataError, match=words):
        open_reader(tmp_path / "a.npy")


def test_a_broken_chunk_of_a_zarr_source_is_an_error_with_a_place(tmp_path: Path) -> None:
    path = save_zarr(3)(tmp_path, VALUES)
    chunk = path / "c" / "1" / "0" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    reader = open_reader(path)
    with pytest.raises(StoreError, match=r"a\.zarr.*sample.5"):
        reader.fetch([5, 6])
