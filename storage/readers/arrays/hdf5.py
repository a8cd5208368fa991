"""One dataset of an HDF5 file, such as netCDF-4, read with h5py and decoded by the conventions of netCDF."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage import cf
from dpca.storage.arrays.coordinates import OF_FILES, Coordinates, beside, collect
from dpca.storage.arrays.layout import MAX_CHUNK, SHARD_BYTES, Region
from dpca.storage.errors import DataError
from dpca.storage.readers.arrays.raw import LABELS, ArrayReader, box_slices, choose_key, gather
from dpca.storage.readers.base import require, runs, source_errors, within_memory
from dpca.storage.readers.format import Format

# Registered numbers of the supported filters: those of HDF5 (deflate, shuffle, Fletcher-32, szip, n-bit, scale-offset),
# lzf, blosc, lz4, bitshuffle, zfp, zstd and blosc2. Other numbers could execute any program in a folder of plugins.
FILTERS = frozenset({1, 2, 3, 4, 5, 6, 32000, 32001, 32004, 32008, 32013, 32015, 32026})

# Bytes of a checksum. libhdf5 crashes on a smaller chunk.
_LEAST_CHUNK = 4
# Filters enlarge a chunk that cannot be compressed by at most this share of its bytes, plus this number of bytes.
_MORE_SHARE, _MORE_BYTES = 8, 1024
# Most nested groups. The time of libhdf5 to visit them grows with the square.
_DEEPEST = 100


class Hdf5Reader(ArrayReader):
    """Rows of one dataset that is completely in this file, in any layout and with any of the `FILTERS`.

    Parameters
    ----------
    path : str
        The file.
    key : str, optional
        Path of the dataset in the file, see `dpca.storage.readers.arrays.raw.choose_key`. Only numeric datasets are
        considered. A dataset ``labels`` (or ``label``, ``y``, ``targets``) in the same group with one entry per sample
        becomes the labels. Soft and external links are not followed.
    axes : sequence of str, optional
        See `ArrayReader`.

    Raises
    ------
    DataError
        If h5py is missing, the file is broken, it is unclear which dataset has the samples, or its values are in other
        files.

    Notes
    -----
    A dataset with chunks that were never written is rejected, since HDF5 reads them as fill values.
    """

    kind = "hdf5"

    def __init__(self, path: str, key: str | None = None, axes: Sequence[str] | None = None) -> None:
        name = os.path.basename(path)
        h5py = require("h5py", "hdf5", f"'{name}'")
        self._path = os.path.abspath(path)
        with (
            within_memory(f"'{name}'", "get it again"),
            source_errors(f"'{name}' is truncated or no HDF5 file"),
            h5py.File(path, "r") as file,
        ):
            datasets: dict[str, Any] = {}

            def visit(key: str, found: Any) -> bool | None:
                if isinstance(found, h5py.Dataset):
                    datasets[key] = found
                return True if key.count("/") >= _DEEPEST else None

            # visititems follows hard links only, which stay in this file.
            if file.visititems(visit):
                raise DataError(f"'{name}' has more than {_DEEPEST} nested groups: copy its arrays to fewer groups")
            numeric = {k: v.shape for k, v in datasets.items() if v.shape is not None and v.dtype.kind in "buif"}
            others = beside(found.attrs for found in datasets.values()) if key is None else ()
            chosen = {k: shape for k, shape in numeric.items() if k.rpartition("/")[2] not in others}
            self._key = key = choose_key(name, chosen, key.strip("/") if key is not None else None)
            dataset = datasets[key]
            what = f"'{name}/{key}'"
            _require_whole(dataset, what)
            coding = cf.coding_of(dict(dataset.attrs), dataset.dtype, what, fill=_fill_value(dataset))
            coordinates = _coordinates(file, dataset, datasets)
            super().__init__(what[1:-1], dataset.shape, dataset.dtype, axes, coordinates, coding)
            self.labels = self._labels(datasets, numeric, name, key.rpartition("/")[0])
            self.reads_boxes = prod(dataset.chunks or ()) * dataset.dtype.itemsize <= SHARD_BYTES

    def _labels(
        self, datasets: Mapping[str, Any], numeric: Mapping[str, Any], name: str, folder: str
    ) -> NDArray[Any] | None:
        beside = (f"{folder}/{label}".lstrip("/") for label in LABELS)
        found = next((k for k in beside if numeric.get(k) in ((len(self),), (len(self), 1))), None)
        if found is None:
            return None
        _require_whole(datasets[found], f"'{name}/{found}'")
        return np.asarray(datasets[found][()]).reshape(-1)

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Return a function that opens the file and reads these rows."""
        return self.box(indices, ())

    def box(self, indices: Sequence[int], region: Region) -> Callable[[], NDArray[Any]]:
        """Return a function that opens the file and reads a box of these rows."""
        wanted, place = list(runs(indices)), (self._path, self._key)
        return partial(_read, place, self.order, wanted, self.dtype, self.name, self._coding, region)


def _coordinates(file: Any, dataset: Any, datasets: Mapping[str, Any]) -> Coordinates | None:
    """Return the coordinates of a netCDF-4 variable; None if its dimensions have no names."""
    folder = dataset.name.rpartition("/")[0]

    def dims_of(variable: Any) -> tuple[str, ...]:
        scales = variable.attrs.get("DIMENSION_LIST", ())
        if len(scales) != variable.ndim:  # a variable with one dimension may be the scale of this dimension
            return (variable.name.rpartition("/")[2],) if variable.ndim == 1 else ()
        return tuple(file[scale[0]].name.rpartition("/")[2] if len(scale) else "" for scale in scales)

    def find(name: str) -> tuple[tuple[str, ...], Any, Any] | None:
        # Only datasets that were found by hard links, since other links could lead to other files.
        found = datasets.get(f"{folder}/{name}".strip("/"))
        if found is None or _only_a_dimension(found):
            return None
        try:
            _require_whole(found, f"'{name}'")
        except DataError:
            return None
        as_stored = found.dtype.kind in "buif" or (found.dtype == np.dtype("S1") and found.ndim == 2)
        return dims_of(found), found if as_stored else found.asstr(), dict(found.attrs)

    stated = {key: file.attrs[key] for key in OF_FILES if key in file.attrs}
    return collect(dims_of(dataset), dataset.shape, {**stated, **dataset.attrs}, find)


def _only_a_dimension(dataset: Any) -> bool:
    return bytes(dataset.attrs.get("NAME", b"")).startswith(b"This is a netCDF dimension but not a netCDF variable")


def _fill_value(dataset: Any) -> Any:
    """Return the fill value that was set explicitly; None for single bytes, where programs set it arbitrarily."""
    chosen = dataset.id.get_create_plist().fill_value_defined() == 2  # H5D_FILL_VALUE_USER_DEFINED
    return dataset.fillvalue if chosen and dataset.dtype.itemsize > 1 else None


def _require_whole(dataset: Any, what: str) -> None:
    """Reject a dataset with values that are in other files, require plugins, or are missing."""
    layout = dataset.id.get_create_plist()
    if layout.get_external_count():
        raise DataError(f"{what} keeps its values in other files (external storage), which is not supported: copy it")
    if dataset.is_virtual:
        raise DataError(f"{what} refers to other files (a virtual dataset), which is not supported: give these files")
    numbers = [layout.get_filter(i)[0] for i in range(layout.get_nfilters())]
    if len({*numbers}) < len(numbers):
        raise DataError(f"{what} uses one filter more than once, which is not supported: save it with gzip")
    for i, number in enumerate(numbers):
        if number not in FILTERS:
            called = layout.get_filter(i)[3].decode("ascii", "backslashreplace")[:40]
            raise DataError(
                f"{what} uses the filter {called!r} (number {number}), which is not supported: save it with gzip"
            )
    if 0 in dataset.shape:
        return
    if dataset.chunks is None:
        there, wanted = dataset.id.get_storage_size(), prod(dataset.shape) * dataset.dtype.itemsize
        if there < wanted:
            raise DataError(f"{what} has {there:,} of {wanted:,} bytes, the rest was never written: write it first")
        return
    chunk_bytes = prod(dataset.chunks) * dataset.dtype.itemsize
    if chunk_bytes > MAX_CHUNK:
        raise DataError(f"{what} has chunks of {chunk_bytes:,} bytes, above the limit of {MAX_CHUNK:,}: rechunk it")
    grid = [-(-n // edge) for n, edge in zip(dataset.shape, dataset.chunks, strict=True)]
    there = dataset.id.get_num_chunks()
    if there >= prod(grid):  # the file has an entry for each chunk, so the index fits in memory
        there = prod(grid) - _check_index(dataset, grid, chunk_bytes, not numbers, what)
    if there < prod(grid):
        raise DataError(f"{what} has {there:,} of {prod(grid):,} chunks, the rest was never written: write it first")


def _check_index(dataset: Any, grid: Sequence[int], chunk_bytes: int, plain: bool, what: str) -> int:
    """Return the number of chunks that are missing in the index; raise an error if it points outside of the file.

    A compressed chunk that is larger than the decoded chunk is an error, too, since libhdf5 allocates its size.
    """
    file_bytes = os.path.getsize(dataset.file.filename)
    edges, missing = dataset.chunks, bytearray(b"\1") * prod(grid)
    wrong: list[tuple[int, int]] = []
    least = chunk_bytes if plain else _LEAST_CHUNK
    most = chunk_bytes if plain else chunk_bytes + chunk_bytes // _MORE_SHARE + _MORE_BYTES

    def visit(chunk: Any) -> None:
        place, odd = 0, 0
        for start, edge, n in zip(chunk.chunk_offset, edges, grid, strict=True):
            at, rest = divmod(start, edge)
            place, odd = place * n + at, odd or rest or at >= n
        if odd or not least <= chunk.size <= most or chunk.byte_offset + chunk.size > file_bytes:
            wrong.append((chunk.byte_offset, chunk.size))
        else:
            missing[place] = 0

    dataset.id.chunk_iter(visit)
    if wrong:
        raise DataError(f"{what} is broken (a chunk of {wrong[0][1]:,} bytes at byte {wrong[0][0]:,}): get it again")
    return sum(missing)


def _read(
    place: tuple[str, str | None],
    order: tuple[int, ...],
    wanted: list[tuple[int, int]],
    dtype: np.dtype[Any],
    name: str,
    coding: cf.Coding | None,
    region: Region,
) -> NDArray[Any]:
    import h5py  # optional, and installed if the reader was opened

    with (
        within_memory(f"'{name}'", "save it in smaller chunks"),
        source_errors(f"'{name}' cannot be read from sample {wanted[0][0]:,} on", "get the file again"),
        h5py.File(place[0], "r") as file,
    ):
        dataset, box = file[place[1]], [slice(None)] * len(order)
        for axis, part in zip(order[1:], box_slices(region), strict=False):
            box[axis] = part

        def rows(start: int, stop: int) -> NDArray[Any]:
            box[order[0]] = slice(start, stop)
            values: NDArray[Any] = dataset[tuple(box)]
            return values.transpose(order)

        return gather(rows, wanted, dtype, coding)


FORMATS = (Format("HDF5", lambda file: file.first.startswith(b"\x89HDF\r\n\x1a\n"), Hdf5Reader),)
