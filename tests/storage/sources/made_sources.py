"""Sources that the tests make: images in every form and packing, sound and hostile."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

LFW = Path(__file__).parents[4] / "shared" / "data"


def pixels(seed: int = 0, height: int = 24, width: int = 20, channels: int = 3) -> np.ndarray[Any, Any]:
    """Return a smooth picture with a little noise, uint8; gray (height, width) for one channel."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / rng.uniform(2, 9) + rng.uniform(0, 6)) + np.cos(y / rng.uniform(2, 9)) for _ in range(channels)]
    picture = np.stack(waves, -1) * 55 + 127 + rng.normal(0, 4, (height, width, channels))
    return picture.clip(0, 255).astype(np.uint8).squeeze(-1 if channels == 1 else ())


def encoded(picture: np.ndarray[Any, Any] | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Encode with Pillow."""
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def truth(payload: bytes) -> np.ndarray[Any, Any]:
    """Decode with nothing but Pillow."""
    with Image.open(io.BytesIO(payload)) as image:
        return np.asarray(image)


def jpegs(n: int, **shape: int) -> dict[str, bytes]:
    """Return names and JPEG files."""
    return {f"img/{i:06d}.jpg": encoded(pixels(i, **shape), "JPEG", quality=90) for i in range(1, n + 1)}


def pngs(n: int, **shape: int) -> dict[str, bytes]:
    """Return names and PNG files."""
    return {f"img/{i:06d}.png": encoded(pixels(i, **shape)) for i in range(1, n + 1)}


def write_folder(root: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below a folder."""
    for name, payload in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)
    return root


def member(
    name: str, payload: bytes = b"", type: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    """Return one member of a tar archive, of any type and name."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(payload), type, link
    return info, payload


def write_tar(
    path: Path, files: Mapping[str, bytes] | Sequence[tuple[tarfile.TarInfo, bytes]], compression: str = ""
) -> Path:
    """Write a tar archive, in the order given."""
    members = [member(*item) for item in files.items()] if isinstance(files, Mapping) else files
    with tarfile.open(path, f"w:{compression}") as archive:  # type: ignore[call-overload]
        for info, payload in members:
            archive.addfile(info, io.BytesIO(payload))
    return path


def write_zip(path: Path, files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    """Write a zip archive, in the order given."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, payload in files.items():
            archive.writestr(name, payload)
    return path


def write_lsun(path: Path, files: Mapping[bytes, bytes]) -> Path:
    """Write an LMDB database as LSUN is published: a folder with data.mdb, encoded images by key."""
    import lmdb

    with (
        lmdb.open(os.fspath(path), map_size=1 << 26) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, payload in files.items():
            transaction.put(key, payload)
    return path


def write_idx(path: Path, values: np.ndarray[Any, Any], code: int = 0x08) -> Path:
    """Write an IDX file, compressed if its name says so."""
    import gzip

    content = bytes([0, 0, code, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def png_bomb(width: int, height: int) -> bytes:
    """Return a PNG of a few hundred bytes whose header claims a huge picture."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(4096))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def jpeg_bomb() -> bytes:
    """Return a small JPEG whose frame header claims 65500 x 65500 pixels."""
    payload = bytearray(encoded(pixels(), "JPEG"))
    frame = payload.index(b"\xff\xc0")
    payload[frame + 5 : frame + 9] = struct.pack(">HH", 65500, 65500)
    return bytes(payload)


def webp_bomb() -> bytes:
    """Return a small WebP whose canvas claims 16384 x 16384 pixels."""
    payload = bytearray(encoded(Image.fromarray(pixels()).convert("RGBA"), "WEBP", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0"))
    assert payload[12:16] == b"VP8X"
    payload[24:30] = b"\xff\x3f\x00" * 2
    return bytes(payload)


def tiff_bomb() -> bytes:
    """Return a small TIFF whose header claims 60000 x 60000 pixels."""
    payload = encoded(pixels(channels=1), "TIFF")
    for tag, value in ((256, 20), (257, 24)):
        old = struct.pack("<HHI", tag, 4, 1) + struct.pack("<I", value)
        if old not in payload:
            old = struct.pack("<HHI", tag, 3, 1) + struct.pack("<HH", value, 0)
        assert payload.count(old) == 1
        payload = payload.replace(old, struct.pack("<HHI", tag, 4, 1) + struct.pack("<I", 60000))
    return payload


def contents(store: Path) -> dict[str, bytes]:
    """Return every file of a store, to compare two byte for byte."""
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}
