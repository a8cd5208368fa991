"""One pass that multiplies given vectors by the covariance of a stream: what every iterative solver is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels import linalg
from dpca.kernels.dtypes import working_dtype
from dpca.rules.state import Array, State

_BLOCK_ROWS = 1024


@dataclass(frozen=True, eq=False)
class CovarianceProduct:
    """Multiply rows V (k, d) by the covariance C of a stream, which is never formed.

    sum y^T (x - mean), y = (x - mean) V^T, is (n - 1) V C. A sum over samples: it merges, and order does not matter.

    Parameters
    ----------
    components : array (k, d)
        The rows V.
    mean : array (d,), float64
        Mean of the samples, exact or nearly: what is left of it is subtracted at the end.
    center : bool
        Whether the covariance is about the mean.

    Results of ``finish``, float64: ``mean`` (d,), ``product`` V C (k, d), ``total_variance`` (). Costs 4 n d k
    operations; state k d numbers.
    """

    components: Array
    mean: Array
    center: bool = True

    mergeable: ClassVar[bool] = True
    random_order: ClassVar[bool] = False

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        """Return the state before any sample."""
        arrays = {
            "image": np.zeros((len(self.components), n_features)),
            "sum": np.zeros(n_features),
            "squares": np.zeros(()),
        }
        return State(arrays, {"n_samples": 0})

    def update(self, state: State, batch: Array) -> State:
        """Take in a batch of shape (n_samples, n_features)."""
        dtype = working_dtype(batch.dtype)
        # BLAS rounds otherwise where an array is in Fortran order, or unaligned, as those that were shipped may be.
        mean, components = self.mean.astype(dtype), np.require(self.components, dtype, ["C", "A"])
        for start in range(0, len(batch), _BLOCK_ROWS):
            block = batch[start : start + _BLOCK_ROWS]
            x = linalg.scratch("refined", block.shape, dtype)
            np.subtract(block, mean if self.center else 0, out=x, dtype=dtype)
            y = x @ components.T
            state.arrays["image"] += y.T @ x
            state.arrays["sum"] += np.ones(len(x), dtype) @ x
            state.arrays["squares"] += np.einsum("ij,ij->i", x, x, dtype=dtype).sum(dtype=np.float64)
            state.counts["n_samples"] += len(x)
        return state

    def merge(self, a: State, b: State) -> State:
        """Return the state of both streams together."""
        for name, values in b.arrays.items():
            a.arrays[name] += values
        a.counts["n_samples"] += b.counts["n_samples"]
        return a

    def finish(self, state: State) -> dict[str, Array]:
        """Return the product; the state is used up."""
        mean, product, total = self._product(state)
        return {"mean": mean, "product": product, "total_variance": np.asarray(total)}

    def _product(self, state: State) -> tuple[Array, Array, float]:
        """Exact mean, product and trace of the covariance."""
        n, image, total = state.counts["n_samples"], state.arrays["image"], state.arrays["sum"]
        if n < 2:
            raise ValueError(f"{n} sample(s) have no variance: at least 2 are needed")
        squares = float(state.arrays["squares"])
        mean = np.array(self.mean)
        if self.center:
            image -= np.outer(self.components.astype(np.float64) @ total, total / n)
            squares -= float(total @ total) / n
            mean += total / n
        image /= n - 1
        return mean, image, max(squares / (n - 1), 0.0)

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Samples that an update does best with."""
        return _BLOCK_ROWS

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a state."""
        return 8 * n_features * (len(self.components) + 1)

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a result."""
        return 8 * n_features * (len(self.components) + 1)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays: a centered block and a product, or four bases in ``finish``."""
        k, itemsize = len(self.components), working_dtype(dtype).itemsize
        update = min(n_rows, _BLOCK_ROWS) * n_features * itemsize + 2 * k * n_features * itemsize
        return max(update, 32 * k * n_features)


def rayleigh_ritz(given: Array, product: Array) -> tuple[Array, Array, Array]:
    """Return the Ritz values of orthonormal rows, descending, the Ritz vectors, and these times the covariance."""
    values, turn = scipy.linalg.eigh(given @ product.T)
    values, turn = np.maximum(values[::-1], 0), turn[:, ::-1].T
    return values, turn @ given, turn @ product


def next_iterate(product: Array, given: Array) -> Array:
    """Orthonormal basis of a product, ordered by its singular values; directions without variance stay as given."""
    _, values, rows = scipy.linalg.svd(product, full_matrices=False)
    found = values > values[0] * 1e-12
    if found.all() or not values[0]:
        kept: Array = rows if values[0] else given
        return kept
    q: Array = scipy.linalg.qr(np.concatenate([rows[found], given]).T, mode="economic")[0].T
    q[: found.sum()] = rows[found]
    return q[: len(given)]
