"""Image files on disk: a folder tree, or a list of files."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from dpca.storage.disk import begin_of, file_bytes
from dpca.storage.errors import DataError, one_line
from dpca.storage.integrity.manifest import ZARR_METADATA
from dpca.storage.pictures import HEAD, NAMES
from dpca.storage.readers.base import (
    MAX_ENCODED,
    Payload,
    Reader,
    Refused,
    digest,
    is_hidden,
    is_image,
    listed,
    printable,
    suffix_of,
    too_large,
)
from dpca.storage.readers.format import Format
from dpca.storage.remote.network import is_url
from dpca.storage.remote.objects import ObjectPath, absolute
from dpca.storage.transaction.claim import LOCK, WORK_SUFFIX

# A marker in the head of the page of every report.
REPORT_MARK = b'<meta name="generator" content="dask-dpca">'

_PAGE_HEAD = 4096
# Objects that a task requests concurrently.
_AT_ONCE = 32

# Suffixes of arrays. In a folder without images, all of them form one stack.
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
        """Paths relative to the common folder of all files."""
        return self._names

    def fingerprint(self) -> str:
        """Hash of relative paths and sizes."""
        return digest([self.kind, listed(self._paths), listed(self._sizes)])

    def part(self, indices: Sequence[int]) -> Callable[[], list[Payload]]:
        """Return a function that reads these images."""
        return partial(_read_files, self._root, [self._paths[i] for i in indices])


class FolderReader(_ImageFiles):
    """All images below a folder, sorted by their relative paths (as text, with ``/`` between the parts).

    Links to files and folders are followed, each folder at most once on a path. Hidden files and ``__MACOSX`` are
    skipped, and so are Zarr stores and reports, which may be outputs of earlier runs. Other files that are not images
    are counted. The cost is one ``stat`` per file, and reading the first bytes of files without the suffix of an image.

    Parameters
    ----------
    path : str
        The folder.

    Attributes
    ----------
    arrays : list of str
        Paths of files with the suffix of an array, sorted.
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
    """A list of image files, in the given order, named by their paths below their common folder.

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
        raise DataError(
            f"'{urls[0]}' and other images have different protocols: give images of one disk or one object store"
        )
    return f"{protocol}://{os.path.commonpath([url[len(protocol) + 3 :] for url in urls])}"


def _walk(root: str) -> Iterator[tuple[str, int]]:
    """Yield relative path and size (-1 if unknown) of everything that is neither a folder nor hidden."""
    if os.stat(root).st_dev in (system := _system_devices()):
        raise DataError(f"folder '{root}' belongs to the operating system and has no images: give another folder")
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
        if folder and _is_output({entry.name for entry in entries}, os.path.join(root, folder)):
            continue
        for entry in entries:
            if is_hidden(entry.name):
                continue
            relative = os.path.join(folder, entry.name) if folder else entry.name
            if not _is_folder(entry):
                yield relative, _size(entry.path)
                continue
            identity = _identity(entry.path)
            # A link to a folder above would repeat its images. System folders may contain links to any folder.
            if identity not in trail and identity[0] not in system:
                above[relative] = (*trail, identity)
                waiting.append(relative)


def _walk_objects(root: str) -> Iterator[tuple[str, int]]:
    """Do the same as `_walk` for objects. A list of a thousand objects is one request."""
    sizes = ObjectPath(root).files()
    names: dict[str, set[str]] = {}
    for path in sizes:
        parts = path.split("/")
        for i in range(1, len(parts)):
            names.setdefault("/".join(parts[:i]), set()).add(parts[i])
    outputs = tuple(f"{folder}/" for folder, inside in names.items() if _is_output(inside, f"{root}/{folder}"))
    return ((path, size) for path, size in sizes.items() if not is_hidden(path) and not path.startswith(outputs))


def _is_output(names: set[str], folder: str) -> bool:
    """Return whether a folder is a Zarr store, a work folder or a report, and therefore possibly an output."""
    if not names.isdisjoint(ZARR_METADATA) or (folder.endswith(WORK_SUFFIX) and LOCK in names):
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
        return False  # for example a broken link, which is refused by name when it is read


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
        return -1  # for example a broken link, which is refused by name when it is read


def _head(root: str, path: str, size: int) -> bytes:
    if size <= 0:  # for example a pipe or a device, which must not be opened
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
        return b""  # an unreadable file counts as another file


def _read_files(root: str, paths: Sequence[str]) -> list[Payload]:
    if is_url(root):
        return _read_objects(ObjectPath(root), paths)
    return [_read_file(os.path.join(root, path)) for path in paths]


def _read_objects(root: ObjectPath, paths: Sequence[str]) -> list[Payload]:
    """Read objects, a few concurrently, up to the size limit of an image."""
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
        # Otherwise, opening a pipe would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return Refused("is a device or pipe, not a file")
            if status.st_size > MAX_ENCODED:
                return Refused(too_large(status.st_size))
            # Some files of the system are endless and state a size of 0.
            return file.read(status.st_size)
    except OSError as error:
        return Refused(f"cannot be read ({error.strerror})")


FORMATS = (
    Format(
        f"images ({NAMES})",
        lambda file: is_image(file.name, lambda: file.first),
        lambda path, key, axes: FilesReader([path]),
        supports_urls=True,
    ),
)
