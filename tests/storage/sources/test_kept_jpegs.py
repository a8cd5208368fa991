"""A stack that keeps JPEG files has the values of an ordinary one, and their bytes."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from PIL import Image

from dpca.storage.arrays import shards
from dpca.storage.arrays.direct import codec_of
from dpca.storage.arrays.kept_jpegs import JPEGCodec, kept_sample
from dpca.storage.disk import folder_bytes
from dpca.storage.errors import DataError, StoreError
from dpca.storage.images import DecodeOptions
from dpca.storage.ingest import ingest, plan_ingest
from dpca.storage.input import open_input
from dpca.storage.integrity.verify import verify
from dpca.storage.readers import open_reader
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.helpers.s3_server import content
from tests.storage.sources.ingesting import BROKEN, SOURCES, bad_files, noted_writes, stacked
from tests.storage.sources.made_sources import (
    contents,
    encoded,
    jpeg_bomb,
    jpegs,
    pixels,
    pngs,
    truth,
    write_folder,
    write_tar,
)

KEEP = ReadOptions(keep_jpegs=True)
RGB, GRAY = pixels(5), pixels(5, channels=1)
PHOTO = encoded(RGB, "JPEG", quality=90)


def turned(orientation: int, picture: np.ndarray[Any, Any] = RGB) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(picture, "JPEG", quality=90, exif=exif)


def without_tables() -> bytes:
    """Return a JPEG with a sound header and end, whose pixels cannot be decoded."""
    at = PHOTO.index(b"\xff\xdb")
    length = int.from_bytes(PHOTO[at + 2 : at + 4])
    return PHOTO[:at] + PHOTO[at + 2 + length :]


def with_damaged_pixels() -> bytes:
    """Return a JPEG of which Pillow decodes what is left."""
    return PHOTO[:-99] + b"\xff\xd9"


def previews() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(RGB).save(buffer, "MPO", quality=90, save_all=True, append_images=[Image.fromarray(RGB[::-1])])
    return buffer.getvalue()


#: Files of a stack in color of 24 x 20 pixels, and whether their bytes are kept.
FILES = {
    "plain": (PHOTO, True),
    "progressive": (encoded(RGB, "JPEG", progressive=True), True),
    "not subsampled": (encoded(RGB, "JPEG", quality=100, subsampling=0), True),
    "gray": (encoded(GRAY, "JPEG"), True),
    "upright by Exif": (turned(1), True),
    "previews": (previews(), True),
    "bytes after the end": (PHOTO + b"\0\n", True),
    "damaged pixels": (with_damaged_pixels(), True),
    "rgb without conversion": (encoded(RGB, "JPEG", keep_rgb=True), True),
    "upside down": (turned(3), False),
    "lying": (turned(6, RGB.swapaxes(0, 1)), False),
    "CMYK": (encoded(Image.fromarray(RGB).convert("CMYK"), "JPEG"), False),
    "PNG": (encoded(RGB), False),
    "transparent": (encoded(Image.fromarray(RGB).convert("RGBA")), False),
}


@pytest.mark.usefixtures("_many_shards")
@pytest.mark.parametrize("kind", SOURCES)
def test_files_arrive_as_they_are(kind: str, tmp_path: Path) -> None:
    files = jpegs(11)
    stack = ingest(SOURCES[kind](tmp_path, files), tmp_path / "out.zarr", reading=KEEP)
    np.testing.assert_array_equal(stack.samples[:], stacked(files))
    assert stack.names.tolist() == list(files)
    assert stack.samples.chunks == (1, 24, 20, 3)
    assert stack.samples.shards == (4, 24, 20, 3)
    assert verify(tmp_path / "out.zarr") == []
    for i, payload in enumerate(files.values()):
        assert payload in (tmp_path / "out.zarr" / "samples" / "c" / str(i // 4) / "0" / "0" / "0").read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_only_files_that_require_decoding_alone_are_kept(name: str, tmp_path: Path) -> None:
    payload, kept = FILES[name]
    chunk = kept_sample(payload, DecodeOptions(sample_shape=RGB.shape, dtype="uint8"))
    assert (chunk == payload) == kept
    assert kept or chunk[:1] == b"\0"


@pytest.mark.parametrize(
    ("payload", "shape", "why"),
    [(PHOTO, (24, 20), "color"), (PHOTO, (20, 24, 3), "20.x.24"), (PHOTO, (24, 21, 3), "24.x.21")],
)
def test_other_shapes_are_refused(payload: bytes, shape: tuple[int, ...], why: str) -> None:
    with pytest.raises(DataError, match=why):
        kept_sample(payload, DecodeOptions(sample_shape=shape, dtype="uint8"))


def test_files_are_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_tar(tmp_path / "a.tar", jpegs(9))
    ingest(source, tmp_path / "whole.zarr", reading=KEEP)
    monkeypatch.setattr("dpca.storage.arrays.shards._PIECE_BYTES", 2500)
    ingest(source, tmp_path / "pieces.zarr", reading=KEEP)
    assert contents(tmp_path / "pieces.zarr") == contents(tmp_path / "whole.zarr")


def test_the_system_may_write_a_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_tar(tmp_path / "a.tar", jpegs(9))
    ingest(source, tmp_path / "whole.zarr", reading=KEEP)
    monkeypatch.setattr(os, "writev", lambda file, pieces: os.write(file, b"".join(pieces)[:700]))
    ingest(source, tmp_path / "parts.zarr", reading=KEEP)
    assert contents(tmp_path / "parts.zarr") == contents(tmp_path / "whole.zarr")


def test_many_files_are_written_in_several_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.sysconf("SC_IOV_MAX") > shards._MOST_PIECES
    written, write = [], os.writev
    monkeypatch.setattr(shards, "_MOST_PIECES", 6)
    monkeypatch.setattr(os, "writev", lambda file, pieces: written.append(len(pieces)) or write(file, pieces))
    ingest(write_tar(tmp_path / "a.tar", jpegs(10)), tmp_path / "s.zarr", reading=KEEP, run=Run(threads=1))
    assert sum(written) == 2 * 10
    assert max(written) == 6
    assert verify(tmp_path / "s.zarr") == []


def test_no_space_is_left_for_files_that_are_not_kept(tmp_path: Path) -> None:
    large = encoded(Image.fromarray(RGB).convert("CMYK"), "JPEG", comment=b"x" * 9000)
    source = write_folder(tmp_path / "in", {"0.jpg": PHOTO, "1.jpg": large})
    stack = ingest(source, tmp_path / "s.zarr", reading=KEEP)
    chunks, index = [len(PHOTO) + 4, 1 + RGB.nbytes + 4], 16 * 2 + 4
    assert Path(stack.array_path, "c/0/0/0/0").stat().st_size == sum(chunks) + index
    np.testing.assert_array_equal(stack.samples[0], truth(PHOTO))


def test_all_kinds_of_images_have_the_values_of_an_ordinary_ingest(tmp_path: Path) -> None:
    files = {f"{i:02d} {name}.jpg": payload for i, (name, (payload, _)) in enumerate(FILES.items())}
    source = write_folder(tmp_path / "in", files)
    plain = ingest(source, tmp_path / "plain.zarr")
    kept = ingest(source, tmp_path / "kept.zarr", reading=KEEP)
    np.testing.assert_array_equal(kept.samples[:], plain.samples[:])
    assert kept.fingerprint != plain.fingerprint
    assert codec_of(kept.samples) is JPEGCodec
    assert verify(tmp_path / "kept.zarr") == []


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_gray_stacks(kind: str, tmp_path: Path) -> None:
    files = {f"{i}.jpg": encoded(pixels(i, channels=1), kind) for i in range(5)}
    files |= {"5.jpg": turned(8, pixels(5, 20, 24, channels=1))}
    source = write_folder(tmp_path / "in", files)
    kept = ingest(source, tmp_path / "kept.zarr", reading=KEEP)
    np.testing.assert_array_equal(kept.samples[:], ingest(source, tmp_path / "plain.zarr").samples[:])
    assert kept.sample_shape == (24, 20)
    write_folder(source, {"6.jpg": PHOTO})
    with pytest.raises(DataError, match="color"):
        ingest(source, tmp_path / "more.zarr", reading=KEEP)
    rgb = ingest(source, tmp_path / "rgb.zarr", reading=ReadOptions("rgb", keep_jpegs=True))
    np.testing.assert_array_equal(rgb.samples[-1], truth(PHOTO))
    np.testing.assert_array_equal(rgb.samples[:6], np.repeat(kept.samples[:][..., None], 3, -1))


@pytest.mark.usefixtures("_many_shards")
@pytest.mark.parametrize("kind", ["folder", "tgz"])
def test_the_same_files_are_rejected(kind: str, tmp_path: Path) -> None:
    bad = {2: BROKEN, 5: b"text", 6: encoded(pixels(9, 30, 20), "JPEG"), 9: jpeg_bomb(), 13: PHOTO[:-2]}
    source = SOURCES[kind](tmp_path, bad_files(15, bad))
    skip = {name: ReadOptions(on_error="skip", keep_jpegs=name == "kept") for name in ("plain", "kept")}
    plain, kept = (ingest(source, tmp_path / name, reading=reading) for name, reading in skip.items())
    assert kept.rejected == plain.rejected
    assert len(kept.rejected) == 5
    np.testing.assert_array_equal(kept.samples[:], plain.samples[:])
    with pytest.raises(DataError, match="000003"):
        ingest(source, tmp_path / "out", reading=KEEP)


def test_a_file_whose_pixels_cannot_be_decoded_is_named_when_it_is_read(tmp_path: Path) -> None:
    source = SOURCES["tar"](tmp_path, bad_files(15, {12: without_tables()}))
    with pytest.raises(DataError, match="000013"):
        ingest(source, tmp_path / "plain.zarr")
    stack = ingest(source, tmp_path / "kept.zarr", reading=KEEP)
    np.testing.assert_array_equal(stack.samples[:2], stacked(jpegs(2)))
    with pytest.raises(StoreError, match=r"sample.12:.its.JPEG.is.broken"):
        _ = stack.samples[1:, :4]
    (problem,) = verify(tmp_path / "kept.zarr")
    assert "sample 12" in problem
    assert "broken" in problem


@pytest.mark.parametrize("options", [{"crop": (8, 8)}, {"resize": (8, 8)}, {"color": "gray"}])
def test_options_that_change_pixels_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="keep_jpegs"):
        ReadOptions(keep_jpegs=True, **options)


@pytest.mark.parametrize("kind", ["array", "16 bits", "region"])
def test_sources_without_bytes_as_they_are_are_refused(kind: str, tmp_path: Path) -> None:
    given: Any = write_folder(tmp_path / "in", {"a.png": encoded(Image.fromarray(GRAY.astype(np.uint16)))})
    if kind == "array":
        np.save(given := tmp_path / "a.npy", np.ones((4, 8, 8), "u1"))
    elif kind == "region":
        np.save(tmp_path / "mask.npy", np.eye(24, 20))
        given = open_input(write_folder(tmp_path / "jpegs", jpegs(3)), mask=str(tmp_path / "mask.npy"))
    with pytest.raises(DataError, match="keep_jpegs"):
        ingest(given, tmp_path / "out.zarr", reading=KEEP)
    assert not list(tmp_path.glob("out.zarr*"))


def test_the_plan_has_the_layout_of_the_stack(tmp_path: Path) -> None:
    reader = open_reader(write_tar(tmp_path / "a.tar", jpegs(40)))
    shape, dtype, layout, axes = plan_ingest(reader, KEEP, lambda axes: (5, 5), None)
    stack = ingest(reader, tmp_path / "out.zarr", cell_shape=5, reading=KEEP)
    assert (stack.shape, stack.dtype, stack.axes) == (shape, dtype, axes)
    assert (stack.samples.chunks, stack.samples.shards) == (layout.chunks, layout.shards)
    larger = ingest(reader, tmp_path / "plain.zarr", cell_shape=5)
    assert folder_bytes(tmp_path / "out.zarr" / "samples") < folder_bytes(tmp_path / "plain.zarr" / "samples")
    assert larger.nbytes == stack.nbytes


@pytest.mark.usefixtures("_many_shards")
def test_a_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_folder(tmp_path / "t", jpegs(23))
    ingest(source, tmp_path / "whole.zarr", reading=KEEP)
    broken = source / "img" / "000018.jpg"
    payload = broken.read_bytes()
    broken.write_bytes(bytes(len(payload)))  # of the same size, so that the source is the same
    with pytest.raises(DataError, match="000018"):
        ingest(source, tmp_path / "out.zarr", reading=KEEP, run=Run(threads=1))
    broken.write_bytes(payload)
    written = noted_writes(monkeypatch)
    ingest(source, tmp_path / "out.zarr", reading=KEEP, run=Run(threads=1))
    assert written == [16, 20]
    assert contents(tmp_path / "out.zarr") == contents(tmp_path / "whole.zarr")


@pytest.mark.usefixtures("_many_shards")
def test_a_cluster_and_an_object_store_make_the_same_store(tmp_path: Path, client: Client) -> None:
    source = SOURCES["tgz"](tmp_path, {**bad_files(9, {3: BROKEN, 4: turned(3)}), **pngs(3)})
    skip = ReadOptions(on_error="skip", keep_jpegs=True)
    here = ingest(source, tmp_path / "here", reading=skip)
    ingest(source, tmp_path / "there", reading=skip, run=Run(client=client))
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    url = "memory://bucket/kept.zarr"
    remote = ingest(source, url, reading=skip)
    np.testing.assert_array_equal(remote.samples[:], here.samples[:])
    np.testing.assert_array_equal(remote.samples[3, 4:9, 2], here.samples[3, 4:9, 2])
    assert content(url) == contents(tmp_path / "here")
    assert verify(url) == []
