"""Covariance of one set of attributes, and the principal components that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca import linalg
from dpca.rules.state import Array, State, working_dtype

#: Rows of one float32 product. Pixels of 8 bits less 128 have products of at most 2**14, so sums over 1024 rows stay
#: within 2**24, where float32 holds every integer: the product is exact, whatever order BLAS adds in.
BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Covariance:
    """Sample covariance in one pass over shifted data.

    With a shift c near the mean, ``sum`` = sum (x - c) and ``cross`` = sum (x - c)(x - c)^T, the covariance is
    (cross - sum sum^T / n) / (n - 1) (shifted-data algorithm, Chan, Golub & LeVeque 1983, section 3; T 4.3.1
    accumulates the same matrix). Products are float32 over at most 1,024 rows and are added up in float64.

    8-bit integers take c = 128 (0 when signed): then every product and sum is exact, and so the result is the same to
    the last bit for any batch size, order of merging, number of workers and BLAS. Other dtypes take the mean of the
    first batch; float64 stays float64.

    Costs O(n d^2) time, 8 d^2 bytes of state. Results of ``finish``: ``mean`` (d,), ``covariance`` (d, d), float64.
    """

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        """Return the state before any sample."""
        shift = np.full(n_features, 128.0 if np.dtype(dtype) == np.uint8 else 0.0)
        arrays = {"shift": shift, "sum": np.zeros(n_features), "cross": np.zeros((n_features, n_features))}
        return State(arrays, {"n_samples": 0})

    def update(self, state: State, batch: Array) -> State:
        """Take in a batch of shape (n_samples, n_features), n_samples >= 0, C-ordered."""
        if state.counts["n_samples"] == 0 and len(batch) and not _is_exact(batch.dtype):
            state.arrays["shift"][:] = (
                batch[:BLOCK_ROWS].mean(axis=0, dtype=np.float64).astype(working_dtype(batch.dtype))
            )
        d = batch.shape[1]
        for start in range(0, len(batch), BLOCK_ROWS):
            x = shifted(batch[start : start + BLOCK_ROWS], state.arrays["shift"])
            product = linalg.gram_lower(x, linalg.scratch("product", (d, d), x.dtype))
            linalg.add_lower(state.arrays["cross"], product)
            state.arrays["sum"] += np.ones(len(x), x.dtype) @ x
            state.counts["n_samples"] += len(x)
        return state

    def merge(self, a: State, b: State) -> State:
        """Return the state of both streams together, on the shift of the first.

        With delta = shift_b - shift_a, x - shift_a = (x - shift_b) + delta for every x of the second stream.
        """
        if b.counts["n_samples"] == 0:
            return a
        if a.counts["n_samples"] == 0:
            a.arrays["shift"][:] = b.arrays["shift"]
        delta = b.arrays["shift"] - a.arrays["shift"]
        n, total, cross = b.counts["n_samples"], b.arrays["sum"], a.arrays["cross"]
        cross += b.arrays["cross"]
        if delta.any():
            cross += np.outer(total, delta) + np.outer(delta, total + n * delta)
        a.arrays["sum"] += total + n * delta
        a.counts["n_samples"] += n
        return a

    def finish(self, state: State) -> dict[str, Array]:
        """Return ``mean`` and ``covariance`` (symmetric); the state is used up."""
        mean, cross = self._covariance_lower(state)
        return {"mean": mean, "covariance": linalg.symmetrize(cross)}

    def _covariance_lower(self, state: State) -> tuple[Array, Array]:
        n = state.counts["n_samples"]
        if n < 2:
            raise ValueError(f"{n} sample(s) have no covariance: at least 2 are needed")
        total, cross = state.arrays["sum"], state.arrays["cross"]
        # Row by row, to hold no second matrix of d x d.
        for i in range(len(cross)):
            cross[i, : i + 1] -= total[i] * total[: i + 1] / n
        cross /= n - 1
        return state.arrays["shift"] + total / n, cross

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a state."""
        return 8 * n_features * (n_features + 2)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays: one shifted block, its product, and what the eigensolver needs."""
        itemsize = working_dtype(dtype).itemsize
        block = min(n_rows, BLOCK_ROWS) * n_features * (itemsize + 1)
        return block + n_features * n_features * itemsize


@dataclass(frozen=True)
class CovariancePCA(Covariance):
    """Leading principal components from the covariance (T 2.1; L 5.1).

    Parameters
    ----------
    n_components : int or None
        Components to keep; None, or more than there are attributes, keeps one for each attribute.

    Results of ``finish``: ``mean`` (d,) float64, ``components`` (k, d) float64, ``explained_variance`` (k,)
    float64, descending, ``total_variance`` () float64. Costs O(d^3) time beside the covariance.
    """

    n_components: int | None = None

    def finish(self, state: State) -> dict[str, Array]:
        """Return the mean, the components and their variances; the state is used up."""
        mean, covariance = self._covariance_lower(state)
        d = len(mean)
        total = np.trace(covariance)
        values, rows = linalg.leading_eigh(covariance, min(self.n_components or d, d))
        return {
            "mean": mean,
            "components": rows,
            "explained_variance": values,
            "total_variance": np.asarray(total),
        }

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays: of an update, and of LAPACK's eigensolver."""
        k = min(self.n_components or n_features, n_features)
        solver = 8 * n_features * (2 * k + 32) + (16 * n_features**2 if 2 * k >= n_features else 0)
        return super().work_bytes(n_rows, n_features, dtype) + solver


def shifted(block: Array, shift: Array) -> Array:
    """Return block - shift in the working dtype, in a scratch array of this thread."""
    out = linalg.scratch("shifted", block.shape, working_dtype(block.dtype))
    if block.dtype == np.uint8:
        # Flipping the top bit subtracts 128 without leaving 8 bits: cheaper than subtracting floats.
        flipped = np.bitwise_xor(block, np.uint8(128), out=linalg.scratch("flipped", block.shape, np.uint8))
        np.copyto(out, flipped.view(np.int8))
    elif block.dtype == np.int8:
        np.copyto(out, block)
    else:
        np.copyto(out, block)
        out -= shift.astype(out.dtype)
    return out


def _is_exact(dtype: np.dtype[Any]) -> bool:
    return dtype in (np.dtype(np.uint8), np.dtype(np.int8), np.dtype(bool))
