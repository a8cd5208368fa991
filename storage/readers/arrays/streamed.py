"""Arrays in compressed files, which can only be read from their beginning."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from math import prod
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage import cf
from dpca.storage.disk import begin_of, file_bytes
from dpca.storage.errors import DataError
from dpca.storage.readers.arrays.raw import ArrayReader, Raw, RawReader, decoded
from dpca.storage.readers.base import runs, source_errors
from dpca.storage.readers.format import GZIP

# Largest compression ratio of deflate: two bits can repeat 258 bytes.
_DEFLATE_RATIO = 1032


class StreamReader(ArrayReader):
    """Rows of a compressed array, which can only be read from its beginning, one after the other.

    Parameters
    ----------
    opener : callable
        Opens the decompressed bytes, positioned at the first value.
    raw : Raw
        Path, shape and type of the array. It must be in C order, with samples on the first axis.
    name, axes, coding :
        As for `ArrayReader`.
    kind, key :
        As for `RawReader`.
    packed : int
        Bytes of the deflated values. They limit the possible size of the array.
    """

    random_access = False

    def __init__(
        self,
        opener: Callable[[], AbstractContextManager[IO[bytes]]],
        raw: Raw,
        name: str,
        axes: Sequence[str] | None = None,
        coding: cf.Coding | None = None,
        *,
        kind: str,
        key: str | None = None,
        packed: int,
    ) -> None:
        self._stored = np.dtype(raw.dtype)
        super().__init__(name, raw.shape, self._stored, axes, coding=coding)
        if not self.in_order:
            raise DataError(
                f"'{name}' is compressed, so its samples must be on the first axis and its channels on the last, not "
                f"on {self.order[0]} and {self.order[-1]}: save it uncompressed"
            )
        require_possible(prod(raw.shape) * self._stored.itemsize, packed, f"'{name}'")
        self.kind, self._path, self._key, self._opener = kind, raw.path, key, opener

    def stream(self, requests: Iterable[Sequence[int]]) -> Iterator[NDArray[Any]]:
        """Decompress the array once, and yield the requested rows."""
        row_bytes = prod(self.sample_shape) * self._stored.itemsize
        position = 0
        with ExitStack() as opened:
            with self._reading(position):
                file = opened.enter_context(self._opener())
            for indices in requests:
                rows = np.empty((len(indices), *self.sample_shape), self._stored)
                filled = 0
                for start, stop in runs(indices):
                    if start > position:
                        with self._reading(start):
                            file.seek((start - position) * row_bytes, os.SEEK_CUR)
                    self._fill(file, rows[filled : filled + stop - start], start, row_bytes)
                    filled, position = filled + stop - start, stop
                if position == len(self):
                    with self._reading(position):
                        if file.read(1):  # this read also verifies the checksum
                            raise ValueError("the file has more bytes")
                yield decoded(rows, self.dtype, self._coding)

    def _fill(self, file: IO[bytes], rows: NDArray[Any], first: int, row_bytes: int) -> None:
        view = memoryview(rows.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        filled = 0
        while filled < len(view):
            with self._reading(first + filled // row_bytes):
                read = file.readinto(view[filled:])  # type: ignore[attr-defined]
                if not read:
                    raise EOFError("the file ends")
            filled += read

    def _reading(self, row: int) -> AbstractContextManager[None]:
        return source_errors(f"'{self.name}' is truncated or broken at sample {row:,} of {len(self):,}")


def open_plain_or_gzip(
    raw: Raw, kind: str, axes: Sequence[str] | None, coding: cf.Coding | None = None, end: int | None = None
) -> ArrayReader:
    """Open an array in a file that is plain, or compressed by gzip as a whole; see `RawReader` and `StreamReader`."""
    name = os.path.basename(raw.path)
    if not is_gzip(raw.path):
        return RawReader(raw, name, axes, coding=coding, kind=kind, end=end)
    opener = partial(unzipped, raw.path, raw.offset)
    return StreamReader(opener, raw, name, axes, coding, kind=kind, packed=file_bytes(raw.path))


def is_gzip(path: str) -> bool:
    """Return whether a file is compressed by gzip."""
    return begin_of(path, len(GZIP)) == GZIP


@contextmanager
def unzipped(path: str, offset: int = 0) -> Iterator[IO[bytes]]:
    """Open a file that is plain, or compressed by gzip, at an offset of its decompressed bytes."""
    with gzip.open(path) if is_gzip(path) else open(path, "rb") as file:
        file.seek(offset)
        yield file  # type: ignore[misc]


def require_possible(claimed: int, packed: int, what: str) -> None:
    """Reject a claimed size that a deflated file of this length cannot contain, before memory is allocated.

    Parameters
    ----------
    claimed, packed : int
        Decompressed bytes according to the header, and bytes of the file.
    what : str
        Name of the array in the message.
    """
    if claimed > packed * _DEFLATE_RATIO:
        raise DataError(
            f"{what} claims {claimed:,} bytes, which {packed:,} deflated bytes cannot contain: get it again"
        )
