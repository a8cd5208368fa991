"""One dataset of an HDF5 file (NetCDF-4 files are such), through h5py."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import DataError
from storage.readers.base import digest, digest_file, require, runs
from storage.readers.raw import LABELS, ArrayReader, choose_key, gather


class Hdf5Reader(ArrayReader):
    """Rows of one dataset, in any layout and compression that the installed HDF5 reads.

    Parameters
    ----------
    path : str
        The file.
    key : str, optional
        Path of the dataset inside, see `storage.readers.raw.choose_key`. Only datasets of numbers count; a dataset
        ``labels`` (or ``label``, ``y``, ``targets``) beside it with one entry a sample becomes the labels.
    axes : sequence of str, optional
        See `ArrayReader`.

    Raises
    ------
    DataError
        If h5py is missing, the file is broken, or the dataset is not determined.
    """

    kind = "hdf5"

    def __init__(self, path: str, key: str | None = None, axes: Sequence[str] | None = None) -> None:
        name = os.path.basename(path)
        h5py = require("h5py", "hdf5", f"'{name}'")
        self._path = os.path.abspath(path)
        try:
            with h5py.File(path, "r") as file:
                datasets: dict[str, Any] = {}
                # visits what lies in this file only: external links could lead anywhere
                file.visititems(lambda k, v: datasets.update({k: v}) if isinstance(v, h5py.Dataset) else None)
                numeric = {k: v.shape for k, v in datasets.items() if v.shape is not None and v.dtype.kind in "buif"}
                self._key = choose_key(name, numeric, key.strip("/") if key is not None else None)
                dataset = datasets[self._key]
                super().__init__(f"{name}/{self._key}", dataset.shape, dataset.dtype, axes)
                folder = self._key.rpartition("/")[0]
                beside = (f"{folder}/{label}".lstrip("/") for label in LABELS)
                found = next((k for k in beside if numeric.get(k) in ((len(self),), (len(self), 1))), None)
                self.labels = None if found is None else np.asarray(datasets[found][()]).reshape(-1)
        except (OSError, RuntimeError, KeyError) as error:
            raise DataError(f"'{name}' is truncated or no HDF5 file ({error}): get it again") from error

    def fingerprint(self) -> str:
        """Hash of size and ends of the file, and of the dataset's path."""
        return digest([digest_file(self._path), self._key])

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Ship the file's path and which rows are wanted."""
        return partial(_read, self._path, self._key, self.axis, list(runs(indices)), self.dtype, self.name)


def _read(
    path: str, key: str, axis: int, wanted: list[tuple[int, int]], dtype: np.dtype[Any], name: str
) -> NDArray[Any]:
    import h5py  # an optional library, and only tasks on HDF5 files get here

    try:
        with h5py.File(path, "r") as file:
            dataset = file[key]
            before = (slice(None),) * axis
            return gather(
                lambda start, stop: np.moveaxis(dataset[(*before, slice(start, stop))], axis, 0),
                wanted,
                dtype,
            )
    except (OSError, RuntimeError, KeyError) as error:
        raise DataError(
            f"'{name}' cannot be read from sample {wanted[0][0]:,} on ({error}): get the file again"
        ) from error
