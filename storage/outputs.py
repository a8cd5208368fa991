"""Checks outputs before anything is written: an output never harms an input or a finished store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from glob import has_magic
from pathlib import Path
from typing import Any, TypeVar

from dpca.storage.disk import entries_of, read_file, there_is, writing_errors
from dpca.storage.errors import StoreError, printable
from dpca.storage.manifest import FOLDER_MANIFEST, METADATA, has_manifest
from dpca.storage.objects import ObjectPath, Place, is_dir, place_of

__all__ = ["check_output", "resolved_output", "work_folder"]

#: What the name of a work folder adds to that of its output.
WORK_SUFFIX = ".partial"
# Room in a path for the files of a store below it.
_BELOW = 256
_MOUNTS, _ESCAPED = "/proc/self/mountinfo", re.compile(r"\\(\d{3})")

# Protocols that know no way to write.
_READ_ONLY = ("http", "https")
# How paths begin that fsspec reads through another file system, as ``dpca::photos.zarr``.
_CHAINED = re.compile(r"[A-Za-z][A-Za-z0-9.+-]*::")

Key = tuple[int, int] | str
P = TypeVar("P", Path, ObjectPath, Place)


def work_folder(output: P) -> P:
    """Return the folder in which an output grows: ``out.zarr.partial`` for ``out.zarr``."""
    return output.with_name(output.name + WORK_SUFFIX)


def check_output(target: str | os.PathLike[str], *inputs: Any, report: str | os.PathLike[str] | None = None) -> None:
    """Refuse an output that is, holds or lies in an input, or lies in a finished store, which it would damage.

    What a job writes is its target, the work folder beside it and, where it makes one, its report. Each is compared
    with every input by real paths and by identity, so that neither links nor ``..`` nor a second mount hide anything.

    Parameters
    ----------
    target : path-like
        Of the output; neither it nor its parents need exist.
    *inputs : path-like, Stack, Reader, None, or iterable of these
        What the job reads; what has no path passes.
    report : path-like, optional
        Folder of the report.

    Raises
    ------
    StoreError
        Also for a target that is none, see `resolved_output`.
    """
    real = resolved_output(target)
    written = {f"output '{target}'": real, f"the work folder of output '{target}'": work_folder(real)}
    if report is not None:
        place = place_of(report)
        written[f"the report folder '{report}'"] = _real(place)
        if there_is(report) and not is_dir(place):
            raise StoreError(f"the report folder '{report}' is a file: choose another output or remove it")
    chains = {what: _chain(path) for what, path in written.items()}
    for name in _paths(inputs):
        read = _chain(_real(place_of(name)))
        for what, path in chains.items():
            if read[0] in path or path[0] in read:
                relation = "is" if path[0] == read[0] else "lies in" if read[0] in path else "holds"
                raise StoreError(
                    f"{what} {relation} the input '{printable(name)}', which must stay as it is: choose another output"
                )
    if (holder := next(filter(_is_finished_store, real.parents), None)) is not None:
        raise StoreError(
            f"output '{target}' lies in the finished store '{printable(os.fspath(holder))}', which must stay as it is: "
            f"choose another output"
        )
    # one that is not whole, as a run was stopped or files were removed, has an output or a work folder beside it
    known = there_is(real) or there_is(work_folder(real))
    if report is not None and not known and (foreign := _first_foreign(place_of(report))):
        raise StoreError(
            f"the report folder '{report}' holds {printable(foreign)!r}, which is none of ours: choose another output "
            f"or move it away"
        )


def resolved_output(target: str | os.PathLike[str]) -> Place:
    """Return the real path of an output; a store replaces what a link points at.

    Raises
    ------
    StoreError
        For a URL of a bucket as a whole or of what cannot be written, a name that no file can have, the root folder,
        the working folder or one that holds it, and a folder on which a disk is mounted.
    """
    text = os.fspath(target)
    shown_path = printable(text)
    shown = f"output '{shown_path}'"
    if "\0" in text:
        raise StoreError(f"{shown} holds a NUL character, which no path can: choose another output")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise StoreError(f"{shown} is not UTF-8, in which names are written and shown: choose another output") from None
    place = place_of(text)
    if isinstance(place, ObjectPath):
        return _in_bucket(place, shown)
    if _CHAINED.match(text):
        raise StoreError(f"{shown} is a way to read a store, '{text.partition('::')[0]}': give a path without it")
    text = os.fspath(place)
    here = _working_folder()
    if here is None and not os.path.isabs(text):
        raise StoreError(f"{shown} lies in a working folder that was removed: change to another folder")
    with writing_errors(shown_path):
        real = Path(os.path.realpath(text))
        exists = _exists(real)
        if real.parent == real:
            raise StoreError(f"{shown} is the root folder: choose another output")
        _check_lengths(shown, real)
        if exists and here is not None and _key(real) in _chain(here):
            raise StoreError(f"{shown} is the working folder or holds it: give the name of a new folder")
        if exists and (os.path.ismount(real) or os.fspath(real) in _mount_points()):
            raise StoreError(f"{shown} is a folder on which a disk is mounted: give the name of a new folder in it")
    return real


def _in_bucket(place: ObjectPath, shown: str) -> ObjectPath:
    protocol, _, rest = str(place).partition("://")
    if protocol in _READ_ONLY or "::" in str(place):
        raise StoreError(f"{shown} can be read but not written: give a path, or a URL of an object store such as s3://")
    if has_magic(rest):
        raise StoreError(f"{shown} holds *, ? or [, which mean patterns in URLs: choose another output")
    parts = rest.split("/")
    if len(parts) < 2 or not all(parts[1:]) or {".", ".."} & set(parts):
        raise StoreError(f"{shown} names no place in a bucket: give a URL such as {protocol}://bucket/name.zarr")
    return place


def _real(place: Place) -> Place:
    return place if isinstance(place, ObjectPath) else Path(os.path.realpath(place))


def _first_foreign(report: Place) -> str | None:
    """Return the first file of a folder that no report of ours wrote; reports of version 1 have no manifest."""
    names = [name for name, _ in entries_of(report)] if report.is_dir() else []
    ours = FOLDER_MANIFEST in names or {"report.json", "index.html"} <= set(names)
    return None if ours or not names else names[0]


def _is_finished_store(folder: Place) -> bool:
    try:
        return has_manifest(read_file(folder / METADATA))
    except OSError:
        return False


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None  # removed under our feet: a full path still means something


def _exists(path: Path) -> bool:
    try:
        os.stat(path)  # unlike Path.exists, says so where links go round in a circle
    except FileNotFoundError:
        return False
    return True


def _check_lengths(shown: str, real: Path) -> None:
    folder = next(folder for folder in real.parents if folder.is_dir())
    longest, most = (_limit(folder, name, usual) for name, usual in (("PC_NAME_MAX", 255), ("PC_PATH_MAX", 4096)))
    if (size := len(os.fsencode(real.name))) > longest - len(WORK_SUFFIX):
        raise StoreError(
            f"the name of {shown} has {size} bytes and its work folder, {WORK_SUFFIX!r} longer, may have {longest}: "
            f"choose a shorter one"
        )
    if (size := len(os.fsencode(real))) > most - _BELOW:
        raise StoreError(
            f"the path of {shown} has {size:,} bytes and leaves no room for the files below it, whose paths may have "
            f"{most:,}: choose a shorter one"
        )


def _limit(folder: Path, name: str, usual: int) -> int:
    try:
        return os.pathconf(folder, name)
    except (OSError, ValueError):
        return usual


def _mount_points() -> set[str]:
    """Return all mount points, bind mounts included; none on systems other than Linux."""
    try:
        with open(_MOUNTS, errors="surrogateescape") as file:
            return {_ESCAPED.sub(lambda m: chr(int(m[1], 8)), line.split()[4]) for line in file}
    except (OSError, IndexError):
        return set()


def _chain(path: Place) -> list[Key]:
    """Return keys of a path and its parents: device and inode of those that exist, else the path."""
    return [_key(folder) for folder in (path, *path.parents)]


def _key(path: Place) -> Key:
    if isinstance(path, ObjectPath):
        return os.fspath(path)
    try:
        status = os.stat(path)
    except OSError:
        return os.fspath(path)
    return status.st_dev, status.st_ino


def _paths(inputs: Any) -> Iterable[str]:
    if inputs is None:
        return
    if isinstance(inputs, str | os.PathLike):
        yield os.fspath(inputs)
    elif isinstance(inputs, list | tuple):
        for one in inputs:
            yield from _paths(one)
    else:
        # of a stack where its samples are, of a reader what it was opened at
        for name in ("path", "array_path", "paths"):
            yield from _paths(getattr(inputs, name, None))
