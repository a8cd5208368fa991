"""The base class of readers: samples in a fixed order, read in pieces by independent tasks.

A source holds either encoded images (files, members of archives, values of a database) or an array. Both promise

* an order that does not depend on the machine, and a `fingerprint` of names, sizes and content, never of
  times or absolute paths;
* `part`: a small picklable function that reads some samples in any process that sees the file;
* or, where a file can only be read from its beginning (compressed archives and arrays), `stream`.

A reader never fails for one bad image: the payload in its place is `Refused`, with the reason.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.disk import file_bytes, open_file, read_at
from dpca.storage.errors import DataError
from dpca.storage.errors import printable as printable
from dpca.storage.numbered import Numbered as Numbered
from dpca.storage.pictures import SUFFIXES, picture_of

# Far above any photograph, far below memory: bounds what a hostile header can make a task allocate.
MAX_ENCODED = 512 << 20

_ENDS = 64 << 10
_LISTED = 5


@dataclass(frozen=True)
class Refused:
    """Stands in place of an image that is not read, for `reason` (a phrase to follow the name)."""

    reason: str


Payload: TypeAlias = bytes | Refused
Block: TypeAlias = list[Payload] | NDArray[Any]


class Reader(ABC):
    """Samples of one source in a fixed order.

    Attributes
    ----------
    kind : str
        What the source is: ``"folder"``, ``"zip"``, ``"npy"``, ...
    name : str
        Base name of the source, for people.
    encoded : bool
        Whether payloads are encoded images; otherwise they are rows of an array.
    random_access : bool
        Whether `part` works; otherwise only `stream` does.
    others : mapping of str to int
        How many files in the source are no images, by their suffixes.
    refused : mapping of int to str
        Samples known to be refused before they are read, and why.
    labels : ndarray or None
        One label a sample.
    sample_shape, dtype, axes, data_range :
        Of arrays: shape of one sample, native numpy dtype, names of the sample's axes and declared range of
        the values where the source states them.
    coordinates : Coordinates or None
        Of arrays: names of all axes, samples first, and what stands along them.
    paths : tuple of str
        What `open_reader` opened it at: files, folders, URLs, matches of a glob each.
    patterns : tuple of str
        The globs among what it was given.
    """

    kind: str = ""
    name: str = ""
    encoded: bool = True
    random_access: bool = True
    others: Mapping[str, int] = {}
    refused: Mapping[int, str] = {}
    labels: NDArray[Any] | None = None
    sample_shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = np.dtype(np.uint8)
    axes: tuple[str, ...] | None = None
    data_range: tuple[float, float] | None = None
    coordinates: Coordinates | None = None
    paths: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """One name a sample, in order; may be computed on access."""

    @property
    def ignored(self) -> int:
        """Number of files in the source that are no images."""
        return sum(self.others.values())

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash that changes when the samples do."""

    @abstractmethod
    def part(self, indices: Sequence[int]) -> Callable[[], Block]:
        """Return a small picklable function that reads these samples (increasing indices) in a task."""

    def fetch(self, indices: Sequence[int]) -> Block:
        """Read these samples here and now: a list of `bytes` or `Refused`, or an array (n, *sample_shape)."""
        if self.random_access:
            return self.part(indices)()
        return next(iter(self.stream([indices])))

    def stream(self, requests: Iterable[Sequence[int]]) -> Iterator[Block]:
        """Yield one block a request, in lock-step: a request is drawn when its block is asked for.

        Indices increase within and across requests. The source is read once, from its beginning.
        """
        for indices in requests:
            yield self.part(indices)()

    def called(self, index: int) -> str:
        """Return the name of a sample for error messages."""
        name = self.names[index]
        return f"'{name}'" if self.encoded else f"sample {name} of '{self.name}'"

    def __len__(self) -> int:
        return len(self.names)


class Verdict(Enum):
    """What a member of an archive is."""

    IMAGE = "image"
    OTHER = "other"
    HIDDEN = "hidden"


def is_hidden(name: str) -> bool:
    """Whether a part of a path is passed over without being counted."""
    return any((part.startswith(".") and part != ".") or part == "__MACOSX" for part in name.split("/"))


def is_image(name: str, head: Callable[[], bytes]) -> bool:
    """Whether a file is taken for an image.

    Parameters
    ----------
    name : str
    head : callable
        Reads the first bytes of the file; called only where the name is not that of an image, so that a folder of
        ``.jpg`` is listed without opening a file.
    """
    return name.lower().endswith(SUFFIXES) or picture_of(head()) is not None


def judge_member(name: str, size: int, nature: str, head: Callable[[], bytes]) -> Verdict | str:
    """Classify a member of an archive, or return the reason why it is refused.

    Parameters
    ----------
    name : str
        As it stands in the archive.
    size : int
        Claimed bytes after decompression.
    nature : {"file", "link", "device"}
        Anything that is neither a file nor a link counts as a device.
    head : callable
        See `is_image`; not called for what is no file.
    """
    parts = re.split(r"[/\\]", name)
    if parts[0] == "" or ".." in parts or re.match(r"[A-Za-z]:", name):
        return "has a path that leads out of the archive"
    if nature == "device":
        return "is a device or pipe, not a file"
    if is_hidden(name):
        return Verdict.HIDDEN
    if not is_image(name, head if nature == "file" else bytes):
        return Verdict.OTHER
    if nature == "link":
        return "is a link, not a file"
    return too_large(size) if size > MAX_ENCODED else Verdict.IMAGE


def suffix_of(name: str) -> str:
    """Return the suffix of a name in lower case, ``"no suffix"`` where there is none."""
    return os.path.splitext(name)[1].lower() or "no suffix"


def seen(others: Mapping[str, int]) -> str:
    """Say how many files were seen that are not what was looked for, and with which suffixes."""
    if not others:
        return "no other file was seen"
    counted = sorted(others.items(), key=lambda item: (-item[1], item[0]))
    listed = [f"{n:,} with {suffix}" for suffix, n in counted[:_LISTED]] + ["..."] * (len(counted) > _LISTED)
    return f"{sum(others.values()):,} other files were seen ({', '.join(listed)})"


def too_large(size: int) -> str:
    """Return the reason for refusing an encoded image of `size` bytes."""
    return f"has {size:,} bytes, more than the {MAX_ENCODED:,} read for one image"


@contextmanager
def within_memory(what: str) -> Iterator[None]:
    """Convert exhausted memory to an error that names the source.

    Parameters
    ----------
    what : str
        How the sentence speaks of the source.
    """
    try:
        yield
    except MemoryError as error:
        raise DataError(
            f"{what} needs more memory than there is: give this process more, or the source in smaller parts"
        ) from error


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
        state.update(len(value).to_bytes(8, "little"))
        state.update(value)
    return state.hexdigest()


def digest_file(path: str) -> str:
    """Hash the size, the first and the last 64 KiB of a file: enough to tell data sets apart, cheap at any size."""
    size = file_bytes(path)
    with open_file(path) as file:
        return digest([size, read_at(file, _ENDS, 0), read_at(file, _ENDS, max(size - _ENDS, 0))])


def stack_dtype(dtype: np.dtype[Any], what: str) -> np.dtype[Any]:
    """Return the native type in which values of `dtype` are stored (booleans as uint8).

    Raises
    ------
    DataError
        For values that are no real numbers of at most 64 bits.
    """
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind not in "uif" or dtype.itemsize > 8:
        raise DataError(
            f"{what} holds values of type {dtype}: integers, floats of 16, 32 or 64 bits or booleans are read"
        )
    return dtype.newbyteorder("=")


def require(module: str, extra: str, what: str) -> ModuleType:
    """Import a library that only some sources need.

    Raises
    ------
    DataError
        Naming the extra to install, if it is missing.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DataError(
            f'reading {what} needs the library {module}, which is not installed: pip install "dask-dpca[{extra}]"'
        ) from None
