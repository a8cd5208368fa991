"""Sources in object stores and on web servers are read as those on disk."""

from __future__ import annotations

import re
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from dpca.storage import StoreError, ingest, open_stack, verify
from dpca.storage.errors import DataError
from dpca.storage.readers import open_reader
from dpca.storage.remote.objects import ObjectPath
from tests.conftest import smooth_images, write_images
from tests.helpers.s3_server import content, upload
from tests.storage.transaction.workspaces import finish


def sources(folder: Path) -> dict[str, bytes]:
    """Images as files, and in archives; an array."""
    write_images(folder / "photos", 9, (20, 16, 3))
    files = content(folder / "photos")
    made = {f"photos/{name}": text for name, text in files.items()} | {"photos/notes.txt": b"none"}
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    for suffix, mode in ((".tar", "w"), (".tar.gz", "w:gz")):
        with tarfile.open(folder / f"a{suffix}", mode) as archive:
            archive.add(folder / "photos", "photos")
    np.save(folder / "a.npy", smooth_images(12, (8, 9)).astype("f4"))
    np.save(folder / "turned.npy", np.asfortranarray(smooth_images(12, (8, 9))))
    return made | {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()}


@pytest.mark.parametrize("protocol", ["memory", "s3"])
def test_sources_in_a_bucket_are_those_on_disk(tmp_path, bucket, protocol):
    url = bucket if protocol == "s3" else "memory://bucket/sources"
    for name, text in sources(tmp_path).items():
        (ObjectPath(url) / name).write_bytes(text)
    (tmp_path / "photos/notes.txt").write_bytes(b"none")
    for name in ("photos", "photos/*.png", "a.zip", "a.tar", "a.tar.gz", "a.npy", "turned.npy"):
        disk, there = open_reader(str(tmp_path / name)), open_reader(f"{url}/{name}")
        assert (list(there.names), there.kind, there.name) == (list(disk.names), disk.kind, disk.name)
        assert (there.fingerprint(), there.others) == (disk.fingerprint(), disk.others)
        ours, theirs = disk.fetch([1, 2, 5]), there.fetch([1, 2, 5])
        assert np.array_equal(ours, theirs) if isinstance(ours, np.ndarray) else ours == theirs


def test_a_stack_of_images_in_a_bucket_is_that_of_the_disk(tmp_path, bucket):
    sources(tmp_path)
    ours = ingest(tmp_path / "photos", tmp_path / "out.zarr")
    ingest(upload(tmp_path / "photos", f"{bucket}/photos"), f"{bucket}/out.zarr")
    assert content(f"{bucket}/out.zarr") == content(ours.path)
    assert verify(f"{bucket}/out.zarr") == []
    assert not ObjectPath(f"{bucket}/out.zarr.partial").exists()


def test_a_stack_in_a_bucket_is_read_where_it_is_and_copied(tmp_path, bucket):
    np.save(tmp_path / "a.npy", smooth_images(12, (8, 9)))
    ours = ingest(tmp_path / "a.npy", tmp_path / "a.zarr")
    url = upload(tmp_path / "a.zarr", f"{bucket}/a.zarr")
    there = open_stack(url)
    assert (there.fingerprint, there.shape, there.names.tolist()) == (ours.fingerprint, ours.shape, ours.names.tolist())
    assert np.array_equal(there.samples[3:7], ours.samples[3:7])
    assert verify(f"{url}/samples") == []


class Web(SimpleHTTPRequestHandler):
    """Serves files, and ranges of them, as real web servers do."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        text, part = path.read_bytes(), re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if part is not None:
            text = text[int(part[1]) : int(part[2]) + 1 if part[2] else None]
        self.send_response(200 if part is None else 206)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web(tmp_path):
    """Address of a web server of the files of a test."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Web, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_web_server_is_read_and_not_written(tmp_path, web):
    sources(tmp_path)
    ours = ingest(tmp_path / "a.npy", tmp_path / "a.zarr")
    assert np.array_equal(open_stack(f"{web}/a.zarr").samples[2:5], ours.samples[2:5])
    for name in ("a.npy", "a.zip", "photos/photo-0001.png"):
        assert open_reader(f"{web}/{name}").fingerprint() == open_reader(str(tmp_path / name)).fingerprint()
    with pytest.raises(DataError, match="nothing"):
        open_reader(f"{web}/none.zip")
    with pytest.raises(StoreError, match="URL"):
        ingest(f"{web}/a.npy", f"{web}/b.zarr")


def test_files_below_a_store_or_hidden_are_no_images(tmp_path, bucket):
    sources(tmp_path)
    upload(tmp_path / "photos", bucket)
    finish(f"{bucket}-made.zarr")
    for name, text in content(f"{bucket}-made.zarr").items():
        (ObjectPath(bucket) / "made.zarr" / name).write_bytes(text)
    (ObjectPath(bucket) / "made.zarr/x.png").write_bytes(b"")
    (ObjectPath(bucket) / ".hidden/x.png").write_bytes(b"")
    assert len(open_reader(bucket)) == 9


@pytest.mark.parametrize(
    ("source", "says"),
    [("none.zip", "there is nothing at"), ("*.tif", "nothing matches"), ("a.h5", "download it")],
)
def test_a_source_that_is_not_read_is_told(bucket, source, says):
    (ObjectPath(bucket) / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(600))
    with pytest.raises(DataError, match=says):
        open_reader(f"{bucket}/{source}")
