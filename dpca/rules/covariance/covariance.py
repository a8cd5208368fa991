"""Covariance of one set of attributes, and its principal components."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import integers, linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.integers import is_exact
from dpca.kernels.algebra.namespace import any_of, cast, dtype_of, is_numpy, namespace
from dpca.kernels.algebra.rounding import unit_roundoff
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State, StateLayout
from dpca.rules.certificates import certified
from dpca.rules.covariance.shifts import displace, move_near_mean, move_shift, spread_of, squared_means, variance_of
from dpca.rules.covariance.weighted_sums import of_weights, weighted_sums

#: Rows of one float32 product. Products of 8-bit pixels minus 128 are at most 2**14, so their sums over 1024 rows stay
#: within 2**24, where float32 holds every integer. The result is exact for any order of additions in BLAS.
BLOCK_ROWS = 1024
# Most products of 4096 rows of photographs stay within this bound, too. They save three of four additions to a state
# beyond the cache (d = 1,875: a fifth of the time). |sum x y| <= max(sum x^2, sum y^2): the diagonal checks the bound.
_MOST_BLOCK_ROWS = 4096
_EXACT_BELOW = 2.0**24
# Sums of squares below this may have lost terms to underflow in float32.
_SMALL = 2.0**-80
# Array of a state with a certificate: the sum of squares of the shifted samples, times the rounding error of their
# dtype.
_ROUNDING = "rounding"
CERTIFIED: StateLayout = {_ROUNDING: ((), float)}
#: Rows of a matrix that are centered at a time.
BAND_ROWS = 128
# Columns that the kernel of integers may add to those of a block.
_PANEL = 48
# Numbers out of range are either scaled or rejected in the end.
QUIET = np.errstate(over="ignore", invalid="ignore")


class Products(NamedTuple):
    """Sums over the rows x of a block, with s x = block - shift and powers of two s."""

    product: Array
    """x^T x (lower triangle)."""
    total: Array
    """The sum of the rows of s x."""
    scale: Array | None = None
    """s; None if all are 1."""

    @property
    def squares(self) -> Array:
        """The diagonal of (s x)^T (s x), float64."""
        squares = cast(linalg.diagonal(self.product), np.float64)
        return squares if self.scale is None else squares * self.scale[..., None] ** 2


@dataclass(frozen=True)
class Covariance(Rule):
    """Sample covariance in one pass over shifted data.

    With a shift c near the mean, ``sum`` = sum (x - c) and ``cross`` = sum (x - c)(x - c)^T, the covariance is
    (cross - sum sum^T / n) / (n - 1). This is the shifted-data algorithm (Chan, Golub & LeVeque 1983, section 3).
    Alakkari (2020, section 4.3.1) accumulates the same matrix. Products are float32 over at most 1,024 rows, and 4,096
    rows for 8-bit integers. They are summed in float64. Integers of 8 and 16 bits are multiplied by
    :mod:`dpca.kernels.integer_products` if the processor has instructions for bytes.

    For integers of 8 and 16 bits c is near the middle of their range. Every product and sum is then exact: those of 16
    bits up to 2^22 samples. The result is bit-identical for any batch size, order of merging, number of workers, kernel
    and BLAS. For other dtypes c is the mean of the first batch. It moves to the mean of a later batch that is far from
    it, because images may be sorted and simulations drift. A large offset therefore never costs accuracy. float64
    samples are processed in float64.

    Batches may be arrays of another library on an accelerator; the state moves to it. Small covariances can be stacked
    there: ``State.stacked(m)`` supports batches (m, n, d) of m sets of attributes, and every array of the result has a
    leading axis m. Exactness and accuracy are the same if float32 products are not computed in TF32, which libraries
    disable by default.

    Parameters
    ----------
    center : bool
        Whether the covariance is about the mean. If false, it is about 0, and ``mean`` is 0.

    Costs O(n d^2) time, 8 d^2 bytes of state. Results of ``finish``: ``mean`` (d,), ``covariance`` (d, d), float64.
    """

    center: bool = field(default=True, kw_only=True)

    mergeable = True
    stackable = True
    least_samples = 2

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return {
            "shift": ((n_features,), float),
            "sum": ((n_features,), float),
            "cross": ((n_features, n_features), float),
        }

    def _start(self, state: State, dtype: DTypeLike) -> None:
        if is_exact(dtype):
            state.arrays["shift"][...] = integers.center_of_range(dtype)

    @QUIET
    def _take(self, state: State, batch: Array) -> None:
        state.move_to(batch)
        n, dtype = batch.shape[-2], dtype_of(batch)
        exact, single = is_exact(dtype), linalg.is_single(batch)
        kernel = integers.kernel(batch.size * batch.shape[-1]) if exact and single else None
        if kernel:
            kernel.add_gram(batch, state.arrays["cross"], state.arrays["sum"])
            state.counts["n_samples"] += n
        elif exact and dtype.itemsize == 1:
            _add_bytes(state, batch)
        elif exact:
            for rows in blocks(n, BLOCK_ROWS):
                block = batch[..., rows, :]
                add_products(state, block.shape[-2], _products(block, state.arrays["shift"], batch.ndim))
        else:
            for rows in blocks(n, BLOCK_ROWS):
                add_block(state, batch[..., rows, :], spread_of(state))

    @QUIET
    def weigh(self, state: State, batch: Array, weights: Array) -> State:
        """Process samples with weights, in float64."""
        for part in weighted_sums(state, batch, weights):
            if _ROUNDING in state.arrays:
                squares = linalg.diagonal(part.arrays["cross"]).sum()
                part.arrays[_ROUNDING] = np.asarray(unit_roundoff(np.float64) * squares)
            self.merge(state, part)
        return state

    def of_weighted_rows(self, rows: State, mean: Array, total: float, dtype: DTypeLike) -> State:
        """Return the state of samples of a dtype from that of rows about 0 with the same variances.

        Parameters
        ----------
        rows : State
            Of the rule without centering. It is overwritten.
        mean : array (d,), float64
            Weighted mean of the samples.
        total : float
            Sum of their weights.
        """
        state, scale = self.init(len(mean), dtype), (total - 1) / (rows.counts["n_samples"] - 1)
        of_weights(rows, mean, total, state.arrays["shift"] if is_exact(dtype) else None)
        state.arrays |= {name: rows.arrays[name] for name in ("shift", "sum", "cross")}
        if _ROUNDING in state.arrays:
            state.arrays[_ROUNDING] = rows.arrays[_ROUNDING] * scale
        state.counts["n_samples"] = total
        return state

    @QUIET
    def merge(self, a: State, b: State) -> State:
        """Return the state of both streams, with the shift of the first."""
        n, total = b.counts["n_samples"], b.arrays["sum"]
        if n == 0:
            return a
        a.move_to(total)
        if a.counts["n_samples"] == 0:
            a.arrays["shift"][...] = b.arrays["shift"]
        a.arrays["cross"] += b.arrays["cross"]
        if _ROUNDING in a.arrays:
            a.arrays[_ROUNDING] += b.arrays[_ROUNDING]
        a.arrays["sum"] += displace(a.arrays["cross"], total, n, b.arrays["shift"] - a.arrays["shift"])
        a.counts["n_samples"] += n
        return a

    def _finish(self, state: State) -> dict[str, Array]:
        mean, cross = self._covariance_lower(state)
        return {"mean": mean, "covariance": linalg.symmetrize(cross)}

    def _bounded(self, state: State, n_components: int | None, n_least: int, dtype: np.dtype[Any]) -> dict[str, Array]:
        """Return the mean and what `dpca.rules.certificates.certified.components` returns, in a working dtype."""
        state = state.to_numpy()
        move_near_mean(state)
        n, arrays = state.counts["n_samples"], state.arrays
        error = certified.error_of(arrays["cross"].diagonal(), arrays["sum"], float(arrays[_ROUNDING]), n, dtype)
        mean, covariance = self._covariance_lower(state)
        return {"mean": mean, **certified.components(covariance, n_components, n_least, error, dtype)}

    @QUIET
    def _covariance_lower(self, state: State) -> tuple[Array, Array]:
        move_near_mean(state)
        n, total, cross = state.counts["n_samples"], state.arrays["sum"], state.arrays["cross"]
        xp = namespace(cross)
        if self.center:
            mean = state.arrays["shift"] + total / n
            # In bands of rows, to avoid a second matrix of d x d.
            for band in blocks(total.shape[-1], BAND_ROWS):
                rows = cross[..., band, : band.stop]
                rows -= _outer(total[..., band] / n, total[..., : band.stop], cross.ndim)
                rows /= max(n - 1, 1)
        else:
            mean = xp.zeros_like(total)
            displace(cross, total, n, state.arrays["shift"])
            cross /= max(n - 1, 1)
        if any_of(~xp.isfinite(linalg.diagonal(cross))):
            raise ValueError("a variance exceeds the range of float64: divide all values by a constant first")
        return mean, cross

    def is_batch_invariant(self, dtype: DTypeLike) -> bool:
        """Return whether sums are exact."""
        return is_exact(dtype)

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the best number of samples per update: the rows of one product."""
        return _MOST_BLOCK_ROWS if is_exact(dtype) else BLOCK_ROWS

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: one shifted block and its product."""
        itemsize = _product_dtype(dtype).itemsize
        block = min(n_rows, self.batch_rows(dtype)) * (n_features + _PANEL) * (itemsize + 1)
        return block + (n_features + 1) ** 2 * itemsize


@dataclass(frozen=True)
class CovariancePCA(Covariance):
    """Leading principal components from the covariance (Alakkari 2020, section 2.1; Arora 2015, section 5.1).

    Parameters
    ----------
    n_components : int or None
        Number of components to retain. None retains one for each attribute; larger numbers are cut to that.
    n_least : int
        Number of least components, those of the smallest variances, to retain in addition (Alakkari 2020, section
        2.1.2).
    precise : bool
        Whether eigenvectors are computed up to rounding error, see `dpca.kernels.algebra.linalg.leading_eigh`.
    certified : bool
        Whether ``captured_bound`` () is computed, see `dpca.rules.certificates.certificate`. Requires a single matrix
        (d, d).

    Results of ``finish``: ``mean`` (d,) float64, ``components`` (k, d) float64, ``explained_variance`` (k,)
    float64, descending, ``total_variance`` () float64; with ``n_least`` also ``least_components`` (n_least, d) and
    ``least_variance`` (n_least,), ascending, float64. Costs O(d^3) time besides the covariance. The least variances are
    accurate up to the rounding error of the largest one.
    """

    n_components: int | None = None
    n_least: int = field(default=0, kw_only=True)
    precise: bool = field(default=False, kw_only=True)
    certified: bool = field(default=False, kw_only=True)

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return {**super()._layout(n_features, dtype), **(CERTIFIED if self.certified else {})}

    def _finish(self, state: State) -> dict[str, Array]:
        if self.certified:
            dtype = np.dtype(np.float64 if self.precise else np.float32)
            return self._bounded(state, self.n_components, self.n_least, dtype)
        mean, covariance = self._covariance_lower(state)
        xp, d = namespace(mean), mean.shape[-1]
        total = xp.linalg.trace(covariance)
        k, least = min(self.n_components or d, d), {}
        if self.n_least:
            values, rows, *smallest = linalg.extreme_eigh(covariance, k, min(self.n_least, d))
            least = dict(zip(("least_variance", "least_components"), smallest, strict=True))
        else:
            values, rows = linalg.leading_eigh(covariance, k, precise=self.precise)
        return {
            "mean": mean,
            "components": rows,
            "explained_variance": values,
            "total_variance": xp.asarray(total),
            **least,
        }

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        k = min(self.n_components or n_features, n_features)
        return 8 * (n_features * (k + 1) + k + 1 + self.n_least * (n_features + 1))

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays, including the eigensolver. With ``n_least`` it computes all pairs."""
        k = n_features if self.n_least else min(self.n_components or n_features, n_features)
        return super().work_bytes(n_rows, n_features, dtype) + linalg.eigh_bytes(n_features, k)


def add_block(state: State, block: Array, spread: Array) -> None:
    """Add up to 1,024 rows of numbers (..., n, d), or of several places (n_places, n, d), to a state.

    ``spread`` is the result of `spread_of` for all previous samples.
    """
    xp, n, arrays = namespace(block), block.shape[-2], state.arrays
    ndim = arrays["cross"].ndim
    if state.counts["n_samples"] == 0:
        arrays["shift"][...] = cast(center_of(block), np.float64)
    found = _products(block, arrays["shift"], ndim)
    # If a block is so far from the shift, compared with the spread so far, products lose two digits.
    own = variance_of(found.squares, found.total, n, ndim)
    far = squared_means(found.total, n, ndim) > 100 * xp.maximum(own, spread)
    if any_of(far):
        # In a stack, only matrices with a far block get a new shift.
        some = xp.any(far, axis=-1)[..., None]
        move_shift(state, xp.where(some, center_of(block), arrays["shift"]))
        found = _products(block, arrays["shift"], ndim)
    if _ROUNDING in arrays:
        arrays[_ROUNDING] += unit_roundoff(working_dtype(dtype_of(block))) * xp.sum(found.squares, axis=-1)
    add_products(state, n, found)


def _add_bytes(state: State, batch: Array) -> None:
    """Add 8-bit integers to a state by exact floating-point products."""
    start, n, ndim = 0, batch.shape[-2], batch.ndim
    while start < n:
        block = batch[..., start : min(start + _exact_rows(state), n), :]
        found = _products(block, state.arrays["shift"], ndim)
        if block.shape[-2] > BLOCK_ROWS and any_of(_largest_square(found.product) >= _EXACT_BELOW):
            block = block[..., :BLOCK_ROWS, :]
            found = _products(block, state.arrays["shift"], ndim)
        add_products(state, block.shape[-2], found)
        start += block.shape[-2]


def add_products(state: State, n: int, found: Products) -> None:
    """Add the products of ``n`` rows to a state."""
    linalg.add_lower(state.arrays["cross"], found.product, 1.0 if found.scale is None else found.scale**2)
    state.arrays["sum"] += found.total
    state.counts["n_samples"] += n


def _products(block: Array, shift: Array, ndim: int) -> Products:
    """Return the products of a block for a matrix with ``ndim`` axes, summed over places if the block has more axes."""
    d, dtype, pooled = block.shape[-1], _product_dtype(dtype_of(block)), block.ndim > ndim
    rows = block.swapaxes(0, 1) if pooled else block
    # With a column of ones, the sums are a row of the product. This saves a pass over the rows.
    held = linalg.workspace("shifted", (*rows.shape[:-1], d + 1), dtype, block)
    held[..., d] = 1
    _shift_into(rows, shift if pooled else shift[..., None, :], held[..., :d])
    x = held.reshape(-1, d + 1) if pooled else held
    product, scale = linalg.gram_lower("product", x), None
    if dtype == np.float32:
        largest = _largest_square(product[..., :d, :d])
        outside = ~((largest > _SMALL) & (largest < math.inf))
        # If squares leave the range of float32 (densities in SI units do), scale the largest deviation to 1, exactly.
        scale = linalg.bring_to_one(x[..., :d], outside) if any_of(outside) else None
        if scale is not None:
            product = linalg.gram_lower("product", x)
    if pooled:  # the column of ones sums over all places, but each place needs its own sum
        ones = np.ones(len(held), dtype)
        total = (ones @ held.reshape(len(held), -1)).reshape(held.shape[1:])[:, :d].astype(np.float64)
    else:
        total = cast(product[..., d, :d], np.float64)
    return Products(product[..., :d, :d], total if scale is None else scale[..., None] * total, scale)


def _exact_rows(state: State) -> int:
    """Return the rows of 8-bit integers with a likely exact product, by the mean square so far with a safety margin."""
    n = state.counts["n_samples"]
    squares = _largest_square(state.arrays["cross"])
    largest = float(namespace(squares).max(squares) if squares.ndim else squares) / n if n else math.inf
    return int(min(max(0.8 * _EXACT_BELOW / max(largest, 1.0), BLOCK_ROWS), _MOST_BLOCK_ROWS))


def _largest_square(product: Array) -> Array:
    """Return the largest sum of squares on the diagonal of each product."""
    squares = linalg.diagonal(product)
    # For few values the method takes a third of the time of np.max.
    return squares.max(axis=-1) if is_numpy(squares) else namespace(squares).max(squares, axis=-1)


def _shift_into(block: Array, shift: Array, out: Array) -> None:
    """Write block - shift to ``out``, in the working dtype."""
    if is_numpy(block) and block.dtype == np.uint8:
        np.copyto(out, linalg.signed_bytes(block))
        return
    linalg.copy_into(out, block)
    if dtype_of(block) not in (np.dtype(np.int8), np.dtype(bool)):  # their shift is 0
        out -= cast(shift, dtype_of(out))


def center_of(block: Array) -> Array:
    """Return the mean of a block in the working dtype."""
    xp = namespace(block)
    mean = xp.sum(block, axis=-2, dtype=xp.float64) / block.shape[-2]
    return cast(mean, working_dtype(dtype_of(block)))


def _outer(a: Array, b: Array, ndim: int) -> Array:
    """Return a b^T with ``ndim`` axes, summed over places if the vectors have such an axis."""
    return a.T @ b if a.ndim == ndim else a[..., None] * b[..., None, :]


def _product_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype of products. Those of 16-bit integers are exact in float64."""
    return np.dtype(np.float64) if is_exact(dtype) and np.dtype(dtype).itemsize == 2 else working_dtype(dtype)
