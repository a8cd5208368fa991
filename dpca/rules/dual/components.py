"""The second pass of the dual form: components from the weights of the samples, block by block of attributes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State, StateLayout
from dpca.rules.dual.gram import AllSamples, is_exact, product_dtype, row_products

# Bytes of the columns of all samples that are multiplied at a time.
_COLUMN_BYTES = 2**19
# Bytes of shifted samples at a time.
_SHIFTED_BYTES = 2**22
#: Samples of one product.
BLOCK_ROWS = 1024


@dataclass(frozen=True, eq=False)
class DualComponents(Rule):
    """Components of some attributes from the weights of `dual_weights`: weights @ (X - mean).

    Weights belong to positions in the stream, so that samples must arrive in order. If the Gram matrix is exact, the
    result does not depend on batches, nor on the blocks of attributes: products are added sample by sample. The rows of
    all attributes together are orthonormal up to the rounding error of small eigenvalues, see `dual_basis`.

    Parameters
    ----------
    weights : array (k, n_samples), float64
    dtype : dtype
        Of the result.
    center : bool
        See `BlockGram`.

    Results of ``finish``: ``mean`` (d,), float64; ``image`` (k, d); and ``inner`` (k, k), float64, the
    products of its rows. Costs 2 k d operations per sample, and a state of k d numbers.
    """

    weights: Array
    dtype: np.dtype[Any]
    center: bool = True

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        image = (len(self.weights), n_features)
        return {"image": (image, float), "sum": ((n_features,), float), "shift": ((n_features,), float)}

    def _take(self, state: State, batch: Array) -> None:
        arrays, n = state.arrays, self.weights.shape[1]
        exact, dtype = is_exact(n, batch.dtype), product_dtype(n, batch.dtype)
        for rows in blocks(len(batch), BLOCK_ROWS):
            block, seen = batch[rows], state.counts["n_samples"]
            if self.center and not seen:
                first = block[:1] if exact else block
                arrays["shift"][:] = first.mean(axis=0, dtype=np.float64).astype(dtype)
            weights = self.weights[:, seen : seen + len(block)].astype(dtype)
            for few in blocks(block.shape[1], self._columns(len(block), dtype)):
                x = linalg.scratch("dual", block[:, few].shape, dtype)
                np.subtract(block[:, few], arrays["shift"][few].astype(dtype), out=x, dtype=dtype)
                if exact:
                    from dpca.kernels.sweeps import add_multiples

                    add_multiples(weights, x, arrays["image"][:, few])
                else:
                    product = linalg.scratch("image", (len(weights), x.shape[1]), dtype)
                    arrays["image"][:, few] += np.matmul(weights, x, out=product)
                arrays["sum"][few] += np.ones(len(x), dtype) @ x
            state.counts["n_samples"] += len(block)

    def _columns(self, n_rows: int, dtype: np.dtype[Any]) -> int:
        """Return the number of attributes of a block of rows that are shifted and multiplied at a time."""
        return max(64, _SHIFTED_BYTES // ((n_rows + len(self.weights)) * dtype.itemsize))

    def _finish(self, state: State) -> dict[str, Array]:
        image, total, n = state.arrays["image"], state.arrays["sum"], state.counts["n_samples"]
        if n != self.weights.shape[1]:
            raise ValueError(f"got {n} samples, but weights for {self.weights.shape[1]}: give all samples")
        mean = np.zeros_like(total)
        if self.center:
            total /= n
            mean = state.arrays["shift"] + total
            for row, weight in zip(image, self.weights.sum(axis=1), strict=True):
                row -= weight * total
        return {"mean": mean, "image": image.astype(self.dtype, copy=False), "inner": image @ image.T}

    def for_samples(self, n_samples: int) -> DualComponents:
        """Return the rule for another number of samples, with repeated weights."""
        return replace(self, weights=np.resize(self.weights, (len(self.weights), n_samples)))

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        k = len(self.weights)
        return n_features * (8 + k * self.dtype.itemsize) + 8 * k * k

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: shifted rows and their products, and sums when they are finished."""
        k, d, product = len(self.weights), n_features, product_dtype(self.weights.shape[1], dtype)
        rows = max(1, min(n_rows, BLOCK_ROWS))
        columns = min(d, self._columns(1, product))  # of a last short batch
        return max(_SHIFTED_BYTES, 64 * rows * 8) + (2 * k + 2) * columns * product.itemsize + 32 * d


@dataclass(frozen=True, eq=False)
class BlockComponents(AllSamples):
    """The result of `DualComponents` from all samples at once, some columns after the other.

    This takes less memory than the sums of `DualComponents` if samples are few and small, and fewer passes
    over memory. For exact integers the result is bit-identical.

    Parameters
    ----------
    rule : DualComponents

    Holds n_samples x n_attributes values in the dtype of the input, and the result.
    """

    rule: DualComponents

    @property
    def n_samples(self) -> int:  # type: ignore[override]
        """Number of samples of the whole stream."""
        return int(self.rule.weights.shape[1])

    def _of_rows(self, rows: Array) -> dict[str, Array]:
        weights, d = self.rule.weights, rows.shape[1]
        k = len(weights)
        image, mean, inner = np.empty((k, d), self.rule.dtype), np.zeros(d), np.zeros((k, k))
        exact, dtype = is_exact(self.n_samples, rows.dtype), product_dtype(self.n_samples, rows.dtype)
        sums, factors = weights.sum(axis=1), weights.astype(dtype)
        for columns in blocks(d, self._columns):
            part = rows[:, columns]
            if exact and not self.rule.center:
                found = self.rule.finish(self.rule.update(self.rule.init(part.shape[1], part.dtype), part))
                image[:, columns] = found["image"]
                inner += found["inner"]
                continue
            values = linalg.scratch("image", (k, part.shape[1]), np.float64 if exact else dtype)
            if exact:
                from dpca.kernels.sweeps import weigh_samples

                weigh_samples(rows, columns.start, weights, sums, values, mean[columns])
            else:
                x = linalg.scratch("dual", part.shape, dtype)
                np.copyto(x, part)
                if self.rule.center:
                    mean[columns] = x.mean(axis=0, dtype=np.float64)
                    x -= mean[columns].astype(dtype)
                np.matmul(factors, x, out=values)
            image[:, columns] = values
            inner += row_products(values)
        return {"mean": mean, "image": image, "inner": inner}

    @property
    def _columns(self) -> int:
        """Number of attributes at a time: their sums stay in the cache of a core."""
        return max(256, _COLUMN_BYTES // (8 * (self.n_samples + len(self.rule.weights))))

    def for_samples(self, n_samples: int) -> BlockComponents:
        """Return the rule for another number of samples, with repeated weights."""
        return replace(self, rule=self.rule.for_samples(n_samples))

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        return self.rule.result_bytes(n_features, dtype)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: those of some columns."""
        return min(n_features, self._columns) * (16 * self.n_samples + 40 * len(self.rule.weights))


def components_rule(weights: Array, source_dtype: DTypeLike, dtype: np.dtype[Any], center: bool) -> Rule:
    """Return the rule of the components of samples of a dtype that holds less memory."""
    rule = DualComponents(weights, dtype, center)
    (k, n), itemsize = weights.shape, np.dtype(source_dtype).itemsize
    return BlockComponents(rule) if n * itemsize <= 8 * (k + 2) else rule
