"""One dataset of an HDF5 file (NetCDF-4 files are such), through h5py, decoded by the conventions of netCDF."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage import cf
from dpca.storage.arrays.coordinates import Coordinates, beside, collect
from dpca.storage.arrays.layout import MAX_CHUNK
from dpca.storage.errors import DataError, one_line
from dpca.storage.readers.arrays.raw import LABELS, ArrayReader, choose_key, gather
from dpca.storage.readers.base import digest, digest_file, require, runs
from dpca.storage.readers.format import Format

# By their registered numbers: HDF5's own (deflate, shuffle, Fletcher-32, szip, n-bit, scale-offset), lzf, blosc, lz4,
# bitshuffle, zfp, zstd and blosc2. Others could be any program that lies in a folder of plugins.
FILTERS = frozenset({1, 2, 3, 4, 5, 6, 32000, 32001, 32004, 32008, 32013, 32015, 32026})

# a checksum alone takes so many bytes, and libhdf5 dies on less
_LEAST_CHUNK = 4
# What filters add to a chunk that they cannot make smaller: a share of its bytes, and so many.
_MORE_SHARE, _MORE_BYTES = 8, 1024
# Groups in groups: what libhdf5 takes to visit them grows with the square.
_DEEPEST = 100

# A broken file can end in any of these inside h5py.
_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, OverflowError, SystemError)


class Hdf5Reader(ArrayReader):
    """Rows of one dataset that lies whole in this file, in any layout and compression of `FILTERS`.

    Parameters
    ----------
    path : str
        The file.
    key : str, optional
        Path of the dataset inside, see `dpca.storage.readers.arrays.raw.choose_key`. Only datasets of numbers count; a
        dataset
        ``labels`` (or ``label``, ``y``, ``targets``) beside it with one entry a sample becomes the labels. Links that
        are not hard ones are not followed.
    axes : sequence of str, optional
        See `ArrayReader`.

    Raises
    ------
    DataError
        If h5py is missing, the file is broken, the dataset is not determined, or its values lie in other files.

    Notes
    -----
    A dataset some of which was never written is refused: HDF5 reads its fill value there.
    """

    kind = "hdf5"

    def __init__(self, path: str, key: str | None = None, axes: Sequence[str] | None = None) -> None:
        name = os.path.basename(path)
        h5py = require("h5py", "hdf5", f"'{name}'")
        self._path = os.path.abspath(path)
        try:
            with h5py.File(path, "r") as file:
                datasets: dict[str, Any] = {}

                def visit(key: str, found: Any) -> bool | None:
                    if isinstance(found, h5py.Dataset):
                        datasets[key] = found
                    return True if key.count("/") >= _DEEPEST else None

                # visits what lies in this file only: links that are not hard ones could lead anywhere
                if file.visititems(visit):
                    raise DataError(f"'{name}' has more than {_DEEPEST} groups in each other: copy its arrays to fewer")
                numeric = {k: v.shape for k, v in datasets.items() if v.shape is not None and v.dtype.kind in "buif"}
                others = beside(found.attrs for found in datasets.values()) if key is None else ()
                chosen = {k: shape for k, shape in numeric.items() if k.rpartition("/")[2] not in others}
                self._key = choose_key(name, chosen, key.strip("/") if key is not None else None)
                dataset = datasets[self._key]
                what = f"'{name}/{self._key}'"
                _require_whole(dataset, what)
                self._coding = cf.coding_of(_attributes(dataset), dataset.dtype, what, fill=_fill_value(dataset))
                dtype = dataset.dtype if self._coding is None else self._coding.dtype
                super().__init__(what[1:-1], dataset.shape, dtype, axes, _coordinates(file, dataset, datasets))
                self.labels = self._labels(datasets, numeric, name)
        except MemoryError as error:
            raise DataError(f"'{name}' claims more than the memory there is: get it again") from error
        except DataError:
            raise
        except _ERRORS as error:
            raise DataError(f"'{name}' is truncated or no HDF5 file ({one_line(error)}): get it again") from error

    def _labels(self, datasets: Mapping[str, Any], numeric: Mapping[str, Any], name: str) -> NDArray[Any] | None:
        folder = self._key.rpartition("/")[0]
        beside = (f"{folder}/{label}".lstrip("/") for label in LABELS)
        found = next((k for k in beside if numeric.get(k) in ((len(self),), (len(self), 1))), None)
        if found is None:
            return None
        _require_whole(datasets[found], f"'{name}/{found}'")
        return np.asarray(datasets[found][()]).reshape(-1)

    def fingerprint(self) -> str:
        """Hash of size and ends of the file, and of the dataset's path."""
        return digest([digest_file(self._path), self._key])

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Ship the file's path and which rows are wanted."""
        return partial(
            _read, self._path, self._key, self.order, list(runs(indices)), self.dtype, self.name, self._coding
        )


def _coordinates(file: Any, dataset: Any, datasets: Mapping[str, Any]) -> Coordinates | None:
    """Return what a variable of netCDF-4 has along its dimensions, None where they have no names."""
    folder = dataset.name.rpartition("/")[0]

    def dims_of(variable: Any) -> tuple[str, ...]:
        scales = variable.attrs.get("DIMENSION_LIST", ())
        if len(scales) != variable.ndim:  # a variable of one dimension may be the scale of that itself
            return (variable.name.rpartition("/")[2],) if variable.ndim == 1 else ()
        return tuple(file[scale[0]].name.rpartition("/")[2] if len(scale) else "" for scale in scales)

    def find(name: str) -> tuple[tuple[str, ...], Any, Any] | None:
        # links that are not hard ones could lead anywhere
        found = datasets.get(f"{folder}/{name}".strip("/"))
        if found is None or _only_a_dimension(found):
            return None
        try:
            _require_whole(found, f"'{name}'")
        except DataError:
            return None
        return dims_of(found), found if found.dtype.kind in "buif" else found.asstr(), dict(found.attrs)

    return collect(dims_of(dataset), dataset.shape, dict(dataset.attrs), find)


def _only_a_dimension(dataset: Any) -> bool:
    return bytes(dataset.attrs.get("NAME", b"")).startswith(b"This is a netCDF dimension but not a netCDF variable")


def _attributes(dataset: Any) -> dict[str, Any]:
    return {name: dataset.attrs[name] for name in cf.ATTRIBUTES if name in dataset.attrs}


def _fill_value(dataset: Any) -> Any:
    """Return the fill value that was set for a dataset; fill values of single bytes mean nothing."""
    chosen = dataset.id.get_create_plist().fill_value_defined() == 2  # H5D_FILL_VALUE_USER_DEFINED
    return dataset.fillvalue if chosen and dataset.dtype.itemsize > 1 else None


def _require_whole(dataset: Any, what: str) -> None:
    """Refuse a dataset whose values lie in other files, need plugins, or are missing."""
    layout = dataset.id.get_create_plist()
    if layout.get_external_count():
        raise DataError(f"{what} keeps its values in other files (external storage), which is not read: copy them in")
    if dataset.is_virtual:
        raise DataError(f"{what} is made of other files (a virtual dataset), which is not read: give those instead")
    numbers = [layout.get_filter(i)[0] for i in range(layout.get_nfilters())]
    if len({*numbers}) < len(numbers):
        raise DataError(f"{what} is packed by one filter more than once, which is not read: save it with gzip")
    for i, number in enumerate(numbers):
        if number not in FILTERS:
            called = layout.get_filter(i)[3].decode("ascii", "backslashreplace")[:40]
            raise DataError(
                f"{what} is packed by the filter {called!r} (number {number}), which is not among those that are "
                f"read: save it with gzip"
            )
    if 0 in dataset.shape:
        return
    if dataset.chunks is None:
        there, wanted = dataset.id.get_storage_size(), prod(dataset.shape) * dataset.dtype.itemsize
        if there < wanted:
            raise DataError(f"{what} has {there:,} of {wanted:,} bytes, the rest was never written: get it again")
        return
    chunk_bytes = prod(dataset.chunks) * dataset.dtype.itemsize
    if chunk_bytes > MAX_CHUNK:
        raise DataError(f"{what} has chunks of {chunk_bytes:,} bytes, more than the {MAX_CHUNK:,} read: rechunk it")
    grid = [-(-n // edge) for n, edge in zip(dataset.shape, dataset.chunks, strict=True)]
    there = dataset.id.get_num_chunks()
    if there >= prod(grid):  # a claim that the index of chunks bears out, so that memory may be taken for it
        there = prod(grid) - _check_index(dataset, grid, chunk_bytes, not numbers, what)
    if there < prod(grid):
        raise DataError(f"{what} has {there:,} of {prod(grid):,} chunks, the rest was never written: write it first")


def _check_index(dataset: Any, grid: Sequence[int], chunk_bytes: int, plain: bool, what: str) -> int:
    """Return how many chunks the index lacks; raise if it points outside of the file.

    A packed chunk with more bytes than it may have unpacked is refused, too: libhdf5 takes memory for all that it
    holds.
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
    path: str,
    key: str,
    order: tuple[int, ...],
    wanted: list[tuple[int, int]],
    dtype: np.dtype[Any],
    name: str,
    coding: cf.Coding | None,
) -> NDArray[Any]:
    import h5py  # an optional library, and only tasks on HDF5 files get here

    try:
        with h5py.File(path, "r") as file:
            dataset = file[key]
            before = (slice(None),) * order[0]
            rows = gather(
                lambda start, stop: dataset[(*before, slice(start, stop))].transpose(order),
                wanted,
                dtype if coding is None else dataset.dtype.newbyteorder("="),
            )
    except MemoryError as error:
        raise DataError(f"'{name}' needs more memory than there is for its chunks: save it in smaller ones") from error
    except _ERRORS as error:
        raise DataError(
            f"'{name}' cannot be read from sample {wanted[0][0]:,} on ({one_line(error)}): get the file again"
        ) from error
    return rows if coding is None else coding.decode(rows)


FORMATS = (Format("HDF5", lambda file: file.first.startswith(b"\x89HDF\r\n\x1a\n"), Hdf5Reader),)
