"""The block power method on mini-batches."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.types import Array
from dpca.rules.basis import OrthonormalRule
from dpca.rules.orthonormal import gram, orthonormalize
from dpca.rules.rule import check_number
from dpca.rules.state import Layout, State
from dpca.rules.summing import RANK, SummedRule


@dataclass(frozen=True)
class BlockPower(SummedRule, OrthonormalRule):
    """Mini-batch (block) power method: one power iteration with the covariance of each block.

    W <- orthonormalize(W X^T X) for the n samples X of a block (Mitliagkas, Caramanis & Jain 2013; Alakkari 2020,
    section 3.3.1). Parameter-free, and poor at small blocks: what it returns is the answer of about one block.

    A block is as long as the first batch or k, whichever is more. Batches shorter than that are added up, with W
    held, until a block is full; an unfinished block at the end counts only if there is no other. A batch can be
    spread over workers.

    Costs O(n d k + k^2 d) an update, O(k d) memory. The running mean and the parameters not named here are those of
    :class:`~dpca.rules.basis.OrthonormalRule`.

    Parameters
    ----------
    growth : float
        Factor >= 1 by which every block is longer than the one before: the dynamic block size that lets the method
        converge (Li, Lin & Lu 2016; Alakkari 2020, section 2.3.1).
    momentum : float
        beta >= 0 in W <- orthonormalize(W X^T X / n - beta W_previous), both scaled alike (Xu et al. 2018; Alakkari
        2020, section 2.3.1); the best is a quarter of the square of the variance of component k + 1.
    """

    growth: float = field(default=1.0, kw_only=True)
    momentum: float = field(default=0.0, kw_only=True)

    counts = (*OrthonormalRule.counts, "n_block", "first_block", "n_blocks")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("growth", self.growth, "1 or more, since blocks must not shrink", least=1)
        check_number("momentum", self.momentum, "0 or more", least=0)
        if self.online:
            raise ValueError("the block power method does not work sample by sample: use online=False")

    def _layout(self, n_features: int, dtype: DTypeLike) -> Layout:
        arrays = super()._layout(n_features, dtype)
        previous = {"previous": arrays["components"]} if self.momentum else {}
        return {**arrays, "block": arrays["components"], **previous}

    def _move(self, state: State, products: Array, n: int, t: int) -> None:
        counts, rows = state.counts, state.arrays["components"]
        counts["first_block"] = counts["first_block"] or max(n, len(rows))
        state.arrays["block"] += products
        counts["n_block"] += n
        if counts["n_block"] >= counts["first_block"] * self.growth ** counts["n_blocks"]:
            self._close_block(state)

    def _close_block(self, state: State) -> None:
        counts, block, rows = state.counts, state.arrays["block"], state.arrays["components"]
        counts["n_blocks"] += 1
        _check_finite(block)
        block *= block.dtype.type(1 / counts["n_block"])
        if self.momentum:
            block -= block.dtype.type(self.momentum) * state.arrays["previous"]
            state.arrays["previous"][...] = rows
        self._turn(state, block)
        if self.momentum:
            # block = scale @ rows: the basis before is scaled alike.
            scale = gram(block, rows) @ np.linalg.pinv(gram(rows))
            state.arrays["previous"][...] = np.linalg.pinv(scale).astype(rows.dtype) @ state.arrays["previous"]
        block[...] = 0
        counts["n_block"] = 0

    def _turn(self, state: State, block: Array) -> None:
        """Replace the basis W by what W X^T X / n, here ``block``, makes of it."""
        self._replace(state, block)

    def _turns(self, state: State) -> int:
        return state.counts["n_blocks"]

    def _finish(self, state: State) -> dict[str, Array]:
        if not state.counts["n_blocks"]:
            # Fewer samples than components: their covariance C is known from W C alone (Nystroem), being of lower rank.
            block, rows = state.arrays["block"], state.arrays["components"]
            _check_finite(block)
            block *= block.dtype.type(1 / state.counts["n_block"])
            inverse = np.linalg.pinv(gram(block, rows), rcond=RANK, hermitian=True)
            basis = orthonormalize(block)
            factor = gram(block, basis)
            state.arrays["components"], state.arrays["projected"] = basis, factor.T @ inverse @ factor
        return super()._finish(state)


def _check_finite(block: Array) -> None:
    if not np.isfinite(block).all():
        raise ValueError(
            f"samples are not finite, or too large: block power takes their squares in {block.dtype}; mask them, or "
            "divide them by a constant"
        )
