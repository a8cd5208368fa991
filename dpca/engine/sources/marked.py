"""Samples with NaN for the values that a number, or infinity, marks as missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.gaps import is_marked


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
