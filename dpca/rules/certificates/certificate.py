"""Proven lower bounds on the captured variance, including rounding errors: the analysis behind ``captured_bound``.

The relative error of products is gamma(n), see `dpca.kernels.algebra.rounding`. Products have few terms, because blocks
of columns or rows are summed in float64. Therefore n is the length of a block. Errors are bounded by norms:
||A| |B||_F <= ||A||_F ||B||_F.

C is the covariance of the given samples. P is the projection onto the span of the k stored components. best(C) is the
sum of the k largest eigenvalues. A certificate bounds missed(P) = best(C) - tr(C P).

(a) With mu the k-th eigenvalue, missed(P) = |(C - mu)_+^(1/2) (I - P)|_F^2 + |(C - mu)_-^(1/2) P|_F^2, a squared norm.
    So sqrt(missed(P')) <= sqrt(missed(P)) + sqrt(||C||) |P' - P|_F. Rounding errors of components are of second
    order; see `moved`.
(b) In an orthonormal basis that begins with P, C = [[T, B^T], [B, F]]. Let t, the smallest eigenvalue of T, exceed all
    eigenvalues of F. An eigenvalue l >= t of C is then one of T + B^T (l - F)^-1 B, so that
    missed(P) <= tr B^T (t - F)^-1 B (Schur complement; Parlett 1998, chapter 11). The root of this bound is a norm of
    B. Errors E of B add |E|_F / sqrt(t - max F) to the root, and are also of second order.
(c) Otherwise Ky Fan's inequality holds: best(C + E) <= best(C) + best(E), and best(E) <= sqrt(k) |E|_F.
(d) Multiplication by C does not decrease the captured variance: for orthonormal A,
    tr A^T C A <= tr (A^T C A)^-1 A^T C^2 A, by Cauchy's inequality.

A single pass has a basis B and energies E. It sums D, the parts that its steps discard, and the rounding errors of the
steps. The scatter matrix is S = B^T E B + D + R with the stored B and positive semi-definite D. ``slack`` bounds the
nuclear norm of R, and therefore the sum of any of its eigenvalues. The computed size of D includes its own errors.
Steps assume an orthonormal basis: ``skew`` bounds ||E^(1/2) (B B^T - I) E^(1/2)||. ``astray`` bounds the error of the
mean. If a step computes L + F instead of L, for L^T L + D, then
|(L + F)^T (L + F) - L^T L|_* <= 2 |L|_F |F|_F + |F|_F^2.

References: B. N. Parlett, The Symmetric Eigenvalue Problem, SIAM 1998. K. Fan, Proc. Natl. Acad. Sci. 35, 1949, p. 652.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.algebra.rounding import eigen_error, gamma, unit_roundoff
from dpca.kernels.algebra.types import Array

# Number of gaps in a spectrum that are tried besides the last one.
_GAPS = 1
# Upper bound on the number of operations in a formula of a few numbers.
_OPERATIONS = 10


class Errors(NamedTuple):
    """Error bounds of the products V C of q directions with the covariance.

    Row i of V C - P, for the computed product P, is a^T X + b. X are the samples minus a shift near their mean, divided
    by the root of n - 1. |a| <= ``projected[i]`` and |b| <= ``added[i]``. The first part comes from rounded projections
    of samples. It is small along directions of small variance.
    """

    projected: Array
    added: Array
    shifted: float
    """Squared distance of the shift from the mean, times n / (n - 1)."""

    def turned(self, turn: Array) -> Errors:
        """Return the error bounds of the directions ``turn`` (j, q) times these."""
        size = np.abs(turn)
        return Errors(size @ self.projected, size @ self.added, self.shifted)

    def rows(self, variance: float) -> Array:
        """Bound the norm of the error of each row, or of its part along directions with at most this variance."""
        return self.projected * math.sqrt(variance + self.shifted) + self.added

    def below(self, variance: float, rows: slice) -> float:
        """Return a lower bound on the smallest variance along some directions, from its computed value."""
        projected, added = self._norms(rows)
        root = math.sqrt(max(variance + self.shifted - added + projected**2 / 4, 0.0)) - projected / 2
        return max(root, 0.0) ** 2 - self.shifted

    def above(self, variance: float, rows: slice) -> float:
        """Return an upper bound on the largest variance beside other directions, from its computed value."""
        # For a direction a of V and o orthogonal to it, the error is a^T E (a + 2 o): at most a factor of 2 / sqrt(3).
        projected, added = (2 / math.sqrt(3) * norm for norm in self._norms(rows))
        root = math.sqrt(max(variance, 0.0) + self.shifted + added + projected**2 / 4) + projected / 2
        return root**2 - self.shifted

    def _norms(self, rows: slice) -> tuple[float, float]:
        return float(np.linalg.norm(self.projected[rows])), float(np.linalg.norm(self.added[rows]))


def missed(inner: Array, root: Array, k: int, outside: float, errors: Errors) -> tuple[float, float, float]:
    """Bound the variance that the leading ``k`` of orthonormal directions V (q, d) miss of the optimum. Costs O(q^3).

    Parameters
    ----------
    inner : array (q, q)
        The computed V C V^T. Row i comes from the product of direction i with C.
    root : array (q, q)
        A symmetric S with S^2 = R R^T, for the residuals R = V C - inner V.
    k : int
    outside : float
        Upper bound on the variance along any direction orthogonal to V.
    errors : Errors
        Errors of V C.

    Returns
    -------
    missed : float
        See (b) and (c) above. (c) applies to all directions, or only to those after a gap that is wide compared with
        the errors: eigenvalues after the j-th do not exceed those of F (Cauchy's interlacing).
    largest, above : float
        Upper bounds on the largest eigenvalue of C, and on the variance along any direction orthogonal to the k leading
        ones.
    """
    q = len(inner)
    whole = np.block([[(inner + inner.T) / 2, root], [root, outside * np.eye(q)]])
    values = scipy.linalg.eigvalsh(whole)[::-1]
    lapack = eigen_error(2 * q, max(values[0], -values[-1]))
    largest = errors.above(float(values[0]), slice(None)) + lapack
    captured = float(np.trace(inner[:k, :k]))
    each = errors.rows(largest)
    found = max(float(values[:k].sum()) - captured, 0.0) + 3 * math.sqrt(k) * float(np.linalg.norm(each)) + k * lapack
    above = math.inf
    # A wide gap after the j-th direction reduces the effect of errors before it. Errors after it count fully.
    gaps = -np.diff(inner.diagonal()[: k + 1], append=outside if k == q else [])
    with np.errstate(over="ignore"):  # without a gap the effect may be infinite
        guess = np.cumsum(each[:k] ** 2) / np.maximum(gaps, np.finfo(float).tiny) + np.arange(k, 0, -1) * each[k - 1]
    for j in {k, *(1 + np.argsort(guess)[:_GAPS]).tolist()}:
        rest = whole[j:, j:]
        behind = scipy.linalg.eigvalsh(rest)[::-1]
        limit = errors.above(float(behind[0]), slice(j, None)) + lapack
        if j == k:
            above = limit
        level = errors.below(float(scipy.linalg.eigvalsh(whole[:j, :j])[0]) - lapack, slice(j))
        if level > limit:
            coupling = np.concatenate([inner[:j, j:].T, root[:, :j]])
            room = (level - limit + behind[0]) * np.eye(len(rest)) - rest
            square = float(np.vdot(coupling, scipy.linalg.solve(room, coupling, assume_a="pos")))
            off = float(np.linalg.norm(errors.rows(limit)[:j])) / math.sqrt(level - limit)
            others = max(float(behind[: k - j].sum() - np.trace(inner[j:k, j:k])), 0.0)
            wrong = (k - j) * (2 * limit - 2 * behind[0]) if k > j else 0.0
            found = min(found, (math.sqrt(max(square, 0.0)) + off) ** 2 + others + wrong)
    return found, largest, above


def moved(missed: float, largest: float, distance: float) -> float:
    """Bound the variance that components miss after a perturbation, see (a) above.

    ``missed`` is the bound before the perturbation. ``distance`` is the Frobenius norm of the part of the orthonormal
    rows outside of the original span. The projections then differ by at most sqrt(2) times the distance. ``largest``
    bounds the largest eigenvalue.
    """
    return (math.sqrt(missed) + math.sqrt(2 * largest) * distance) ** 2


def stored(k: int, dtype: DTypeLike) -> float:
    """Return the distance by which storage in a dtype moves ``k`` orthonormal float64 rows; see `moved`.

    Even without rounding to another dtype, the rows are orthonormal only up to a few units of float64.
    """
    return math.sqrt(k) * (unit_roundoff(dtype) + gamma(_OPERATIONS, unit_roundoff(np.float64)))


def share(captured: float, missed: float) -> float:
    """Return the share captured / (captured + missed), rounded down; 1 if nothing is missed."""
    if missed == 0:
        return 1.0
    if not (captured > 0 and missed < math.inf):
        return 0.0
    return max(captured / (captured + missed) - gamma(_OPERATIONS, unit_roundoff(np.float64)), 0.0)


def exact_share(
    values: Array, beyond: float, errors: Array, dtype: DTypeLike, *, distance: float = 0.0, lost: float = 0.0
) -> float:
    """Return a lower bound on the captured share of computed eigenvectors that are stored in a dtype.

    Parameters
    ----------
    values : array (k,)
        Eigenvalues, descending.
    beyond : float
        Upper bound on the other eigenvalues of the computed matrix.
    errors : array (k,)
        Norms of the errors of the products of the eigenvectors with the true matrix. The other eigenvalues of the true
        matrix exceed ``beyond`` by at most the largest of these.
    distance : float
        Perturbation of the stored components, see `moved`.
    lost : float
        Variance that is missed in addition.
    """
    k, total = len(values), float(values.sum())
    if not total > 0:
        return share(0.0, lost)
    known = Errors(np.zeros(k), errors, 0.0)
    # Rounding errors of the matrix also affect the orthogonal directions.
    missing, largest, _ = missed(np.diag(values), np.zeros((k, k)), k, beyond + float(errors.max()), known)
    captured = total - math.sqrt(k) * float(np.linalg.norm(errors))
    return share(captured, moved(missing + lost, largest, distance + stored(k, dtype)))


def add_mean(
    rounding: Array, weights: tuple[float, float], apart: float, moved: float, squares: float, g: float, pull: float
) -> None:
    """Add the effect of the rounded mean that centers rows.

    Parameters
    ----------
    rounding : array (3,)
        Slack, skew and astray; changed in place.
    weights : tuple
        Weights of the previous samples and of these rows.
    apart, moved : float
        Computed distances: of the subtracted shift from the previous mean, and of the mean of these rows from the
        shift.
    squares : float
        Sum of squares of the rows minus the shift.
    g : float
        Relative error of a mean of these rows.
    pull : float
        Share of the change of the mean that was subtracted from the rows.
    """
    before, own = weights
    error, apart = g * math.sqrt(squares / own), apart + rounding[2]
    moved += error
    rounding[0] += (
        before * own / (before + own) * (2 * moved + apart) * apart + own * pull * (2 * moved + error) * error
    )
    rounding[2] = (before * rounding[2] + own * error) / (before + own)


def turning(change: Array, energy: Array, lengths: Array, values: Array, skew: float | Array, u: float) -> float:
    """Bound the error |F|_F of the change of a basis, scaled by the roots of the new energies, for rounding error u.

    ``change`` is (turn - I) [basis; rows], ``lengths`` are the lengths of the rows; see
    `dpca.rules.base.turning.change_of`.
    """
    rank, sizes, magnitudes = len(energy), np.sqrt(1 + skew / energy), np.abs(change)
    each = magnitudes @ np.concatenate([gamma(rank + 4, u) * sizes, gamma(len(lengths) + 4, u) * lengths])
    each[:rank] += u * sizes[: len(each)]
    each *= np.sqrt(values)
    return math.sqrt(float(each @ each))


def turned(values: Array, error: float, skew: float) -> tuple[float, float]:
    """Return the increase of slack and skew by a rotation with this error. ``skew`` bounds the skew before it."""
    total, largest = float(values.sum()) + len(values) * skew, float(values[:1].sum()) + skew
    return (2 * math.sqrt(total) + error) * error, (2 * math.sqrt(largest) + error) * error


def add_stacked(
    rounding: Array, turn_error: float, values: Array, old: float, squares: float, skew: float, g: float, u: float
) -> float:
    """Add the errors of a step that stacks rows below a basis and retains the leading eigenvectors of their products.

    Parameters
    ----------
    rounding : array (3,)
        Slack, skew and astray; changed in place.
    turn_error : float
        See `turning`.
    values : array (m,)
        Retained eigenvalues.
    old, squares : float
        Sums of squares of the scaled basis and of the scaled rows.
    skew : float
        Bound on the error of the products of the rows among themselves.
    g, u : float
        Relative error of the products of basis and rows, and of one operation.

    Returns
    -------
    float
        Bound on the error of each discarded eigenvalue.
    """
    cross = 2 * g * math.sqrt(squares * old)
    among = float(rounding[1]) + skew + cross + eigen_error(len(values) + 1, old + squares)
    slack, skewed = turned(values, turn_error, among)
    rounding[0] += slack + (2 * u + g) * squares
    rounding[1] = among + skewed
    return among
