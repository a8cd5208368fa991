"""Nyström step: adds a batch to a converged basis without the Gram matrix of the rows of the batch."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.namespace import beside, dtype_of, namespace, to_numpy
from dpca.kernels.algebra.rounding import eigen_error, gamma, unit_roundoff
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.state import ALL, AttributeBlocks
from dpca.rules.certificates import certificate
from dpca.rules.incremental.truncation import largest, largest_sum, truncate

#: Columns of one product. Longer sums are accumulated in float64, and a block of the rows stays in the cache.
COLUMNS = 2048
# Rows of a group. The Gram matrix of a group bounds its discarded part. Larger groups have tighter bounds at more cost.
_GROUP = 200
# Smallest distance of a row of the image, scaled to length 1 in K, from the span of the previous rows.
_NEAREST = 0.05
#: Larger sums of squares lose no terms to underflow in float32.
SMALL = 2.0**-80


class Step(NamedTuple):
    """Result of a step. The basis holds the new directions."""

    energy: Array
    """Retained energies (m,), descending."""
    added: float
    """Sum of squares of the rows."""
    discarded: float
    """Upper bound on the sum of the ``n_counted`` largest eigenvalues of the discarded part."""
    largest: float
    """Upper bound on the largest of these."""
    moved: Array
    """Weighted mean of ``batch - near`` (d,), float64."""
    squares: float
    """Weighted sum of squares of ``batch - near``."""
    slack: float
    """Increase of the slack by rounding, see `dpca.rules.certificates.certificate`."""
    skew: float
    """The skew of the new basis."""


def absorb(
    basis: Array,
    energy: Array,
    batch: Array,
    near: Array | None,
    weights: Array,
    pull: float,
    n_counted: int,
    skew: float = 0.0,
    over: AttributeBlocks = ALL,
) -> Step | None:
    """Add the scatter of a batch to A = V^T diag(energy) V, and retain the q leading directions.

    With rows X, C = X V^T, Z = diag(energy) V + C^T X and K = diag(energy) + C^T C, the new matrix is Z^T K^-1 Z
    (Tropp, Yurtsever, Udell & Cevher 2017). This is one multiplication of the old basis by A + X^T X. The discarded
    part of A + X^T X is positive semi-definite, as in a truncation of eigenvectors of a Gram matrix. It is at most the
    scatter of the rows outside the span of V. Its largest eigenvalues are at most the sums of those of groups of rows.

    Let L be the stack of diag(energy)^(1/2) V and X, and P the projection onto the rows of [diag(energy)^(1/2), C^T].
    For any computed C and V, Z^T K^-1 Z is L^T P L, and the discarded part is at most the scatter of X - C V. The
    effect of rounding is therefore at most `slack`.

    Parameters
    ----------
    basis : array (q, d)
        V, with orthonormal rows; changed in place.
    energy : array (q,), float64
        Positive, descending.
    batch : array (n, d)
        X is sqrt(weights) times batch - near - pull * (weighted mean of batch - near).
    near : array (d,) of the dtype of ``basis``, or None
        None for 0, with a pull of 0.
    weights : array (n,), float64
    pull : float
    n_counted : int
        Number of components k, and number of discarded eigenvalues in ``discarded``.
    skew : float
        Skew of the basis, see `dpca.rules.certificates.certificate`.
    over : AttributeBlocks
        The blocks of attributes of ``basis``, ``batch`` and ``near``.

    Returns
    -------
    Step or None
        None if the step could discard a direction with more energy than the last of the k components, or if rounding
        would cost accuracy. Nothing is changed then.

    Notes
    -----
    Costs 4 q + 200 operations for each value of the batch, and 3 q^2 d + O(q^3) per step. Holds q x d numbers, and some
    blocks of 2,048 columns.
    """
    cross, grams, moved, squares = _first_products(basis, batch, near, weights, pull, over)
    added = sum(float(np.trace(gram)) for gram in grams)
    for gram, rows in zip(grams, _groups(len(cross)), strict=True):
        gram -= cross[rows] @ cross[rows].T
    strongest = sum(min(largest_sum(gram, 1), largest(gram)) for gram in grams)
    accurate = SMALL < added < math.inf and strongest <= energy[n_counted - 1]
    factor = over.once(lambda: _factored(cross, energy) if accurate else None)
    if factor is None:
        return None
    scale, inverse = factor.scale, factor.inverse
    gains = (scale * cross * np.sqrt(weights)[:, None]).T
    image, products = _image(basis, scale * energy, batch, near, gains, pull * moved)
    (products,) = over.summed(products)
    floor = 4 * float(np.finfo(dtype_of(basis)).eps) * added
    whole = inverse @ products @ inverse.T
    values, vectors, below, least = over.once(partial(truncate, whole, len(energy), n_counted=n_counted, floor=floor))
    turned = vectors.T @ inverse
    u, inner = unit_roundoff(dtype_of(basis)), factor.inner
    g = gamma(min(over.whole(basis.shape[1]), COLUMNS) + 3, u)
    slack, skewed, among = _rounded(energy, factor, products, turned, values, squares, skew, batch.shape[0], (g, u))
    off = _off(energy, inner, squares, skew, n_counted, g) + (n_counted * among if len(values) < len(energy) else 0.0)
    turn = beside(np.ascontiguousarray(turned / np.sqrt(values)[:, None], dtype_of(basis)), basis)
    for columns in blocks(basis.shape[1], COLUMNS):
        basis[: len(values), columns] = linalg.workspace_product("turned", turn, image[:, columns])
    basis[len(values) :, :] = 0
    left = max(float(energy.sum()) + added - float(values.sum()), 0.0) + slack + len(energy) * (skew + skewed)
    outside = sum(largest_sum(gram, n_counted) for gram in grams)
    discarded, most = min(outside + below + off, left), min(strongest + least + off, left)
    return Step(values, added, discarded, most, moved, squares, slack, skewed)


class _Factor(NamedTuple):
    """K, a scale that makes its diagonal 1, and the inverse of the Cholesky factor of the scaled matrix."""

    inner: Array
    scale: Array
    inverse: Array


def _factored(cross: Array, energy: Array) -> _Factor | None:
    """Return the factor of K, None if a row of the image is too close to the span of the others."""
    inner = cross.T @ cross
    inner[np.diag_indices_from(inner)] += energy
    scale = 1 / np.sqrt(inner.diagonal())
    lower, failed = scipy.linalg.lapack.dpotrf(inner * np.outer(scale, scale), lower=True)
    if failed or lower.diagonal().min() < _NEAREST:
        return None
    inverse, _ = scipy.linalg.lapack.dtrtri(lower, lower=True)
    return _Factor(inner, scale, inverse)


def _rounded(
    energy: Array,
    factor: _Factor,
    products: Array,
    turned: Array,
    values: Array,
    squares: float,
    skew: float,
    n: int,
    errors: tuple[float, float],
) -> tuple[float, float, float]:
    """Return the slack that rounding adds in a step, the skew of the new basis, and the error of its eigenvalues.

    ``n`` is the number of rows; ``errors`` are those of products of rows, and of one operation.
    """
    (g, u), q, inverse = errors, len(energy), np.abs(factor.inverse)
    along = np.maximum(factor.inner.diagonal() - energy, 0.0)
    image = 2 * gamma(n + 6, u) * np.sqrt(along * squares) + 4 * u * energy * np.sqrt(1 + skew / energy)
    lengths = np.sqrt(products.diagonal())
    error = inverse @ (factor.scale * image)
    turning = np.abs(turned) @ lengths
    shift = math.sqrt(float(error @ error)) + gamma(q + 3, u) * math.sqrt(float(turning @ turning))
    sizes = inverse @ lengths
    among = g * float(sizes @ sizes) + eigen_error(q, float(values[:1].sum()))
    slack, skewed = certificate.turned(values, shift, among)
    return slack + (2 * u + g) * squares, among + skewed, among


def _off(energy: Array, inner: Array, squares: float, skew: float, k: int, g: float) -> float:
    """Return the error of the sum of the k largest eigenvalues of the scatter outside of the basis."""
    q, roots = len(energy), np.sqrt(energy)
    weak = inner / np.outer(roots, roots)
    weak[np.diag_indices_from(weak)] -= 1
    return (math.sqrt(k) + (2 + g * math.sqrt(q)) * math.sqrt(q)) * g * squares + skew * largest_sum(weak, k)


def work_bytes(n_rows: int, q: int, n_features: int, dtype: DTypeLike) -> int:
    """Return the bytes of temporary arrays of a step, for the planner."""
    itemsize, columns = np.dtype(dtype).itemsize, min(n_features, COLUMNS)
    held = (n_rows + 2 * q) * columns + q * n_features
    return itemsize * held + 8 * (5 * n_rows * q + 2 * n_rows * min(n_rows, _GROUP) + 8 * q**2 + n_features)


def _first_products(
    basis: Array, batch: Array, near: Array | None, weights: Array, pull: float, over: AttributeBlocks
) -> tuple[Array, list[Array], Array, float]:
    """Return X V^T, the Gram matrices of groups of rows of X, and the weighted mean of batch - near, all in float64.

    The last result is the weighted sum of squares of batch - near.
    """
    (n, d), xp, dtype = batch.shape, namespace(batch), dtype_of(basis)
    own = float(weights.sum())
    each = beside((weights / own).astype(dtype), batch)
    cross, along, moved, *grams = (
        beside(np.zeros(shape), batch)
        for shape in ((n, basis.shape[0]), (n,), (d,), *((rows.stop - rows.start,) * 2 for rows in _groups(n)))
    )
    for columns in blocks(d, COLUMNS):
        part = _part(batch, near, columns, dtype)
        cross += linalg.workspace_product("cross", part, xp.matrix_transpose(basis[:, columns]))
        for gram, rows in zip(grams, _groups(n), strict=True):
            group = part[rows, :]
            gram += linalg.workspace_product("group", group, xp.matrix_transpose(group))
        if near is not None:
            mean = xp.matmul(each, part)
            along += xp.matmul(part, mean)
            linalg.copy_into(moved[columns], mean)
    cross, along, moved, *grams = map(to_numpy, (cross, along, moved, *grams))
    cross, along, distance, *grams = over.summed(cross, along, moved @ moved, *grams)
    # The pull is subtracted from the products, because the mean is only known after all rows of a block.
    gains, square = np.sqrt(weights), pull**2 * float(distance)
    squares = sum(float(weights[rows] @ gram.diagonal()) for gram, rows in zip(grams, _groups(n), strict=True))
    for gram, rows in zip(grams, _groups(n), strict=True):
        gram -= pull * np.add.outer(along[rows], along[rows]) - square
        gram *= np.outer(gains[rows], gains[rows])
    cross -= pull * (weights @ cross / own)
    return cross * gains[:, None], grams, moved, squares


def _image(
    basis: Array, energy: Array, batch: Array, near: Array | None, gains: Array, offset: Array
) -> tuple[Array, Array]:
    """Return diag(energy) V + gains (batch - near - offset), and its products with itself in float64."""
    xp, dtype = namespace(batch), dtype_of(basis)
    image = linalg.workspace("image", basis.shape, dtype, basis)
    products = beside(np.zeros((len(energy),) * 2), batch)
    # The offset acts like one more row of the batch.
    sums = beside(-gains.sum(axis=1)[:, None].astype(dtype), batch)
    gains, energy = (beside(np.ascontiguousarray(x, dtype), batch) for x in (gains, energy[:, None]))
    offset = beside(offset.astype(dtype), batch)
    for columns in blocks(batch.shape[1], COLUMNS):
        block = linalg.workspace_product("image block", gains, _part(batch, near, columns, dtype))
        block += energy * basis[:, columns]
        block += sums * offset[columns]
        image[:, columns] = block
        products += linalg.workspace_product("products", block, xp.matrix_transpose(block))
    return image, to_numpy(products)


def _part(batch: Array, near: Array | None, columns: slice, dtype: DTypeLike) -> Array:
    """Return columns of batch - near in a workspace."""
    part = linalg.workspace("part", (batch.shape[0], columns.stop - columns.start), dtype, batch)
    if near is None:
        linalg.copy_into(part, batch[:, columns])
        return part
    return linalg.subtract_into(part, batch[:, columns], near[columns])


def _groups(n: int) -> list[slice]:
    n_groups = -(-n // _GROUP)
    return [slice(a, b) for a, b in itertools.pairwise(n * i // n_groups for i in range(n_groups + 1))]
