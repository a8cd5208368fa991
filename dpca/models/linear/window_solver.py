"""Windows of successive samples in the dual form of `PCA`: each sample is read once in a pass, not once a window."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.sources.lagged import LaggedSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array, blocks
from dpca.models.base.passes import Passes
from dpca.partition.cells import CellGrid
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State
from dpca.rules.dual.components import DualComponents, components_rule
from dpca.rules.dual.gram import float_gram, row_products

# Attributes of products of rows at a time.
_COLUMNS = 8192


@dataclass(frozen=True)
class WholeSamples:
    """The samples of a source: one window each, of one sample."""

    source: Source

    @staticmethod
    def of(source: Source) -> WholeSamples:
        """Return the form of the samples of a source: windows if their samples have a Gram matrix that costs less."""
        if isinstance(source, LaggedSource):
            n, (n_windows, n_lags) = source.source.shape[0], source.shape[:2]
            if n**2 <= n_windows**2 * n_lags:
                return Windows(source)
        return WholeSamples(source)

    def passes(self, passes: Passes) -> Passes:
        """Return the passes over what is read, from those over the source."""
        return passes

    def gram(self, gram: Array, center: bool) -> tuple[Array, float | None]:
        """Return the Gram matrix, float64, of the source from that of what is read.

        The number is the trace whose rounding errors it has, None for its own.
        """
        return float_gram(gram, center), None

    def rule(self, weights: Array, dtype: np.dtype[Any], center: bool) -> Rule:
        """Return the rule of the components of a dtype, from weights (k, n) of the samples of the source."""
        return components_rule(weights, self.source.dtype, dtype, center)

    def grid(self, grid: CellGrid) -> CellGrid:
        """Return the blocks of attributes of the source from those of what is read."""
        return grid


@dataclass(frozen=True)
class Windows(WholeSamples):
    """Windows of samples. The inner product of two of them is the sum of those of their samples over the lags.

    The Gram matrix of n samples costs n^2 d operations for samples of d attributes, instead of n_windows^2 n_lags d.
    """

    source: LaggedSource

    def passes(self, passes: Passes) -> Passes:
        """Return the passes over the samples."""
        return Passes(self.source.source, passes.run)

    def gram(self, gram: Array, center: bool) -> tuple[Array, float | None]:
        """Return the Gram matrix of windows, and its trace before each lag is centered."""
        exact = gram.dtype == object
        gram = gram if exact else linalg.symmetrize(gram)
        lags = map(self._of_lag, range(self.source.shape[1]))
        gram = np.sum([gram[lag, lag] for lag in lags], axis=0, dtype=gram.dtype)
        gram = float_gram(gram, center)
        trace = float(gram.trace())
        if center and not exact:
            gram -= gram.mean(axis=0)
            gram -= gram.mean(axis=1)[:, None]
        return gram, trace

    def rule(self, weights: Array, dtype: np.dtype[Any], center: bool) -> Rule:
        """Return the rule of the components of windows, from weights (k, n_windows)."""
        n_windows, n_lags = self.source.shape[:2]
        rows = np.concatenate([weights, np.full((1, n_windows), 1 / n_windows)]) if center else weights
        placed = np.zeros((len(rows), n_lags, self.source.source.shape[0]))
        for j in range(n_lags):
            placed[:, j, self._of_lag(j)] = rows
        return WindowComponents(
            placed.reshape(len(rows) * n_lags, -1), dtype, center, n_lags=n_lags, sums=weights.sum(axis=1)
        )

    def grid(self, grid: CellGrid) -> CellGrid:
        """Return the blocks of attributes of windows: each has all lags."""
        n_lags = self.source.shape[1]
        return CellGrid((n_lags, *grid.sample_shape), (n_lags, *grid.cell_shape))

    def _of_lag(self, j: int) -> slice:
        """Return the samples of all windows with one lag."""
        first, stride = j * self.source.lag, self.source.stride
        return slice(first, first + (self.source.shape[0] - 1) * stride + 1, stride)


@dataclass(frozen=True, eq=False)
class WindowComponents(DualComponents):
    """The components of windows at some attributes, from weights of samples.

    Parameters
    ----------
    weights : array (n_rows n_lags, n), float64
        Of the samples, for each component and lag; with ``center``, last those of the mean at each lag.
    dtype, center
        See `DualComponents`.
    n_lags : int
    sums : array (k,), float64
        Of the weights of all windows, for each component.

    Results of ``finish`` for d attributes of a sample: ``mean`` (n_lags d,), ``image`` (k, n_lags d) and ``inner``.
    """

    n_lags: int = field(kw_only=True)
    sums: Array = field(kw_only=True)

    def _finish(self, state: State) -> dict[str, Array]:
        found = super()._finish(state)
        rows = found["image"].reshape(-1, self.n_lags, len(found["mean"]))
        mean = np.repeat(found["mean"][None], self.n_lags, axis=0)
        if self.center:
            # The mean of the samples was subtracted instead of that of each lag.
            away, rows = rows[-1].astype(np.float64), rows[:-1]
            mean += away
            for row, weight in zip(rows, self.sums, strict=True):
                row -= (weight * away).astype(row.dtype)
        image, inner = rows.reshape(len(rows), -1), np.zeros((len(rows), len(rows)))
        for columns in blocks(image.shape[1], _COLUMNS):
            inner += row_products(image[:, columns].astype(np.float64))
        return {"mean": mean.ravel(), "image": image, "inner": inner}

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result, and of what it is made of."""
        return super().result_bytes(n_features, dtype) + 16 * self.n_lags * n_features
