"""Wrong input of every kind: one clear sentence, an exit code, and nothing half-written under a final name."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import zarr
from PIL import Image

from dpca.cli import main as dpca_main
from pipelines.celeba_cpca import main as job
from storage import ingest
from storage.workspace import Workspace
from tests.conftest import smooth_images


class Case(NamedTuple):
    """How to go wrong in a folder, and what is to be said."""

    make: Callable[[Path], list[str]]
    says: str
    code: int


def _image(path: Path, shape: tuple[int, ...] = (24, 24, 3), seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(smooth_images(1, shape, seed)[0]).save(path)
    return path


def _photos(folder: Path, n: int = 6) -> Path:
    for i in range(n):
        _image(folder / "photos" / f"{i}.png", seed=i)
    return folder / "photos"


def _stack(folder: Path, n: int = 20, name: str = "stack.zarr") -> Path:
    np.save(folder / "a.npy", smooth_images(n, (24, 24, 3)))
    ingest(folder / "a.npy", folder / name, threads=1)
    return folder / name


def _npy(folder: Path, array: np.ndarray) -> list[str]:
    np.save(folder / "a.npy", array)
    return [str(folder / "a.npy")]


def missing(folder: Path) -> list[str]:
    return [str(folder / "nowhere")]


def empty_folder(folder: Path) -> list[str]:
    (folder / "empty").mkdir()
    return [str(folder / "empty")]


def no_images(folder: Path) -> list[str]:
    (folder / "texts").mkdir()
    (folder / "texts" / "readme.txt").write_text("no image")
    return [str(folder / "texts")]


def mixed_sizes(folder: Path) -> list[str]:
    photos = _photos(folder)
    _image(photos / "3.png", (24, 25, 3))
    _image(photos / "4.png", (12, 25, 3))
    return [str(photos)]


def truncated_jpeg(folder: Path) -> list[str]:
    photos = _photos(folder)
    Image.fromarray(smooth_images(1, (24, 24, 3))[0]).save(photos / "2.jpg")
    (photos / "2.png").unlink()
    content = (photos / "2.jpg").read_bytes()
    (photos / "2.jpg").write_bytes(content[: len(content) // 2])
    return [str(photos)]


def text_named_jpg(folder: Path) -> list[str]:
    photos = _photos(folder)
    (photos / "0.jpg").write_text("I am no image")
    return [str(photos)]


def bomb(folder: Path) -> list[str]:
    """A PNG of a few bytes whose header claims 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    photos = folder / "photos"
    photos.mkdir()
    png = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )
    (photos / "0.png").write_bytes(png)
    return [str(photos)]


def zip_slip(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.write(_image(folder / "x.png"), "../../outside.png")
    return [str(folder / "a.zip")]


def tar_link(folder: Path) -> list[str]:
    with tarfile.open(folder / "a.tar", "w") as archive:
        archive.add(_image(folder / "x.png"), "a/0.png")
        link = tarfile.TarInfo("a/1.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return [str(folder / "a.tar")]


def cut_zip(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.write(_image(folder / "x.png"), "0.png")
    content = (folder / "a.zip").read_bytes()
    (folder / "a.zip").write_bytes(content[:-40])
    return [str(folder / "a.zip")]


def cut_gzip(folder: Path) -> list[str]:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        for i in range(4):
            archive.add(_image(folder / f"{i}.png", seed=i), f"{i}.png")
    content = gzip.compress(body.getvalue())
    (folder / "a.tar.gz").write_bytes(content[: len(content) // 2])
    return [str(folder / "a.tar.gz")]


def nan(folder: Path) -> list[str]:
    values = np.ones((8, 20, 20), np.float32)
    values[5, 3, 3] = np.nan
    return _npy(folder, values)


def infinite_zarr(folder: Path) -> list[str]:
    values = np.random.default_rng(0).normal(size=(30, 20, 20))
    values[17, 3, 3] = np.inf
    zarr.create_array(str(folder / "f.zarr"), data=values, chunks=(10, 20, 20))
    return [str(folder / "f.zarr"), "--data-range=-9,9"]


def complex_values(folder: Path) -> list[str]:
    return _npy(folder, np.ones((8, 20, 20), np.complex64))


def pickled(folder: Path) -> list[str]:
    np.save(folder / "a.npy", np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    return [str(folder / "a.npy")]


def one_axis(folder: Path) -> list[str]:
    return _npy(folder, np.arange(9))


def no_samples(folder: Path) -> list[str]:
    return _npy(folder, np.zeros((0, 20, 20), np.uint8))


def one_sample(folder: Path) -> list[str]:
    return [str(_photos(folder, 1)), "--components", "1"]


def large_cell(folder: Path) -> list[str]:
    return [str(_photos(folder)), "--cell", "25", "--components", "2"]


def many_components(folder: Path) -> list[str]:
    return [str(_photos(folder)), "--cell", "2", "--components", "13"]


def more_components_than_samples(folder: Path) -> list[str]:
    return [str(_photos(folder)), "--components", "7"]


def too_many_cell_axes(folder: Path) -> list[str]:
    return [str(_photos(folder)), "--cell", "4x4x3x2", "--components", "2"]


def crop_too_large(folder: Path) -> list[str]:
    return [str(_photos(folder)), "--crop", "30x30"]


def unreadable_store(folder: Path) -> list[str]:
    (folder / "x.zarr").mkdir()
    (folder / "x.zarr" / "zarr.json").write_text("{ not json")
    return [str(folder / "x.zarr")]


def newer_store(folder: Path) -> list[str]:
    stack = _stack(folder)
    facts = json.loads((stack / "zarr.json").read_text())
    facts["attributes"]["dpca"]["version"] = 99
    (stack / "zarr.json").write_text(json.dumps(facts))
    return [str(stack)]


def several_arrays(folder: Path) -> list[str]:
    group = zarr.open_group(str(folder / "x.zarr"), mode="w")
    for name in ("one", "two"):
        group.create_array(name, data=np.ones((4, 20, 20), np.uint8))
    return [str(folder / "x.zarr")]


def range_not_stated(folder: Path) -> list[str]:
    zarr.create_array(str(folder / "f.zarr"), data=np.random.default_rng(0).normal(size=(30, 20, 20)))
    return [str(folder / "f.zarr"), "--components", "2"]


def missing_shard(folder: Path) -> list[str]:
    stack = _stack(folder)
    sorted((stack / "samples" / "c").rglob("*"))[-1].unlink()
    return [str(stack), "--components", "2"]


def flipped_bit(folder: Path) -> list[str]:
    stack = _stack(folder)
    shard = next(p for p in sorted((stack / "samples" / "c").rglob("*")) if p.is_file())
    content = bytearray(shard.read_bytes())
    content[100] ^= 4
    shard.write_bytes(bytes(content))
    return [str(stack), "--components", "2"]


def output_is_a_file(folder: Path) -> list[str]:
    (folder / "out.zarr").write_text("mine")
    return [str(_photos(folder)), "--components", "2"]


def output_is_a_folder(folder: Path) -> list[str]:
    (folder / "out.zarr").mkdir()
    (folder / "out.zarr" / "thesis.txt").write_text("mine")
    return [str(_photos(folder)), "--components", "2"]


def output_is_another_store(folder: Path) -> list[str]:
    shutil.copytree(_stack(folder), folder / "out.zarr")
    return [str(_photos(folder)), "--components", "2"]


def output_is_being_written(folder: Path) -> list[str]:
    # Held until the interpreter collects it, as another process would.
    workspace = Workspace(folder / "out.zarr", kind="x", fingerprint="y")
    workspace.__enter__()
    _HELD.append(workspace)
    return [str(_photos(folder)), "--components", "2"]


_HELD: list[Workspace] = []

CASES = {
    "missing file": Case(missing, r"nowhere", 3),
    "empty folder": Case(empty_folder, r"no images|empty", 3),
    "no images": Case(no_images, r"no images", 3),
    "mixed sizes": Case(mixed_sizes, r"3\.png.*--resize.*--crop", 3),
    "truncated jpeg": Case(truncated_jpeg, r"2\.jpg.*--on-error skip", 3),
    "text named jpg": Case(text_named_jpg, r"0\.jpg", 3),
    "decompression bomb": Case(bomb, r"0\.png.*60,?000", 3),
    "zip slip": Case(zip_slip, r"outside\.png", 3),
    "tar link": Case(tar_link, r"a/1\.png.*link", 3),
    "cut zip": Case(cut_zip, r"a\.zip", 3),
    "cut gzip": Case(cut_gzip, r"a\.tar\.gz", 3),
    "nan": Case(nan, r"sample 5.*nan.*finite", 3),
    "infinity in a zarr": Case(infinite_zarr, r"sample 17", 3),
    "complex values": Case(complex_values, r"complex64", 3),
    "pickled objects": Case(pickled, r"a\.npy", 3),
    "one axis": Case(one_axis, r"\(9,\)", 3),
    "no samples": Case(no_samples, r"0|no samples", 3),
    "one sample": Case(one_sample, r"1 sample.*at least 2", 3),
    "cell larger than the image": Case(large_cell, r"\(25, 25\).*\(24, 24\)", 3),
    "more components than attributes": Case(many_components, r"13.*12 attributes", 3),
    "more components than samples": Case(more_components_than_samples, r"7.*6 samples", 3),
    "more cell axes than the image": Case(too_many_cell_axes, r"\(4, 4, 3, 2\)", 3),
    "crop larger than the image": Case(crop_too_large, r"30", 3),
    "unreadable store": Case(unreadable_store, r"x\.zarr", 4),
    "newer store": Case(newer_store, r"version 99.*update", 4),
    "several arrays": Case(several_arrays, r"one.*two", 3),
    "range not stated": Case(range_not_stated, r"--data-range", 3),
    "missing shard": Case(missing_shard, r"stack\.zarr", 4),
    "flipped bit": Case(flipped_bit, r"stack\.zarr", 4),
    "output is a file": Case(output_is_a_file, r"out\.zarr.*another output", 4),
    "output is a folder": Case(output_is_a_folder, r"out\.zarr.*another output", 4),
    "output is another store": Case(output_is_another_store, r"out\.zarr.*--overwrite", 4),
    "output is being written": Case(output_is_being_written, r"another run", 4),
}


def _content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", CASES)
def test_one_sentence_a_code_and_no_trace(
    name: str, tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    source, *rest = case.make(tmp_path)
    before = _content(tmp_path)
    code = job(["--source", source, "--output", str(tmp_path / "out.zarr"), "--scheduler", scheduler, *rest])
    error = capsys.readouterr().err
    _HELD.clear()
    assert code == case.code, error
    assert re.search(case.says, error), error
    _is_one_sentence(error)
    after = _content(tmp_path)
    # What was ingested may wait in the work folder for the next try; nothing else may have changed.
    assert {k: v for k, v in after.items() if not k.startswith("out.zarr.partial/")} == {
        k: v for k, v in before.items() if not k.startswith("out.zarr.partial/")
    }


def _is_one_sentence(error: str) -> None:
    assert error.startswith("error: ")
    assert error.endswith("\n")
    assert error.count("\n") == 1, error
    assert "Traceback" not in error


def test_settings_that_differ_from_those_of_the_output(
    tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--source", str(_photos(tmp_path)), "--output", str(tmp_path / "out.zarr"), "--scheduler", scheduler]
    assert job([*argv, "--components", "2"]) == 0
    before = _content(tmp_path / "out.zarr")
    capsys.readouterr()
    assert job([*argv, "--components", "3"]) == 4
    error = capsys.readouterr().err
    _is_one_sentence(error)
    assert "--overwrite" in error
    assert _content(tmp_path / "out.zarr") == before
    assert job([*argv, "--components", "3", "--overwrite"]) == 0
    assert zarr.open_group(str(tmp_path / "out.zarr"), mode="r")["scores"].shape[-1] == 3


@pytest.mark.parametrize(
    "argv",
    [
        ["--cell", "0"],
        ["--cell", "ten"],
        ["--components", "-1"],
        ["--workers", "0"],
        ["--resize", "5"],
        ["--data-range", "1,0"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_told_before_anything_runs(
    argv: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        job(argv)
    assert stop.value.code == 2
    assert "error: argument" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_scheduler_that_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--source", str(_photos(tmp_path)), "--scheduler", "tcp://127.0.0.1:1"]
    assert job([*argv, "--output", str(tmp_path / "out.zarr")]) == 3
    error = capsys.readouterr().err
    assert "127.0.0.1:1" in error
    _is_one_sentence(error)


def test_memory_that_is_no_number_or_too_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--source", str(_photos(tmp_path)), "--output", str(tmp_path / "out.zarr"), "--workers", "1"]
    for memory, word in (("lots", "lots"), ("50MB", "50MB")):
        assert job([*argv, "--memory", memory]) == 3
        error = capsys.readouterr().err
        assert word in error
        _is_one_sentence(error)


def test_cells_that_do_not_fit_the_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.random.default_rng(0).integers(0, 256, (20, 96, 96, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", values)
    argv = ["--source", str(tmp_path / "a.npy"), "--output", str(tmp_path / "out.zarr"), "--cell", "96"]
    # The covariance of 27,648 attributes takes 6 GB.
    assert job([*argv, "--components", "2", "--workers", "1", "--memory", "1GB"]) == 5
    error = capsys.readouterr().err
    assert re.search(r"27,648 attributes.*MB.*smaller cells", error)
    _is_one_sentence(error)
    assert not (tmp_path / "out.zarr").exists()


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A limit on the size of files acts in the program and its workers as a full disk does: a write fails half-way."""
    np.save(tmp_path / "a.npy", np.random.default_rng(0).integers(0, 256, (64, 128, 128, 3), dtype=np.uint8))
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000));"
        "from dpca.cli import main; from storage import ingest, StoreError;"
        f"ingest({str(tmp_path / 'a.npy')!r}, {str(tmp_path / 'out.zarr')!r}, threads=1)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert re.search(r"StoreError: the disk is full while writing .*run the same command again", run.stderr)
    assert not (tmp_path / "out.zarr").exists()
    # With room again, the same call finishes.
    assert ingest(tmp_path / "a.npy", tmp_path / "out.zarr", threads=1).n_samples == 64


def test_a_disk_too_small_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = _photos(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    argv = ["--source", str(photos), "--output", str(tmp_path / "out.zarr"), "--components", "2"]
    assert job([*argv, "--scheduler", scheduler]) == 4
    error = capsys.readouterr().err
    assert "1.0 kB free" in error
    _is_one_sentence(error)
    assert [p.name for p in tmp_path.iterdir()] == ["photos"]


def test_a_model_and_a_stack_that_do_not_belong_together(
    tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = _stack(tmp_path)
    where = ["--scheduler", scheduler]
    model, scores = str(tmp_path / "model.zarr"), str(tmp_path / "scores.zarr")
    assert dpca_main(["fit", str(stack), model, "--cell", "8", "--components", "2", *where]) == 0
    np.save(tmp_path / "b.npy", smooth_images(9, (20, 24, 3)))
    ingest(tmp_path / "b.npy", tmp_path / "other.zarr", threads=1)
    assert dpca_main(["transform", model, str(tmp_path / "other.zarr"), scores, *where]) == 3
    error = capsys.readouterr().err
    assert re.search(r"\(20, 24, 3\).*\(24, 24, 3\)", error)
    _is_one_sentence(error)
    assert dpca_main(["transform", str(stack), str(stack), scores, *where]) == 4
    error = capsys.readouterr().err
    assert "not a model" in error
    _is_one_sentence(error)
    assert dpca_main(["reconstruct", model, str(stack), str(tmp_path / "again.zarr"), *where]) == 4
    _is_one_sentence(capsys.readouterr().err)
    assert not os.path.exists(scores)
