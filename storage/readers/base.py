"""The base class of readers: samples in a fixed order, read in parts by independent tasks.

A source contains either encoded images (files, members of archives, values of a database) or an array. Every reader has

* an order that does not depend on the machine, and a `fingerprint` of names, sizes and content, but not of times or
  absolute paths;
* `part`: a small picklable function that reads some samples in any process that can open the file;
* or `stream`, if a file can only be read from its beginning (compressed archives and arrays).

An invalid image is not an error of the reader: its payload is `Refused`, with the reason.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import IO, Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.layout import Region
from dpca.storage.disk import file_bytes, open_file, read_at
from dpca.storage.errors import DataError, StoreError, one_line
from dpca.storage.errors import printable as printable
from dpca.storage.numbered import Numbered as Numbered
from dpca.storage.pictures import SUFFIXES, picture_of
from dpca.storage.region import FilledRegion

# Larger than any photograph and much smaller than memory: the most that a task allocates for one image.
MAX_ENCODED = 512 << 20

_ENDS = 64 << 10
_LISTED = 5

P = TypeVar("P")


@dataclass(frozen=True)
class Refused:
    """Replaces an image that is not read. ``reason`` is a phrase that follows its name."""

    reason: str


Payload: TypeAlias = bytes | Refused
Block: TypeAlias = list[Payload] | NDArray[Any]


class Reader(ABC):
    """Samples of one source in a fixed order.

    Attributes
    ----------
    kind : str
        Format of the source: ``"folder"``, ``"zip"``, ``"npy"``, ...
    name : str
        Base name of the source, for messages.
    encoded : bool
        Whether payloads are encoded images. Otherwise they are rows of an array.
    random_access : bool
        Whether `part` is supported. Otherwise only `stream` is.
    reads_boxes : bool
        Whether `box` is supported, so that samples larger than memory are read in parts.
    others : mapping of str to int
        Number of files in the source that are not images, by suffix.
    refused : mapping of int to str
        Samples that are known to be invalid before they are read, with the reason.
    labels : ndarray or None
        One label per sample.
    sample_shape, dtype, axes, data_range :
        For arrays: shape of a sample, native numpy dtype, names of the axes of a sample, and the range of the values if
        the source states it.
    may_miss : bool
        For arrays: whether the source states which values mean missing. These are masked.
    coordinates : Coordinates or None
        For arrays: names of all axes, samples first, and coordinates along them.
    paths : tuple of str
        Paths that `open_reader` opened: files, folders, URLs, and all matches of patterns.
    patterns : tuple of str
        Patterns in the arguments of `open_reader`.
    """

    kind: str = ""
    name: str = ""
    encoded: bool = True
    random_access: bool = True
    reads_boxes: bool = False
    others: Mapping[str, int] = {}
    refused: Mapping[int, str] = {}
    labels: NDArray[Any] | None = None
    sample_shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = np.dtype(np.uint8)
    axes: tuple[str, ...] | None = None
    data_range: tuple[float, float] | None = None
    may_miss: bool = False
    coordinates: Coordinates | None = None
    paths: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def dtype_with_gaps(self) -> np.dtype[Any]:
        """Return the type of samples with NaN for missing values: integers become float32, or float64 above 16 bits."""
        if not self.may_miss or self.dtype.kind not in "iu":
            return self.dtype
        return np.dtype(np.float32 if self.dtype.itemsize <= 2 else np.float64)

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """One name per sample, in order; may be computed on access."""

    @property
    def ignored(self) -> int:
        """Number of files in the source that are not images."""
        return sum(self.others.values())

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash that changes when the samples change."""

    def part(self, indices: Sequence[int]) -> Callable[[], Block]:
        """Return a small picklable function that reads these samples (increasing indices) in a task."""
        raise TypeError(f"{self.name} can only be read from its beginning: use stream")

    def box(self, indices: Sequence[int], region: Region) -> Callable[[], NDArray[Any]]:
        """Return a function as `part` does, for a box of these samples, (start, stop) along each axis."""
        raise TypeError(f"{self.name} is read in whole samples: use part")

    def fetch(self, indices: Sequence[int]) -> Block:
        """Read these samples in this process: a list of `bytes` or `Refused`, or an array (n, *sample_shape)."""
        if self.random_access:
            return self.part(indices)()
        return next(iter(self.stream([indices])))

    def stream(self, requests: Iterable[Sequence[int]]) -> Iterator[Block]:
        """Yield one block for each request. The next request is drawn only when its block is requested.

        Indices increase within and across requests. The source is read once, from its beginning.
        """
        for indices in requests:
            yield self.part(indices)()

    def region_of(self, first: NDArray[Any]) -> FilledRegion | None:
        """For images: return the region of the samples that is kept, from the first sample; None for whole samples."""
        return None

    def called(self, index: int) -> str:
        """Return the name of a sample for error messages."""
        name = self.names[index]
        return f"'{name}'" if self.encoded else f"sample {name} of '{self.name}'"

    def __len__(self) -> int:
        return len(self.names)


# -- errors


@contextmanager
def source_errors(what: str, remedy: str = "get it again") -> Iterator[None]:
    """Convert any exception of a library inside the block to a `DataError`.

    A malicious file can cause any exception in a parser or a decoder. All of them mean a broken source.

    Parameters
    ----------
    what : str
        Beginning of the message: the source, and what is wrong with it.
    remedy : str
        End of the message.

    Raises
    ------
    DataError
        Instead of every exception except those of dpca, a missing permission and exhausted memory.
    """
    try:
        yield
    except (DataError, StoreError, PermissionError, MemoryError):
        raise
    except Exception as error:
        raise DataError(f"{what} ({one_line(error)}): {remedy}") from error


@contextmanager
def within_memory(what: str, remedy: str = "give this process more, or the source in smaller parts") -> Iterator[None]:
    """Convert exhausted memory inside the block to a `DataError` that begins with ``what``, the source."""
    try:
        yield
    except MemoryError as error:
        raise DataError(f"{what} requires more memory than is available: {remedy}") from error


def require(module: str, extra: str, what: str) -> ModuleType:
    """Import a library that only some sources require.

    Raises
    ------
    DataError
        If it is missing. The message names the extra to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DataError(
            f'reading or writing {what} requires the library {module}: pip install "dask-dpca[{extra}]"'
        ) from None


def too_large(size: int) -> str:
    """Return the reason to refuse an encoded image of ``size`` bytes."""
    return f"has {size:,} bytes, more than the limit of {MAX_ENCODED:,} for one image"


# -- archives and databases


class Verdict(Enum):
    """Kinds of members of an archive."""

    IMAGE = "image"
    OTHER = "other"
    HIDDEN = "hidden"


@dataclass
class Members(Generic[P]):
    """The members of an archive that are images or refused, each with its place in the file."""

    names: list[str] = field(default_factory=list)
    places: list[P] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, place: P, verdict: Verdict | str) -> None:
        """Add a member with the return value of `judge_member`."""
        if verdict is Verdict.OTHER:
            self.others[suffix_of(name)] += 1
        if verdict in (Verdict.OTHER, Verdict.HIDDEN):
            return
        if isinstance(verdict, str):
            self.refused[len(self.names)] = verdict
        self.names.append(printable(name))
        self.places.append(place)

    def places_of(self, indices: Sequence[int]) -> list[P | str]:
        """Return the place of each of these members, or the reason why it is refused."""
        return [self.refused.get(i, self.places[i]) for i in indices]


def judge_member(name: str, size: int, nature: str, head: Callable[[], bytes]) -> Verdict | str:
    """Classify a member of an archive, or return the reason why it is refused.

    Parameters
    ----------
    name : str
        Name in the archive.
    size : int
        Claimed bytes after decompression.
    nature : {"file", "link", "device"}
        Everything that is neither a file nor a link counts as a device.
    head : callable
        See `is_image`; called for files only.
    """
    # Most names are ordinary, which takes a fifth of the time to find out.
    odd = name[:1] in "/\\." or name[1:2] == ":" or "/." in name or "\\" in name or "__MACOSX" in name
    if odd:
        parts = re.split(r"[/\\]", name)
        if parts[0] == "" or ".." in parts or re.match(r"[A-Za-z]:", name):
            return "has a path that leads out of the archive"
    if nature == "device":
        return "is a device or pipe, not a file"
    if odd and is_hidden(name):
        return Verdict.HIDDEN
    if not is_image(name, head if nature == "file" else bytes):
        return Verdict.OTHER
    if nature == "link":
        return "is a link, not a file"
    return too_large(size) if size > MAX_ENCODED else Verdict.IMAGE


def is_hidden(name: str) -> bool:
    """Return whether a path is skipped and not counted."""
    return any((part.startswith(".") and part != ".") or part == "__MACOSX" for part in name.split("/"))


def is_image(name: str, head: Callable[[], bytes]) -> bool:
    """Return whether a file counts as an image.

    Parameters
    ----------
    name : str
        Name of the file.
    head : callable
        Reads the first bytes of the file. It is called only if the suffix is not that of an image, so a folder of
        ``.jpg`` is listed without opening a file.
    """
    return name.lower().endswith(SUFFIXES) or picture_of(head()) is not None


def read_members(path: str, places: Sequence[P | str], read: Callable[[IO[bytes], int, P], Payload]) -> list[Payload]:
    """Read members of an archive in a task.

    Parameters
    ----------
    path : str
        Path or URL of the archive.
    places : sequence
        Return value of `Members.places_of`.
    read : callable
        Reads one member from the open file, the size of this file, and a place.
    """
    with open_file(path) as file:
        size = file.seek(0, os.SEEK_END)
        return [Refused(place) if isinstance(place, str) else read(file, size, place) for place in places]


def read_extent(file: IO[bytes], file_size: int, place: tuple[int, int]) -> Payload:
    """Read a member, given by its offset and size. Memory is allocated only for bytes that the file has."""
    offset, size = place
    payload = read_at(file, max(0, min(size, file_size - offset)), offset) if offset < file_size else b""
    return payload if len(payload) == size else Refused(f"is cut off after {len(payload):,} of {size:,} bytes")


def suffix_of(name: str) -> str:
    """Return the suffix of a name in lower case, or ``"no suffix"``."""
    return os.path.splitext(name)[1].lower() or "no suffix"


def seen(others: Mapping[str, int]) -> str:
    """Return the numbers of other files by suffix, for error messages."""
    if not others:
        return "no other file was found"
    counted = sorted(others.items(), key=lambda item: (-item[1], item[0]))
    listed = [f"{n:,} with {suffix}" for suffix, n in counted[:_LISTED]] + ["..."] * (len(counted) > _LISTED)
    return f"{sum(others.values()):,} other files were found ({', '.join(listed)})"


# -- values and hashes


def runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield increasing indices as (start, stop) of consecutive ones."""
    where = np.asarray(indices, np.int64)
    for run in np.split(where, np.flatnonzero(np.diff(where) != 1) + 1) if len(where) else ():
        yield int(run[0]), int(run[-1]) + 1


def digest(parts: Iterable[str | bytes | int | float | None]) -> str:
    """Hash a sequence of values unambiguously (BLAKE2b, 16 bytes, hexadecimal)."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        value = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogateescape")
        state.update(len(value).to_bytes(8, "little") + value)
    return state.hexdigest()


def listed(values: Iterable[str | int]) -> str:
    """Return names without null characters, or numbers, as one text for `digest`, which takes longer for many parts."""
    return "\0".join(map(str, values))


def digest_file(path: str) -> str:
    """Hash the size, the first and the last 64 KiB of a file, which distinguishes data sets at any size."""
    size = file_bytes(path)
    with open_file(path) as file:
        return digest([size, read_at(file, _ENDS, 0), read_at(file, _ENDS, max(size - _ENDS, 0))])


def stack_dtype(dtype: np.dtype[Any], what: str) -> np.dtype[Any]:
    """Return the native type in which values of ``dtype`` are stored (uint8 for booleans).

    Raises
    ------
    DataError
        If values are not real numbers of at most 64 bits.
    """
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind not in "uif" or dtype.itemsize > 8:
        raise DataError(f"{what} has values of type {dtype}: give integers, floats of 16, 32 or 64 bits, or booleans")
    return dtype.newbyteorder("=")
