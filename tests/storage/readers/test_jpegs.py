"""Shapes from the headers of JPEGs: a header that is remembered says the same as one that is read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import simplejpeg
from PIL import Image

from dpca.storage import jpegs
from dpca.storage.arrays.kept_jpegs import kept_sample
from dpca.storage.errors import DataError
from dpca.storage.images import DecodeOptions
from dpca.storage.jpegs import header_of_jpeg, upright_shape
from tests.storage.sources.made_sources import encoded, pixels


def jpeg(seed: int = 0, height: int = 24, width: int = 20, channels: int = 3, **options: object) -> bytes:
    return encoded(pixels(seed, height, width, channels), "JPEG", **options)


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return jpeg(exif=exif)


COLOR = (24, 20, 3)
FILES = [
    (jpeg(0), COLOR),
    (jpeg(1), COLOR),
    (jpeg(2, 20, 24), (20, 24, 3)),
    (jpeg(3), COLOR),
    (jpeg(4, channels=1), (24, 20)),
    (jpeg(5, quality=100, subsampling=0), COLOR),
    (jpeg(6, optimize=True), COLOR),
    (jpeg(7, progressive=True), COLOR),
    (jpeg(8, comment=b"x" * 5000), COLOR),
    (turned(), None),
    (encoded(Image.fromarray(pixels(9)).convert("CMYK"), "JPEG"), None),
    (jpeg(0)[:300], None),
    (jpeg(0)[:2] + b"\xff\xd0" + jpeg(0)[2:], None),
]


@pytest.fixture(autouse=True)
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """The headers that libjpeg-turbo reads."""
    found: list[bytes] = []
    reading = simplejpeg.decode_jpeg_header
    monkeypatch.setattr(simplejpeg, "decode_jpeg_header", lambda payload: found.append(payload) or reading(payload))
    monkeypatch.setattr(jpegs, "_latest", None)
    return found


@pytest.mark.parametrize("before", range(len(FILES)))
def test_any_file_may_precede_another(before: int) -> None:
    for payload, shape in FILES:
        upright_shape(FILES[before][0])
        assert upright_shape(payload) == shape
        assert upright_shape(payload) == shape


def test_headers_that_are_equal_are_read_once(read: list[bytes]) -> None:
    files = [jpeg(seed) for seed in range(5)]
    assert len(set(files)) == 5
    assert [upright_shape(one) for one in files] == [COLOR] * 5
    assert len(read) == 1
    assert upright_shape(jpeg(0, 24, 21)) == (24, 21, 3)
    assert len(read) == 2


def test_long_headers_are_read_each_time(read: list[bytes]) -> None:
    for _ in range(2):
        assert upright_shape(jpeg(8, comment=b"x" * 5000)) == COLOR
    assert len(read) == 2


def test_the_pixels_may_end_anywhere_behind_a_known_header() -> None:
    payload = jpeg(0)
    end = payload.index(b"\xff\xda") + 2 + 12
    assert upright_shape(payload) == upright_shape(payload[:end]) == header_of_jpeg(payload[:end]) == COLOR
    rules = DecodeOptions(sample_shape=COLOR, dtype="uint8")
    assert kept_sample(payload, rules) == payload
    for stop in (end - 1, end, end + 50):
        with pytest.raises(DataError, match="truncated"):
            kept_sample(payload[:stop], rules)
