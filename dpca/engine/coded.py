"""Samples with a whole number each, such as a class, in further attributes: rules see batches and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from dpca.engine.derived import ComputedSource
from dpca.engine.source import Source
from dpca.kernels.types import Array, Region
from dpca.rules.codes import DIGITS, written_codes


class CodedSource(ComputedSource):
    """The attributes of another source's samples in a row, and behind them the digits of a code.

    8-bit integers stay what they are; all else becomes float64, as what solves for coefficients needs its products.

    Parameters
    ----------
    source : Source
        Of n samples with d attributes.
    codes : array (n,), int32
        See `dpca.rules.codes`.
    """

    def __init__(self, source: Source, codes: Array) -> None:
        n, *sample_shape = source.shape
        dtype = np.dtype(np.uint8) if source.dtype == bool else source.dtype
        dtype = dtype if dtype.itemsize == 1 else np.dtype(np.float64)
        super().__init__(source, (n, int(np.prod(sample_shape)) + DIGITS), dtype)
        self.codes, self.origin = codes, 0

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Write attributes and digits side by side."""
        (a, b), d = region[0], self.shape[1] - DIGITS
        kept = max(0, min(b, d) - a)
        out[:, :kept] = values.reshape(len(values), d)[:, a : min(b, d)]
        digits = written_codes(self.codes[samples[0] - self.origin : samples[1] - self.origin], out.dtype)
        out[:, kept:] = digits[:, max(0, a - d) : max(0, b - d)]

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return this source with the codes of these samples only, over a piece of the other one."""
        cut = copy.copy(self)
        cut.codes, cut.origin = self.codes[slice(*samples)], samples[0]
        return super(CodedSource, cut).piece(samples, region)
