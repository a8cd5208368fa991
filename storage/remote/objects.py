"""Paths in an object store, with the methods of `pathlib.Path` that stores require."""

from __future__ import annotations

import io
import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from dpca.storage.remote.network import again, file_system, is_url, upload_options

T = TypeVar("T")

# Bytes per request of a sequential reader: the latency of a request is about a tenth of the transfer time.
_READ_AHEAD = 4 << 20
# Part of the error message of S3 for a range that begins at the end of the object.
_BEHIND = "not satisfiable"


class ObjectPath:
    """A URL of an object, or a common prefix of several objects.

    Requests are repeated after transient errors, see `dpca.storage.remote.network.again`. There are no folders: a path
    is a
    folder if there are objects below it.

    Parameters
    ----------
    url : path-like
        Such as ``s3://bucket/key``.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        protocol, _, rest = os.fspath(url).partition("://")
        self._root, self._rest = f"{protocol}://", rest.rstrip("/")

    def __fspath__(self) -> str:
        return self._root + self._rest

    __str__ = __fspath__

    def __repr__(self) -> str:
        return f"ObjectPath('{self}')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectPath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __truediv__(self, name: str | os.PathLike[str]) -> ObjectPath:
        return ObjectPath(f"{self}/{os.fspath(name)}")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._rest.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The suffix of the last part."""
        return Path(self.name).suffix

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return Path(self.name).stem

    @property
    def parent(self) -> ObjectPath:
        """The path without its last part; the parent of a bucket is the bucket."""
        return ObjectPath(self._root + (self._rest.rpartition("/")[0] or self._rest))

    @property
    def parents(self) -> Sequence[ObjectPath]:
        """The paths above, up to the bucket."""
        parts = self._rest.split("/")
        return [ObjectPath(self._root + "/".join(parts[:n])) for n in range(len(parts) - 1, 0, -1)]

    def with_name(self, name: str) -> ObjectPath:
        """Return the path with another last part."""
        return ObjectPath(str(self)[: len(str(self)) - len(self.name)] + name)

    # -- information

    def exists(self) -> bool:
        """Return whether there is an object at this path or below it."""
        return self._ask(lambda fs, path: bool(fs.exists(path)))

    def is_file(self) -> bool:
        """Return whether there is an object at this path."""
        if self._root.startswith("http"):  # web servers may ignore a range and send the whole file
            return bool(self._kind() == "file")
        try:
            self.read_range(0, 1)  # one request; s3fs.isfile would also search for a folder
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Return whether there are objects below this path."""
        return bool(self._kind() == "directory")

    def _kind(self) -> Any:
        try:
            return self._ask(lambda fs, path: fs.info(path))["type"]
        except FileNotFoundError:
            return None

    def size(self) -> int:
        """Return the size of the object in bytes."""
        return int(self._ask(lambda fs, path: fs.info(path))["size"])

    def modified(self) -> float:
        """Return the time of the last write of the object, in seconds by the clock of the server."""
        return float(self._ask(lambda fs, path: fs.modified(path)).timestamp())

    def files(self) -> dict[str, int]:
        """Return the sizes of all objects below this path, sorted by their relative paths."""

        def found(fs: Any, path: str) -> dict[str, int]:
            base = path.rstrip("/") + "/"
            listed = fs.find(path, detail=True)
            inside = {name.removeprefix(base): one for name, one in listed.items() if name.startswith(base)}
            # Some tools write empty objects that represent folders.
            return {name: int(one["size"]) for name, one in inside.items() if name and not name.endswith("/")}

        return dict(sorted(self._ask(found).items()))

    def entries(self) -> list[tuple[str, bool]]:
        """Return the sorted names directly below this path, each with whether it is a folder."""

        def listed(fs: Any, path: str) -> list[tuple[str, bool]]:
            # For a missing path, s3fs would list the parent.
            with suppress(FileNotFoundError, NotADirectoryError):
                found = fs.ls(path, detail=True) if fs.exists(path) else []
                names = {posixpath.basename(one["name"].rstrip("/")): one["type"] == "directory" for one in found}
                base = posixpath.basename(path.rstrip("/"))
                return sorted((n, d) for n, d in names.items() if n and (n != base or len(names) > 1 or d))
            return []

        return self._ask(listed)

    def iterdir(self) -> Iterator[ObjectPath]:
        """Yield the paths directly below this path."""
        return (self / name for name, _ in self.entries())

    def matches(self) -> list[str]:
        """Return the sorted URLs of all objects and folders that match this path as a pattern."""
        return sorted(self._root + found.lstrip("/") for found in self._ask(lambda fs, path: fs.glob(path)))

    # -- reading

    def read_bytes(self) -> bytes:
        """Return the content of the object."""
        return bytes(self._ask(lambda fs, path: fs.cat_file(path)))

    def read_range(self, start: int, stop: int) -> bytes:
        """Return the bytes of the object from ``start`` to ``stop``; fewer if it ends before."""

        def found(fs: Any, path: str) -> bytes:
            try:
                content = bytes(fs.cat_file(path, start=start, end=stop))
            except OSError as error:
                if _BEHIND not in str(error):
                    raise
                return b""
            return content if len(content) <= stop - start else content[start:stop]  # some web servers ignore ranges

        return self._ask(found) if start < stop else b""

    def read_ranges(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges (start, stop) of the object, requested concurrently."""
        _, path = file_system(str(self))
        starts, stops = [start for start, _ in places], [stop for _, stop in places]
        found = self._at_once([path] * len(places), starts, stops)
        both = zip(places, found, strict=True)
        return [self.read_range(*place) if isinstance(piece, Exception) else piece for place, piece in both]

    def read_below(self, names: Sequence[str], most: int) -> list[bytes | Exception]:
        """Return up to ``most`` bytes, or the error, for each of several objects below this path, read concurrently."""
        _, path = file_system(str(self))
        paths = [f"{path.rstrip('/')}/{name}" for name in names]
        found = self._at_once(paths, 0, most)
        both = zip(names, found, strict=True)
        return [self._once_more(name) if isinstance(one, Exception) else one for name, one in both]

    def _at_once(self, paths: list[str], starts: Any, stops: Any) -> list[bytes | Exception]:
        """Request several ranges once. Among many, some fail in each attempt; the caller repeats these one by one."""
        return self._ask(lambda fs, path: list(fs.cat_ranges(paths, starts, stops))) if paths else []

    def _once_more(self, name: str) -> bytes | Exception:
        try:
            return (self / name).read_bytes()
        except OSError as error:
            return error

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """Open the object for buffered reading, with a few MB per request."""
        return io.BufferedReader(_ObjectFile(self), _READ_AHEAD)

    # -- writing

    def write_bytes(self, content: bytes) -> None:
        """Write the object atomically."""
        self._ask(lambda fs, path: fs.pipe_file(path, content, **upload_options(str(self))), "written")

    def create(self, content: bytes) -> bool:
        """Write the object unless it exists; return whether it now has this content."""

        def created(fs: Any, path: str) -> bool:
            try:
                fs.pipe_file(path, content, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                if "recondition" not in str(error):
                    raise
                return False
            return True

        # An earlier attempt may have written the object even though it reported an error.
        return self._ask(created, "written") or self.read_bytes() == content

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object."""
        try:
            self._ask(lambda fs, path: fs.rm_file(path), "removed")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove_tree(self) -> None:
        """Remove the object, if it exists, and all objects below this path."""

        def remove(fs: Any, path: str) -> None:
            with suppress(FileNotFoundError):
                if found := fs.find(path):
                    fs.rm(found)

        self._ask(remove, "removed")

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Do nothing, since there are no folders."""

    def _ask(self, request: Callable[[Any, str], T], doing: str = "read") -> T:
        fs, path = file_system(str(self))
        return again(lambda: request(fs, path), str(self), doing)


Place: TypeAlias = Path | ObjectPath
"""A path on a disk or in an object store."""


def place_of(path: str | os.PathLike[str]) -> Place:
    """Return a `Path` for a local path, or an `ObjectPath` for a URL."""
    text = os.fspath(path)
    return ObjectPath(text) if is_url(text) else Path(text.removeprefix("file://").removeprefix("local://"))


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether there is a file at a path or URL; False for an invalid name."""
    place = place_of(path)
    return place.is_file() if isinstance(place, ObjectPath) else os.path.isfile(place)


def is_dir(path: str | os.PathLike[str]) -> bool:
    """Return whether there is a folder at a path or URL; False for an invalid name."""
    place = place_of(path)
    return place.is_dir() if isinstance(place, ObjectPath) else os.path.isdir(place)


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the absolute path, which workers with another working folder can open. URLs are returned unchanged."""
    place = place_of(path)
    return os.fspath(place) if isinstance(place, ObjectPath) else os.path.abspath(place)


class _ObjectFile(io.RawIOBase):
    """An object as a file. Each read is one request."""

    def __init__(self, path: ObjectPath) -> None:
        self._path, self._size, self._at = path, path.size(), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise OSError(22, "a position before the beginning")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        content = self._path.read_range(self._at, min(self._at + len(buffer), self._size))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)
