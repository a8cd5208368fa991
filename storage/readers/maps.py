"""Reads a map of numbers, one for each attribute, from an array of any format or an image."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage.errors import DataError
from dpca.storage.images import DecodeOptions, decode
from dpca.storage.readers.opening import open_reader
from dpca.storage.survey import payload_or_refusal


def read_map(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Return a map with the shape of a sample, or of one sample, from an array of any format, or from an image as gray.

    Transparent pixels of an image are 0.

    Raises
    ------
    DataError
        If the path is missing, or names several images or an empty array.
    """
    reader = open_reader(path)
    if reader.encoded:
        if len(reader) != 1:
            raise DataError(f"'{path}' contains {len(reader):,} images: give a map as one image, or as an array")
        try:
            return decode(payload_or_refusal(reader.fetch([0])[0]), DecodeOptions(color="gray", background=0))
        except DataError as error:
            raise DataError(f"'{path}' {error}") from None
    if not reader.names:
        raise DataError(f"'{path}' is empty: give a map with the shape of a sample")
    return np.asarray(reader.fetch(range(len(reader.names))))
