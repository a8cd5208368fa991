"""Candid covariance-free incremental PCA."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.dtypes import working_dtype
from dpca.kernels.types import Array
from dpca.rules import centering, ritz
from dpca.rules.basis import SequentialRule
from dpca.rules.orthonormal import orthonormalize
from dpca.rules.rule import check_number
from dpca.rules.state import Layout, State


@dataclass(frozen=True)
class CCIPCA(SequentialRule):
    """Candid covariance-free incremental PCA (CCIPCA), parameter-free, by mini-batches or samples.

    Each component v with eigenvalue l moves to l v <- (1 - g) l v + g X^T X v / n (Weng, Zhang & Hwang 2003; Alakkari
    2020, equations 2.17 and 2.18), and the samples X go on to the next component less what this one accounts for:
    X <- X - X v v^T. The gain g is the share of the n samples in all samples so far, which makes l v the plain average
    of equation 2.17; the random start only turns the first samples. With an amnesic factor a, the gain is (1 + a)
    times that, at most 1 (equation 2.19): later samples count more, for data that drift.

    Costs O(n d k) an update, O(k d) memory; no orthonormalization before ``finish``. ``explained_variance`` holds the
    rule's own eigenvalues. The running mean and the parameters not named here are those of
    :class:`~dpca.rules.basis.SequentialRule`.

    Parameters
    ----------
    amnesic : float
        a >= 0; the source advises 2 to 4 for data that drift.
    """

    amnesic: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("amnesic", self.amnesic, "0 or more, 2 to 4 for data that drift", least=0)

    def _layout(self, n_features: int, dtype: DTypeLike) -> Layout:
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
            values[i] = np.sqrt(np.einsum("i,i->", moved, moved, dtype=np.float64))  # squares may leave float32
            if values[i] > 0:
                np.divide(moved, row.dtype.type(values[i]), out=row)
            # Weng's order: what goes on is less the component as it is now.
            x -= np.outer(x @ row, row)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays: also what a component accounts for of all samples of a batch."""
        explained = n_rows * n_features * working_dtype(dtype).itemsize
        return super().work_bytes(n_rows, n_features, dtype) + explained

    def _finish(self, state: State) -> dict[str, Array]:
        n, values = state.counts["n_samples"], state.arrays["eigenvalues"]
        order = np.argsort(-values, kind="stable")
        kept = order[: min(len(order), n)]
        rows = orthonormalize(state.arrays["components"][kept])
        return ritz.result(state, rows, values[kept] * (n / max(n - 1, 1)))
