"""Samples with an integer code each, such as a class, as further attributes, because rules receive only batches."""

from __future__ import annotations

import numpy as np

from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array, Region
from dpca.rules.base.codes import DIGITS, written_codes


class CodedSource(ComputedSource):
    """The attributes of another source's samples in one row, followed by the digits of a code.

    8-bit integers keep their dtype. All others become float64, because solvers for coefficients need float64 products.

    Parameters
    ----------
    source : Source
        Source of n samples with d attributes.
    codes : array (n,), int32
        See `dpca.rules.base.codes`.
    fractions : array (n,), float64, optional
        Weights of the samples. They are an attribute between those of the source and the digits.
    """

    per_sample = ("codes", "fractions")

    def __init__(self, source: Source, codes: Array, fractions: Array | None = None) -> None:
        n, *sample_shape = source.shape
        dtype = np.dtype(np.uint8) if source.dtype == bool else source.dtype
        dtype = dtype if dtype.itemsize == 1 and fractions is None else np.dtype(np.float64)
        self.n_attributes = int(np.prod(sample_shape))
        super().__init__(source, (n, self.n_attributes + (fractions is not None) + DIGITS), dtype)
        self.codes, self.fractions = codes, fractions

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Write attributes, weights and digits side by side."""
        (a, b), d = region[0], self.n_attributes
        kept = max(0, min(b, d) - a)
        out[:, :kept] = values.reshape(len(values), d)[:, a : min(b, d)]
        after = written_codes(self.entries_of("codes", samples), out.dtype)
        if (fractions := self.entries_of("fractions", samples)) is not None:
            after = np.column_stack([fractions, after])
        out[:, kept:] = after[:, max(0, a - d) : max(0, b - d)]
