"""Arrays stored as plain bytes in a file: mapped into memory, or streamed if the file is compressed.

The parts that ``.npy``, ``.npz`` and IDX files share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import prod
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpca.storage import cf
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.layout import CHANNEL, SAMPLE
from dpca.storage.disk import file_bytes
from dpca.storage.errors import DataError
from dpca.storage.readers.base import Numbered, Reader, runs, stack_dtype
from dpca.storage.remote.network import is_url
from dpca.storage.remote.objects import ObjectPath

# names under which data sets keep their samples and their labels, in order of preference
PREFERRED = ("samples", "images", "data")
LABELS = ("labels", "label", "y", "targets")

_SKIP = 4 << 20
_LISTED = 8
# no byte of a deflated file holds more: two bits can repeat 258 bytes
_DEFLATE_RATIO = 1032
_MOST_SAMPLES, _MOST_AXES = 2**62, 64  # what len() and numpy can tell


class ArrayReader(Reader):
    """Rows of an array along one of its axes.

    Parameters
    ----------
    name : str
        Name of the source, for people.
    shape : tuple of int
        Shape of the whole array.
    dtype : dtype
        Of the source, any byte order.
    axes : sequence of str, optional
        Names of the axes of one sample; or of all axes, ``"sample"`` among them where it is not the first. By default
        those of the coordinates.
    coordinates : Coordinates, optional
        Of the whole array.

    Attributes
    ----------
    order : tuple of int
        The source's axes in the order in which samples have them: ``"sample"`` first, ``"channel"`` last.
    """

    encoded = False

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        axes: Sequence[str] | None = None,
        coordinates: Coordinates | None = None,
    ) -> None:
        if not all(0 <= n <= _MOST_SAMPLES for n in shape) or len(shape) > _MOST_AXES:
            raise DataError(f"'{name}' claims the shape {str(shape)[:200]}, which no array has: get it again")
        if len(shape) < 2:
            raise DataError(f"'{name}' has the shape {shape}: a stack needs a sample axis and at least one more")
        if axes is None and coordinates is not None:
            axes = coordinates.sample_axes
        named = tuple(axes or ())
        if axes is not None and SAMPLE not in named:
            named = (SAMPLE, *named)
        if axes is not None and (len(named) != len(shape) or len(set(named)) != len(named)):
            raise DataError(
                f"axes {tuple(axes)} do not name the axes of '{name}', shape {shape}: give one name per axis of a "
                f"sample, or {len(shape)} with 'sample' among them"
            )
        self.order = tuple(sorted(range(len(shape)), key=lambda i: _rank(named[i]) if named else i))
        self.axes = tuple(named[i] for i in self.order[1:]) if named else None
        if coordinates is not None and self.axes is not None:
            self.coordinates = coordinates.arranged(self.order, self.axes)
        self.name = name
        self.dtype = stack_dtype(dtype, f"'{name}'")
        self.sample_shape = tuple(shape[i] for i in self.order[1:])
        if min(self.sample_shape) < 1:
            raise DataError(f"'{name}' has the shape {shape}: its samples are empty")
        if dtype.kind == "b":
            self.data_range = (0.0, 1.0)
        self._names = Numbered(shape[self.order[0]])

    @property
    def names(self) -> Sequence[str]:
        """Numbers of the samples."""
        return self._names


def _rank(axis: str) -> int:
    return (axis != SAMPLE) + (axis == CHANNEL)


@dataclass(frozen=True)
class Raw:
    """An array inside a file.

    Parameters
    ----------
    path : str
        The file.
    offset : int
        Where the values begin, in bytes.
    shape, dtype, order, strides :
        As numpy understands them; `order` is ``"C"`` or ``"F"``, and counts where there are no strides.
    """

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str
    order: Literal["C", "F"] = "C"
    strides: tuple[int, ...] | None = None

    @property
    def end(self) -> int:
        """Where the values end, in bytes."""
        size = np.dtype(self.dtype).itemsize
        if self.strides is None or 0 in self.shape:
            return self.offset + prod(self.shape) * size
        return self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)) + size

    def mapped(self) -> NDArray[Any]:
        """Map the values into memory."""
        content = np.memmap(self.path, np.uint8, "r")
        return np.ndarray(self.shape, self.dtype, content, self.offset, self.strides, self.order)

    def loaded(self) -> NDArray[Any]:
        """Load the values of an object."""
        content = ObjectPath(self.path).read_range(self.offset, self.end)
        return np.ndarray(self.shape, self.dtype, content, 0, self.strides, self.order)

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Load the values of an object between two places of the first axis, where it is the slowest."""
        row = prod(self.shape[1:]) * np.dtype(self.dtype).itemsize
        return replace(self, offset=self.offset + start * row, shape=(stop - start, *self.shape[1:])).loaded()


class RawReader(ArrayReader):
    """Rows of an uncompressed array, mapped into memory; tasks read only their own.

    Parameters
    ----------
    raw : Raw
        Where the values lie.
    kind : str
        Name of the format.
    identity : callable
        Computes the fingerprint.
    name, axes, coordinates :
        As for `ArrayReader`.
    end : int, optional
        Where the values must end, by default with the file.
    check : callable, optional
        Raises a DataError if the values are damaged; called once, before any are read.
    coding : dpca.storage.cf.Coding, optional
        How the values become data, where they are not what they seem.
    """

    def __init__(
        self,
        raw: Raw,
        *,
        kind: str,
        identity: Callable[[], str],
        name: str,
        axes: Sequence[str] | None = None,
        end: int | None = None,
        check: Callable[[], None] | None = None,
        coding: cf.Coding | None = None,
        coordinates: Coordinates | None = None,
    ) -> None:
        dtype = np.dtype(raw.dtype) if coding is None else coding.dtype
        super().__init__(name, raw.shape, dtype, axes, coordinates)
        size = file_bytes(raw.path)
        there, wanted = min(size, size if end is None else end), raw.end
        if there != wanted:
            what = "is truncated" if there < wanted else "goes on after its array"
            raise DataError(f"'{name}' {what}: it ends at byte {there:,} and its header says {wanted:,}; get it again")
        self.kind, self._raw, self._identity, self._check, self._coding = kind, raw, identity, check, coding

    def fingerprint(self) -> str:
        """Hash of the file."""
        return self._identity()

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Ship where the array lies and which rows are wanted."""
        if self._check is not None:
            self._check()
            self._check = None
        return partial(_read_raw, self._raw, self.order, list(runs(indices)), self.dtype, self._coding)


def _read_raw(
    raw: Raw, order: tuple[int, ...], wanted: list[tuple[int, int]], dtype: np.dtype[Any], coding: cf.Coding | None
) -> NDArray[Any]:
    if is_url(raw.path) and raw.order == "C" and raw.strides is None and order == tuple(range(len(order))):
        read = raw.rows
    else:
        whole = (raw.loaded() if is_url(raw.path) else raw.mapped()).transpose(order)
        read = lambda start, stop: whole[start:stop]  # noqa: E731
    stored = dtype if coding is None else np.dtype(raw.dtype).newbyteorder("=")
    rows = gather(read, wanted, stored)
    return rows if coding is None else coding.decode(rows)


def gather(
    read: Callable[[int, int], NDArray[Any]], wanted: list[tuple[int, int]], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Read runs of rows into one new array of the given type, copying each value once."""
    if len(wanted) == 1:
        return np.ascontiguousarray(read(*wanted[0]), dtype)
    pieces = [read(start, stop) for start, stop in wanted]
    rows = np.empty((sum(len(piece) for piece in pieces), *pieces[0].shape[1:]), dtype)
    return np.concatenate(pieces, out=rows, casting="unsafe")


def require_possible(claimed: int, packed: int, what: str) -> None:
    """Refuse a claimed size that a deflated file of this length cannot hold, before memory is allocated.

    Parameters
    ----------
    claimed, packed : int
        Bytes once inflated, as a header says, and bytes of the file.
    what : str
        How the sentence speaks of the array.
    """
    if claimed > packed * _DEFLATE_RATIO:
        raise DataError(f"{what} claims {claimed:,} bytes, which {packed:,} deflated ones cannot hold: get it again")


def choose_key(name: str, shapes: dict[str, tuple[int, ...]], key: str | None) -> str:
    """Choose the array of a file that holds several.

    Parameters
    ----------
    name : str
        The file, for the message.
    shapes : dict
        Shapes of its arrays.
    key : str, optional
        What the user asked for; by default the only array of two axes or more, else the one called ``samples``,
        ``images`` or ``data``.

    Raises
    ------
    DataError
        If there is no such array.
    """
    listed = ", ".join(f"{k} {shape}" for k, shape in islice(shapes.items(), _LISTED)) or "none"
    if len(shapes) > _LISTED:
        listed += f" and {len(shapes) - _LISTED:,} more"
    if key is not None:
        if key not in shapes:
            raise DataError(f"'{name}' has no array {key!r}: its arrays are {listed}")
        return key
    candidates = [k for k, shape in shapes.items() if len(shape) >= 2 and _last_part(k) not in LABELS]
    preferred = [k for best in PREFERRED for k in candidates if _last_part(k) == best]
    chosen = candidates if len(candidates) == 1 else preferred[:1]
    if not chosen:
        raise DataError(
            f"'{name}' has {len(candidates)} arrays of two axes or more (its arrays are {listed}): "
            f"choose one with --key NAME (key=...)"
        )
    return chosen[0]


def _last_part(key: str) -> str:
    return key.rpartition("/")[2]


@dataclass(frozen=True)
class PackedFile:
    """A compressed file."""

    #: Opens the decompressed bytes, positioned at the first value.
    opener: Callable[[], AbstractContextManager[IO[bytes]]]
    #: What reading raises when the file is broken.
    errors: tuple[type[Exception], ...]
    #: Bytes of the compressed file, which bound what it can hold.
    size: int


class StreamReader(ArrayReader):
    """Rows of a compressed array, which can only be read from its beginning, one after the other.

    Parameters
    ----------
    packed : PackedFile
    shape, dtype :
        Of the array, in C order.
    kind, identity, name, axes, coding :
        As for `RawReader`; the samples must be on the first axis.
    """

    random_access = False

    def __init__(
        self,
        packed: PackedFile,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        kind: str,
        identity: Callable[[], str],
        name: str,
        axes: Sequence[str] | None = None,
        coding: cf.Coding | None = None,
    ) -> None:
        super().__init__(name, shape, dtype if coding is None else coding.dtype, axes)
        if self.order != tuple(range(len(shape))):
            raise DataError(
                f"'{name}' is compressed, so its samples must be on the first axis and its channels on the last, not "
                f"on {self.order[0]} and {self.order[-1]}: save it uncompressed"
            )
        require_possible(prod(shape) * dtype.itemsize, packed.size, f"'{name}'")
        self.kind = kind
        self._packed, self._identity, self._stored = packed, identity, dtype
        self._coding = coding

    def fingerprint(self) -> str:
        """Hash of the file."""
        return self._identity()

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Not possible."""
        raise TypeError(f"{self.name} is compressed: use stream")

    def stream(self, requests: Iterable[Sequence[int]]) -> Iterator[NDArray[Any]]:
        """Decompress the array once, yielding the requested rows."""
        row_bytes = prod(self.sample_shape) * self._stored.itemsize
        position = 0
        with self._packed.opener() as file:
            for indices in requests:
                rows = np.empty((len(indices), *self.sample_shape), self._stored)
                filled = 0
                for start, stop in runs(indices):
                    self._skip(file, (start - position) * row_bytes, position)
                    part = rows[filled : filled + stop - start]
                    self._fill(file, part, start, row_bytes)
                    filled, position = filled + stop - start, stop
                if position == len(self):
                    self._check_end(file)
                native = rows.astype(self._stored.newbyteorder("="), copy=False)
                yield native.astype(self.dtype, copy=False) if self._coding is None else self._coding.decode(native)

    def _skip(self, file: IO[bytes], n_bytes: int, row: int) -> None:
        while n_bytes > 0:
            with self._reading(row):
                skipped = len(file.read(min(n_bytes, _SKIP)))
            if not skipped:
                raise DataError(self._broken(row, "the file ends"))
            n_bytes -= skipped

    def _fill(self, file: IO[bytes], rows: NDArray[Any], first: int, row_bytes: int) -> None:
        view = memoryview(rows.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        filled = 0
        while filled < len(view):
            row = first + filled // row_bytes
            with self._reading(row):
                read = file.readinto(view[filled:])  # type: ignore[attr-defined]
            if not read:
                raise DataError(self._broken(row, "the file ends"))
            filled += read

    def _check_end(self, file: IO[bytes]) -> None:
        """Read past the last row: only then is the checksum compared."""
        with self._reading(len(self)):
            more = file.read(1)
        if more:
            raise DataError(self._broken(len(self), "the file goes on"))

    @contextmanager
    def _reading(self, row: int) -> Iterator[None]:
        try:
            yield
        except self._packed.errors as error:
            raise DataError(self._broken(row, str(error) or type(error).__name__)) from error

    def _broken(self, row: int, why: str) -> str:
        return f"'{self.name}' is truncated or broken at sample {row:,} of {len(self):,} ({why}): get it again"
