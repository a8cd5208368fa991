"""Image files on disk: a folder tree, or a list of files."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from dpca.storage.disk import begin_of, file_bytes
from dpca.storage.errors import DataError, one_line
from dpca.storage.pictures import HEAD, NAMES
from dpca.storage.readers.base import (
    MAX_ENCODED,
    Payload,
    Reader,
    Refused,
    digest,
    is_hidden,
    is_image,
    printable,
    suffix_of,
    too_large,
)
from dpca.storage.readers.format import Format
from dpca.storage.remote.network import is_url
from dpca.storage.remote.objects import ObjectPath, absolute

# A marker in the head of every report's page.
REPORT_MARK = b'<meta name="generator" content="dask-dpca">'

_PAGE_HEAD = 4096
# Objects that a task asks for at the same time.
_AT_ONCE = 32

# Suffixes of arrays, of which a folder without images may hold several that make one stack.
_ARRAYS = (".npy", ".nii", ".nii.gz", ".nc")


class _ImageFiles(Reader):
    def __init__(self, name: str, root: str, files: Sequence[tuple[str, int]]) -> None:
        self.name = name
        self._root = root
        self._paths = [path for path, _ in files]
        self._sizes = [size for _, size in files]
        self._names = [printable(path) for path in self._paths]

    @property
    def names(self) -> Sequence[str]:
        """Paths relative to the folder that holds all files."""
        return self._names

    def fingerprint(self) -> str:
        """Hash of relative paths and sizes."""
        return digest([self.kind, *self._paths, *self._sizes])

    def part(self, indices: Sequence[int]) -> Callable[[], list[Payload]]:
        """Ship the paths of these images."""
        return partial(_read_files, self._root, [self._paths[i] for i in indices])


class FolderReader(_ImageFiles):
    """All images below a folder, sorted by their path relative to it (as text, ``/`` between the parts).

    Links to files and folders are followed, each folder at most once on a path; hidden files and ``__MACOSX`` are
    passed over, as are Zarr stores and reports, which earlier runs may have put there; others that are no images are
    counted. A scan costs one ``stat`` a file, and a look at the first bytes of those without an image's suffix.

    Parameters
    ----------
    path : str
        The folder.

    Attributes
    ----------
    arrays : list of str
        Paths of files that are arrays by their names, sorted.
    """

    kind = "folder"

    def __init__(self, path: str) -> None:
        root = absolute(path)
        files, self.arrays = [], []
        others: Counter[str] = Counter()
        for relative, size in _walk_objects(root) if is_url(root) else _walk(root):
            if is_image(relative, partial(_head, root, relative, size)):
                files.append((relative, size))
            else:
                others[suffix_of(relative)] += 1
                if relative.lower().endswith(_ARRAYS):
                    self.arrays.append(os.path.join(root, relative))
        self.others = others
        self.arrays.sort()
        super().__init__(os.path.basename(root), root, sorted(files))


class FilesReader(_ImageFiles):
    """A list of image files, in the order given, named by their paths below the folder they share.

    Parameters
    ----------
    paths : sequence of str
        The files.
    """

    kind = "files"

    def __init__(self, paths: Sequence[str]) -> None:
        whole = [absolute(path) for path in paths]
        folders = [os.path.dirname(path) for path in whole]
        root = _common_url(folders) if is_url(folders[0]) else os.path.commonpath(folders)
        files = [(os.path.relpath(path, root), _size(path)) for path in whole]
        super().__init__(files[0][0] if len(files) == 1 else os.path.basename(root), root, files)


def _common_url(urls: Sequence[str]) -> str:
    protocol = urls[0].partition("://")[0]
    if not all(url.startswith(f"{protocol}://") for url in urls):
        raise DataError(f"'{urls[0]}' and others lie in different places: give images of one disk or one bucket")
    return f"{protocol}://{os.path.commonpath([url[len(protocol) + 3 :] for url in urls])}"


def _walk(root: str) -> Iterator[tuple[str, int]]:
    """Yield path below `root` and size (-1 if unknown) of everything that is neither a folder nor hidden."""
    if os.stat(root).st_dev in (system := _system_devices()):
        raise DataError(f"folder '{root}' is made by the system and holds no images: give another folder")
    above: dict[str, tuple[tuple[int, int], ...]] = {"": (_identity(root),)}
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        trail = above.pop(folder)
        try:
            entries = list(os.scandir(os.path.join(root, folder)))
        except OSError as error:
            raise DataError(
                f"folder '{os.path.join(root, folder)}' cannot be read ({error.strerror}): change its permissions"
            ) from error
        if folder and _is_ours({entry.name for entry in entries}, os.path.join(root, folder)):
            continue
        for entry in entries:
            if is_hidden(entry.name):
                continue
            relative = os.path.join(folder, entry.name) if folder else entry.name
            if not _is_folder(entry):
                yield relative, _size(entry.path)
                continue
            identity = _identity(entry.path)
            # else a link back up, whose images are in already, or one to where links lead everywhere
            if identity not in trail and identity[0] not in system:
                above[relative] = (*trail, identity)
                waiting.append(relative)


def _walk_objects(root: str) -> Iterator[tuple[str, int]]:
    """Do as `_walk` for objects, whose listing is one request for a thousand of them."""
    sizes = ObjectPath(root).files()
    names: dict[str, set[str]] = {}
    for path in sizes:
        parts = path.split("/")
        for i in range(1, len(parts)):
            names.setdefault("/".join(parts[:i]), set()).add(parts[i])
    ours = tuple(f"{folder}/" for folder, inside in names.items() if _is_ours(inside, f"{root}/{folder}"))
    return ((path, size) for path, size in sizes.items() if not is_hidden(path) and not path.startswith(ours))


def _is_ours(names: set[str], folder: str) -> bool:
    """Whether a folder is a Zarr store, the work folder of one being made, or a report: outputs may lie here."""
    if names & {"zarr.json", ".zarray", ".zgroup"} or (folder.endswith(".partial") and "lock" in names):
        return True
    if not {"report.json", "index.html"} <= names:
        return False
    try:
        return REPORT_MARK in begin_of(os.path.join(folder, "index.html"), _PAGE_HEAD)
    except OSError:
        return False


def _system_devices() -> set[int]:
    """Return the devices of system file systems such as /proc, whose folders may be endless."""
    return {os.stat(folder).st_dev for folder in ("/proc", "/sys") if os.path.ismount(folder)}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link that leads nowhere, say: refused by name when it is read


def _identity(folder: str) -> tuple[int, int]:
    try:
        status = os.stat(folder)
    except OSError as error:
        raise DataError(f"folder '{folder}' cannot be read ({error.strerror}): change its permissions") from error
    return status.st_dev, status.st_ino


def _size(path: str) -> int:
    try:
        return file_bytes(path)
    except OSError:
        return -1  # a dangling link, say: refused by name when it is read


def _head(root: str, path: str, size: int) -> bytes:
    if size <= 0:  # as pipes and devices are, which opening could disturb
        return b""
    if is_url(root):
        return begin_of(os.path.join(root, path), HEAD)
    try:
        file = os.open(os.path.join(root, path), os.O_RDONLY)
        try:
            return os.read(file, HEAD)
        finally:
            os.close(file)
    except OSError:
        return b""  # what may not be read is not known to be an image


def _read_files(root: str, paths: Sequence[str]) -> list[Payload]:
    if is_url(root):
        return _read_objects(ObjectPath(root), paths)
    return [_read_file(os.path.join(root, path)) for path in paths]


def _read_objects(root: ObjectPath, paths: Sequence[str]) -> list[Payload]:
    """Read objects, a few at a time; they were listed with their sizes, and are asked for those at most."""
    found: list[Payload] = []
    for start in range(0, len(paths), _AT_ONCE):
        for content in root.read_below(paths[start : start + _AT_ONCE], MAX_ENCODED + 1):
            if isinstance(content, Exception):
                found.append(Refused(f"cannot be read ({one_line(content)})"))
            else:
                found.append(content if len(content) <= MAX_ENCODED else Refused(too_large(len(content))))
    return found


def _read_file(path: str) -> Payload:
    try:
        # non-blocking: opening a pipe would wait for a writer
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return Refused("is a device or pipe, not a file")
            if status.st_size > MAX_ENCODED:
                return Refused(too_large(status.st_size))
            # no more than it says it has: some files of the system say nothing and never end
            return file.read(status.st_size)
    except OSError as error:
        return Refused(f"cannot be read ({error.strerror})")


FORMATS = (
    Format(
        f"images ({NAMES})",
        lambda file: is_image(file.name, lambda: file.first),
        lambda path, key, axes: FilesReader([path]),
        anywhere=True,
    ),
)
