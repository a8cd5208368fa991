"""Checks outputs before anything is written: an output never harms an input, a finished store or anybody's file.

Recognizes by their content what this package writes: it alone is replaced, and it is never an input.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from typing import Any, TypeVar

from dpca.storage.claim import JOURNAL, LOCK, MARK, WORK_SUFFIX
from dpca.storage.disk import atomic_write_bytes, entries_of, read_file, there_is, writing_errors
from dpca.storage.errors import StoreError, printable
from dpca.storage.lease import CLEARING
from dpca.storage.manifest import FOLDER_MANIFEST, METADATA, REPORT, facts_in, has_manifest
from dpca.storage.objects import ObjectPath, Place, is_dir, place_of

__all__ = [
    *("OutputFile", "check_output", "check_report", "check_outside_stores", "is_never_input"),
    *("is_work_folder", "matched", "resolved_output", "work_folder"),
]

#: What the name of a report has for the suffix of its output.
REPORT_SUFFIX = ".report"
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


def check_output(
    target: str | os.PathLike[str], *inputs: Any, report: str | os.PathLike[str] | None = None, others: Any = ()
) -> None:
    """Refuse an output that is, holds or lies in an input, or lies in a finished store, which it would damage.

    What a job writes is its target, the work folder beside it and, where it makes one, its report. Each is compared
    with every input by real paths and by identity, so that neither links nor ``..`` nor a second mount hide anything.
    An output that a pattern of an input matches is refused, too: the next run would read it.

    Parameters
    ----------
    target : path-like
        Of the output; neither it nor its parents need exist.
    *inputs : path-like, Stack, Reader, None, or iterable of these
        What the job reads; what has no path passes.
    report : path-like, optional
        Folder of the report.
    others : as inputs
        What else the job writes.

    Raises
    ------
    StoreError
        Also for a target that is none, see `resolved_output`.
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
                relation = "is" if path[0] == read[0] else "lies in" if read[0] in path else "holds"
                raise StoreError(
                    f"{what} {relation} the {kind} '{printable(name)}', which must stay as it is: choose another output"
                )
    for pattern in _paths(inputs, "patterns"):
        if matched(pattern, real / METADATA):
            raise StoreError(
                f"output '{target}' matches the pattern '{printable(pattern)}' of the input, so that the next run "
                f"would read it: choose another output or another pattern"
            )
    check_outside_stores(target, real)
    if report is not None:
        _check_report_folder(place_of(report))


def check_report(folder: str | os.PathLike[str], *inputs: Any) -> None:
    """Refuse a folder for a report alone as `check_output` does, and one that holds anything but such a report."""
    check_output(folder, *inputs)
    _check_report_folder(place_of(folder))


def check_outside_stores(target: str | os.PathLike[str], real: Place) -> None:
    """Refuse an output, by its real path, that lies in a finished store."""
    if (holder := next(filter(_is_finished_store, real.parents), None)) is not None:
        raise StoreError(
            f"output '{target}' lies in the finished store '{printable(os.fspath(holder))}', which must stay as it is: "
            f"choose another output"
        )


class OutputFile:
    """A single file that a command writes, such as a record: only one that is recognized as such is replaced.

    Parameters
    ----------
    path : path-like or URL
    what : str
        What errors call it: ``"record"``.
    is_ours : callable
        Tells of the content of a file whether it is such a one.
    *inputs, others
        As for `check_output`.

    Raises
    ------
    StoreError
        If something else is there, if it is, holds or lies in an input or lies in a finished store, or if it is a link.
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
        """Return what is there, None where nothing is.

        Raises
        ------
        StoreError
            If something else is there by now.
        """
        if not there_is(self.place):
            return None
        if not isinstance(self.place, ObjectPath) and self.place.is_symlink():
            raise self._refusal("is a link, which is never followed")
        try:
            content = read_file(self.place)
        except OSError as error:
            raise self._refusal(f"cannot be replaced ({error.strerror})") from error
        if not self._is_ours(content):
            raise self._refusal(f"is no {self._what} that dpca wrote")
        return content

    def write(self, content: bytes) -> None:
        """Let the file appear, instead of an earlier one; its folder is made if need be."""
        with writing_errors(self.place):
            self.read()
            self.place.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_bytes(self.place, content)

    def _refusal(self, why: str) -> StoreError:
        return StoreError(f"the {self._what} '{printable(os.fspath(self.place))}' {why}: choose another place for it")


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


def is_never_input(path: str, below: str) -> bool:
    """Return whether a path is, or lies in, a report or work folder of ours, of the folders that lie below another."""
    inside = path.removeprefix(below)
    if WORK_SUFFIX not in inside and REPORT_SUFFIX not in inside:
        return False
    place, n = place_of(path), len(Path(inside.lstrip("/")).parts)
    return any(_is_report(one) or is_work_folder(one) for one in (place, *place.parents)[:n])


def matched(pattern: str, path: Place) -> bool:
    """Return whether a pattern of sources stands for a path, or for a folder above it, if these were there."""
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
    if not there_is(folder):
        return
    if not is_dir(folder):
        raise StoreError(f"the report folder '{folder}' is a file: choose another output or remove it")
    names = [name for name, _ in entries_of(folder)]
    # Reports of version 1 have no manifest.
    if names and not _is_report(folder) and not {"report.json", "index.html"} <= set(names):
        raise StoreError(
            f"the report folder '{folder}' holds {printable(names[0])!r}, which is not created by dpca: choose another "
            f"output or move it away"
        )


def _is_report(folder: Place) -> bool:
    return facts_in(_content(folder / FOLDER_MANIFEST)).get("kind") == REPORT


def is_work_folder(folder: Place) -> bool:
    """Return whether a folder is one in which a store grows, however far its run came."""
    if not folder.name.endswith(WORK_SUFFIX) or not is_dir(folder):
        return False
    names = {name for name, _ in entries_of(folder)}
    if isinstance(folder, ObjectPath):
        return bool(names & {LOCK, JOURNAL, CLEARING})
    return _content(folder / LOCK) == MARK or (names <= {LOCK} and MARK.startswith(_content(folder / LOCK)))


def _content(path: Place) -> bytes:
    try:
        return read_file(path)
    except OSError:
        return b""


def _is_finished_store(folder: Place) -> bool:
    return has_manifest(_content(folder / METADATA))


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
        # of a stack where its samples are, of a reader what it was opened at
        for name in names or ("path", "array_path", "paths"):
            yield from _paths(getattr(inputs, name, None))
