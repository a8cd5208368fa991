"""Wrong, broken and hostile input: one clear sentence each, and nothing under the final name."""

from __future__ import annotations

import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import zarr
from PIL import Image

from dpca.storage.errors import DataError, StoreError
from dpca.storage.ingest import ingest
from dpca.storage.stack import open_stack
from dpca.storage.survey import ReadOptions
from tests.storage.sources.made_sources import (
    encoded,
    jpeg_bomb,
    jpegs,
    member,
    pixels,
    png_bomb,
    tiff_bomb,
    webp_bomb,
    write_folder,
    write_idx,
    write_lsun,
    write_tar,
    write_zip,
)

GOOD = jpegs(4)


class Case(NamedTuple):
    """What is made, the words of the refusal, and the options of ingest."""

    make: Callable[[Path], Any]
    words: str
    options: dict[str, Any]


def folder(**bad: bytes) -> Callable[[Path], Path]:
    return lambda path: write_folder(path / "t", {**GOOD, **{name.replace("__", "."): b for name, b in bad.items()}})


def cut(make: Callable[[Path], Path], keep: float = 0.5) -> Callable[[Path], Path]:
    def broken(path: Path) -> Path:
        made = make(path)
        content = made.read_bytes()
        made.write_bytes(content[: int(len(content) * keep)])
        return made

    return broken


def save(values: Any) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        np.save(path / "a.npy", values)
        return path / "a.npy"

    return make


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> Callable[[Path], Path]:
    good = [member(*item) for item in GOOD.items()]
    return lambda path: write_tar(path / "a.tar", [*good, *members])


def touch(path: Path) -> Path:
    path.write_bytes(b"")
    return path


def hdf5_of_text(path: Path) -> Path:
    with h5py.File(path / "a.h5", "w") as file:
        file["note"] = "hello"
    return path / "a.h5"


def newer_store(path: Path) -> Path:
    zarr.create_group(path / "s.zarr", attributes={"dpca": {"kind": "stack", "version": 99, "fingerprint": "f"}})
    return path / "s.zarr"


def two_arrays(path: Path) -> Path:
    group = zarr.create_group(path / "g.zarr")
    group.create_array("a", data=np.zeros((3, 4)))
    group.create_array("b", data=np.zeros((3, 4)))
    return path / "g.zarr"


def broken_chunk(path: Path) -> Path:
    array = zarr.create_array(path / "a.zarr", data=np.random.default_rng(0).normal(size=(9, 30, 30)))
    (path / "a.zarr" / "c" / "0" / "0" / "0").write_bytes(b"rubbish")
    assert array.shape == (9, 30, 30)
    return path / "a.zarr"


NAN = np.zeros((6, 5, 4), np.float32)
NAN[3, 1, 2] = np.nan
COLOR, GRAY = encoded(pixels(5), "JPEG"), encoded(pixels(5, channels=1))
FRAMES = [Image.fromarray(pixels(i)) for i in range(2)]
IDX = np.zeros((5, 4, 4), np.uint8)

CASES: dict[str, Case] = {
    "a missing file": Case(lambda path: path / "none.tar", "there is no file or folder '.*none.tar'", {}),
    "a missing folder": Case(lambda path: path / "none", "there is no file or folder", {}),
    "a glob of nothing": Case(lambda path: str(path / "*.tar"), "no file matches", {}),
    "an empty list": Case(lambda path: [], "empty list", {}),
    "an empty folder": Case(
        lambda path: write_folder(path, {}),
        "no images .*JPEG, PNG, ",
        {},
    ),
    "a folder of other files": Case(
        lambda path: write_folder(path / "t", {"a.txt": b"", "b.tar": b"", "c.TXT": b"x", "d": b"P5"}),
        r"4 other files were found \(2 with .txt, 1 with .tar, 1 with no suffix\)",
        {},
    ),
    "an archive without images": Case(lambda path: write_zip(path / "a.zip", {"a.txt": b"x"}), "1 with .txt", {}),
    "an empty file": Case(lambda path: touch(path / "a.tar"), "is empty", {}),
    "an unsupported format": Case(
        lambda path: write_folder(path, {"a.wmf": b"\xd7\xcd\xc6\x9a"}) / "a.wmf", "unsupported format", {}
    ),
    "an empty image": Case(folder(x__jpg=b""), "'x.jpg' is empty", {}),
    "text named .jpg": Case(folder(x__jpg=b"hello world"), "'x.jpg' .*hello world", {}),
    "a truncated JPEG": Case(folder(x__jpg=COLOR[:400]), "'x.jpg' is broken, truncated", {}),
    "a truncated PNG": Case(folder(x__png=encoded(pixels())[:-400]), "'x.png' is broken, truncated", {}),
    "a PNG bomb": Case(folder(x__png=png_bomb(50_000, 50_000)), "'x.png' .*50000 x 50000 pixels", {}),
    "a JPEG bomb": Case(folder(x__jpg=jpeg_bomb()), "'x.jpg' .*65500 x 65500 pixels", {}),
    "a WebP bomb": Case(folder(x__webp=webp_bomb()), "'x.webp' .*limit", {}),
    "a TIFF bomb": Case(folder(x__tif=tiff_bomb()), "'x.tif' .*60000 x 60000 pixels", {}),
    "an animation": Case(
        folder(x__webp=encoded(FRAMES[0], "WEBP", save_all=True, append_images=FRAMES[1:])),
        "more than one frame",
        {},
    ),
    "mixed sizes": Case(
        folder(x__jpg=encoded(pixels(1, 30, 20), "JPEG"), y__jpg=encoded(pixels(1, 9, 9), "JPEG")),
        r"'x.jpg' .*30 x 20 pixels .*24 x 20 .*--resize 24x20",
        {},
    ),
    "color among gray": Case(
        lambda path: write_folder(path / "t", {"a.png": GRAY, "b.jpg": COLOR}),
        "'b.jpg' .*--color rgb",
        {},
    ),
    "16 bits among 8": Case(
        lambda path: write_folder(
            path / "t", {"a.png": GRAY, "b.png": encoded(pixels(5, channels=1).astype(np.uint16))}
        ),
        "'b.png' .*uint16.* uint8",
        {},
    ),
    "a crop larger than an image": Case(folder(), "crop of 99 x 99", {"crop": (99, 99)}),
    "a float TIFF with NaN": Case(
        lambda path: write_folder(path / "t", {f"{i}.tif": encoded(NAN[i], "TIFF") for i in range(6)}),
        "'3.tif' .*nan at row 1, column 2",
        {},
    ),
    "NaN in a float stack": Case(save(NAN), r"sample 3 of 'a.npy' .*nan at \(1, 2\)", {}),
    "a dangling link": Case(lambda path: dangling(path), "'x.jpg' cannot be read", {}),
    "tar: a path that climbs": Case(tar(member("../../x.jpg", b"x")), r"'../../x.jpg' has a path that leads out", {}),
    "tar: an absolute path": Case(tar(member("/x.jpg", b"x")), "'/x.jpg' has a path that leads out", {}),
    "tar: a symlink": Case(tar(member("x.jpg", b"", tarfile.SYMTYPE, "/etc/passwd")), "'x.jpg' is a link", {}),
    "tar: a hard link": Case(tar(member("x.jpg", b"", tarfile.LNKTYPE, "img/000001.jpg")), "'x.jpg' is a link", {}),
    "tar: a device": Case(tar(member("x", b"", tarfile.BLKTYPE)), "'x' is a device", {}),
    "zip: a path that climbs": Case(
        lambda path: write_zip(path / "a.zip", {**GOOD, "../x.jpg": COLOR}),
        "'../x.jpg' has a path that leads out",
        {},
    ),
    "a truncated tar": Case(cut(tar()), "archive 'a.tar' is truncated or broken", {}),
    "a truncated tgz": Case(
        cut(lambda path: write_tar(path / "a.tgz", GOOD, "gz")), "archive 'a.tgz' is truncated or broken", {}
    ),
    "a truncated zip": Case(
        cut(lambda path: write_zip(path / "a.zip", GOOD)), "archive 'a.zip' is truncated or broken", {}
    ),
    "text named .tar": Case(
        lambda path: write_folder(path, {"a.tar": b"hello" * 200}) / "a.tar",
        "'a.tar' is truncated or broken",
        {},
    ),
    "text named .zip": Case(
        lambda path: write_folder(path, {"a.zip": b"hello" * 200}) / "a.zip",
        "'a.zip' is truncated or broken",
        {},
    ),
    "a truncated IDX": Case(cut(lambda path: write_idx(path / "a.idx", IDX)), "'a.idx' is truncated", {}),
    "a truncated gz": Case(
        cut(
            lambda path: write_idx(path / "a.gz", np.random.default_rng(0).integers(0, 255, (50, 9, 9), np.uint8)),
            0.8,
        ),
        "'a.gz' is truncated",
        {},
    ),
    "a truncated npy": Case(cut(save(np.ones((50, 4)))), "'a.npy' is truncated", {}),
    "pickled objects": Case(save(np.array([[{}], [{}]])), "Python objects, which are never unpickled", {}),
    "complex numbers": Case(save(np.zeros((3, 4), complex)), "complex128", {}),
    "one axis": Case(save(np.zeros(3)), "sample axis", {}),
    "no samples": Case(save(np.zeros((0, 3))), "no samples", {}),
    "HDF5 without numbers": Case(hdf5_of_text, "choose one with --key", {}),
    "a key that is not there": Case(lambda path: two_arrays(path), "there is nothing at .*zz", {"key": "zz"}),
    "Zarr: which array?": Case(two_arrays, "g.zarr", {}),
    "Zarr: a newer version": Case(newer_store, "version 99", {}),
    "Zarr: a broken chunk": Case(broken_chunk, "a.zarr' cannot be read", {}),
    "a truncated LMDB": Case(lambda path: cut_lmdb(path), "'l' is truncated", {}),
    "options of images for an array": Case(save(np.ones((3, 4))), "is an array: leave them out", {"resize": (3, 3)}),
    "options of arrays for images": Case(folder(), "is for arrays", {"key": "x"}),
    "a cell of nonsense": Case(folder(), "cell_shape", {"cell_shape": (5, 5, 5)}),
    "a range of nonsense": Case(folder(), "data_range", {"data_range": (3, 3)}),
    "a size of nonsense": Case(folder(), "crop", {"crop": (0, 7)}),
    "an unknown color": Case(folder(), "color 'blue'", {"color": "blue"}),
    "an unknown on_error": Case(folder(), "on_error 'ignore'", {"on_error": "ignore"}),
}


def dangling(path: Path) -> Path:
    folder()(path)
    (path / "t" / "x.jpg").symlink_to("nowhere")
    return path / "t"


def cut_lmdb(path: Path) -> Path:
    write_lsun(path / "l", {b"%d" % i: bytes(9000) for i in range(20)})
    cut(lambda _: path / "l" / "data.mdb")(path)
    return path / "l"


@pytest.mark.parametrize("name", CASES)
def test_one_sentence_and_nothing_half_written(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    (tmp_path / "in").mkdir()
    source = case.make(tmp_path / "in")
    with pytest.raises((DataError, StoreError), match=case.words) as caught:
        # Options are made here, since their constructor rejects some of them.
        apart = {name: value for name, value in case.options.items() if name in ("key", "axes", "cell_shape")}
        reading = ReadOptions(**{name: value for name, value in case.options.items() if name not in apart})
        ingest(source, tmp_path / "out.zarr", reading=reading, **apart)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    # nothing was finished, so nothing is left to resume either
    assert os.listdir(tmp_path) == ["in"]


ONE_BY_ONE = [name for name, case in CASES.items() if "'x" in case.words or "x.jpg'" in case.words]


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_skip_leaves_out_just_the_bad_ones(name: str, tmp_path: Path) -> None:
    assert len(ONE_BY_ONE) >= 15
    (tmp_path / "in").mkdir()
    stack = ingest(CASES[name].make(tmp_path / "in"), tmp_path / "out.zarr", reading=ReadOptions(on_error="skip"))
    assert stack.names.tolist() == list(GOOD)
    assert len(stack.rejected) >= 1
    assert all(rejected[:1] in "x/.y" and reason for rejected, reason in stack.rejected)


def test_nothing_but_bad_images(tmp_path: Path) -> None:
    bad = {f"{i}.jpg": b"text" for i in range(9)}
    with pytest.raises(DataError) as caught:
        ingest(write_folder(tmp_path / "t", bad), tmp_path / "out.zarr", reading=ReadOptions(on_error="skip"))
    for words in ("9 samples", "'t'", "'0.jpg'", "b'text'"):
        assert words in str(caught.value)
    assert os.listdir(tmp_path) == ["t"]


def test_an_archive_never_writes_outside(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    path = tmp_path / "deep" / "er" / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("../escaped.jpg", "/tmp/escaped.jpg", "good.jpg"):
            archive.writestr(name, COLOR)
    ingest(path, tmp_path / "deep" / "er" / "out.zarr", reading=ReadOptions(on_error="skip"))
    assert not list(tmp_path.glob("**/escaped.jpg"))
    stack = open_stack(tmp_path / "deep" / "er" / "out.zarr")
    assert [name for name, _ in stack.rejected] == ["../escaped.jpg", "/tmp/escaped.jpg"]


@pytest.mark.parametrize("what", ["file", "folder", "foreign zarr"])
def test_an_output_that_is_something_else_is_left_alone(what: str, tmp_path: Path) -> None:
    target = tmp_path / "out.zarr"
    if what == "file":
        target.write_text("precious")
    elif what == "folder":
        write_folder(target, {"precious.txt": b"x"})
    else:
        zarr.create_array(target, data=np.ones((3, 4)))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    source = folder()(tmp_path / "in")
    with pytest.raises(StoreError, match=r"out\.zarr.*another"):
        ingest(source, target)
    shutil.rmtree(tmp_path / "in")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_disk_too_small_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=4000))
    with pytest.raises(StoreError, match=r"'t'.*5\.[0-9]+.kB.*\b4.kB"):
        ingest(folder()(tmp_path), tmp_path / "out.zarr")
    assert os.listdir(tmp_path) == ["t"]


def test_a_disk_that_fills_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpca.storage import decoded_shard

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    source = folder()(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(decoded_shard, "write_shard", full)
        with pytest.raises(StoreError, match=r"full.*out\.zarr"):
            ingest(source, tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()
    assert ingest(source, tmp_path / "out.zarr").n_samples == 4
