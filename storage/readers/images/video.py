"""Frames of videos (MP4, MOV, Matroska, WebM, AVI), read with PyAV, one sample per frame.

One process reads a video from its beginning to its end. The decoder receives only the bytes of this file and the format
of its container, so playlists and references in a malicious file are not followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.layout import CHANNEL
from dpca.storage.errors import DataError
from dpca.storage.images import MAX_PIXELS
from dpca.storage.readers.arrays.raw import ArrayReader
from dpca.storage.readers.base import require, source_errors
from dpca.storage.readers.format import Format

# Names of containers in FFmpeg, by offset and content of their first bytes.
_CONTAINERS = {
    (4, b"ftyp"): "mov",
    (4, b"moov"): "mov",
    (4, b"wide"): "mov",
    (0, b"\x1aE\xdf\xa3"): "matroska",
    (8, b"AVI "): "avi",
}
_REMEDY = "convert it with ffmpeg -i {} -pix_fmt yuv420p -c:v libx264 OUT.mkv"


class VideoReader(ArrayReader):
    """Frames of the first video stream of a file, in the order of display: RGB, or gray for a video without color.

    Opening counts the frames, which reads the file once without decoding.

    Parameters
    ----------
    path : str
        The file.
    axes : sequence of str, optional
        See `ArrayReader`. Samples are always frames.

    Raises
    ------
    DataError
        If PyAV is missing, the file is broken, or its frames must be rotated or have more than 8 bits per channel.
    """

    kind = "video"
    random_access = False

    def __init__(self, path: str, axes: Sequence[str] | None = None) -> None:
        self._path, name = os.path.abspath(path), os.path.basename(path)
        with _opened(self._path) as (container, video):
            context = video.codec_context
            if context.format is None or not 0 < context.width * context.height <= MAX_PIXELS:
                raise DataError(
                    f"'{name}' claims frames of {context.height} x {context.width} pixels, expected 1 to "
                    f"{MAX_PIXELS:,} pixels: get it again"
                )
            bits = max(component.bits for component in context.format.components)
            if bits > 8:
                remedy = _REMEDY.format(name)
                raise DataError(f"'{name}' has {bits} bits per channel, but only 8 are supported: {remedy}")
            gray = len(context.format.components) == 1 and not context.format.has_palette
            self._format = "gray" if gray else "rgb24"
            shape = (context.height, context.width) + (() if gray else (3,))
            n = sum(1 for packet in container.demux(video) if packet.size and not packet.is_discard)
        super().__init__(name, (n, *shape), np.dtype(np.uint8), axes or ("y", "x", CHANNEL)[: len(shape)])
        if not self.in_order:
            raise DataError(f"the samples of the video '{name}' are its frames: leave axes out")

    def stream(self, requests: Iterable[Sequence[int]]) -> Iterator[NDArray[Any]]:
        """Decode the video once, and yield the requested frames."""
        frames = self._frames()
        at = 0
        for indices in requests:
            block = np.empty((len(indices), *self.sample_shape), np.uint8)
            for place, index in enumerate(indices):
                for at, frame in frames:
                    if at == index:
                        block[place] = self._pixels(frame, at)
                        break
                else:
                    raise DataError(self._broken(f"it ends after {at + 1:,} of {len(self):,} frames"))
            yield block

    def _frames(self) -> Iterator[tuple[int, Any]]:
        with _opened(self._path) as (container, video):
            yield from enumerate(container.decode(video))

    def _pixels(self, frame: Any, index: int) -> NDArray[np.uint8]:
        if (frame.height, frame.width) != self.sample_shape[:2]:
            raise DataError(self._broken(f"frame {index:,} has {frame.height} x {frame.width} pixels"))
        if frame.rotation:
            raise DataError(f"'{self.name}' must be rotated by {frame.rotation} degrees: {_REMEDY.format(self.name)}")
        pixels: NDArray[np.uint8] = frame.to_ndarray(format=self._format)
        return pixels

    def _broken(self, why: str) -> str:
        return f"'{self.name}' is truncated or broken ({why}): {_REMEDY.format(self.name)}"


@contextmanager
def _opened(path: str) -> Iterator[tuple[Any, Any]]:
    """Yield the container and its first video stream."""
    name = os.path.basename(path)
    av = require("av", "video", f"'{name}'")
    with source_errors(f"'{name}' is truncated or no supported video"), open(path, "rb") as file:
        kind = _container(file.read(16))
        file.seek(0)
        with av.open(file, format=kind) as container:
            if not container.streams.video:
                raise DataError(f"'{name}' has no video stream: give a file with a video")
            yield container, container.streams.video[0]


def _container(head: bytes) -> str | None:
    return next((name for (at, magic), name in _CONTAINERS.items() if head[at:].startswith(magic)), None)


FORMATS = (
    Format(
        "video (MP4, MOV, MKV, WebM, AVI)",
        lambda file: _container(file.first) is not None,
        lambda path, key, axes: VideoReader(path, axes),
    ),
)
