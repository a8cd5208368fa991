"""VR-PCA: stochastic gradient steps whose variance vanishes as they converge, between exact products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels import linalg
from dpca.kernels.dtypes import working_dtype
from dpca.kernels.types import Array
from dpca.rules.orthonormal import orthonormalize
from dpca.rules.rule import Rule, check_number
from dpca.rules.state import Layout, State


@dataclass(frozen=True, eq=False)
class VRPCA(Rule):
    """The stochastic part of one epoch of variance-reduced PCA.

    Alakkari 2020, algorithm 2.1, lines 4 to 9; Shamir 2016 for k > 1. From W = W~, the anchor, with its product U~ = W~
    C known exactly from a pass before, each mini-batch X of b samples makes a step

        W <- orthonormal rows of W + eta (((W - R W~) X^T) X / b + R U~)

    where R is the orthogonal matrix that turns the anchor closest to W. With one component R is the sign of w w~^T,
    and with b = 1 this is equation 2.15 of Alakkari (2020) to the letter. The expected step is that of Oja's rule on
    the whole covariance; its variance falls with |W - R W~|, so that a constant rate converges. The algorithm draws
    samples at random; here each comes once an epoch, in the order of the stream (MNIST sorted by class took 1.6 times
    the epochs of a random order).

    Parameters
    ----------
    anchor : array (k, d), orthonormal rows
    product : array (k, d)
        (sum of x^T x) / n times the anchor, x being the samples less their mean.
    mean : array (d,), float64
    rate : float
        eta; Shamir (2015) suggests 1 / (mean squared norm of a sample times the root of the number of steps).

    Results of ``finish``: ``components`` (k, d), the anchor of the next epoch. A batch is a step: `InBatches` gives
    them one size. Costs 4 k d operations a sample and 4 k^2 d a step.
    """

    anchor: Array
    product: Array
    mean: Array
    rate: float

    random_order = True
    least_samples = 0

    def __post_init__(self) -> None:
        check_number("rate", self.rate, "a positive number", above=0)

    def _layout(self, n_features: int, dtype: DTypeLike) -> Layout:
        return {"basis": ((len(self.anchor), n_features), working_dtype(dtype))}

    def _start(self, state: State, dtype: DTypeLike) -> None:
        state.arrays["basis"] = np.array(self.anchor, working_dtype(dtype))

    def _take(self, state: State, batch: Array) -> None:
        basis = state.arrays["basis"]
        dtype = basis.dtype
        x = linalg.scratch("vr-pca", batch.shape, dtype)
        np.subtract(batch, self.mean.astype(dtype), out=x, dtype=dtype)
        anchor, product = self.anchor.astype(dtype, copy=False), self.product.astype(dtype, copy=False)
        left, _, right = scipy.linalg.svd(basis @ anchor.T)
        turn = left @ right
        y = x @ (basis - turn @ anchor).T
        step = y.T @ x
        step /= len(x)
        step += turn @ product
        state.arrays["basis"] = orthonormalize(basis + dtype.type(self.rate) * step)
        state.counts["n_samples"] += len(batch)

    def _finish(self, state: State) -> dict[str, Array]:
        return {"components": state.arrays["basis"]}

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Samples that an update does best with."""
        return 100

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays: centered samples, and a handful of bases."""
        itemsize = working_dtype(dtype).itemsize
        return (n_rows + 7 * len(self.anchor) + 1) * n_features * itemsize
