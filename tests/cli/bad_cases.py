"""Invalid inputs that people may give."""

from __future__ import annotations

import gzip
import io
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zarr
from PIL import Image

from dpca.storage import ingest
from dpca.storage.run import Run
from dpca.storage.transaction.workspace import Workspace
from tests.conftest import smooth_images
from tests.helpers.resealing import edit_facts


class Case(NamedTuple):
    """How to make an invalid input in a folder, and a part of the error."""

    make: Callable[[Path], list[str]]
    says: str
    code: int


def save_image(path: Path, shape: tuple[int, ...] = (24, 24, 3), seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(smooth_images(1, shape, seed)[0]).save(path)
    return path


def make_photos(folder: Path, n: int = 6) -> Path:
    for i in range(n):
        save_image(folder / "photos" / f"{i}.png", seed=i)
    return folder / "photos"


def make_stack(folder: Path, n: int = 20, name: str = "stack.zarr") -> Path:
    np.save(folder / "a.npy", smooth_images(n, (24, 24, 3)))
    ingest(folder / "a.npy", folder / name, run=Run(threads=1))
    return folder / name


def save_npy(folder: Path, array: np.ndarray) -> list[str]:
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
    photos = make_photos(folder)
    save_image(photos / "3.png", (24, 25, 3))
    save_image(photos / "4.png", (12, 25, 3))
    return [str(photos)]


def truncated_jpeg(folder: Path) -> list[str]:
    photos = make_photos(folder)
    Image.fromarray(smooth_images(1, (24, 24, 3))[0]).save(photos / "2.jpg")
    (photos / "2.png").unlink()
    content = (photos / "2.jpg").read_bytes()
    (photos / "2.jpg").write_bytes(content[: len(content) // 2])
    return [str(photos)]


def text_named_jpg(folder: Path) -> list[str]:
    photos = make_photos(folder)
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
    for name in ("0.png", "1.png"):
        (photos / name).write_bytes(png)
    return [str(photos)]


def zip_slip(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.write(save_image(folder / "x.png"), "../../outside.png")
        archive.write(folder / "x.png", "inside.png")
    return [str(folder / "a.zip")]


def tar_link(folder: Path) -> list[str]:
    with tarfile.open(folder / "a.tar", "w") as archive:
        archive.add(save_image(folder / "x.png"), "a/0.png")
        link = tarfile.TarInfo("a/1.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return [str(folder / "a.tar")]


def cut_zip(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.write(save_image(folder / "x.png"), "0.png")
    content = (folder / "a.zip").read_bytes()
    (folder / "a.zip").write_bytes(content[:-40])
    return [str(folder / "a.zip")]


def cut_gzip(folder: Path) -> list[str]:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        for i in range(4):
            archive.add(save_image(folder / f"{i}.png", seed=i), f"{i}.png")
    content = gzip.compress(body.getvalue())
    (folder / "a.tar.gz").write_bytes(content[: len(content) // 2])
    return [str(folder / "a.tar.gz")]


def nan(folder: Path) -> list[str]:
    values = np.ones((8, 20, 20), np.float32)
    values[5, 3, 3] = np.nan
    return [*save_npy(folder, values), "--components", "2"]


def infinite_zarr(folder: Path) -> list[str]:
    values = np.random.default_rng(0).normal(size=(30, 20, 20))
    values[17, 3, 3] = np.inf
    zarr.create_array(str(folder / "f.zarr"), data=values, chunks=(10, 20, 20))
    return [str(folder / "f.zarr"), "--data-range=-9,9"]


def complex_values(folder: Path) -> list[str]:
    return save_npy(folder, np.ones((8, 20, 20), np.complex64))


def pickled(folder: Path) -> list[str]:
    np.save(folder / "a.npy", np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    return [str(folder / "a.npy")]


def one_axis(folder: Path) -> list[str]:
    return save_npy(folder, np.arange(9))


def no_samples(folder: Path) -> list[str]:
    return save_npy(folder, np.zeros((0, 20, 20), np.uint8))


def one_sample(folder: Path) -> list[str]:
    return [str(make_photos(folder, 1)), "--components", "1"]


def large_cell(folder: Path) -> list[str]:
    return [str(make_photos(folder)), "--cell", "25x25", "--components", "2"]


def many_components(folder: Path) -> list[str]:
    return [str(make_photos(folder)), "--cell", "2", "--components", "13"]


def more_components_than_samples(folder: Path) -> list[str]:
    return [str(make_photos(folder)), "--components", "7"]


def too_many_cell_axes(folder: Path) -> list[str]:
    return [str(make_photos(folder)), "--cell", "4x4x3x2", "--components", "2"]


def crop_too_large(folder: Path) -> list[str]:
    return [str(make_photos(folder)), "--crop", "30x30"]


def unreadable_store(folder: Path) -> list[str]:
    (folder / "x.zarr").mkdir()
    (folder / "x.zarr" / "zarr.json").write_text("{ not json")
    return [str(folder / "x.zarr")]


def newer_store(folder: Path) -> list[str]:
    stack = make_stack(folder)
    edit_facts(stack, lambda facts: facts.update(version=99))
    return [str(stack)]


def several_arrays(folder: Path) -> list[str]:
    group = zarr.open_group(str(folder / "x.zarr"), mode="w")
    for name in ("one", "two"):
        group.create_array(name, data=np.ones((4, 20, 20), np.uint8))
    return [str(folder / "x.zarr")]


def missing_shard(folder: Path) -> list[str]:
    stack = make_stack(folder)
    sorted((stack / "samples" / "c").rglob("*"))[-1].unlink()
    return [str(stack), "--components", "2"]


def flipped_bit(folder: Path) -> list[str]:
    stack = make_stack(folder)
    shard = next(p for p in sorted((stack / "samples" / "c").rglob("*")) if p.is_file())
    content = bytearray(shard.read_bytes())
    content[100] ^= 4
    shard.write_bytes(bytes(content))
    return [str(stack), "--components", "2"]


def output_is_a_file(folder: Path) -> list[str]:
    (folder / "out.zarr").write_text("mine")
    return [str(make_photos(folder)), "--components", "2"]


def output_is_a_folder(folder: Path) -> list[str]:
    (folder / "out.zarr").mkdir()
    (folder / "out.zarr" / "thesis.txt").write_text("mine")
    return [str(make_photos(folder)), "--components", "2"]


def output_is_another_store(folder: Path) -> list[str]:
    shutil.copytree(make_stack(folder), folder / "out.zarr")
    return [str(make_photos(folder)), "--components", "2"]


def output_is_being_written(folder: Path) -> list[str]:
    # Held until the interpreter collects it, as another process would.
    workspace = Workspace(folder / "out.zarr", kind="x", fingerprint="y")
    workspace.__enter__()
    HELD.append(workspace)
    return [str(make_photos(folder)), "--components", "2"]


HELD: list[Workspace] = []

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
    "missing shard": Case(missing_shard, r"stack\.zarr", 4),
    "flipped bit": Case(flipped_bit, r"stack\.zarr", 4),
    "output is a file": Case(output_is_a_file, r"out\.zarr.*another output", 4),
    "output is a folder": Case(output_is_a_folder, r"out\.zarr.*another output", 4),
    "output is another store": Case(output_is_another_store, r"out\.zarr.*--overwrite", 4),
    "output is being written": Case(output_is_being_written, r"another run", 7),
}
