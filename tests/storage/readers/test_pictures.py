"""Still images of every format that is read, known by their content, against what Pillow makes of them."""

from __future__ import annotations

import base64
import io
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dpca.storage import ingest
from dpca.storage.errors import DataError
from dpca.storage.images import decode
from dpca.storage.pictures import PICTURES, picture_of, plugin_of
from dpca.storage.readers import open_reader
from tests.storage.sources.made_sources import encoded, pixels, truth, write_folder, write_lsun, write_tar, write_zip

GRAY, RGB = pixels(channels=1), pixels()

pillow_heif = pytest.importorskip("pillow_heif")
pillow_heif.register_heif_opener()

# name here, name in Pillow, options
WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "GIF": ("GIF", {}),
    "BMP": ("BMP", {}),
    "PBM, PGM, PPM": ("PPM", {}),
    "AVIF": ("AVIF", {"quality": 90, "speed": 10}),
    "HEIC": ("HEIF", {"quality": 90}),
    "JPEG 2000": ("JPEG2000", {}),
    "QOI": ("QOI", {}),
    "PCX": ("PCX", {}),
    "SGI": ("SGI", {}),
    "TGA": ("TGA", {}),
}


def sun(picture: np.ndarray[Any, Any]) -> bytes:
    """Encode as a Sun raster, which Pillow reads only: the header, and blue before red."""
    height, width = picture.shape[:2]
    head = struct.pack(">8I", 0x59A66A95, width, height, 24, picture.size, 1, 0, 0)
    return head + picture[..., ::-1].tobytes()


def psd(picture: np.ndarray[Any, Any]) -> bytes:
    """Encode as a document of Photoshop without layers, which Pillow reads only: plane after plane."""
    height, width, channels = picture.shape
    head = b"8BPS" + struct.pack(">H6xHIIHH", 1, channels, height, width, 8, 3)
    return head + bytes(12) + b"\0\0" + np.moveaxis(picture, -1, 0).tobytes()


def made(name: str) -> bytes:
    if name in WRITTEN:
        kind, options = WRITTEN[name]
        return encoded(RGB, kind, **options)
    return {"Sun raster": sun, "PSD": psd}[name](RGB)


PAYLOADS = {name: made(name) for name in (*WRITTEN, "Sun raster", "PSD")}
FILES = {f"s{i:02d}": payload for i, payload in enumerate(PAYLOADS.values()) if payload is not PAYLOADS["TGA"]}


@pytest.mark.parametrize("name", PAYLOADS)
def test_pixels_are_those_of_pillow(name: str) -> None:
    payload = PAYLOADS[name]
    found = picture_of(payload)
    assert found is not None
    assert found.name == name
    with Image.open(io.BytesIO(payload)) as image:
        assert isinstance(image, plugin_of(found))
        np.testing.assert_array_equal(decode(payload), np.asarray(image.convert("RGB")))


def test_every_format_is_tried() -> None:
    tried = {*PAYLOADS, "JPEG", "PNG", "WebP", "TIFF"}
    missing = {picture.name for picture in PICTURES} - tried
    assert not missing, f"add an encoded image of {sorted(missing)} to WRITTEN or PAYLOADS in {__file__}"
    assert tried == {picture.name for picture in PICTURES}


@pytest.mark.parametrize("name", sorted(set(PAYLOADS) - {"TGA"}))
def test_a_format_is_known_by_its_first_bytes(name: str) -> None:
    assert picture_of(PAYLOADS[name][:64]) is picture_of(PAYLOADS[name])


@pytest.mark.parametrize("text", [b"P5 miles to go", b"BMW", b"P3", b"GIF", b"Pfad", b"P1\nname,value\n", b"\n"])
def test_text_is_no_image(text: bytes) -> None:
    assert picture_of(text.ljust(64)) is None


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80))
def test_noise_is_hardly_an_image(noise: bytes) -> None:
    assert picture_of(noise) is None or any(picture.begins.match(noise) for picture in PICTURES)


CONTAINERS: dict[str, Callable[[Path, dict[str, bytes]], Path]] = {
    "folder": lambda path, files: write_folder(path / "t", files),
    "zip": lambda path, files: write_zip(path / "a.zip", files),
    "deflated zip": lambda path, files: write_zip(path / "a.zip", files, 8),
    "tar": lambda path, files: write_tar(path / "a.tar", files),
    "tar.gz": lambda path, files: write_tar(path / "a.tgz", files, "gz"),
    "lmdb": lambda path, files: write_lsun(path / "l", {name.encode(): payload for name, payload in files.items()}),
}


@pytest.mark.parametrize("suffix", ["", ".txt", ".jpg"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_names_do_not_matter(container: str, suffix: str, tmp_path: Path) -> None:
    files = {f"x/{name}{suffix}": payload for name, payload in FILES.items()}
    source = CONTAINERS[container](tmp_path, files | ({} if container == "lmdb" else {"README": b"P5 is a format"}))
    reader = open_reader(source)
    assert [*reader.names] == [*files]
    assert reader.ignored == (container != "lmdb")
    assert next(iter(reader.stream([range(len(files))]))) == [*files.values()]


def test_a_tree_of_faces_in_pgm(tmp_path: Path) -> None:
    faces = {f"s{i}/{j}.pgm": encoded(pixels(10 * i + j, 112, 92, 1), "PPM") for i in range(1, 4) for j in range(1, 5)}
    stack = ingest(write_folder(tmp_path / "orl", {**faces, "README": b"The ORL faces"}), tmp_path / "out.zarr")
    assert stack.names.tolist() == sorted(faces)
    np.testing.assert_array_equal(stack.samples[:], [truth(faces[name]) for name in sorted(faces)])


@pytest.mark.parametrize("maxval", [1, 15, 255, 256, 4095, 65535])
@pytest.mark.parametrize("plain", [False, True])
def test_gray_of_any_depth_is_scaled(maxval: int, plain: bool) -> None:
    values = np.arange(12).reshape(3, 4) * maxval // 11
    body = (
        " ".join(map(str, values.ravel())).encode()
        if plain
        else values.astype(">u2" if maxval > 255 else "u1").tobytes()
    )
    decoded = decode(b"P%d 4 3 %d\n" % (2 if plain else 5, maxval) + body)
    full = 65535 if maxval > 255 else 255
    assert decoded.dtype == (np.uint16 if maxval > 255 else np.uint8)
    np.testing.assert_allclose(decoded, values * full / maxval, atol=0.5)


def test_floats_in_pfm() -> None:
    values = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(decode(b"Pf\n4 3\n-1.0\n" + values[::-1].astype("<f4").tobytes()), values)


def jpeg2000(dtype: str, channels: int) -> bytes:
    values = (pixels(channels=channels).astype(np.uint16) * 257).astype(dtype)
    payload = bytearray(encoded(Image.fromarray(values) if channels == 1 else pixels(), "JPEG2000"))
    if channels > 1:
        at = payload.index(b"\xff\x4f\xff\x51")
        payload[at + 42] = 15
    return bytes(payload)


# 64 x 64 black pixels of 10 bits, written by SVT-AV1
HIGH_AVIF = base64.b64decode(
    "AAAAIGZ0eXBhdmlmAAAAAGF2aWZtaWYxbWlhZk1BMUIAAAD5bWV0YQAAAAAAAAAvaGRscgAAAAAAAAAAcGljdAAAAAAAAAAAAAAAAFBpY3R1"
    "cmVIYW5kbGVyAAAAAA5waXRtAAAAAAABAAAAHmlsb2MAAAAARAAAAQABAAAAAQAAASEAAAAgAAAAKGlpbmYAAAAAAAEAAAAaaW5mZQIAAAAA"
    "AQAAYXYwMUNvbG9yAAAAAGppcHJwAAAAS2lwY28AAAAUaXNwZQAAAAAAAABAAAAAQAAAABBwaXhpAAAAAAMKCgoAAAAMYXYxQ4EATAAAAAAT"
    "Y29scm5jbHgAAgACAAIAAAAAF2lwbWEAAAAAAAAAAQABBAECgwQAAAAobWRhdAoKAAAAAq//jV84CDISEAC6AgssUUEAAAgH7kP72Ndw"
)


def high_heic() -> bytes:
    values = pixels().astype(np.uint16) * 257
    made = pillow_heif.from_bytes("RGB;16", (20, 24), values.tobytes())
    made.save(buffer := io.BytesIO(), save_to_12bit=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"P6 4 3 65535\n" + bytes(72), "has 16 bits in each channel"),
        (jpeg2000("uint16", 3), "has 16 bits in each channel"),
        (HIGH_AVIF, "has more than 8 bits in each channel"),
        (high_heic(), r"has 1\d bits in each channel"),
    ],
    ids=["PPM", "JPEG 2000", "AVIF", "HEIC"],
)
def test_color_that_would_be_cut_is_refused(payload: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        decode(payload)


def test_gray_of_16_bits_in_jpeg_2000() -> None:
    payload = jpeg2000("uint16", 1)
    np.testing.assert_array_equal(decode(payload), pixels(channels=1).astype(np.uint16) * 257)


@pytest.mark.parametrize("kind", ["GIF", "AVIF"])
def test_animations_are_refused(kind: str) -> None:
    more = [Image.fromarray(pixels(i)) for i in range(1, 3)]
    with pytest.raises(DataError, match="frame"):
        decode(encoded(RGB, kind, save_all=True, append_images=more))


@pytest.mark.parametrize("name", PAYLOADS)
def test_cut_files_are_refused(name: str) -> None:
    whole = PAYLOADS[name]
    for cut in (0.1, 0.5, 0.95):
        with pytest.raises(DataError):
            decode(whole[: int(len(whole) * cut)])


@pytest.mark.parametrize(
    "bomb",
    [
        b"P5 99999 99999 255\n" + bytes(99),
        b"qoif" + struct.pack(">IIBB", 99999, 99999, 3, 0) + bytes(99),
        b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + PAYLOADS["GIF"][13:],
        PAYLOADS["BMP"][:18] + struct.pack("<ii", 99999, 99999) + PAYLOADS["BMP"][26:],
        struct.pack(">8I", 0x59A66A95, 99999, 99999, 24, 0, 1, 0, 0) + bytes(99),
        b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 99999, 99999, 8, 3) + bytes(99),
    ],
    ids=["PGM", "QOI", "GIF", "BMP", "Sun raster", "PSD"],
)
def test_bombs_are_refused_by_their_headers(bomb: bytes) -> None:
    with pytest.raises(DataError, match="limit"):
        decode(bomb)


def test_a_missing_plug_in_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    plugin_of.cache_clear()
    with pytest.raises(DataError, match=r"dask-dpca\[heic\]"):
        decode(PAYLOADS["HEIC"])
