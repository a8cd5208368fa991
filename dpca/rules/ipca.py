"""Incremental PCA of reduced order, one sample at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.dtypes import working_dtype
from dpca.rules import centering, ritz
from dpca.rules.orthonormal import gram, orthonormalize
from dpca.rules.state import Array, State

# Residuals below this share of their sample are rounding, of data in float32.
_NOTHING_NEW = 1e-6
_LEAST_ROWS = 64


@dataclass(frozen=True)
class IPCA:
    """Incremental PCA of reduced order (IPCA), one sample at a time, parameter-free.

    With k components W and the eigenvalues S of the scatter that they hold, a sample x with y = W x and residual
    r = x - W^T y gives the matrix [[S + y y^T, |r| y], [|r| y^T, |r|^2]] of size k + 1; its eigenvectors turn the rows
    of W and r / |r|, and the smallest is dropped (Arora, Cotter, Livescu & Srebro 2012; Alakkari 2020, equations 2.20
    and 2.21). The basis starts empty and grows with the first samples.

    The samples of a batch are taken in blocks of about k: inside one, all turning is done in coordinates of the span of
    W and the block, which gives the same result up to rounding and costs O(k d) a sample instead of O(k^2 d), besides
    O(k^3) for the small eigenproblem. O(k d) memory. Early samples are centered by a running mean (that of all up to
    the end of their batch) that is not yet the final one.

    Parameters
    ----------
    n_components : int
        Components k to find; min(k, d) are kept.
    center : bool
        Subtract the running mean.

    Results of ``finish``: ``mean`` (d,) float64; ``components`` (k', d), orthonormal, ordered, k' = min(k, d, n);
    ``explained_variance`` (k',) float64, descending, the rule's own eigenvalues; ``total_variance`` () float64.
    """

    n_components: int
    center: bool = field(default=True, kw_only=True)
    mergeable: ClassVar[bool] = False
    averageable: ClassVar[bool] = False
    summable: ClassVar[bool] = False
    random_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.n_components < 1:
            raise ValueError(f"n_components is {self.n_components}: at least 1 is needed")

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        """Return the state before any sample."""
        k = min(self.n_components, n_features)
        rows = np.zeros((k, n_features), working_dtype(dtype))
        arrays = {**centering.arrays(n_features), "components": rows, "eigenvalues": np.zeros(k)}
        return State(arrays, {"n_samples": 0, "rank": 0})

    def update(self, state: State, batch: Array) -> State:
        """Take in a batch of shape (n_samples, n_features), n_samples >= 0."""
        if not len(batch):
            return state
        rows = state.arrays["components"]
        x = centering.take(state, batch, self.center, rows.dtype)
        step = max(len(rows), _LEAST_ROWS)
        for start in range(0, len(x), step):
            _take_block(state, x[start : start + step])
        return state

    def finish(self, state: State) -> dict[str, Array]:
        """Return the mean, the components and their variances."""
        n = state.counts["n_samples"]
        if n == 0:
            raise ValueError("0 samples have no principal components: at least 1 is needed")
        kept = min(len(state.arrays["components"]), n)
        # Rows still empty are completed.
        rows = orthonormalize(state.arrays["components"][:kept])
        return ritz.result(state, rows, state.arrays["eigenvalues"][:kept] / max(n - 1, 1))

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Samples that an update does best with; any number is taken."""
        return max(self.n_components, 100)

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a state."""
        k = min(self.n_components, n_features)
        return centering.state_bytes(n_features) + 8 * k + working_dtype(dtype).itemsize * k * n_features

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays in ``update`` and ``finish``."""
        k, working = min(self.n_components, n_features), working_dtype(dtype)
        spanned = k + min(n_rows, max(k, _LEAST_ROWS))
        # The span of basis and block, its orthonormal form, and what Householder's QR needs where Cholesky's fails.
        blocks = 5 * spanned * n_features * working.itemsize + 64 * spanned * spanned
        return centering.work_bytes(n_rows, n_features, working) + blocks

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a result."""
        k = min(self.n_components, n_features)
        return ritz.result_bytes(n_features, k, working_dtype(dtype).itemsize)


def _take_block(state: State, x: Array) -> None:
    """Take in centered samples (n, d), one after the other, in coordinates of the span of the basis and of them."""
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
    # Once more: what is left of a residual near rounding is not orthogonal yet.
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
