"""Samples with values that a number, or infinity, marks as missing: with NaN for these, or without any."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask.delayed import delayed

from dpca.engine.sources.derived import ComputedSource, DerivedSource
from dpca.engine.sources.finite import NotFiniteError
from dpca.engine.sources.source import BatchReader, Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.kernels.gaps import is_marked

# Values of one search for a number; its result takes a byte per value.
_SEARCHED_AT_ONCE = 2**20


class MarkedSource(ComputedSource):
    """Another source in its working dtype, with NaN for missing values.

    Parameters
    ----------
    source : Source
    missing : number or "infinite"
        Marks missing values in the dtype of the source; see `is_marked`.
    """

    def __init__(self, source: Source, missing: Any) -> None:
        super().__init__(source, source.shape, working_dtype(source.dtype))
        self.missing, self.chunks, self.axes = missing, source.chunks, source.axes
        self.with_gaps = True

    def needed(self, region: Region) -> Region:
        """Return the same box: attributes do not depend on each other."""
        return region

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of samples."""
        np.copyto(out, values)
        out[is_marked(values, self.missing)] = np.nan


class UnmarkedSource(DerivedSource):
    """Another source that must not contain a number. The first read of one raises `NotFiniteError`.

    Parameters
    ----------
    source : Source
    missing : number
    """

    def __init__(self, source: Source, missing: Any) -> None:
        super().__init__(source, window_rows=0)
        self.missing, self.complete, self.weights = missing, source.complete, source.weights
        self.coordinates = source.coordinates

    def reader(self) -> BatchReader:
        """Open the other source in the calling process."""
        read_box = self.source.reader()

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            read_box(samples, region, out)
            each = max(1, int(np.prod(out.shape[1:])))
            for rows in blocks(len(out), max(1, _SEARCHED_AT_ONCE // each)):
                if is_marked(out[rows], self.missing).any():
                    raise NotFiniteError(f"a value of {self.name} is {self.missing}, which is a missing value")

        return read

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return this source over a piece of the other one. It is delayed if that piece is."""
        piece = self.source.piece(samples, region)
        return self if piece is self.source else delayed(self._bare()._over, pure=False)(piece)
