"""Samples without their mean, for passes over blocks of attributes, and multiplied by factors, for weights."""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar, Self

import numpy as np

from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region


class WithConstant(ComputedSource):
    """Another source combined with a constant sample. A task holds its box of the constant only.

    Parameters
    ----------
    source : Source
    constant : array (*sample_shape), float64 or bool
    dtype : numpy.dtype, optional
        Dtype of the result; the default is the working dtype.
    """

    def __init__(self, source: Source, constant: Array, dtype: np.dtype[Any] | None = None) -> None:
        super().__init__(source, source.shape, dtype or working_dtype(source.dtype))
        self.constant, self.chunks, self.axes = constant, source.chunks, source.axes
        self.corner = (0,) * constant.ndim

    def needed(self, region: Region) -> Region:
        """Return the same box: attributes do not depend on each other."""
        return region

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return this source over a piece of the other one, with the constant in a box only."""
        return super(WithConstant, self._cut(region)).piece(samples, region)

    def extra_bytes(self, region: Region) -> int:
        """Return the bytes of the constant and its conversion, in addition to those of the other source."""
        return super().extra_bytes(region) + 16 * int(np.prod([b - a for a, b in region]))

    def _cut(self, region: Region) -> Self:
        cut = copy(self)
        cut.constant, cut.corner = self._in(region), tuple(a for a, _ in region)
        return cut

    def _in(self, region: Region) -> Array:
        return self.constant[tuple(slice(a - c, b - c) for (a, b), c in zip(region, self.corner, strict=True))]


class CenteredSource(WithConstant):
    """Another source minus a constant sample.

    Parameters
    ----------
    source : Source
    mean : array (*sample_shape), float64
    factors : array (n_samples,), optional
        Each difference is multiplied by the factor of its sample.
    """

    per_sample: ClassVar[tuple[str, ...]] = ("factors",)

    def __init__(self, source: Source, mean: Array, factors: Array | None = None) -> None:
        super().__init__(source, mean)
        self.factors = factors

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of samples."""
        np.copyto(out, values)
        mean = self._in(region)
        out -= (near := mean.astype(out.dtype))
        if (factors := self.entries_of("factors", samples)) is not None:
            out -= (mean - near).astype(out.dtype)  # otherwise a large mean would leave a constant
            out *= factors.astype(out.dtype).reshape(-1, *(1,) * (out.ndim - 1))


class ScaledSource(WithConstant):
    """Another source with each attribute multiplied by a factor; it keeps the weights of the samples.

    Parameters
    ----------
    source : Source
    factors : array (*sample_shape), float64
    """

    def __init__(self, source: Source, factors: Array) -> None:
        super().__init__(source, factors)
        self.weights = source.weights

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of samples."""
        scaled(values, self._in(region), out)


def scaled(samples: Array, factors: Array, out: Array | None = None) -> Array:
    """Return samples (n, *sample_shape) with each attribute multiplied by a factor, in their working dtype."""
    out = np.empty(samples.shape, working_dtype(samples.dtype)) if out is None else out
    np.copyto(out, samples)  # together faster than one call that converts and multiplies
    out *= factors.astype(out.dtype)
    return out
