"""The dual form over a stream of samples: Gram matrices of blocks of attributes, then components in one more pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels import linalg
from dpca.kernels.dtypes import working_dtype
from dpca.rules.dual import Dual
from dpca.rules.orthonormal import orthonormalize
from dpca.rules.state import Array, State

_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class BlockGram:
    """Gram matrix of all samples over some of their attributes, which are held until all samples are there.

    The Gram matrices of all blocks add up to the state of `Dual`, whose blocks are columns while a store yields rows.

    Parameters
    ----------
    n_samples : int
        Of the whole stream.
    center : bool
        Subtract each attribute's mean.

    Results of ``finish``: ``gram`` (n, n), float64, lower triangle. Holds n_samples x n_attributes values of the
    input's dtype and 8 n^2 bytes; costs n^2 operations for each attribute.
    """

    n_samples: int
    center: bool = True

    mergeable: ClassVar[bool] = False
    random_order: ClassVar[bool] = False

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        """Return the state before any sample."""
        return State({"rows": np.zeros((self.n_samples, n_features), dtype)}, {"n_samples": 0})

    def update(self, state: State, batch: Array) -> State:
        """Take in a batch of shape (n_samples, n_features)."""
        first = state.counts["n_samples"]
        if first + len(batch) > self.n_samples:
            raise ValueError(
                f"{first + len(batch)} samples came but {self.n_samples} were announced: announce them all"
            )
        state.arrays["rows"][first : first + len(batch)] = batch
        state.counts["n_samples"] += len(batch)
        return state

    def finish(self, state: State) -> dict[str, Array]:
        """Return the Gram matrix; the state is used up."""
        if state.counts["n_samples"] < self.n_samples:
            raise ValueError(
                f"{state.counts['n_samples']} samples came but {self.n_samples} were announced: announce as many"
            )
        rows = state.arrays.pop("rows")
        dual = Dual(1, self.center)
        return {"gram": dual.update(dual.init(self.n_samples, rows.dtype), rows).arrays["gram"]}

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Samples that an update does best with."""
        return _BLOCK_ROWS

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a state."""
        return self.n_samples * n_features * np.dtype(dtype).itemsize

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a result."""
        return 8 * self.n_samples**2

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays: what `Dual` needs."""
        dual = Dual(1, self.center)
        return dual.state_bytes(self.n_samples, dtype) + dual.work_bytes(n_features, self.n_samples, dtype)


@dataclass(frozen=True, eq=False)
class DualComponents:
    """Components from the weights of the samples in them, as `Dual` found them: weights @ (X - mean), in one pass.

    Samples are known by their place in the stream, so they come one after the other.

    Parameters
    ----------
    weights : array (k, n_samples), float64
    n_components : int
        Rows wanted, at least k: beyond the rank of the samples they are orthonormal to the others and capture nothing.
    center : bool
        As in `Dual`.

    Results of ``finish``: ``mean`` (d,) and ``components`` (n_components, d), orthonormal rows, float64. Costs 2 k d
    operations a sample; state k d numbers.
    """

    weights: Array
    n_components: int
    center: bool = True

    mergeable: ClassVar[bool] = False
    random_order: ClassVar[bool] = False

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        """Return the state before any sample."""
        arrays = {
            "image": np.zeros((len(self.weights), n_features)),
            "sum": np.zeros(n_features),
            "shift": np.zeros(n_features),
        }
        return State(arrays, {"n_samples": 0})

    def update(self, state: State, batch: Array) -> State:
        """Take in the next samples, shape (n_samples, n_features)."""
        dtype = working_dtype(batch.dtype)
        for start in range(0, len(batch), _BLOCK_ROWS):
            block, seen = batch[start : start + _BLOCK_ROWS], state.counts["n_samples"]
            if self.center and not seen:
                state.arrays["shift"][:] = block.mean(axis=0, dtype=np.float64).astype(dtype)
            x = linalg.scratch("dual", block.shape, dtype)
            np.subtract(block, state.arrays["shift"].astype(dtype), out=x, dtype=dtype)
            state.arrays["image"] += self.weights[:, seen : seen + len(x)].astype(dtype) @ x
            state.arrays["sum"] += np.ones(len(x), dtype) @ x
            state.counts["n_samples"] += len(x)
        return state

    def finish(self, state: State) -> dict[str, Array]:
        """Return the mean and the components; the state is used up."""
        image, total, n = state.arrays["image"], state.arrays["sum"], state.counts["n_samples"]
        if n != self.weights.shape[1]:
            raise ValueError(f"{n} samples came but there are weights of {self.weights.shape[1]}: give them all")
        mean = np.zeros_like(total)
        if self.center:
            mean = state.arrays["shift"] + total / n
            image -= np.outer(self.weights.sum(axis=1), total / n)
        missing = np.zeros((self.n_components - len(image), image.shape[1]))
        rows = orthonormalize(np.concatenate([image, missing]))
        return {"mean": mean, "components": linalg.fix_signs(rows)}

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Samples that an update does best with."""
        return _BLOCK_ROWS

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a state."""
        return 8 * n_features * (len(self.weights) + 2)

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a result."""
        return 8 * n_features * (self.n_components + 1)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays: a shifted block and a product, or four bases in ``finish``."""
        k, itemsize = self.n_components, working_dtype(dtype).itemsize
        update = (min(n_rows, _BLOCK_ROWS) + k + 1) * n_features * itemsize
        return max(update, 32 * k * n_features)
