"""The variance of a stream that given bases capture, in float64."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.engine.folds.fold import fold
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.partition.whole import Whole
from dpca.rules.base.orthonormal import gram
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State, StateLayout

_BLOCK_ROWS, _BLOCK_COLUMNS = 256, 1024


@dataclass(frozen=True, eq=False)
class Captured(Rule):
    """Variance that each of several bases W (k, d) captures: tr((W W^T)^-1 W C W^T), C the covariance of the stream.

    Together with the variance that the best components capture, it gives the convergence of Alakkari (2020), equation
    2.24, for any d, without C. Everything is float64 for bases of any dtype: float32 would end at a loss of about 1e-6.
    It is a sum over samples: states merge, and the order does not matter.

    Parameters
    ----------
    bases : sequence of arrays (k, d)
        Linearly independent rows; they need not be orthonormal, and k may differ.
    mean : array (d,), float64
        Approximate mean of the samples; the result is corrected for its error.
    center : bool
        Whether variances are about the mean of the samples; otherwise they are about 0, and ``mean`` is not used.

    Raises
    ------
    ValueError
        If there is no basis, or their lengths differ.

    Notes
    -----
    Costs 2 n d operations for every row of every basis, and the bytes of the bases. Results of ``finish``, float64:
    ``captured`` (m,) for m bases, and ``total_variance`` (), divisor n - 1.
    """

    bases: Sequence[Array]
    mean: Array
    center: bool = True

    mergeable = True
    least_samples = 2

    def __post_init__(self) -> None:
        if not len(self.bases) or any(basis.shape[1:] != self.mean.shape for basis in self.bases):
            raise ValueError(
                f"{len(self.bases)} bases with rows of {sorted({basis.shape[-1] for basis in self.bases})} attributes "
                f"do not fit a mean of {len(self.mean)}: use at least one basis with rows of that length"
            )

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        arrays: dict[str, tuple[tuple[int, ...], DTypeLike]] = {"squares": ((), float), "sum": ((n_features,), float)}
        for i, basis in enumerate(self.bases):
            k = len(basis)
            arrays |= {f"cross-{i}": ((k, k), float), f"sum-{i}": ((k,), float)}
        return arrays

    def _take(self, state: State, batch: Array) -> None:
        for start in range(0, len(batch), _BLOCK_ROWS):
            self._take_block(state, batch[start : start + _BLOCK_ROWS])

    def _take_block(self, state: State, block: Array) -> None:
        ends = np.cumsum([len(basis) for basis in self.bases])
        y = np.zeros((len(block), ends[-1]))
        for start in range(0, block.shape[1], _BLOCK_COLUMNS):
            columns = slice(start, start + _BLOCK_COLUMNS)
            x = np.subtract(block[:, columns], self.mean[columns] if self.center else 0, dtype=np.float64)
            state.arrays["squares"] += np.vdot(x, x)
            state.arrays["sum"][columns] += x.sum(axis=0)
            rows = np.concatenate([basis[:, columns] for basis in self.bases]).astype(np.float64, copy=False)
            y += x @ rows.T
        for i, own in enumerate(np.split(y, ends[:-1], axis=1)):
            state.arrays[f"cross-{i}"] += own.T @ own
            state.arrays[f"sum-{i}"] += own.sum(axis=0)
        state.counts["n_samples"] += len(block)

    def _finish(self, state: State) -> dict[str, Array]:
        n = state.counts["n_samples"]
        captured = []
        for i, basis in enumerate(self.bases):
            cross, total = state.arrays[f"cross-{i}"], state.arrays[f"sum-{i}"]
            if self.center:
                cross = cross - np.outer(total, total / n)
            captured.append(np.trace(scipy.linalg.solve(gram(basis), cross, assume_a="pos")) / (n - 1))
        total = state.arrays["sum"]
        squares = state.arrays["squares"] - (total @ total / n if self.center else 0)
        return {"captured": np.asarray(captured), "total_variance": np.asarray(squares / (n - 1))}

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays, and of the bases."""
        n, rows = min(n_rows, _BLOCK_ROWS), sum(len(basis) for basis in self.bases)
        held = sum(basis.nbytes for basis in self.bases)
        return held + 8 * (2 * n * rows + _BLOCK_COLUMNS * (n + 2 * rows))


def captured_by(source: Source, bases: Sequence[Array], mean: Array, **running: Any) -> tuple[Array, float]:
    """Measure the variance of a source that each basis captures, and its total variance, in float64 in one pass.

    Parameters
    ----------
    source : Source
    bases, mean
        As in `Captured`.
    **running
        Arguments of `dpca.engine.folds.fold.fold`.
    """
    with warnings.catch_warnings():
        # A task that reads gigabytes receives a few hundred megabytes of bases.
        warnings.filterwarnings("ignore", message="Sending large graph")
        (found,), _ = fold(Captured(list(bases), mean), source, Whole(tuple(source.shape[1:])), **running)
    return found["captured"], float(found["total_variance"])
