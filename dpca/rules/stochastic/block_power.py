"""The block power method on mini-batches."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array
from dpca.rules.base.basis import OrthonormalRule
from dpca.rules.base.options import finite
from dpca.rules.base.orthonormal import gram, orthonormalize
from dpca.rules.base.rule import check_products
from dpca.rules.base.state import State, StateLayout
from dpca.rules.base.summing import RANK, SummedRule


@dataclass(frozen=True)
class BlockPower(SummedRule, OrthonormalRule):
    """Mini-batch (block) power method: one power iteration with the covariance of each block.

    W <- orthonormalize(W X^T X) for the n samples X of a block (Mitliagkas, Caramanis & Jain 2013; Alakkari 2020,
    section 3.3.1). It has no parameters to tune. It is inaccurate for small blocks, because the result is that of about
    one block.

    A block has as many samples as the first batch, but at least k. Shorter batches are summed with a fixed W until a
    block is full. An unfinished last block counts only if there is no other block. Several workers can share a batch.

    Costs O(n d k + k^2 d) per update, O(k d) memory. The running mean and all other parameters are those of
    :class:`~dpca.rules.base.basis.OrthonormalRule`.

    Parameters
    ----------
    growth : float
        Factor >= 1 between the lengths of successive blocks. With growing blocks the method converges (Li, Lin & Lu
        2016; Alakkari 2020, section 2.3.1).
    momentum : float
        beta >= 0 in W <- orthonormalize(W X^T X / n - beta W_previous), with both terms scaled alike (Xu et al. 2018;
        Alakkari 2020, section 2.3.1). The best value is a quarter of the squared variance of component k + 1.
    """

    growth: float = field(
        default=1.0, kw_only=True, metadata=finite("1 or more, because blocks must not shrink", least=1)
    )
    momentum: float = field(default=0.0, kw_only=True, metadata=finite("0 or more", least=0))

    counts = (*OrthonormalRule.counts, "n_block", "first_block", "n_blocks")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.online:
            raise ValueError("online is True, but the block power method requires batches: give online=False")

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
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
        check_products(np.isfinite(block).all(), block.dtype)
        block *= block.dtype.type(1 / counts["n_block"])
        if self.momentum:
            block -= block.dtype.type(self.momentum) * state.arrays["previous"]
            state.arrays["previous"][...] = rows
        self._turn(state, block)
        if self.momentum:
            # block = scale @ rows; the previous basis gets the same scale.
            scale = gram(block, rows) @ np.linalg.pinv(gram(rows))
            state.arrays["previous"][...] = np.linalg.pinv(scale).astype(rows.dtype) @ state.arrays["previous"]
        block[...] = 0
        counts["n_block"] = 0

    def _turn(self, state: State, block: Array) -> None:
        """Replace the basis W by the new basis from W X^T X / n, here ``block``."""
        self._replace(state, block)

    def _turns(self, state: State) -> int:
        return state.counts["n_blocks"]

    def _finish(self, state: State) -> dict[str, Array]:
        if not state.counts["n_blocks"]:
            # Fewer samples than components: the covariance C has lower rank, so that W C determines it (Nystroem).
            block, rows = state.arrays["block"], state.arrays["components"]
            check_products(np.isfinite(block).all(), block.dtype)
            block *= block.dtype.type(1 / state.counts["n_block"])
            inverse = np.linalg.pinv(gram(block, rows), rcond=RANK, hermitian=True)
            basis = orthonormalize(block)
            factor = gram(block, basis)
            state.arrays["components"], state.arrays["projected"] = basis, factor.T @ inverse @ factor
        return super()._finish(state)
