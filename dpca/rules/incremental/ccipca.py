"""Candid covariance-free incremental PCA."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.rules.base import centering, ritz
from dpca.rules.base.basis import SequentialRule
from dpca.rules.base.options import finite
from dpca.rules.base.orthonormal import orthonormalize
from dpca.rules.base.state import State, StateLayout


@dataclass(frozen=True)
class CCIPCA(SequentialRule):
    """Candid covariance-free incremental PCA (CCIPCA) by mini-batches or samples. It has no parameters to tune.

    Each component v with eigenvalue l is updated by l v <- (1 - g) l v + g X^T X v / n (Weng, Zhang & Hwang 2003;
    Alakkari 2020, equations 2.17 and 2.18). Its part of the samples X is then removed for the next component:
    X <- X - X v v^T. The gain g is the share of the n samples among all samples so far, so that l v is the plain
    average of equation 2.17. The random start only affects the first samples. With an amnesic factor a, the gain is
    (1 + a) times as large, at most 1 (equation 2.19). Later samples then count more, for drifting data.

    Costs O(n d k) per update, O(k d) memory. Rows are orthonormalized only in ``finish``. ``explained_variance`` holds
    the eigenvalues of the rule. The running mean and all other parameters are those of
    :class:`~dpca.rules.base.basis.SequentialRule`.

    Parameters
    ----------
    amnesic : float
        a >= 0. The source recommends 2 to 4 for drifting data.
    """

    amnesic: float = field(default=0.0, kw_only=True, metadata=finite("0 or more; 2 to 4 for drifting data", least=0))

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return {**super()._layout(n_features, dtype), "eigenvalues": ((self.rank(n_features),), float)}

    def _take(self, state: State, batch: Array) -> None:
        n_before = state.counts["n_samples"]
        x = centering.take(state, batch, self.center, state.arrays["components"].dtype)
        steps = np.split(x, len(x)) if self.online else [x]
        for step in steps:
            n_before += len(step)
            self._step(state, step, len(step) / n_before)
            state.counts["n_updates"] += 1

    def _step(self, state: State, x: Array, share: float) -> None:
        gain, values = min(1.0, (1 + self.amnesic) * share), state.arrays["eigenvalues"]
        for i, row in enumerate(state.arrays["components"]):
            moved = (x @ row) @ x
            moved *= row.dtype.type(gain / len(x))
            moved += row.dtype.type((1 - gain) * values[i]) * row
            values[i] = np.sqrt(np.einsum("i,i->", moved, moved, dtype=np.float64))  # squares may exceed float32
            if values[i] > 0:
                np.divide(moved, row.dtype.type(values[i]), out=row)
            # As in Weng's algorithm, the updated component is removed from the samples.
            x -= np.outer(x @ row, row)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays, including the part of one component in all samples of a batch."""
        explained = n_rows * n_features * working_dtype(dtype).itemsize
        return super().work_bytes(n_rows, n_features, dtype) + explained

    def _finish(self, state: State) -> dict[str, Array]:
        n, values = state.counts["n_samples"], state.arrays["eigenvalues"]
        order = np.argsort(-values, kind="stable")
        kept = order[: min(len(order), n)]
        rows = orthonormalize(state.arrays["components"][kept])
        return ritz.result(state, rows, values[kept] * (n / max(n - 1, 1)))
