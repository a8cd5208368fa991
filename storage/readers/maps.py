"""Reads a map of numbers, one for each attribute, from an array of any format."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage.errors import DataError
from dpca.storage.readers.opening import open_reader


def read_map(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Return a map with the shape of a sample, or of one sample, from an array of any format.

    Raises
    ------
    DataError
        If the path is missing, or names no array.
    """
    reader = open_reader(path)
    if reader.encoded:
        raise DataError(f"'{path}' contains encoded images: give the map as an array, such as .npy, Zarr or NIfTI")
    return np.asarray(reader.fetch(range(len(reader.names))))
