"""Frames of videos that FFmpeg encoded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.storage import ingest
from dpca.storage.errors import DataError
from dpca.storage.readers import open_reader
from dpca.storage.run import Run
from tests.storage.sources.made_sources import pixels

av = pytest.importorskip("av")


def frames(n: int = 12, channels: int = 3) -> np.ndarray[Any, Any]:
    return np.stack([pixels(i, 48, 64, channels) for i in range(n)])


def save(path: Path, x: np.ndarray[Any, Any], codec: str, pixel_format: str) -> Path:
    with av.open(path, "w") as file:
        stream = file.add_stream(codec, rate=10)
        stream.height, stream.width, stream.pix_fmt = *x.shape[1:3], pixel_format
        for one in x:
            frame = av.VideoFrame.from_ndarray(one, format="rgb24" if x.ndim == 4 else "gray")
            for packet in stream.encode(frame.reformat(format=pixel_format)):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)
    return path


def test_lossless_frames_come_out_as_they_went_in(tmp_path: Path) -> None:
    x = frames()
    reader = open_reader(save(tmp_path / "s.mkv", x, "ffv1", "bgr0"))
    assert (len(reader), reader.sample_shape, reader.axes) == (12, (48, 64, 3), ("y", "x", "channel"))
    some = [[0, 1], [4], [9, 11]]
    for block, indices in zip(reader.stream(some), some, strict=True):
        np.testing.assert_array_equal(block, x[indices])
    stack = ingest(tmp_path / "s.mkv", tmp_path / "out.zarr", run=Run(threads=1))
    np.testing.assert_array_equal(stack.samples[:], x)


def test_gray_frames_stay_gray(tmp_path: Path) -> None:
    x = frames(channels=1)
    reader = open_reader(save(tmp_path / "s.avi", x, "ffv1", "gray"))
    np.testing.assert_array_equal(reader.fetch(range(12)), x)


@pytest.mark.parametrize(("name", "codec"), [("s.mp4", "libx264"), ("s.mov", "mpeg4"), ("s.webm", "libvpx-vp9")])
def test_lossy_frames_are_near_and_in_order(name: str, codec: str, tmp_path: Path) -> None:
    x = np.stack([np.full((48, 64, 3), 20 * i + 10, np.uint8) for i in range(12)])
    reader = open_reader(save(tmp_path / name, x, codec, "yuv420p"))
    np.testing.assert_allclose(next(iter(reader.stream([range(12)]))), x, atol=9)


def test_ten_bits_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "s.mkv", frames(3), "ffv1", "yuv420p10le")
    with pytest.raises(DataError, match=r"\b10.bits"):
        open_reader(path)


@pytest.mark.parametrize("cut", [0.02, 0.5, 0.9])
def test_cut_videos_are_refused_or_shorter(cut: float, tmp_path: Path) -> None:
    path = save(tmp_path / "s.mp4", frames(), "libx264", "yuv420p")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * cut)])
    with pytest.raises(DataError, match=r"s\.mp4.*truncated"):
        ingest(path, tmp_path / "out.zarr", run=Run(threads=1))


def test_nothing_outside_is_followed(tmp_path: Path) -> None:
    playlist = b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"
    for name, head in (("s.avi", b""), ("t.avi", b"RIFF\0\0\0\0AVI "), ("s.mkv", b"\x1aE\xdf\xa3")):
        (tmp_path / name).write_bytes(head + playlist)
        with pytest.raises(DataError, match="format|video"):
            open_reader(tmp_path / name)


def test_a_missing_library_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "s.mkv", frames(2), "ffv1", "bgr0")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(DataError, match=r"dask-dpca\[video\]"):
        open_reader(path)
