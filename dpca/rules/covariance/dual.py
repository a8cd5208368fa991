"""Exact principal components of few samples with many attributes, from the Gram matrix of the samples, in two passes.

The covariance X^T X of centered samples and their Gram matrix X X^T have the same nonzero eigenvalues. For eigenvectors
u of the Gram matrix, the components are X^T u / sqrt(eigenvalue) (Alakkari 2020, section 2.1, dual form; Arora 2015,
section 6.1). `BlockGram` computes the Gram matrix of some attributes of **all** samples, so that each attribute is
centered exactly. The sum over all attributes is the input of `dual_weights`. `DualComponents` is the second pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.bounded_eigh import bounded_eigh
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.rounding import gamma, unit_roundoff
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.orthonormal import orthonormalize
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State, StateLayout
from dpca.rules.certificates import certificate

_BLOCK_ROWS = 1024
# Attributes of one float32 and of one float64 product. Longer sums are accumulated in float64.
_BLOCK_ATTRIBUTES, _LONG_BLOCK = 1024, 8192
# Products of at most this number of samples take less time than reading them, so that they are always float64.
_PRECISE_SAMPLES = 128
# Bytes of shifted samples at a time.
_SHIFTED_BYTES = 2**22


def _block_attributes(products: DTypeLike) -> int:
    return _LONG_BLOCK if np.dtype(products) == np.float64 else _BLOCK_ATTRIBUTES


def product_dtype(n_samples: int, dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype of products of ``n_samples`` samples: float64 up to 128 samples, else the working dtype."""
    return np.dtype(np.float64) if n_samples <= _PRECISE_SAMPLES else working_dtype(dtype)


def is_exact(n_samples: int, dtype: DTypeLike) -> bool:
    """Return whether Gram matrices are exact integers: for up to 128 samples of integers of at most 16 bits."""
    dtype = np.dtype(dtype)
    return n_samples <= _PRECISE_SAMPLES and dtype.kind in "iub" and dtype.itemsize <= 2


@dataclass(frozen=True)
class BlockGram(Rule):
    """Gram matrix of all samples over some of their attributes. The state holds the samples until all have arrived.

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
        n = self.n_samples
        if state.counts["n_samples"] < n:
            raise _miscounted(state.counts["n_samples"], n)
        samples, gram = state.arrays.pop("rows"), np.zeros((n, n))
        dtype = product_dtype(n, samples.dtype)
        if is_exact(n, samples.dtype):
            return {"gram": _exact_gram(samples)}
        for part in (samples[:, columns] for columns in blocks(samples.shape[1], _block_attributes(dtype))):
            rows = linalg.scratch("attributes", part.shape[::-1], dtype)
            np.copyto(rows, part.T)
            if self.center:
                rows -= part.mean(axis=0, dtype=np.float64).astype(rows.dtype)[:, None]
            linalg.add_lower(gram, linalg.gram_lower("gram", rows))
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


def dual_weights(gram: Array, n_components: int, dtype: DTypeLike) -> dict[str, Array]:
    """Return the weights of the samples in each component, from their Gram matrix.

    Parameters
    ----------
    gram : array (n, n), float64
        Only the lower triangle is read. The matrix is overwritten.
    n_components : int
        Number of components.
    dtype : dtype
        Dtype of the products.

    Returns
    -------
    dict
        Float64: ``weights`` (k, n), so that components = weights @ (X - mean) for any set of attributes;
        ``explained_variance`` (k,), descending; ``total_variance`` (); ``beyond`` () and ``errors`` (k,), see
        `dpca.kernels.algebra.bounded_eigh`. k is the smaller of n_components and the rank of the samples in the
        precision of the products.
    """
    n = len(gram)
    if n < 2:
        raise ValueError(f"{n} sample(s) have no variance: give at least 2")
    total = float(np.trace(gram))
    precise = working_dtype(dtype) == np.float64
    values, vectors, beyond, errors = bounded_eigh(gram, min(n_components, n), precise=precise)
    # Directions without variance consist of rounding errors and are not orthogonal.
    kept = int(np.count_nonzero(values > 4 * float(np.finfo(working_dtype(dtype)).eps) * total))
    return {
        "weights": vectors[:kept] / np.sqrt(values[:kept, None]),
        "explained_variance": values[:kept] / (n - 1),
        "total_variance": np.asarray(total / (n - 1)),
        "beyond": np.asarray(max(beyond, float(values[kept : kept + 1].sum())) / (n - 1)),
        "errors": errors[:kept] / (n - 1),
    }


def dual_share(
    found: dict[str, Array],
    mean_square: float,
    n_components: int,
    n_attributes: int,
    dtype: DTypeLike,
    *,
    products: DTypeLike,
    deviation: float = 0.0,
) -> float:
    """Return a lower bound on what `DualComponents` captures; see `dpca.rules.certificates.certificate`.

    For centered samples X and eigenvectors U of X X^T, X^T U captures at least tr U^T X X^T U, see (d) there.

    Parameters
    ----------
    found : dict
        Result of `dual_weights`.
    mean_square : float
        Squared length of the mean.
    n_components, n_attributes : int
    dtype, products : dtype
        Dtypes of the components and of the products.
    deviation : float
        Largest deviation of the products of the components from those of orthonormal rows, apart from rounding.
    """
    values, total, beyond = found["explained_variance"], float(found["total_variance"]), float(found["beyond"])
    if not total > 0:
        return 1.0
    n, u = found["weights"].shape[1], unit_roundoff(products)
    g = gamma(_block_attributes(products) + 6, u) + gamma(n_attributes + 6, unit_roundoff(np.float64))
    # Attributes are centered by a rounded mean.
    error = g * total / (1 - g) + n / (n - 1) * u**2 * mean_square
    each = gamma(min(n, _BLOCK_ROWS) + 8, u) + unit_roundoff(dtype) + gamma(n + 8, unit_roundoff(np.float64))
    # `dual_basis` leaves rows that are orthonormal up to the rounding error of the dtype.
    distance = each * math.sqrt(float((total / values).sum())) + len(values) * (unit_roundoff(dtype) + deviation)
    lost = (n_components - len(values)) * (beyond + error)
    return certificate.exact_share(values, beyond, found["errors"] + error, dtype, distance=distance, lost=lost)


def dual_bytes(n_samples: int, n_attributes: int, n_components: int, dtype: DTypeLike) -> int:
    """Return the bytes of a Gram matrix, of the temporary arrays of `BlockGram`, and of the eigensolver."""
    products = product_dtype(n_samples, dtype)
    itemsize = products.itemsize
    block = min(n_attributes, _block_attributes(products)) * (n_samples * itemsize + 16)
    eigh = linalg.eigh_bytes(n_samples, min(n_components, n_samples))
    return 8 * (n_samples**2 + 1) + block + n_samples**2 * itemsize + eigh


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
        for rows in blocks(len(batch), _BLOCK_ROWS):
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
            mean = state.arrays["shift"] + total / n
            for row, weight in zip(image, self.weights.sum(axis=1), strict=True):
                row -= weight * (total / n)
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
        rows = max(1, min(n_rows, _BLOCK_ROWS))
        columns = min(d, self._columns(1, product))  # of a last short batch
        return max(_SHIFTED_BYTES, 64 * rows * 8) + (2 * k + 2) * columns * product.itemsize + 32 * d


def orthonormal_weights(weights: Array, inner: Array) -> Array:
    """Return the weights of orthonormal components, from those of `DualComponents` and the products of its rows.

    Components are linear in their weights: with the Cholesky factor L of the products, the weights are L^-1 weights.

    Parameters
    ----------
    weights : array (k, n_samples)
    inner : array (k, k)

    Raises
    ------
    ValueError
        If the components are not independent in the precision of the products.
    """
    try:
        factor = np.linalg.cholesky(inner)
    except np.linalg.LinAlgError:
        raise ValueError(
            f"the last of {len(weights)} components consist of rounding errors: use a smaller n_components"
        ) from None
    solved: Array = np.linalg.solve(factor, weights)
    return solved


def dual_basis(image: Array, n_components: int, inner: Array) -> Array:
    """Return orthonormal components from all attributes of the results of `DualComponents`.

    Parameters
    ----------
    image : array (k, d)
        May be overwritten.
    n_components : int
        Number of rows, at least k. Rows beyond the rank of the samples complete the orthonormal basis and capture
        nothing.
    inner : array (k, k)
        The sum of these results of all blocks of attributes.

    Returns
    -------
    array (n_components, d) of the same dtype. If all rows are orthonormal already up to the rounding error of this
    dtype, only signs change. Otherwise it costs n_components^2 d operations and an array of its size, or four if the
    basis must be completed.
    """
    missing = n_components - len(image)
    if missing:
        image = np.concatenate([image, np.zeros((missing, image.shape[1]), image.dtype)])
    if missing or np.abs(inner - np.eye(len(image))).max() > unit_roundoff(image.dtype):
        image = orthonormalize(image)
    for i in range(len(image)):  # one by one, which takes less memory
        linalg.fix_signs(image[i : i + 1])
    return image
