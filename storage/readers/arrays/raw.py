"""The base class of readers of arrays, and arrays stored as plain values in a file, which are mapped into memory.

Most readers of arrays use these classes, such as those of ``.npy``, ``.npz``, IDX, NIfTI, netCDF-3 and TIFF files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpca.storage import cf
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.layout import CHANNEL, PREFERRED, SAMPLE, Region, given_axes
from dpca.storage.disk import file_bytes
from dpca.storage.errors import DataError
from dpca.storage.readers.base import Numbered, Reader, digest, digest_file, runs, stack_dtype
from dpca.storage.remote.network import is_url
from dpca.storage.remote.objects import ObjectPath

#: Usual names of an array of labels, in order of preference.
LABELS = ("labels", "label", "y", "targets")

_LISTED = 8
_MOST_SAMPLES, _MOST_AXES = 2**62, 64  # the limits of len() and of NumPy


class ArrayReader(Reader):
    """Rows of an array along one of its axes.

    Parameters
    ----------
    name : str
        Name of the source, for messages.
    shape : tuple of int
        Shape of the whole array.
    dtype : dtype
        Type of the stored values, in any byte order.
    axes : sequence of str, optional
        Names as `dpca.storage.arrays.layout.given_axes` requires. The default is the names in the coordinates.
    coordinates : Coordinates, optional
        Coordinates of the whole array.
    coding : dpca.storage.cf.Coding, optional
        How the stored values are decoded. The default is no decoding.

    Attributes
    ----------
    order : tuple of int
        The axes of the source in the order of a stack: ``"sample"`` first, ``"channel"`` last.
    """

    encoded = False
    # The file of the array, the name of the array in this file, and a file with its coordinates.
    _path: str = ""
    _key: str | None = None
    _beside: str | None = None

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        axes: Sequence[str] | None = None,
        coordinates: Coordinates | None = None,
        coding: cf.Coding | None = None,
    ) -> None:
        if not all(0 <= n <= _MOST_SAMPLES for n in shape) or len(shape) > _MOST_AXES:
            raise DataError(f"'{name}' states the invalid shape {str(shape)[:200]}: get it again")
        if len(shape) < 2:
            raise DataError(f"'{name}' has the shape {shape}: give an array with a sample axis and at least one more")
        if axes is None and coordinates is not None:
            axes = coordinates.sample_axes
        named = () if axes is None else given_axes(axes, shape)
        if axes is not None and (len(named) != len(shape) or len(set(named)) != len(named)):
            raise DataError(
                f"axes {tuple(axes)} do not name the axes of '{name}', shape {shape}: give one name for each axis of a "
                f"sample, or {len(shape)} including 'sample'"
            )
        self.order = tuple(sorted(range(len(shape)), key=lambda i: _rank(named[i]) if named else i))
        self.axes = tuple(named[i] for i in self.order[1:]) if named else None
        if coordinates is not None and self.axes is not None:
            self.coordinates = coordinates.arranged(self.order, self.axes)
        self.name, self._coding, self.may_miss = name, coding, coding is not None and coding.may_miss
        self.dtype = stack_dtype(dtype if coding is None else coding.dtype, f"'{name}'")
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

    @property
    def in_order(self) -> bool:
        """Whether the axes of the source are in the order of a stack."""
        return self.order == tuple(range(len(self.order)))

    def fingerprint(self) -> str:
        """Hash of size and ends of the file, and of the name of the array in it; and of a file with coordinates."""
        found = digest_file(self._path)
        if self._beside is not None:
            found = digest([found, digest_file(self._beside)])
        return found if self._key is None else digest([found, self._key])

    def add_coordinates(self, coordinates: Coordinates, path: str | None) -> None:
        """Add the coordinates of the whole array, and the path of a file beside its own that has some of them."""
        if self.axes is not None:
            self.coordinates, self._beside = coordinates.arranged(self.order, self.axes), path


def _rank(axis: str) -> int:
    return (axis != SAMPLE) + (axis == CHANNEL)


@dataclass(frozen=True)
class Raw:
    """An array in a file.

    Parameters
    ----------
    path : str
        Path or URL of the file.
    offset : int
        Offset of the first value in bytes.
    shape, dtype, order, strides :
        As in NumPy. ``order`` is ``"C"`` or ``"F"``, and is ignored if there are strides.
    """

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str
    order: Literal["C", "F"] = "C"
    strides: tuple[int, ...] | None = None

    @property
    def end(self) -> int:
        """Offset after the last value in bytes."""
        size = np.dtype(self.dtype).itemsize
        if self.strides is None or 0 in self.shape:
            return self.offset + prod(self.shape) * size
        return self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)) + size

    def values(self) -> NDArray[Any]:
        """Map the values of a file into memory, or load those of an object."""
        if is_url(self.path):
            content: Any = ObjectPath(self.path).read_range(self.offset, self.end)
            return np.ndarray(self.shape, self.dtype, content, 0, self.strides, self.order)
        content = np.memmap(self.path, np.uint8, "r")
        return np.ndarray(self.shape, self.dtype, content, self.offset, self.strides, self.order)

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return the values between two indices of the first axis, of an array in C order."""
        row = prod(self.shape[1:]) * np.dtype(self.dtype).itemsize
        return replace(self, offset=self.offset + start * row, shape=(stop - start, *self.shape[1:])).values()


class RawReader(ArrayReader):
    """Rows of an uncompressed array, mapped into memory. Tasks read only their own rows.

    Parameters
    ----------
    raw : Raw
        Place of the values.
    name, axes, coordinates, coding :
        As for `ArrayReader`.
    kind : str
        Name of the format.
    key : str, optional
        Name of the array in the file.
    end : int, optional
        Where the values must end, by default at the end of the file.
    check : callable, optional
        Raises a DataError if the values are damaged. It is called once, before the first read.
    """

    def __init__(
        self,
        raw: Raw,
        name: str,
        axes: Sequence[str] | None = None,
        coordinates: Coordinates | None = None,
        coding: cf.Coding | None = None,
        *,
        kind: str,
        key: str | None = None,
        end: int | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(name, raw.shape, np.dtype(raw.dtype), axes, coordinates, coding)
        size = file_bytes(raw.path)
        available, expected = min(size, size if end is None else end), raw.end
        if available != expected:
            what = "is truncated" if available < expected else "has more bytes than its array"
            raise DataError(
                f"'{name}' {what}: it ends at byte {available:,}, expected {expected:,} from its header; get it again"
            )
        self.kind, self._raw, self._path, self._key, self._check = kind, raw, raw.path, key, check

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Return a function that reads these rows from the file."""
        by_row = is_url(self._path) and self._raw.order == "C" and self._raw.strides is None and self.in_order
        return partial(self._reading(), by_row, self.order, list(runs(indices)), self.dtype, self._coding)

    @property
    def reads_boxes(self) -> bool:  # type: ignore[override]
        """Whether the file is mapped into memory, so that only the values of a box are read."""
        return not is_url(self._path)

    def box(self, indices: Sequence[int], region: Region) -> Callable[[], NDArray[Any]]:
        """Return a function that reads a box of these rows from the file."""
        return partial(self._reading(), False, self.order, list(runs(indices)), self.dtype, self._coding, region)

    def _reading(self) -> Callable[..., NDArray[Any]]:
        if self._check is not None:
            self._check()
            self._check = None
        return partial(_read, self._raw)


def _read(
    raw: Raw,
    by_row: bool,
    order: tuple[int, ...],
    wanted: list[tuple[int, int]],
    dtype: np.dtype[Any],
    coding: cf.Coding | None,
    region: Region = (),
) -> NDArray[Any]:
    if by_row:  # only the requested rows of an object
        return gather(raw.rows, wanted, dtype, coding)
    whole = raw.values().transpose(order)
    box = box_slices(region)
    return gather(lambda start, stop: whole[(slice(start, stop), *box)], wanted, dtype, coding)


def box_slices(region: Region) -> tuple[slice, ...]:
    """Return the slices of a box."""
    return tuple(slice(a, b) for a, b in region)


def gather(
    read: Callable[[int, int], NDArray[Any]],
    wanted: list[tuple[int, int]],
    dtype: np.dtype[Any],
    coding: cf.Coding | None = None,
) -> NDArray[Any]:
    """Read runs of rows into one new array and decode them, copying each stored value once.

    Parameters
    ----------
    read : callable (start, stop)
        Returns stored rows.
    wanted : list of (start, stop)
        The runs.
    dtype : dtype
        Type of the result, if values are not decoded.
    coding : dpca.storage.cf.Coding, optional
        How values are decoded.
    """
    pieces = [read(start, stop) for start, stop in wanted]
    if len(pieces) == 1:
        return decoded(pieces[0], dtype, coding)
    stored = dtype if coding is None else pieces[0].dtype.newbyteorder("=")
    return decoded(np.concatenate(pieces, dtype=stored, casting="unsafe"), dtype, coding)


def decoded(stored: NDArray[Any], dtype: np.dtype[Any], coding: cf.Coding | None) -> NDArray[Any]:
    """Return stored values in native byte order and decoded; without ``coding``, converted to ``dtype``."""
    if coding is None:
        return np.ascontiguousarray(stored, dtype)
    return coding.decode(np.ascontiguousarray(stored, stored.dtype.newbyteorder("=")))


def choose_key(name: str, shapes: dict[str, tuple[int, ...]], key: str | None) -> str:
    """Choose the array of a file with several arrays.

    Parameters
    ----------
    name : str
        The file, for the message.
    shapes : dict
        Shapes of its arrays.
    key : str, optional
        Name from the user. The default is the only array of two axes or more, or else the one named ``samples``,
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
