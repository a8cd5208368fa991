"""Frames of videos (MP4, MOV, Matroska, WebM, AVI) through PyAV, one sample a frame.

A video is read from its beginning to its end by one process. The decoder is given the bytes of this file alone, and one
container's format: no playlist or reference of a hostile file leads anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.layout import CHANNEL
from dpca.storage.errors import DataError, one_line
from dpca.storage.images import MAX_PIXELS
from dpca.storage.readers.arrays.raw import ArrayReader
from dpca.storage.readers.base import digest_file, require
from dpca.storage.readers.format import FileHead, Format

# FFmpeg's names of the containers, by their first bytes from a place on
_CONTAINERS = {
    (4, b"ftyp"): "mov",
    (4, b"moov"): "mov",
    (4, b"wide"): "mov",
    (0, b"\x1aE\xdf\xa3"): "matroska",
    (8, b"AVI "): "avi",
}
_REMEDY = "convert it with ffmpeg -i {} -pix_fmt yuv420p -c:v libx264 OUT.mkv"


class VideoReader(ArrayReader):
    """Frames of the first video in a file, in the order in which they are shown: RGB, or grey where it has no color.

    Opening counts the frames, which reads the file once and decodes nothing.

    Parameters
    ----------
    path : str
        The file.
    axes : sequence of str, optional
        See `ArrayReader`; samples can be counted by frames only.

    Raises
    ------
    DataError
        If PyAV is missing, the file is broken, its frames are to be turned, or have more than 8 bits a channel.
    """

    kind = "video"
    random_access = False

    def __init__(self, path: str, axes: Sequence[str] | None = None) -> None:
        self._path, name = os.path.abspath(path), os.path.basename(path)
        with _opened(self._path) as (container, video):
            context = video.codec_context
            if context.format is None or not 0 < context.width * context.height <= MAX_PIXELS:
                raise DataError(
                    f"'{name}' claims frames of {context.height} x {context.width} pixels, which are not read: get it "
                    f"again"
                )
            bits = max(component.bits for component in context.format.components)
            if bits > 8:
                remedy = _REMEDY.format(name)
                raise DataError(f"'{name}' has {bits} bits in each channel, which would be cut to 8: {remedy}")
            grey = len(context.format.components) == 1 and not context.format.has_palette
            self._format = "gray" if grey else "rgb24"
            shape = (context.height, context.width) + (() if grey else (3,))
            n = sum(1 for packet in container.demux(video) if packet.size and not packet.is_discard)
        super().__init__(name, (n, *shape), np.dtype(np.uint8), axes or ("y", "x", CHANNEL)[: len(shape)])
        if self.order != tuple(range(len(self.order))):
            raise DataError(f"'{name}' is a video, whose samples are its frames: leave axes out")

    def fingerprint(self) -> str:
        """Hash of size and ends of the file."""
        return digest_file(self._path)

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Not possible."""
        raise TypeError(f"{self.name} is compressed: use stream")

    def stream(self, requests: Iterable[Sequence[int]]) -> Iterator[NDArray[Any]]:
        """Decode the video once, yielding the requested frames."""
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
            raise DataError(f"'{self.name}' is to be turned by {frame.rotation} degrees: {_REMEDY.format(self.name)}")
        pixels: NDArray[np.uint8] = frame.to_ndarray(format=self._format)
        return pixels

    def _broken(self, why: str) -> str:
        return f"'{self.name}' is truncated or broken ({why}): {_REMEDY.format(self.name)}"


@contextmanager
def _opened(path: str) -> Iterator[tuple[Any, Any]]:
    """Yield the container and its first video."""
    name = os.path.basename(path)
    av = require("av", "video", f"'{name}'")
    try:
        with open(path, "rb") as file:
            kind = _container(file.read(16))
            file.seek(0)
            with av.open(file, format=kind) as container:
                if not container.streams.video:
                    raise DataError(f"'{name}' holds no video: give one that does")
                yield container, container.streams.video[0]
    except (DataError, MemoryError, GeneratorExit):
        raise
    except Exception as error:
        # A hostile file can end in any exception inside FFmpeg; all of them mean the same here.
        raise DataError(f"'{name}' is truncated or no video that is read ({one_line(error)}): get it again") from error


def _container(head: bytes) -> str | None:
    return next((name for (at, magic), name in _CONTAINERS.items() if head[at:].startswith(magic)), None)


def _is_video(file: FileHead) -> bool:
    return _container(file.first) is not None


FORMATS = (Format("video (MP4, MOV, MKV, WebM, AVI)", _is_video, lambda path, key, axes: VideoReader(path, axes)),)
