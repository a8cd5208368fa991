"""What components are proved to capture, rounding counted in: the error analysis behind every ``captured_bound``.

Products are off by gamma(n) as `dpca.kernels.rounding` says. They have few terms, blocks of columns or of rows, and are
added up in float64, so that n is the length of a block; norms make numbers of it: ||A| |B||_F <= ||A||_F ||B||_F.

C is the covariance of the samples as they are given, P the projection onto the span of k components as they are
stored, best(C) the sum of the k largest eigenvalues, and missed(P) = best(C) - tr(C P) what a certificate bounds.

(a) With mu the k-th eigenvalue, missed(P) = |(C - mu)_+^(1/2) (I - P)|_F^2 + |(C - mu)_-^(1/2) P|_F^2, a squared norm.
    So sqrt(missed(P')) <= sqrt(missed(P)) + sqrt(||C||) |P' - P|_F: rounding of components is squared; see `moved`.
(b) In an orthonormal basis that begins with P, C = [[T, B^T], [B, F]]. Where t, the least eigenvalue of T, exceeds
    all of F, an eigenvalue l >= t of C is one of T + B^T (l - F)^-1 B, so that missed(P) <= tr B^T (t - F)^-1 B
    (Schur complement; Parlett 1998, chapter 11). Its root is a norm of B: errors E of B add |E|_F / sqrt(t - max F)
    to it, and are squared, too.
(c) Else, Ky Fan's inequality: best(C + E) <= best(C) + best(E), and best(E) <= sqrt(k) |E|_F.
(d) Multiplying by C loses nothing: for orthonormal A, tr A^T C A <= tr (A^T C A)^-1 A^T C^2 A, by Cauchy's inequality.

One pass cannot look twice. It keeps a basis B and energies E, and adds up what D its steps discard and what they
round. The scatter matrix is S = B^T E B + D + R, D positive semi-definite, with B as it is stored; ``slack`` bounds the
nuclear norm of R, and with it the sum of any eigenvalues; what is counted of D has its own errors added. ``skew``
bounds ||E^(1/2) (B B^T - I) E^(1/2)||, since steps take the basis to be orthonormal, and ``astray`` the distance of the
mean. If a step makes L + F of L, for L^T L + D, then |(L + F)^T (L + F) - L^T L|_* <= 2 |L|_F |F|_F + |F|_F^2.

References: B. N. Parlett, The Symmetric Eigenvalue Problem, SIAM 1998. K. Fan, Proc. Natl. Acad. Sci. 35, 1949, p. 652.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.rounding import eigen_error, gamma, unit
from dpca.kernels.types import Array

# Gaps in a spectrum that are tried beside the last one.
_GAPS = 1
# Operations on a few numbers.
_FEW = 10


class Errors(NamedTuple):
    """What the products V C of q directions with the covariance are off by at most.

    Row i of V C - P, P the computed product, is a^T X + b: X are the samples less a shift that lies near their mean,
    divided by the root of n - 1, |a| <= ``projected[i]`` and |b| <= ``added[i]``. The first part, from rounded
    projections of samples, is small along directions in which samples vary little.
    """

    projected: Array
    added: Array
    shifted: float
    """Squared distance of the shift from the mean, times n / (n - 1)."""

    def turned(self, turn: Array) -> Errors:
        """Return those of other directions, ``turn`` (j, q) times these."""
        size = np.abs(turn)
        return Errors(size @ self.projected, size @ self.added, self.shifted)

    def rows(self, variance: float) -> Array:
        """Bound the norm of each row's error, or of its part along directions with at most this variance."""
        return self.projected * math.sqrt(variance + self.shifted) + self.added

    def below(self, variance: float, rows: slice) -> float:
        """Return at least what the variance is where this is the least one computed along some of the directions."""
        projected, added = self._norms(rows)
        root = math.sqrt(max(variance + self.shifted - added + projected**2 / 4, 0.0)) - projected / 2
        return max(root, 0.0) ** 2 - self.shifted

    def above(self, variance: float, rows: slice) -> float:
        """Return at most what the variance is where this is the largest one computed beside other directions."""
        # Of a direction a of V and o beside it, a^T E (a + 2 o) is wrong: a factor of 2 / sqrt(3) where it is largest.
        projected, added = (2 / math.sqrt(3) * norm for norm in self._norms(rows))
        root = math.sqrt(max(variance, 0.0) + self.shifted + added + projected**2 / 4) + projected / 2
        return root**2 - self.shifted

    def _norms(self, rows: slice) -> tuple[float, float]:
        return float(np.linalg.norm(self.projected[rows])), float(np.linalg.norm(self.added[rows]))


def missed(inner: Array, root: Array, k: int, outside: float, errors: Errors) -> tuple[float, float, float]:
    """Bound what the leading ``k`` of some orthonormal directions V (q, d) miss of what the best k capture.

    Parameters
    ----------
    inner : array (q, q)
        V C V^T as it was computed: row i from the product of direction i with C.
    root : array (q, q)
        A symmetric S, S^2 being the products of the residuals V C - inner V among themselves.
    k : int
    outside : float
        Upper bound on the variance along any direction at right angles to V.
    errors : Errors
        Of V C.

    Returns
    -------
    missed : float
        See (b) and (c) above: (c) for all, or only for those behind a gap that is wide beside the errors, since the
        eigenvalues behind the j-th exceed none of F (Cauchy's interlacing).
    largest, above : float
        Upper bounds on the largest eigenvalue of C, and on the variance along any direction at right angles to those k.
        Costs O(q^3).
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
    # The wider the gap behind the j-th, the less its errors count; those of all behind count as they are.
    gaps = -np.diff(inner.diagonal()[: k + 1], append=outside if k == q else [])
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
    """Bound what components miss that were moved by ``distance``, from what they missed before; see (a) above.

    ``distance`` is the Frobenius norm of what orthonormal rows have outside of the span that they stand for, so that
    the projections differ by the root of 2 times that at most; ``largest`` bounds the largest eigenvalue.
    """
    return (math.sqrt(missed) + math.sqrt(2 * largest) * distance) ** 2


def stored(k: int, dtype: DTypeLike) -> float:
    """Return by how much rounding moves ``k`` orthonormal rows of float64 that are stored in a type; see `moved`.

    Rounded to another type or not: they are orthonormal to some units of float64.
    """
    return math.sqrt(k) * (unit(dtype) + gamma(_FEW, unit(np.float64)))


def share(captured: float, missed: float) -> float:
    """Return the share captured / (captured + missed), rounded down; 1 where nothing is missed."""
    if missed == 0:
        return 1.0
    if not (captured > 0 and missed < math.inf):
        return 0.0
    return max(captured / (captured + missed) - gamma(_FEW, unit(np.float64)), 0.0)


def exact_share(
    values: Array, beyond: float, errors: Array, dtype: DTypeLike, *, distance: float = 0.0, lost: float = 0.0
) -> float:
    """Return the least share that computed eigenvectors capture, once they are stored in a type.

    Parameters
    ----------
    values : array (k,)
        Their eigenvalues, descending.
    beyond : float
        Upper bound on the other eigenvalues of the computed matrix.
    errors : array (k,)
        Norms of the errors of the eigenvectors' products with the true matrix. Its other eigenvalues may exceed
        ``beyond`` by the largest of these.
    distance : float
        By which what is stored was moved, see `moved`.
    lost : float
        What is missed beside.
    """
    k, total = len(values), float(values.sum())
    if not total > 0:
        return share(0.0, lost)
    known = Errors(np.zeros(k), errors, 0.0)
    # Rounding of the matrix counts beside them as along them.
    missing, largest, _ = missed(np.diag(values), np.zeros((k, k)), k, beyond + float(errors.max()), known)
    captured = total - math.sqrt(k) * float(np.linalg.norm(errors))
    return share(captured, moved(missing + lost, largest, distance + stored(k, dtype)))


def add_mean(
    rounding: Array, weights: tuple[float, float], apart: float, moved: float, squares: float, g: float, pull: float
) -> None:
    """Count in that rows are centered by a mean that is rounded.

    Parameters
    ----------
    rounding : array (3,)
        Slack, skew and astray; changed in place.
    weights : tuple
        Of the samples before, and of these rows.
    apart, moved : float
        Distance of what was subtracted from the mean so far, and of the mean of these rows from that, as computed.
    squares : float
        Sum of squares of the rows less what was subtracted.
    g : float
        Relative error of a mean of these rows.
    pull : float
        Share of the mean's move that was subtracted from the rows.
    """
    before, own = weights
    error, apart = g * math.sqrt(squares / own), apart + rounding[2]
    moved += error
    rounding[0] += (
        before * own / (before + own) * (2 * moved + apart) * apart + own * pull * (2 * moved + error) * error
    )
    rounding[2] = (before * rounding[2] + own * error) / (before + own)


def turning(change: Array, energy: Array, lengths: Array, values: Array, skew: float | Array, u: float) -> float:
    """Bound |F|_F of what is added to a basis, scaled by the roots of new energies, if computed with rounding error u.

    ``change`` is (turn - I) [basis; rows], ``lengths`` those of the rows; see `dpca.rules.turning.change_of`.
    """
    rank, sizes, magnitudes = len(energy), np.sqrt(1 + skew / energy), np.abs(change)
    each = magnitudes @ np.concatenate([gamma(rank + 4, u) * sizes, gamma(len(lengths) + 4, u) * lengths])
    each[:rank] += u * sizes[: len(each)]
    each *= np.sqrt(values)
    return math.sqrt(float(each @ each))


def turned(values: Array, error: float, skew: float) -> tuple[float, float]:
    """Return what a turn with this error adds to the slack and to the skew, which was up to ``skew`` before it."""
    total, largest = float(values.sum()) + len(values) * skew, float(values[:1].sum()) + skew
    return (2 * math.sqrt(total) + error) * error, (2 * math.sqrt(largest) + error) * error


def add_stacked(
    rounding: Array, turn_error: float, values: Array, old: float, squares: float, skew: float, g: float, u: float
) -> float:
    """Count in a step that stacks rows below a basis, and keeps the leading eigenvectors of their products.

    Parameters
    ----------
    rounding : array (3,)
        Slack, skew and astray; changed in place.
    turn_error : float
        See `turning`.
    values : array (m,)
        Eigenvalues kept.
    old, squares : float
        Sums of squares of the basis and of the rows, scaled.
    skew : float
        Bound on the error of the products of the rows among themselves.
    g, u : float
        Relative error of the products of basis and rows, and of one operation.

    Returns
    -------
    float
        By how much each eigenvalue that is given up may be larger than computed.
    """
    cross = 2 * g * math.sqrt(squares * old)
    among = float(rounding[1]) + skew + cross + eigen_error(len(values) + 1, old + squares)
    slack, skewed = turned(values, turn_error, among)
    rounding[0] += slack + (2 * u + g) * squares
    rounding[1] = among + skewed
    return among
