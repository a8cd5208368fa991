"""Names of exported files: those of the samples, where a file system can have them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePosixPath

from dpca.storage.pictures import SUFFIXES

# Suffixes of sources that the suffix of the new format replaces. Others, as in "flow-2.5", are parts of names.
_KNOWN = (*SUFFIXES, ".npy", ".nii.gz", ".nii", ".nc")
# Longest name in bytes. File systems allow 255.
_LONGEST = 200


def file_names(names: Sequence[str], suffix: str, numbers: Sequence[int] | range) -> list[str]:
    """Return relative paths of files, one for each sample, all different, also without upper and lower case.

    Parameters
    ----------
    names : sequence of str
        Names of the samples. A suffix of a picture or an array is replaced.
    suffix : str
        Suffix of the format.
    numbers : sequence of int
        Indices of the samples in their store. They are the names of samples without one, with leading zeros.

    Returns
    -------
    list of str
        Folders in names are kept. No path leads out of the folder of the export.

    Examples
    --------
    >>> from dpca.jobs.export.file_names import file_names
    >>> file_names(["Ann/1.jpeg", "Ann/1.png", "../../etc/x"], ".png", range(3))
    ['Ann/1.png', 'Ann/1-1.png', 'etc/x.png']
    """
    width = len(str(max(numbers, default=0)))
    taken: set[str] = set()
    found = []
    for name, number in zip(names, numbers, strict=True):
        numbered = f"{number:0{width}}"
        stem = numbered if name == str(number) else _stem(name) or numbered
        if any(above in taken for above in _above(f"{stem}{suffix}")):  # a folder with the name of a file
            stem = stem.replace("/", "_")
        path, times = f"{stem}{suffix}", 0
        while (key := path.casefold()) in taken or f"{key}/" in taken:
            path, times = f"{stem}-{number}{f'-{times}' if times else ''}{suffix}", times + 1
        taken |= {key, *(f"{above}/" for above in _above(path))}
        found.append(path)
    return found


def _above(path: str) -> list[str]:
    """Return the folders of a path, without upper case."""
    return [str(above).casefold() for above in PurePosixPath(path).parents][:-1]


def _stem(name: str) -> str:
    parts = [part for part in name.replace("\0", "").split("/") if part not in ("", ".", "..")]
    if not parts:
        return ""
    last = parts[-1]
    suffix = next((one for one in _KNOWN if last.lower().endswith(one) and len(last) > len(one)), "")
    parts[-1] = last[: len(last) - len(suffix)]
    return "/".join(map(_shortened, parts))


def _shortened(part: str) -> str:
    encoded = os.fsencode(part)
    return part if len(encoded) <= _LONGEST else encoded[:_LONGEST].decode("utf-8", "ignore")
