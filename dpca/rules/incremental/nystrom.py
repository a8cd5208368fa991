"""Nyström step: adds a batch to a converged basis without the Gram matrix of the rows of the batch."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.namespace import beside, dtype_of
from dpca.kernels.algebra.rounding import eigen_error, gamma, unit_roundoff
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.state import ALL, AttributeBlocks
from dpca.rules.certificates import certificate
from dpca.rules.incremental.truncation import largest, largest_sum, truncate

#: Columns of one product. Longer sums are accumulated in float64, and a block of the rows stays in the cache.
COLUMNS = 2048
#: Rows of a group. The Gram matrix of a group bounds its discarded part. Larger groups: tighter bounds at more cost.
GROUP = 200
# Smallest distance of a row of the image, scaled to length 1 in K, from the span of the previous rows.
_NEAREST = 0.05
#: Larger sums of squares lose no terms to underflow in float32.
SMALL = 2.0**-80


class StepRows(Protocol):
    """Rows X (n, d): weighted samples minus a point, such that their scatter about 0 is what a step adds."""

    added: float
    """Sum of squares of X. Set by `coefficients`."""
    squares: float
    """Sum of squares in bounds of rounding errors."""
    error: float
    """Relative error g of C = X V^T: |C - X V^T|_F <= g sqrt(q squares); also of the other products of rows."""
    image_error: float
    """Relative error of the products of C and X."""

    def coefficients(
        self, basis: Array, energy: Array, n_counted: int, enough: float = 0.0
    ) -> tuple[Array, float, float]:
        """Return C (n, q), float64, and bounds on the eigenvalues of the scatter of X - C V.

        The bounds are on the sum of the ``n_counted`` largest eigenvalues, and on the largest. No work is done for a
        closer bound on the largest than ``enough``.
        """

    def image(self, basis: Array, energy: Array, scale: Array) -> tuple[Array, Array]:
        """Return diag(scale) (diag(energy) V + C^T X) for the last C, and its products with itself in float64."""

    def add_mean(self, rounding: Array, mean: Array) -> None:
        """Change the mean by these rows, and add the effect of rounding; see `certificate.add_mean`."""


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
    slack: float
    """Increase of the slack by rounding, see `dpca.rules.certificates.certificate`."""
    skew: float
    """The skew of the new basis."""


def absorb(
    basis: Array,
    energy: Array,
    rows: StepRows,
    n_counted: int,
    skew: float = 0.0,
    enough: float = 0.0,
    over: AttributeBlocks = ALL,
) -> Step | None:
    """Add the scatter of rows X to A = V^T diag(energy) V, and retain the q leading directions.

    With C = X V^T, Z = diag(energy) V + C^T X and K = diag(energy) + C^T C, the new matrix is Z^T K^-1 Z
    (Tropp, Yurtsever, Udell & Cevher 2017). This is one multiplication of the old basis by A + X^T X. The discarded
    part of A + X^T X is positive semi-definite, as in a truncation of eigenvectors of a Gram matrix. It is at most the
    scatter of the rows outside the span of V. Its largest eigenvalues are at most the sums of those of groups of rows.

    Let L be the stack of diag(energy)^(1/2) V and X, and P the projection onto the rows of [diag(energy)^(1/2), C^T].
    For any computed C and V, Z^T K^-1 Z is L^T P L, and the discarded part is at most the scatter of X - C V. The
    effect of rounding is therefore at most `slack`. Without any energy, C are the leading left singular vectors of X,
    times their singular values.

    Parameters
    ----------
    basis : array (q, d)
        V, with orthonormal rows; changed in place.
    energy : array (q,), float64
        Positive, descending; or all 0, for first rows.
    rows : StepRows
        X.
    n_counted : int
        Number of components k, and number of discarded eigenvalues in ``discarded``.
    skew : float
        Skew of the basis, see `dpca.rules.certificates.certificate`.
    enough : float
        ``largest`` is not bounded more closely than this.
    over : AttributeBlocks
        The blocks of attributes of ``basis`` and ``rows``.

    Returns
    -------
    Step or None
        None if the step could discard a direction with more energy than the last of the k components, or if rounding
        would cost accuracy. Nothing is changed then.

    Notes
    -----
    Costs 4 q + 200 operations for each value of the rows, and 3 q^2 d + O(q^3) per step. Holds q x d numbers, and some
    blocks of 2,048 columns.
    """
    known = bool(energy.any())
    cross, beyond, strongest = rows.coefficients(basis, energy, n_counted, enough)
    energy, added = energy[: cross.shape[1]], rows.added
    accurate = SMALL < added < math.inf and (not known or strongest <= energy[n_counted - 1])
    factor = over.once(lambda: _factored(cross, energy) if accurate else None)
    if factor is None:
        return None
    scale, inverse = factor.scale, factor.inverse
    image, products = rows.image(basis[: len(energy), :], energy, scale)
    (products,) = over.summed(products)
    floor = 4 * float(np.finfo(dtype_of(basis)).eps) * added
    whole = inverse @ products @ inverse.T
    values, vectors, below, least = over.once(partial(truncate, whole, len(energy), n_counted=n_counted, floor=floor))
    turned = vectors.T @ inverse
    u, inner = unit_roundoff(dtype_of(basis)), factor.inner
    g = gamma(min(over.whole(basis.shape[1]), COLUMNS) + 3, u)
    slack, skewed, among = _rounded(energy, factor, products, turned, values, rows, skew, (g, u))
    off = _off(energy, inner, rows, skew, n_counted) if known else 0.0
    off += n_counted * among if len(values) < len(energy) else 0.0
    turn = beside(np.ascontiguousarray(turned / np.sqrt(values)[:, None], dtype_of(basis)), basis)
    for columns in blocks(basis.shape[1], COLUMNS):
        basis[: len(values), columns] = linalg.workspace_product("turned", turn, image[:, columns])
    basis[len(values) :, :] = 0
    left = max(float(energy.sum()) + added - float(values.sum()), 0.0) + slack + len(energy) * (skew + skewed)
    discarded, most = min(beyond + below + off, left), min(strongest + least + off, left)
    return Step(values, added, discarded, most, slack, skewed)


def outside(cross: Array, grams: list[Array], k: int, enough: float = 0.0) -> tuple[float, float]:
    """Return the bounds of `StepRows.coefficients` for C and the Gram matrices of successive rows; changes these."""
    first = 0
    for gram in grams:
        some = cross[first : first + len(gram)]
        gram -= some @ some.T
        first += len(gram)
    each = [largest_sum(gram, 1) for gram in grams]
    if (strongest := sum(each)) > enough:
        strongest = sum(min(bound, largest(gram)) for bound, gram in zip(each, grams, strict=True))
    return sum(largest_sum(gram, k) for gram in grams), strongest


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
    rows: StepRows,
    skew: float,
    errors: tuple[float, float],
) -> tuple[float, float, float]:
    """Return the slack that rounding adds in a step, the skew of the new basis, and the error of its eigenvalues.

    ``errors`` are those of products of rows of the image, and of one operation.
    """
    (g, u), q, inverse = errors, len(energy), np.abs(factor.inverse)
    along = np.maximum(factor.inner.diagonal() - energy, 0.0)
    image = rows.image_error * np.sqrt(along * rows.squares) + 4 * u * np.sqrt(energy * (energy + skew))
    lengths = np.sqrt(products.diagonal())
    error = inverse @ (factor.scale * image)
    turning = np.abs(turned) @ lengths
    shift = math.sqrt(float(error @ error)) + gamma(q + 3, u) * math.sqrt(float(turning @ turning))
    sizes = inverse @ lengths
    among = g * float(sizes @ sizes) + eigen_error(q, float(values[:1].sum()))
    slack, skewed = certificate.turned(values, shift, among)
    return slack + (2 * u + rows.error) * rows.squares, among + skewed, among


def _off(energy: Array, inner: Array, rows: StepRows, skew: float, k: int) -> float:
    """Return the error of the sum of the k largest eigenvalues of the scatter outside of the basis."""
    roots, g = np.sqrt(energy), rows.error
    weak, apart = inner / np.outer(roots, roots), g * math.sqrt(len(energy))
    weak[np.diag_indices_from(weak)] -= 1
    return (math.sqrt(k) * g + 2 * (1 + apart) * apart) * rows.squares + skew * largest_sum(weak, k)


def work_bytes(n_rows: int, q: int, n_features: int, dtype: DTypeLike, whole: int = 0) -> int:
    """Return the bytes of temporary arrays of a step, for the planner.

    ``whole`` is the most rows whose products are all computed at once, see `dpca.rules.incremental.rows.whole_rows`.
    """
    itemsize, columns = np.dtype(dtype).itemsize, min(n_features, COLUMNS)
    held = (n_rows + 2 * q) * columns + q * n_features
    grams = max(2 * n_rows * min(n_rows, max(GROUP, 2 * q)), 4 * min(n_rows, whole) ** 2)
    return itemsize * held + 8 * (5 * n_rows * q + grams + 8 * q**2 + n_features)
