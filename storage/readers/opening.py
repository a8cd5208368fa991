"""Opens a path, a glob or a list of them as a reader, chosen by content first and by name second."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, cast

from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.disk import file_bytes
from dpca.storage.errors import DataError, one_line
from dpca.storage.integrity.manifest import ZARR_METADATA
from dpca.storage.readers.arrays.data_array import DataArrayReader
from dpca.storage.readers.arrays.trajectory import TrajectoryReader, is_trajectory
from dpca.storage.readers.arrays.zarr_array import ZarrReader
from dpca.storage.readers.base import Reader, is_hidden, is_image, seen, suffix_of, within_memory
from dpca.storage.readers.format import FileHead, Format
from dpca.storage.readers.images.folder import FilesReader, FolderReader
from dpca.storage.readers.images.lmdb_images import LmdbReader, is_lmdb
from dpca.storage.readers.images.tiff import is_stack
from dpca.storage.readers.several import SeveralReader
from dpca.storage.remote.network import is_url
from dpca.storage.remote.objects import ObjectPath, absolute, is_dir, is_file, place_of
from dpca.storage.transaction.outputs import is_report_or_work_folder

if TYPE_CHECKING:
    import xarray

Source: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | xarray.DataArray | xarray.Dataset"

# Modules of readers of files. Their formats are tried in this order.
_READERS = (
    "arrays.hdf5",
    "arrays.netcdf3",
    "arrays.npy",
    "zip",
    "images.tiff",
    "images.folder",
    "images.video",
    "arrays.nifti",
    "arrays.idx",
    "arrays.trajectory",
    "tar",
)
_FORMATS: list[Format] = [one for name in _READERS for one in import_module(f"dpca.storage.readers.{name}").FORMATS]


def open_reader(source: Source, *, key: str | None = None, axes: Sequence[str] | None = None) -> Reader:
    """Open a source of any supported format.

    Parameters
    ----------
    source : path-like, or sequence of these
        A folder, a file, a pattern (``"parts/*.tar"``, ``**`` for any depth; matches are sorted), a URL of one of
        these, or a list of them, in its order. Several sources must all contain encoded images, or arrays with samples
        of one shape and type. A folder without images may contain such arrays. Also an ``xarray.DataArray`` or
        ``Dataset``, or an ``AtomGroup`` or ``Universe`` of MDAnalysis.
    key : str, optional
        Name of the array in an ``.npz``, an HDF5 file, a Zarr group or a ``Dataset``.
    axes : sequence of str, optional
        For an array: names of the axes of one sample, or of all axes including ``"sample"`` if samples are not on the
        first axis.

    Returns
    -------
    Reader
        Opening reads names and sizes at most. A compressed archive is not read yet.

    Raises
    ------
    DataError
        If the source does not exist, has no supported format or is broken, or a library is missing.
    """
    if is_labelled(source):
        return DataArrayReader(source, key, axes)
    if is_trajectory(source):
        return TrajectoryReader(source, axes)
    given = [
        os.fspath(one) for one in ([source] if isinstance(source, str | os.PathLike) else cast("list[str]", source))
    ]
    paths = [path for one in given for path in paths_of(one)]
    if not paths:
        raise DataError("the source is an empty list: give a path, a glob or a list of them")
    if len(paths) == 1:
        reader = _open_one(paths[0], key, axes)
    elif all(map(_is_image_file, paths)) and not is_stack(paths[0]):
        reader = FilesReader(paths)
    else:
        reader = SeveralReader([_open_one(path, key, axes) for path in paths])
    if reader.encoded and (key is not None or axes is not None):
        option, value = ("key", key) if key is not None else ("axes", axes)
        raise DataError(f"{option}={value!r} is for arrays, but '{reader.name}' contains images: leave it out")
    reader.paths = tuple(map(absolute, paths))
    reader.patterns = tuple(real_pattern(one) for one in given if is_pattern(one))
    return reader


def is_zarr(path: str) -> bool:
    """Return whether a path or URL is a Zarr array or group: a folder with its metadata."""
    return any(is_file(place_of(path) / name) for name in ZARR_METADATA)


def paths_of(path: str) -> list[str]:
    """Return the path itself, or the sorted matches of a pattern, without reports and work folders of dpca.

    Raises
    ------
    DataError
        If the path does not exist, or nothing matches the pattern.
    """
    if not is_pattern(path):
        path = os.fspath(place_of(path))
        if not is_url(path) and not os.path.exists(path):
            raise DataError(f"there is no file or folder '{path}': check the path")
        return [path]
    path, fixed = os.fspath(place_of(path)), _fixed(path)
    found = ObjectPath(path).matches() if is_url(path) else sorted(glob.glob(path, recursive=True))
    found = [one for one in found if not is_report_or_work_folder(one, fixed)]
    if not found and is_url(path):
        raise DataError(f"nothing matches '{path}': check the pattern")
    if not found:
        folder = fixed or "."
        names = os.listdir(folder) if os.path.isdir(folder) else []
        others = Counter(suffix_of(name) for name in names if not is_hidden(name))
        raise DataError(f"no file matches '{path}': in '{folder}' {seen(others)}; check the pattern")
    return found


def is_pattern(path: str) -> bool:
    """Return whether a path or URL is a pattern, which may have several matches."""
    if isinstance(place := place_of(path), ObjectPath):
        return glob.has_magic(path) and not path.startswith("http")
    return glob.has_magic(os.fspath(place)) and not os.path.exists(place)


def real_pattern(path: str) -> str:
    """Return a pattern with the real path of the folder that it searches."""
    path = os.fspath(place_of(path))
    fixed = _fixed(path)
    return path if is_url(path) else os.path.join(os.path.realpath(fixed or "."), os.path.relpath(path, fixed or "."))


def _fixed(pattern: str) -> str:
    """Return the folder that a pattern searches."""
    found = re.search(r"[*?[]", pattern)
    assert found is not None
    return os.path.dirname(pattern[: found.start()])


def _open_one(path: str, key: str | None, axes: Sequence[str] | None) -> Reader:
    try:
        with within_memory(f"'{path}'"):
            return _open_any(path, key, axes)
    except PermissionError as error:
        raise DataError(f"'{path}' cannot be read ({error.strerror}): change its permissions") from error
    except OSError as error:
        raise DataError(f"'{path}' cannot be read ({one_line(error)}): give a file or folder on a disk") from error


def _open_any(path: str, key: str | None, axes: Sequence[str] | None) -> Reader:
    if is_zarr(path):
        return ZarrReader(path, key, axes)
    place = place_of(path)
    if is_dir(place):
        return LmdbReader(path) if is_lmdb(path) else _open_folder(path, key, axes)
    if not is_file(place):
        if isinstance(place, ObjectPath):
            raise DataError(f"there is nothing at '{path}': check the address")
        raise DataError(f"'{path}' is a device or pipe: give a file or a folder")
    if not file_bytes(path):  # files of the system state this size, too
        raise DataError(f"'{path}' is empty (0 bytes): get it again")
    if is_lmdb(path):
        return LmdbReader(path)
    return _open_file(path, key, axes)


def _open_folder(path: str, key: str | None, axes: Sequence[str] | None) -> Reader:
    folder = FolderReader(path)
    if len(folder) or not folder.arrays:
        return folder
    return SeveralReader([_open_one(array, key, axes) for array in folder.arrays], folder.name)


def _is_image_file(path: str) -> bool:
    return is_file(path) and is_image(path, lambda: FileHead(path).first)


def _open_file(path: str, key: str | None, axes: Sequence[str] | None) -> Reader:
    file = FileHead(path)
    for known in _FORMATS:
        if known.recognized(file):
            if is_url(path) and not known.supports_urls:
                raise DataError(f"'{path}' is {known.name}, which is supported on disks only: download it first")
            return known.open(path, key, axes)
    raise DataError(
        f"'{path}' has an unsupported format (it begins with {file.first[:8]!r}): give images or an array as a "
        f"folder, LMDB, Zarr, {', '.join(known.name for known in _FORMATS)}"
    )
