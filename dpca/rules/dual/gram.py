"""Gram matrices of all samples over blocks of attributes, in integers where samples are integers."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State, StateLayout

# Attributes of one float32 and of one float64 product. Longer sums are accumulated in float64.
_BLOCK_ATTRIBUTES, _LONG_BLOCK = 1024, 8192
# Products of at most this number of samples take less time than reading them, so that they are always float64.
_PRECISE_SAMPLES = 128


def block_attributes(products: DTypeLike) -> int:
    """Return the number of attributes of one product of a dtype."""
    return _LONG_BLOCK if np.dtype(products) == np.float64 else _BLOCK_ATTRIBUTES


def product_dtype(n_samples: int, dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype of products of ``n_samples`` samples: float64 up to 128 samples, else the working dtype."""
    return np.dtype(np.float64) if n_samples <= _PRECISE_SAMPLES else working_dtype(dtype)


def is_exact(n_samples: int, dtype: DTypeLike) -> bool:
    """Return whether Gram matrices are exact integers: for up to 128 samples of integers of at most 16 bits."""
    dtype = np.dtype(dtype)
    return n_samples <= _PRECISE_SAMPLES and dtype.kind in "iub" and dtype.itemsize <= 2


class AllSamples(Rule):
    """A rule that needs all samples of some attributes at once. The state holds them until all have arrived.

    A subclass has the number of samples of the whole stream, ``n_samples``, and implements `_of_rows`.
    """

    n_samples: int

    least_samples = 0

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return {"rows": ((self.n_samples, n_features), dtype)}

    def _take(self, state: State, batch: Array) -> None:
        first = state.counts["n_samples"]
        if first + len(batch) > self.n_samples:
            raise _miscounted(first + len(batch), self.n_samples)
        state.arrays["rows"][first : first + len(batch)] = batch
        state.counts["n_samples"] += len(batch)

    def _finish(self, state: State) -> dict[str, Array]:
        if state.counts["n_samples"] < self.n_samples:
            raise _miscounted(state.counts["n_samples"], self.n_samples)
        return self._of_rows(state.arrays.pop("rows"))

    @abstractmethod
    def _of_rows(self, rows: Array) -> dict[str, Array]:
        """Return the result from all samples (n_samples, d)."""


@dataclass(frozen=True)
class BlockGram(AllSamples):
    """Gram matrix of all samples over some of their attributes.

    Products are of `product_dtype` over at most 1,024 attributes (8,192 in float64), and are summed in float64. They
    are exact integers for some samples, see `is_exact`, which are then not centered: `centered_gram` does it.

    Parameters
    ----------
    n_samples : int
        Number of samples of the whole stream.
    center : bool
        Subtract the mean of each attribute.

    Results of ``finish``: ``gram`` (n, n), float64, lower triangle, or int64 if exact. Holds n_samples x n_attributes
    values in the dtype of the input, and 8 n^2 bytes. Costs n^2 operations for each attribute.
    """

    n_samples: int
    center: bool = True

    def _of_rows(self, rows: Array) -> dict[str, Array]:
        n = self.n_samples
        gram, dtype = np.zeros((n, n)), product_dtype(n, rows.dtype)
        if is_exact(n, rows.dtype):
            return {"gram": _exact_gram(rows)}
        for part in (rows[:, columns] for columns in blocks(rows.shape[1], block_attributes(dtype))):
            block = linalg.scratch("attributes", part.shape[::-1], dtype)
            np.copyto(block, part.T)
            if self.center:
                block -= part.mean(axis=0, dtype=np.float64).astype(block.dtype)[:, None]
            linalg.add_lower(gram, linalg.gram_lower("gram", block))
        return {"gram": gram}

    def for_samples(self, n_samples: int) -> BlockGram:
        """Return the rule for another number of samples."""
        return replace(self, n_samples=n_samples)

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        return 8 * self.n_samples**2

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: the Gram matrix, one block of attributes and its product."""
        return dual_bytes(self.n_samples, n_features, 1, dtype)


def _miscounted(n: int, n_samples: int) -> ValueError:
    return ValueError(f"got {n} samples, but n_samples is {n_samples}: give the number of all samples")


def _exact_gram(samples: Array) -> Array:
    gram = np.zeros((len(samples), len(samples)), np.int64)
    for columns in blocks(samples.shape[1], _LONG_BLOCK):
        # Products of 16 bits, summed over 8,192 attributes, take 45 of the 53 bits of float64.
        rows = samples[:, columns].astype(np.float64)
        gram += (rows @ rows.T).astype(np.int64)
    return gram


def centered_gram(gram: Array) -> Array:
    """Return the Gram matrix (n, n) of centered samples, float64, from that of samples, int64 or Python integers.

    Each entry is the exact one, rounded once. It does not depend on the order of sums, nor on the processor.
    """
    n, exact = len(gram), gram.astype(object)  # integers of Python have no largest value
    of_rows = exact.sum(axis=1)
    centered = n * n * exact - n * (of_rows[:, None] + of_rows) + of_rows.sum()
    return (centered / (n * n)).astype(np.float64)


def dual_bytes(n_samples: int, n_attributes: int, n_components: int, dtype: DTypeLike) -> int:
    """Return the bytes of a Gram matrix, of the temporary arrays of `BlockGram`, and of the eigensolver."""
    products = product_dtype(n_samples, dtype)
    itemsize = products.itemsize
    block = min(n_attributes, block_attributes(products)) * (n_samples * itemsize + 16)
    eigh = linalg.eigh_bytes(n_samples, min(n_components, n_samples))
    return 8 * (n_samples**2 + 1) + block + n_samples**2 * itemsize + eigh
