"""Incremental PCA of reduced order, one sample at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.rules.base import centering, ritz
from dpca.rules.base.basis import StreamingRule
from dpca.rules.base.orthonormal import gram, orthonormalize
from dpca.rules.base.state import State, StateLayout

# Residuals below this share of their sample are rounding errors of float32 data.
_NOTHING_NEW = 1e-6
_LEAST_ROWS = 64


@dataclass(frozen=True)
class IPCA(StreamingRule):
    """Incremental PCA of reduced order (IPCA), one sample at a time. It has no parameters to tune.

    The state has k components W and their eigenvalues S of the scatter. A sample x with y = W x and residual
    r = x - W^T y yields the matrix [[S + y y^T, |r| y], [|r| y^T, |r|^2]] of size k + 1. Its eigenvectors rotate the
    rows of W and r / |r|. The smallest one is discarded (Arora, Cotter, Livescu & Srebro 2012; Alakkari 2020, equations
    2.20 and 2.21). The basis starts empty and grows with the first samples.

    The samples of a batch are processed in blocks of about k. Within a block, rotations use coordinates in the span of
    W and the block. Up to rounding error, the result is the same. A sample then costs O(k d) instead of O(k^2 d), and
    O(k^3) for the small eigenproblem. O(k d) memory. Early samples are centered by a preliminary mean, that of all
    samples up to the end of their batch. ``explained_variance`` holds the eigenvalues of the rule. Parameters are those
    of :class:`~dpca.rules.base.basis.StreamingRule`.
    """

    counts = ("n_samples", "rank")

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        k = self.rank(n_features)
        rows = ((k, n_features), working_dtype(dtype))
        return {**centering.layout(n_features), "components": rows, "eigenvalues": ((k,), float)}

    def _take(self, state: State, batch: Array) -> None:
        rows = state.arrays["components"]
        x = centering.take(state, batch, self.center, rows.dtype)
        step = max(len(rows), _LEAST_ROWS)
        for start in range(0, len(x), step):
            _take_block(state, x[start : start + step])

    def _finish(self, state: State) -> dict[str, Array]:
        n = state.counts["n_samples"]
        kept = min(len(state.arrays["components"]), n)
        # Empty rows complete the orthonormal basis.
        rows = orthonormalize(state.arrays["components"][:kept])
        return ritz.result(state, rows, state.arrays["eigenvalues"][:kept] / max(n - 1, 1))

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays in ``update`` and ``finish``."""
        k, working = self.rank(n_features), working_dtype(dtype)
        spanned = k + min(n_rows, max(k, _LEAST_ROWS))
        # The span of basis and block, its orthonormal form, and the workspace of Householder QR.
        blocks = 5 * spanned * n_features * working.itemsize + 64 * spanned * spanned
        return centering.work_bytes(n_rows, n_features, working) + blocks


def _take_block(state: State, x: Array) -> None:
    """Process centered samples (n, d) one after the other, in coordinates of the span of the basis and the samples."""
    rows, values, rank = state.arrays["components"], state.arrays["eigenvalues"], state.counts["rank"]
    span = orthonormalize(np.concatenate([rows[:rank], x])) if rank + len(x) < rows.shape[1] else None
    basis = rows[:rank].astype(np.float64) if span is None else np.eye(rank, len(span))
    samples = x.astype(np.float64) if span is None else gram(x, span)
    kept = values[:rank]
    for sample in samples:
        basis, kept = _take_sample(basis, kept, sample, len(rows))
    rank = state.counts["rank"] = len(kept)
    rows[:rank] = basis if span is None else basis.astype(rows.dtype) @ span
    values[:rank] = kept


def _take_sample(basis: Array, values: Array, x: Array, k: int) -> tuple[Array, Array]:
    """Return the basis (at most k rows) and its eigenvalues, descending, with one more sample."""
    y = basis @ x
    residual = x - y @ basis
    # Repeat the projection, because a residual near rounding error is not orthogonal yet.
    residual -= (basis @ residual) @ basis
    length = np.sqrt(residual @ residual)
    if length > _NOTHING_NEW * np.sqrt(x @ x):
        basis = np.concatenate([basis, residual[None] / length])
        values, y = np.concatenate([values, [0.0]]), np.concatenate([y, [length]])
    small = y[:, None] * y
    small.flat[:: len(y) + 1] += values
    turned, turn = np.linalg.eigh(small)
    order = slice(None, -k - 1, -1)
    return turn[:, order].T @ basis, np.maximum(turned[order], 0.0)
