"""Checks outputs before anything is written: an output never damages an input, a finished store or any other file.

Outputs of dpca are recognized by their content. Only these are replaced, and reports and work folders are never inputs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from typing import Any, TypeVar

from dpca.storage.disk import atomic_write_bytes, content_of_file, entries_of, exists, read_file, writing_errors
from dpca.storage.errors import StoreError, printable
from dpca.storage.integrity.manifest import FOLDER_MANIFEST, METADATA, REPORT, facts_in, has_manifest
from dpca.storage.remote.objects import ObjectPath, Place, is_dir, place_of
from dpca.storage.transaction.claim import JOURNAL, LOCK, MARK, WORK_SUFFIX
from dpca.storage.transaction.lease import CLEARING

__all__ = [
    *("OutputFile", "check_output", "check_report", "check_outside_stores", "is_report_or_work_folder"),
    *("is_work_folder", "matched", "resolved_output", "work_folder"),
]

#: Suffix of a report, instead of the suffix of its output.
REPORT_SUFFIX = ".report"
# Bytes of a path reserved for the files inside a store.
_BELOW = 256
_MOUNTS, _ESCAPED = "/proc/self/mountinfo", re.compile(r"\\(\d{3})")

# Protocols without write access.
_READ_ONLY = ("http", "https")
# Prefix of paths that fsspec reads through another file system, such as ``dpca::photos.zarr``.
_CHAINED = re.compile(r"[A-Za-z][A-Za-z0-9.+-]*::")

Key = tuple[int, int] | str
P = TypeVar("P", Path, ObjectPath, Place)


def work_folder(output: P) -> P:
    """Return the work folder of an output: ``out.zarr.partial`` for ``out.zarr``."""
    return output.with_name(output.name + WORK_SUFFIX)


def check_output(
    target: str | os.PathLike[str], *inputs: Any, report: str | os.PathLike[str] | None = None, others: Any = ()
) -> None:
    """Check that an output overlaps no input and is not inside a finished store.

    A job writes its target, the work folder, and optionally a report. Each is compared with every input by real path
    and by inode, so that links, ``..`` and a second mount are recognized. An output may not match a pattern of an input
    either, since the next run would read it.

    Parameters
    ----------
    target : path-like
        Path of the output. Neither the output nor its parents need exist.
    *inputs : path-like, Stack, Reader, None, or iterable of these
        Inputs of the job. Inputs without a path are ignored.
    report : path-like, optional
        Folder of the report.
    others : as inputs
        Other outputs of the job.

    Raises
    ------
    StoreError
        If the output overlaps an input or is inside a finished store, or is invalid, see `resolved_output`.
    """
    real = resolved_output(target)
    written = {f"output '{target}'": real, f"the work folder of output '{target}'": work_folder(real)}
    if report is not None:
        written[f"the report folder '{report}'"] = _real(place_of(report))
    chains = {what: _chain(path) for what, path in written.items()}
    named = ((kind, name) for kind, group in (("input", inputs), ("output", others)) for name in _paths(group))
    for kind, name in named:
        read = _chain(_real(place_of(name)))
        for what, path in chains.items():
            if read[0] in path or path[0] in read:
                relation = "is" if path[0] == read[0] else "is inside" if read[0] in path else "contains"
                raise StoreError(
                    f"{what} {relation} the {kind} '{printable(name)}', which must not change: choose another output"
                )
    for pattern in _paths(inputs, "patterns"):
        if matched(pattern, real / METADATA):
            raise StoreError(
                f"output '{target}' matches the pattern '{printable(pattern)}' of the input, so the next run would "
                f"read it: choose another output or another pattern"
            )
    check_outside_stores(target, real)
    if report is not None:
        _check_report_folder(place_of(report))


def check_report(folder: str | os.PathLike[str], *inputs: Any) -> None:
    """Check the folder of a report like an output with `check_output`, and that it has no other files than a report."""
    check_output(folder, *inputs)
    _check_report_folder(place_of(folder))


def check_outside_stores(target: str | os.PathLike[str], real: Place) -> None:
    """Raise `StoreError` if an output, given by its real path, is inside a finished store."""
    if (holder := next(filter(_is_finished_store, real.parents), None)) is not None:
        raise StoreError(
            f"output '{target}' is inside the finished store '{printable(os.fspath(holder))}', which must not change: "
            f"choose another output"
        )


class OutputFile:
    """A single output file of a command, such as a record. An existing file is replaced only if dpca created it.

    Parameters
    ----------
    path : path-like or URL
        Path of the file.
    what : str
        Name of the file in error messages: ``"record"``.
    is_ours : callable
        Returns whether the content of a file was created by dpca.
    *inputs, others
        As for `check_output`.

    Raises
    ------
    StoreError
        If the existing file was not created by dpca, the path is a link, or `check_output` rejects it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        what: str,
        is_ours: Callable[[bytes], bool],
        *inputs: Any,
        others: Any = (),
    ) -> None:
        self.place, self._what, self._is_ours = place_of(path), what, is_ours
        check_output(path, *inputs, others=others)
        self.read()

    def read(self) -> bytes | None:
        """Return the content of the existing file; None if there is no file.

        Raises
        ------
        StoreError
            If the existing file was not created by dpca.
        """
        if not exists(self.place):
            return None
        if not isinstance(self.place, ObjectPath) and self.place.is_symlink():
            raise self._refusal("is a link, which is never followed")
        try:
            content = read_file(self.place)
        except OSError as error:
            raise self._refusal(f"cannot be replaced ({error.strerror})") from error
        if not self._is_ours(content):
            raise self._refusal(f"is not a {self._what} created by dpca")
        return content

    def write(self, content: bytes) -> None:
        """Write the file atomically, or replace an earlier one. A missing folder is created."""
        with writing_errors(self.place):
            self.read()
            self.place.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_bytes(self.place, content)

    def _refusal(self, why: str) -> StoreError:
        return StoreError(f"the {self._what} '{printable(os.fspath(self.place))}' {why}: choose another path for it")


def resolved_output(target: str | os.PathLike[str]) -> Place:
    """Return the real path of an output. If it is a link, its target is replaced.

    Raises
    ------
    StoreError
        For the URL of a whole bucket or of a read-only server, an invalid name, the root folder, the working folder or
        one of its parents, and a mount point.
    """
    text = os.fspath(target)
    shown_path = printable(text)
    shown = f"output '{shown_path}'"
    if "\0" in text:
        raise StoreError(f"{shown} contains a NUL character, which paths do not allow: choose another output")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise StoreError(f"{shown} is not UTF-8, which names of outputs require: choose another output") from None
    place = place_of(text)
    if isinstance(place, ObjectPath):
        return _in_bucket(place, shown)
    if _CHAINED.match(text):
        raise StoreError(
            f"{shown} has the prefix '{text.partition('::')[0]}::', which is for reading: give a path without it"
        )
    text = os.fspath(place)
    here = _working_folder()
    if here is None and not os.path.isabs(text):
        raise StoreError(f"{shown} is relative to a working folder that was removed: change to another folder")
    with writing_errors(shown_path):
        real = Path(os.path.realpath(text))
        is_old = _exists(real)
        if real.parent == real:
            raise StoreError(f"{shown} is the root folder: choose another output")
        _check_lengths(shown, real)
        if is_old and here is not None and _key(real) in _chain(here):
            raise StoreError(f"{shown} is the working folder or contains it: give the name of a new folder")
        if is_old and (os.path.ismount(real) or os.fspath(real) in _mount_points()):
            raise StoreError(f"{shown} is a mount point: give the name of a new folder in it")
    return real


def _in_bucket(place: ObjectPath, shown: str) -> ObjectPath:
    protocol, _, rest = str(place).partition("://")
    if protocol in _READ_ONLY or "::" in str(place):
        raise StoreError(f"{shown} can be read but not written: give a path, or a URL of an object store such as s3://")
    if has_magic(rest):
        raise StoreError(f"{shown} contains *, ? or [, which are patterns in URLs: choose another output")
    parts = rest.split("/")
    if len(parts) < 2 or not all(parts[1:]) or {".", ".."} & set(parts):
        raise StoreError(f"{shown} is not a path in a bucket: give a URL such as {protocol}://bucket/name.zarr")
    return place


def _real(place: Place) -> Place:
    return place if isinstance(place, ObjectPath) else Path(os.path.realpath(place))


def is_report_or_work_folder(path: str, below: str) -> bool:
    """Return whether a path, or a folder between ``below`` and the path, is a report or a work folder of dpca."""
    inside = path.removeprefix(below)
    if WORK_SUFFIX not in inside and REPORT_SUFFIX not in inside:
        return False
    place, n = place_of(path), len(Path(inside.lstrip("/")).parts)
    return any(_is_report(one) or is_work_folder(one) for one in (place, *place.parents)[:n])


def matched(pattern: str, path: Place) -> bool:
    """Return whether a pattern of sources matches a path or one of its parents, existing or not."""
    return _matched(_parts(pattern), _parts(os.fspath(path)))


def _parts(path: str) -> list[str]:
    return [part for part in os.fspath(place_of(path)).split("/") if part]


def _matched(pattern: Sequence[str], path: Sequence[str]) -> bool:
    if not pattern:
        return True
    if pattern[0] == "**" and _matched(pattern[1:], path):
        return True
    if not path or (path[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    if pattern[0] == "**":
        return _matched(pattern, path[1:])
    return fnmatchcase(path[0], pattern[0]) and _matched(pattern[1:], path[1:])


def _check_report_folder(folder: Place) -> None:
    if not exists(folder):
        return
    if not is_dir(folder):
        raise StoreError(f"the report folder '{folder}' is a file: choose another output or remove it")
    names = [name for name, _ in entries_of(folder)]
    if names and not _is_report(folder):
        raise StoreError(
            f"the report folder '{folder}' contains {printable(names[0])!r}, which was not created by dpca: choose "
            f"another output, or move this file"
        )


def _is_report(folder: Place) -> bool:
    return facts_in(content_of_file(folder / FOLDER_MANIFEST)).get("kind") == REPORT


def is_work_folder(folder: Place) -> bool:
    """Return whether a folder is a work folder of dpca, at any stage of its run."""
    if not folder.name.endswith(WORK_SUFFIX) or not is_dir(folder):
        return False
    names = {name for name, _ in entries_of(folder)}
    if isinstance(folder, ObjectPath):
        return bool(names & {LOCK, JOURNAL, CLEARING})
    mark = content_of_file(folder / LOCK)
    return mark == MARK or (names <= {LOCK} and MARK.startswith(mark))


def _is_finished_store(folder: Place) -> bool:
    return has_manifest(content_of_file(folder / METADATA))


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None  # the working folder was removed; absolute paths are still valid


def _exists(path: Path) -> bool:
    try:
        os.stat(path)  # unlike Path.exists, this raises an error for a cycle of links
    except FileNotFoundError:
        return False
    return True


def _check_lengths(shown: str, real: Path) -> None:
    folder = next(folder for folder in real.parents if folder.is_dir())
    longest, most = (_limit(folder, name, usual) for name, usual in (("PC_NAME_MAX", 255), ("PC_PATH_MAX", 4096)))
    if (size := len(os.fsencode(real.name))) > longest - len(WORK_SUFFIX):
        raise StoreError(
            f"the name of {shown} has {size} bytes, and the limit is {longest} including {WORK_SUFFIX!r} of its work "
            f"folder: choose a shorter name"
        )
    if (size := len(os.fsencode(real))) > most - _BELOW:
        raise StoreError(
            f"the path of {shown} has {size:,} bytes, and the files inside it would exceed the limit of {most:,}: "
            f"choose a shorter path"
        )


def _limit(folder: Path, name: str, usual: int) -> int:
    try:
        return os.pathconf(folder, name)
    except (OSError, ValueError):
        return usual


def _mount_points() -> set[str]:
    """Return all mount points, including bind mounts; empty on other systems than Linux."""
    try:
        with open(_MOUNTS, errors="surrogateescape") as file:
            return {_ESCAPED.sub(lambda m: chr(int(m[1], 8)), line.split()[4]) for line in file}
    except (OSError, IndexError):
        return set()


def _chain(path: Place) -> list[Key]:
    """Return the keys of a path and its parents: device and inode if it exists, else the path."""
    return [_key(folder) for folder in (path, *path.parents)]


def _key(path: Place) -> Key:
    if isinstance(path, ObjectPath):
        return os.fspath(path)
    try:
        status = os.stat(path)
    except OSError:
        return os.fspath(path)
    return status.st_dev, status.st_ino


def _paths(inputs: Any, *names: str) -> Iterable[str]:
    if inputs is None:
        return
    if isinstance(inputs, str | os.PathLike):
        if not names:
            yield os.fspath(inputs)
    elif isinstance(inputs, list | tuple):
        for one in inputs:
            yield from _paths(one, *names)
    else:
        # A stack has the paths of itself and of its samples; a reader has the paths of its sources.
        for name in names or ("path", "array_path", "paths"):
            yield from _paths(getattr(inputs, name, None))
