"""Gram matrices of all samples over blocks of attributes, in integers where samples are integers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import integers, linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State, StateLayout

# Attributes of one float32 and of one float64 product. Longer sums are accumulated in float64.
_BLOCK_ATTRIBUTES, _LONG_BLOCK = 1024, 8192
# Attributes of bytes that are packed together.
_MOST_BYTES = 4096
# Rows of the Gram matrix that are stored, and multiplied, together. Of each, only the columns up to the last row are.
_BAND = integers.GROUP
# Exact sums are pairs of integers, because those of 16-bit integers may exceed 64 bits.
_LOW_BITS = 32
# Up to so many rows numpy's own square takes longer than a product of two matrices.
_FEW_ROWS = 8
# Samples of bytes from which on dot-product instructions take less time than floats (measured).
_PACKED_SAMPLES = 16
# Samples of bytes up to which products of each pair take less time than floats (measured).
_PAIRED_SAMPLES, _CONVERSION = 32, 64
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


def _is_of_bytes(n_samples: int, dtype: DTypeLike) -> bool:
    """Return whether sums of products are those of bytes minus the center of their range, until they are complete."""
    return n_samples > _PRECISE_SAMPLES and integers.is_byte(dtype)


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
        if len(batch) == self.n_samples:
            state.arrays["rows"] = batch  # all at once are not copied
        else:
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
class BlockGram(Rule):
    """Gram matrix of all samples, from blocks of attributes: all samples of one block, then all of the next one.

    Products are of `product_dtype` over at most 1,024 attributes (8,192 in float64), and are summed in float64. They
    are exact integers for some samples, see `is_exact`, which are then not centered: `float_gram` does it. Products of
    bytes are exact for any number of samples, and are centered when they are complete. States of whole blocks can be
    merged.

    Parameters
    ----------
    n_samples : int
        Number of samples of a block.
    center : bool
        Subtract the mean of each attribute.
    n_rows : int
        Number of rows of a block in the stream, if more than ``n_samples``: the last ones are ignored.

    Results of ``finish``: ``gram``, float64 (m,) or, if exact, int64 (2, m), see `whole_gram`; and ``n_samples`` ().
    Holds about n^2 / 2 numbers, and the samples of a block in the dtype of the input. Costs n^2 operations for each
    attribute.
    """

    n_samples: int
    center: bool = True
    n_rows: int = 0

    least_samples = 0
    mergeable = True

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        n, size = self.n_samples, sum((rows.stop - rows.start) * rows.stop for rows in blocks(self.n_samples, _BAND))
        if is_exact(n, dtype):
            return {"gram": ((2, size), np.int64)}
        # What turns products of bytes minus their center into products of bytes, see `_complete`.
        sums: StateLayout = {"sums": ((n + 2,), float)} if _is_of_bytes(n, dtype) else {}
        return {"gram": ((size,), float), **sums}

    def _take(self, state: State, batch: Array) -> None:
        n, length = self.n_samples, max(self.n_samples, self.n_rows)
        while len(batch):
            first = state.counts["n_samples"] % length
            if not first and len(batch) >= length:  # a whole block is not copied
                state.counts["n_samples"] += length
                self._add(state, batch[:n])
                batch = batch[length:]
                continue
            if not first:
                # Only while a block is incomplete: states that wait to be merged do not hold it.
                state.arrays["rows"] = np.empty((n, batch.shape[1]), batch.dtype)
            here, batch = batch[: length - first], batch[length - first :]
            if first < n:
                state.arrays["rows"][first : first + len(here)] = here[: n - first]
            state.counts["n_samples"] += len(here)
            if first + len(here) == length:
                self._add(state, state.arrays.pop("rows"))

    def _add(self, state: State, rows: Array) -> None:
        """Add the products of all samples of a block."""
        gram = state.arrays["gram"]
        if "sums" in state.arrays:
            self._add_bytes(gram, state.arrays["sums"], rows)
            return
        if gram.ndim == 2:
            product = _exact_gram(rows)
            gram[0] += product >> _LOW_BITS
            gram[1] += product & (2**_LOW_BITS - 1)
            return
        dtype = product_dtype(self.n_samples, rows.dtype)
        for part in (rows[:, columns] for columns in blocks(rows.shape[1], block_attributes(dtype))):
            if not (part[0].any() or part.any()):
                continue  # the last blocks are filled up with zeros
            block = linalg.scratch("attributes", part.shape, dtype)
            np.copyto(block, part)
            if self.center:
                block -= block.mean(axis=0, dtype=np.float64).astype(dtype)
            for band, values in _bands(gram, self.n_samples):
                # numpy computes the square on the diagonal by half of the operations.
                for columns in (slice(band.start), band):
                    out = linalg.scratch("gram", (len(values), columns.stop - (columns.start or 0)), dtype)
                    values[:, columns] += np.matmul(block[band], block[columns].T, out=out)

    def _add_bytes(self, gram: Array, sums: Array, rows: Array) -> None:
        n, center = self.n_samples, float(integers.center_of_range(rows.dtype))
        kernel = integers.kernel(rows.size * n)
        for part in (
            rows[:, columns] for columns in blocks(rows.shape[1], _MOST_BYTES if kernel else _BLOCK_ATTRIBUTES)
        ):
            if not (part[0].any() or part.any()):
                continue  # the last blocks are filled up with zeros
            sums[:n] += center * (part.sum(axis=1, dtype=np.int64) - center * part.shape[1])
            sums[n:] += part.shape[1] * center**2, np.count_nonzero(~part.any(axis=0)) * center**2
            if kernel:
                kernel.add_row_products(part, ((band.start, values) for band, values in _bands(gram, n)))
                continue
            # Sums of 1,024 products of at most 2^14 are exact in float32.
            block = linalg.scratch("attributes", part.shape, np.float32)
            np.subtract(part, np.float32(center), out=block)
            for band, values in _bands(gram, n):
                out = linalg.scratch("gram", values.shape, np.float32)
                values += np.matmul(block[band], block[: band.stop].T, out=out)

    def _complete(self, gram: Array, sums: Array) -> None:
        """Center the samples of exact products of bytes, or add the center of their range to them."""
        n = self.n_samples
        if self.center:
            # Without attributes that are all 0, such as those that fill up a block, sums are the same for any blocks.
            gram -= sums[n + 1]
            along = np.zeros(n)
            for band, values in _bands(gram, n):
                lower = np.tril(values, band.start)
                along[band] += lower.sum(axis=1)
                along[: band.stop] += lower.sum(axis=0)
                along[band] -= values[:, band].diagonal()
            along, square = -along / n, float(along.sum()) / n**2
        else:
            along, square = sums[:n], float(sums[n])
        for band, values in _bands(gram, n):
            values += np.add.outer(along[band], along[: band.stop]) + square

    def _finish(self, state: State) -> dict[str, Array]:
        n, length = state.counts["n_samples"], max(self.n_samples, self.n_rows)
        if n % length or not n:
            raise _miscounted(n, self.n_samples)
        if "sums" in state.arrays:
            self._complete(state.arrays["gram"], state.arrays["sums"])
        return {"gram": state.arrays["gram"], "n_samples": np.asarray(self.n_samples)}

    def merge(self, a: State, b: State) -> State:
        """Return the sum of both states.

        Raises
        ------
        ValueError
            If one of them has a part of a block.
        """
        if "rows" in a.arrays or "rows" in b.arrays:
            raise _miscounted(a.counts["n_samples"], self.n_samples)
        return super().merge(a, b)

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the best number of samples per update, for the planner."""
        return min(1024, max(self.n_samples, self.n_rows))

    def for_samples(self, n_samples: int) -> BlockGram:
        """Return the rule for another number of samples."""
        return replace(self, n_samples=n_samples, n_rows=0)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of all samples of a block, if it is held, and of some attributes and their products."""
        n, products = self.n_samples, product_dtype(self.n_samples, dtype)
        some = min(n_features, block_attributes(products)) * (n * products.itemsize + 16)
        some += 2 * n * min(n_features, _MOST_BYTES) if _is_of_bytes(n, dtype) else 0
        exact = 4 * 8 * n * n if is_exact(n, dtype) else 0
        # Batches of whole blocks are not held.
        held = 0 if n_rows == max(n, self.n_rows) else n * n_features * np.dtype(dtype).itemsize
        return held + some + min(n, _BAND) * n * products.itemsize + exact


def _miscounted(n: int, n_samples: int) -> ValueError:
    return ValueError(f"got {n} samples, but n_samples is {n_samples}: give the number of all samples")


def _bands(gram: Array, n: int) -> Iterator[tuple[slice, Array]]:
    """Yield bands of rows of a Gram matrix, and their values (rows, columns up to the last row), a view of ``gram``."""
    start = 0
    for rows in blocks(n, _BAND):
        shape = rows.stop - rows.start, rows.stop
        yield rows, gram[start : start + shape[0] * shape[1]].reshape(shape)
        start += shape[0] * shape[1]


def whole_gram(found: dict[str, Array]) -> Array:
    """Return the Gram matrix (n, n) from the result of `BlockGram`: float64, lower triangle, or integers if exact."""
    gram, n = found["gram"], int(found["n_samples"])
    if gram.ndim == 2:
        high, low = (part.reshape(n, n).astype(object) for part in gram)  # integers of Python have no largest value
        exact: Array = high * 2**_LOW_BITS + low
        return exact
    out = np.empty((n, n))
    for rows, values in _bands(gram, n):
        out[rows, : rows.stop] = values
    return out


def _exact_gram(samples: Array) -> Array:
    n, d = samples.shape
    gram = np.zeros((n, n), np.int64)
    is_narrow = integers.is_byte(samples.dtype)
    if is_narrow and n >= _PACKED_SAMPLES and (kernel := integers.kernel(samples.size * n)):
        center, lower = int(integers.center_of_range(samples.dtype)), np.zeros((n, n))
        for columns in blocks(d, _MOST_BYTES):
            kernel.add_row_products(samples[:, columns], [(0, lower)])
            gram += center * samples[:, columns].sum(axis=1, dtype=np.int64)
        products = np.tril(lower).astype(np.int64)
        # Products of bytes, from those of bytes minus the center of their range.
        gram += gram.T + products + np.tril(products, -1).T - center**2 * d
        return gram.ravel()
    # A conversion to float64 takes as long as so many multiplications.
    if is_narrow and n <= _PAIRED_SAMPLES and integers.compiled_pays(samples.size * _CONVERSION):
        from dpca.kernels.integer_products import add_pairs

        add_pairs(samples, gram)
        return (gram + np.tril(gram, -1).T).ravel()
    for columns in blocks(samples.shape[1], _LONG_BLOCK):
        # Products of 16 bits, summed over 8,192 attributes, take 45 of the 53 bits of float64.
        gram += row_products(samples[:, columns].astype(np.float64)).astype(np.int64)
    return gram.ravel()


def row_products(x: Array) -> Array:
    """Return x @ x.T for a numpy matrix x.

    numpy computes the product with the own transpose by half of the operations. For few rows this takes longer, on
    processors with AVX-512 more than twice as long (measured).
    """
    return np.asarray(x @ (x.copy() if len(x) <= _FEW_ROWS else x).T)


def float_gram(gram: Array, center: bool) -> Array:
    """Return the Gram matrix (n, n) of the rule's samples, float64, from that of `whole_gram`."""
    if gram.dtype != object:
        return gram
    return centered_gram(gram) if center else gram.astype(np.float64)


def centered_gram(gram: Array) -> Array:
    """Return the Gram matrix (n, n) of centered samples, float64, from that of samples, of Python integers.

    Each entry is the exact one, rounded once. It does not depend on the order of sums, nor on the processor.
    """
    n, of_rows = len(gram), gram.sum(axis=1)
    centered = n * n * gram - n * (of_rows[:, None] + of_rows) + of_rows.sum()
    return (centered / (n * n)).astype(np.float64)


def dual_bytes(n_samples: int, n_components: int, dtype: DTypeLike) -> int:
    """Return the bytes of a Gram matrix, of the temporary arrays of `BlockGram`, and of the eigensolver."""
    products = product_dtype(n_samples, dtype)
    block = _BLOCK_ATTRIBUTES * (n_samples * products.itemsize + 16)
    eigh = linalg.eigh_bytes(n_samples, min(n_components, n_samples))
    return 8 * (n_samples**2 + 1) + block + n_samples**2 * products.itemsize + eigh
