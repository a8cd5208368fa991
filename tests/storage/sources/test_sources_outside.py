"""What a source may not lead to: other files of the machine, other programs, what this program itself has made."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from matplotlib.figure import Figure

from dpca.report.record import write_report
from dpca.storage.errors import DataError
from dpca.storage.ingest import ingest
from dpca.storage.readers import open_reader
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.storage.sources.made_sources import encoded, jpegs, pixels, pngs, write_folder

VALUES = np.arange(6 * 4 * 5, dtype=np.uint8).reshape(6, 4, 5)


def secret(path: Path) -> Path:
    (path / "secret").write_bytes(VALUES.tobytes())
    with h5py.File(path / "other.h5", "w") as file:
        file["t"] = VALUES
        file["labels"] = np.arange(6)
    return path / "secret"


def external(path: Path, name: str = "t") -> Path:
    with h5py.File(path / "a.h5", "w") as file:
        shape, dtype = ((6, 4, 5), "u1") if name == "t" else ((6,), "u1")
        file.create_dataset(name, shape, dtype, external=[(os.fspath(secret(path)), 0, 120)])
        if name != "t":
            file["t"] = VALUES
    return path / "a.h5"


def virtual(path: Path, name: str = "t") -> Path:
    secret(path)
    shape, dtype = ((6, 4, 5), "u1") if name == "t" else ((6,), "i8")
    layout = h5py.VirtualLayout(shape, dtype)
    layout[:] = h5py.VirtualSource(path / "other.h5", name, shape)
    with h5py.File(path / "a.h5", "w") as file:
        file.create_virtual_dataset(name, layout)
        if name != "t":
            file["t"] = VALUES
    return path / "a.h5"


@pytest.mark.parametrize("name", ["t", "labels"])
def test_external_storage_is_not_followed(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="external"):
        open_reader(external(tmp_path, name))


@pytest.mark.parametrize("name", ["t", "labels"])
def test_virtual_datasets_are_not_followed(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="virtual"):
        open_reader(virtual(tmp_path, name))


@pytest.mark.parametrize("key", ["soft", "out", "g/t", "group/t", "out/../t"])
def test_links_are_not_followed_by_key(key: str, tmp_path: Path) -> None:
    secret(tmp_path)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["inside"] = VALUES
        file["soft"] = h5py.SoftLink("/inside")
        file["out"] = h5py.ExternalLink("other.h5", "/t")
        file["group"] = h5py.ExternalLink("other.h5", "/")
        file["g"] = h5py.SoftLink("/group")
    with pytest.raises(DataError, match=rf"'{key}'.*\binside"):
        open_reader(tmp_path / "a.h5", key=key)
    assert open_reader(tmp_path / "a.h5").name == "a.h5/inside"


@pytest.mark.parametrize(
    "options", [{"compression": "gzip", "shuffle": True, "fletcher32": True}, {"compression": "lzf"}]
)
def test_filters_that_are_known_are_read(options: dict[str, Any], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("t", data=VALUES, chunks=(2, 4, 3), **options)
    np.testing.assert_array_equal(open_reader(tmp_path / "a.h5").fetch(range(6)), VALUES)


def test_other_filters_are_refused_by_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_chunk((6, 4, 5))
        layout.set_filter(32016, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((6, 4, 5))
        dataset = h5py.h5d.create(file.id, b"t", h5py.h5t.STD_U8LE, space, layout)
        dataset.write_direct_chunk((0, 0, 0), VALUES.tobytes(), 1)
    with pytest.raises(DataError, match="32016"):
        open_reader(tmp_path / "a.h5")


def test_a_second_run_does_not_see_the_report_of_the_first(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", jpegs(4))
    before = open_reader(photos).fingerprint()
    write_report(photos / "out.report", {"samples": 4}, {"comparison": Figure()})
    write_report(photos / "img" / "renamed", {"samples": 4}, {"worst": Figure()})
    reader = open_reader(photos)
    assert list(reader.names) == list(jpegs(4))
    assert reader.fingerprint() == before
    # the mark makes a report, not its name, nor names of files in it
    write_folder(photos / "mine.report", {"report.json": b"{}", "index.html": b"<html>", **pngs(1)})
    assert len(open_reader(photos)) == 5
    # A file given by its own name is read.
    assert len(open_reader(photos / "out.report")) == 1


def specials(path: Path) -> dict[str, Path]:
    os.mkfifo(path / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(path / "socket.jpg"))
    (path / "memory.jpg").symlink_to("/proc/self/mem")
    (path / "pages.jpg").symlink_to("/proc/self/pagemap")
    (path / "zero.jpg").symlink_to("/dev/zero")
    return {entry.name: entry for entry in path.iterdir()}


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/mem",
        "/proc/self/pagemap",
        "/proc/kmsg",
        "/proc/self/maps",
        "/dev/zero",
        "/dev/null",
        "/proc",
        "/sys",
    ],
)
def test_what_the_system_shows_is_no_source(path: str, tmp_path: Path) -> None:
    if not os.path.exists(path):
        pytest.skip(f"this system has no {path}")
    with pytest.raises(DataError, match=f"'{path}'") as caught:
        ingest(path, tmp_path / "out.zarr")
    assert "\n" not in str(caught.value)
    assert not os.listdir(tmp_path)


def test_special_files_among_images_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    names = sorted(specials(tmp_path / "in"))
    (tmp_path / "in" / "good.jpg").write_bytes(encoded(pixels(), "JPEG"))
    stack = ingest(tmp_path / "in", tmp_path / "out.zarr", reading=ReadOptions(on_error="skip"), run=Run(threads=1))
    assert stack.names.tolist() == ["good.jpg"]
    assert [name for name, _ in stack.rejected] == names


@pytest.mark.parametrize("name", ["pipe.jpg", "socket.jpg", "memory.jpg", "pages.jpg", "zero.jpg"])
def test_special_files_alone_are_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(DataError, match=name):
        ingest(specials(tmp_path / "in")[name], tmp_path / "out.zarr")


def test_a_link_to_the_system_is_not_entered(tmp_path: Path) -> None:
    write_folder(tmp_path / "in", jpegs(2))
    (tmp_path / "in" / "everything").symlink_to("/proc/self/root/proc")
    assert list(open_reader(tmp_path / "in").names) == list(jpegs(2))
