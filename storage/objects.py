"""Objects of an object store, with those methods of `pathlib.Path` that stores need."""

from __future__ import annotations

import io
import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from dpca.storage.network import again, file_system, is_url, upload_options

T = TypeVar("T")

# A sequential reader asks for so much at a time: a request costs about what a tenth of it does.
_READ_AHEAD = 4 << 20
# What S3 says of a range that begins where the object ends.
_BEHIND = "not satisfiable"


class ObjectPath:
    """A URL of an object, or of all objects whose names go on behind it.

    Whatever a method asks for is asked several times if that may help, see `dpca.storage.network.again`. There are no
    folders: whatever lies below a path makes it one.

    Parameters
    ----------
    url : path-like
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
        """The path without its last part; that of a bucket is itself."""
        return ObjectPath(self._root + (self._rest.rpartition("/")[0] or self._rest))

    @property
    def parents(self) -> Sequence[ObjectPath]:
        """The paths above, up to the bucket."""
        parts = self._rest.split("/")
        return [ObjectPath(self._root + "/".join(parts[:n])) for n in range(len(parts) - 1, 0, -1)]

    def with_name(self, name: str) -> ObjectPath:
        """Return the path with another last part."""
        return ObjectPath(str(self)[: len(str(self)) - len(self.name)] + name)

    # -- asking

    def exists(self) -> bool:
        """Return whether there is an object, or are objects below."""
        return self._ask(lambda fs, path: bool(fs.exists(path)))

    def is_file(self) -> bool:
        """Return whether there is an object."""
        if self._root.startswith("http"):  # servers may answer with all of it
            return bool(self._kind() == "file")
        try:
            self.read_range(0, 1)  # s3fs, asked whether there is an object, looks for a folder, too
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Return whether there are objects below."""
        return bool(self._kind() == "directory")

    def _kind(self) -> Any:
        try:
            return self._ask(lambda fs, path: fs.info(path))["type"]
        except FileNotFoundError:
            return None

    def size(self) -> int:
        """Return the bytes of the object."""
        return int(self._ask(lambda fs, path: fs.info(path))["size"])

    def modified(self) -> float:
        """Return when the object was written, in seconds by the server's clock."""
        return float(self._ask(lambda fs, path: fs.modified(path)).timestamp())

    def files(self) -> dict[str, int]:
        """Return the size of every object below, by its path from here, sorted."""

        def found(fs: Any, path: str) -> dict[str, int]:
            base = path.rstrip("/") + "/"
            listed = fs.find(path, detail=True)
            inside = {name.removeprefix(base): one for name, one in listed.items() if name.startswith(base)}
            # some tools write empty objects to stand for folders
            return {name: int(one["size"]) for name, one in inside.items() if name and not name.endswith("/")}

        return dict(sorted(self._ask(found).items()))

    def entries(self) -> list[tuple[str, bool]]:
        """Return the names directly below, sorted, and whether more lies below each."""

        def listed(fs: Any, path: str) -> list[tuple[str, bool]]:
            # of what is not there, s3fs would list the folder above
            with suppress(FileNotFoundError, NotADirectoryError):
                found = fs.ls(path, detail=True) if fs.exists(path) else []
                names = {posixpath.basename(one["name"].rstrip("/")): one["type"] == "directory" for one in found}
                base = posixpath.basename(path.rstrip("/"))
                return sorted((n, d) for n, d in names.items() if n and (n != base or len(names) > 1 or d))
            return []

        return self._ask(listed)

    def iterdir(self) -> Iterator[ObjectPath]:
        """Yield the paths directly below."""
        return (self / name for name, _ in self.entries())

    def matches(self) -> list[str]:
        """Return the URLs of all objects and folders that this path matches as a pattern, sorted."""
        return sorted(self._root + found.lstrip("/") for found in self._ask(lambda fs, path: fs.glob(path)))

    # -- reading

    def read_bytes(self) -> bytes:
        """Return the content of the object."""
        return bytes(self._ask(lambda fs, path: fs.cat_file(path)))

    def read_range(self, start: int, stop: int) -> bytes:
        """Return some bytes of the object, fewer where it ends before."""

        def found(fs: Any, path: str) -> bytes:
            try:
                content = bytes(fs.cat_file(path, start=start, end=stop))
            except OSError as error:
                if _BEHIND not in str(error):
                    raise
                return b""
            return content if len(content) <= stop - start else content[start:stop]  # some web servers know no ranges

        return self._ask(found) if start < stop else b""

    def read_ranges(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several pieces (start, stop) of the object, which are asked for at the same time."""
        _, path = file_system(str(self))
        starts, stops = [start for start, _ in places], [stop for _, stop in places]
        found = self._at_once([path] * len(places), starts, stops)
        both = zip(places, found, strict=True)
        return [self.read_range(*place) if isinstance(piece, Exception) else piece for place, piece in both]

    def read_below(self, names: Sequence[str], most: int) -> list[bytes | Exception]:
        """Return up to ``most`` bytes of each of some objects below, asked for at once, or why there are none."""
        _, path = file_system(str(self))
        paths = [f"{path.rstrip('/')}/{name}" for name in names]
        found = self._at_once(paths, 0, most)
        both = zip(names, found, strict=True)
        return [self._once_more(name) if isinstance(one, Exception) else one for name, one in both]

    def _at_once(self, paths: list[str], starts: Any, stops: Any) -> list[bytes | Exception]:
        """Ask for several pieces once: of many, some fail in each attempt, and are asked for again one by one."""
        return self._ask(lambda fs, path: list(fs.cat_ranges(paths, starts, stops))) if paths else []

    def _once_more(self, name: str) -> bytes | Exception:
        try:
            return (self / name).read_bytes()
        except OSError as error:
            return error

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """Open the object for reading, a few MB at a time."""
        return io.BufferedReader(_ObjectFile(self), _READ_AHEAD)

    # -- writing

    def write_bytes(self, content: bytes) -> None:
        """Write the object, which is there with all of its content or not at all."""
        self._ask(lambda fs, path: fs.pipe_file(path, content, **upload_options(str(self))), "written")

    def create(self, content: bytes) -> bool:
        """Write the object unless there is one; return whether it holds this content."""

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

        # an attempt that was told to have failed may have written it
        return self._ask(created, "written") or self.read_bytes() == content

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object."""
        try:
            self._ask(lambda fs, path: fs.rm_file(path), "removed")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove_tree(self) -> None:
        """Remove the object, if there is one, and all objects below."""

        def remove(fs: Any, path: str) -> None:
            with suppress(FileNotFoundError):
                if found := fs.find(path):
                    fs.rm(found)

        self._ask(remove, "removed")

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Do nothing: there are no folders."""

    def _ask(self, request: Callable[[Any, str], T], doing: str = "read") -> T:
        fs, path = file_system(str(self))
        return again(lambda: request(fs, path), str(self), doing)


Place: TypeAlias = Path | ObjectPath
"""Where a store or a file is: on a disk, or in an object store."""


def place_of(path: str | os.PathLike[str]) -> Place:
    """Return a path of a disk, or a URL, with the methods that both have."""
    text = os.fspath(path)
    return ObjectPath(text) if is_url(text) else Path(text.removeprefix("file://").removeprefix("local://"))


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a path or URL is one of a file; False for a name that no file can have."""
    place = place_of(path)
    return place.is_file() if isinstance(place, ObjectPath) else os.path.isfile(place)


def is_dir(path: str | os.PathLike[str]) -> bool:
    """Return whether a path or URL is one of a folder; False for a name that no folder can have."""
    place = place_of(path)
    return place.is_dir() if isinstance(place, ObjectPath) else os.path.isdir(place)


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the absolute path, which workers in another working folder can open; URLs are returned unchanged."""
    place = place_of(path)
    return os.fspath(place) if isinstance(place, ObjectPath) else os.path.abspath(place)


class _ObjectFile(io.RawIOBase):
    """An object as a file: each read is a request."""

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
