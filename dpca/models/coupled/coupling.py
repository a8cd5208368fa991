"""Modes of two fields as a small problem: from the covariances of both fields in a few orthonormal coordinates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse.linalg

from dpca.kernels.algebra.types import Array
from dpca.storage.errors import DataError

# Directions with less than this share of the largest variance are rounding errors, which whitening would magnify.
_LEAST_SHARE = 1e-10
# A truncated singular value decomposition takes less time if the matrix is at least this large and has this many times
# as many rows as there are modes.
_TRUNCATE_FROM, _TRUNCATE_SHARE = 200, 5


@dataclass(frozen=True, eq=False)
class FieldCoordinates:
    """One field in r orthonormal coordinates.

    Attributes
    ----------
    covariance : array (r, r), float64 or complex128
        Divisor n - 1.
    series : array (n, r) or None
        The centered coordinates of the samples of the fit, if the solver finds them.
    retained : float
        Share of the variance of the field in these coordinates.
    """

    covariance: Array
    series: Array | None = None
    retained: float = 1.0

    @property
    def total(self) -> float:
        """The total variance."""
        return float(np.trace(self.covariance).real)

    def analytic(self, decay: float | None) -> FieldCoordinates:
        """Return the coordinates of the analytic field, see `dpca.kernels.analytic`."""
        from dpca.kernels.analytic import analytic_signal  # SciPy's signal processing is slow to import

        assert self.series is not None
        signal = analytic_signal(self.series, decay)
        return replace(self, covariance=signal.conj().T @ signal / (len(signal) - 1), series=signal)

    def whitening(self, n: float) -> tuple[Array, Array]:
        """Return the inverse root of the covariance (divisor n), and its root, without directions of rounding errors.

        ``n`` is the number of samples, or the sum of their weights.

        Raises
        ------
        DataError
            If there is no variance.
        """
        values, vectors = np.linalg.eigh(self.covariance * ((n - 1) / n))
        if not values[-1] > 0:
            raise DataError("a field is constant and cannot be whitened: give a field that varies")
        some = values > _LEAST_SHARE * values[-1]
        root, vectors = np.sqrt(values[some]), vectors[:, some]
        return (vectors / root) @ vectors.conj().T, (vectors * root) @ vectors.conj().T


@dataclass(frozen=True, eq=False)
class FieldModes:
    """The modes of one field in m orthonormal coordinates.

    Attributes
    ----------
    weights, patterns : array (m, k)
        Scores are coordinates times weights. The field is the sum of scores times the conjugate of patterns.
    covariance : array (m, m)
        Of the coordinates.
    squares : array (m, m)
        C C^H in these coordinates, where C is the covariance of this field, in all its coordinates, with the other.
    total : float
        Total variance of the field.
    """

    weights: Array
    patterns: Array
    covariance: Array
    squares: Array
    total: float

    def turned(self, weights: Array, patterns: Array) -> FieldModes:
        """Return other modes of the same field: weights (k, k') and patterns (k, k') times those of these modes."""
        return replace(self, weights=self.weights @ weights, patterns=self.patterns @ patterns)

    @property
    def variances(self) -> Array:
        """Variances (k,) of the scores."""
        found: Array = np.maximum(_forms(self.weights, self.covariance, self.weights).real, 0)
        return found

    def explained(self) -> Array:
        """Return the share (k,) of the variance of the field that the scores of each mode explain."""
        along = _forms(self.patterns, self.covariance, self.weights).real
        lengths = (np.abs(self.patterns) ** 2).sum(axis=0)
        found: Array = (2 * along - self.variances * lengths) / max(self.total, 1e-300)
        return found


@dataclass(frozen=True, eq=False)
class Coupling:
    """Modes of two fields.

    Attributes
    ----------
    singular_values : array (k,), float64, descending
        Of the cross-covariance of both fields: the covariances of the scores of MCA. For CCA, of that of whitened
        fields, with the divisors n of variances and n - 1 of the cross-covariance, as in xeofs.
    x, y : FieldModes
    cross : array (m_x, m_y)
        Cross-covariance of the coordinates of both fields.
    total : float
        Total squared covariance: the sum of the squares of the cross-covariances of both fields.
    """

    singular_values: Array
    x: FieldModes
    y: FieldModes
    cross: Array
    total: float

    def turned(self, weights: Array, patterns: Array, singular_values: Array) -> Coupling:
        """Return other modes: weights (k, k') and patterns (k, k') times those of these modes, in both fields."""
        x, y = (side.turned(weights, patterns) for side in (self.x, self.y))
        return replace(self, singular_values=singular_values, x=x, y=y)

    def correlations(self) -> Array:
        """Return the correlation (k,) of the scores of both fields in each mode."""
        found = _forms(self.x.weights, self.cross, self.y.weights).real
        roots = np.sqrt(self.x.variances * self.y.variances)
        shares: Array = np.divide(found, roots, out=np.zeros_like(found), where=roots > 0)
        return shares

    def squared_covariance_fractions(self) -> Array:
        """Return the share (k,) of the total squared covariance that each mode explains (Swenson 2015, equation 15).

        Without its part in mode i, the cross-covariance C is D = (I - q w^H) C (I - v r^H), where w and v are weights,
        q and r patterns of both fields. The share is 1 - |D|^2 / |C|^2, but at least 0. For MCA, it is the squared
        singular value as a share of the sum of all.
        """
        w, q, v, r = self.x.weights, self.x.patterns, self.y.weights, self.y.patterns
        wv, wr, qv, qr = (_forms(a, self.cross, b) for a, b in ((w, v), (w, r), (q, v), (q, r)))
        q2, r2 = ((np.abs(some) ** 2).sum(axis=0) for some in (q, r))
        # The terms of |D|^2 - |C|^2, with D = C - C v r^H - q w^H C + (w^H C v) q r^H.
        change = (_forms(v, self.y.squares, v) * r2 + _forms(w, self.x.squares, w) * q2).real
        change -= 2 * (_forms(v, self.y.squares, r) + _forms(w, self.x.squares, q)).real
        change += np.abs(wv) ** 2 * q2 * r2 + 2 * (wv * qr.conj() + qv.conj() * wr).real
        change -= 2 * (wv.conj() * (qv * r2 + wr * q2)).real
        found: Array = np.maximum(-change / max(self.total, 1e-300), 0)
        return found


@dataclass(frozen=True, eq=False)
class Coupled:
    """The result of `coupled`.

    Attributes
    ----------
    coupling : Coupling
    bases : tuple of two arrays (r, m)
        Orthonormal columns: the coordinates of the coupling in those of each field.
    series : tuple of two arrays (n, r) or None
        The series of both fields, if they are known.
    white : tuple of two arrays (n, r) or None
        The same, whitened for CCA: the input of a permutation test.
    """

    coupling: Coupling
    bases: tuple[Array, Array]
    series: tuple[Array, Array] | None
    white: tuple[Array, Array] | None


def coupled(
    x: FieldCoordinates, y: FieldCoordinates, cross: Array | None, n: int, k: int, *, whiten: float | None
) -> Coupled:
    """Return the k leading modes of maximum covariance, or of maximum correlation if both fields are whitened.

    Parameters
    ----------
    x, y : FieldCoordinates
        Of n samples.
    cross : array (r_x, r_y) or None
        Their cross-covariance, divisor n - 1. None: from the series.
    n, k : int
    whiten : float or None
        To whiten both fields: the number of samples, or the sum of their weights.

    Raises
    ------
    DataError
        If there are fewer than k modes.
    """
    if cross is None:
        assert x.series is not None
        assert y.series is not None
        cross = x.series.conj().T @ y.series / (n - 1)
    most = min(*cross.shape, n - 1)
    if k > most:
        raise DataError(
            f"n_modes is {k}, but {n:,} samples of {cross.shape[0]:,} and {cross.shape[1]:,} dimensions have only "
            f"{most:,} modes: use at most that many"
        )
    whitening = [None if whiten is None else side.whitening(whiten) for side in (x, y)]
    target = cross
    if whitening[0] is not None and whitening[1] is not None:
        target = whitening[0][0] @ cross @ whitening[1][0]
    left, values, right = leading_svd(target, k)
    sides, bases = [], []
    for vectors, side, white, c in ((left, x, whitening[0], cross), (right, y, whitening[1], cross.conj().T)):
        weights, patterns = (vectors, vectors) if white is None else (white[0] @ vectors, white[1] @ vectors)
        basis = _real_basis(vectors) if white is None else _real_basis(np.concatenate([weights, patterns], axis=1))
        seen = basis.T @ c
        inner = basis.T @ side.covariance @ basis
        sides.append(FieldModes(basis.T @ weights, basis.T @ patterns, inner, seen @ seen.conj().T, side.total))
        bases.append(basis)
    series: Any = None if x.series is None else (x.series, y.series)
    turned: Any = series
    if series is not None and whitening[0] is not None and whitening[1] is not None:
        turned = (series[0] @ whitening[0][0], series[1] @ whitening[1][0])
    coupling = Coupling(values, sides[0], sides[1], bases[0].T @ cross @ bases[1], float((np.abs(cross) ** 2).sum()))
    return Coupled(coupling, (bases[0], bases[1]), series, turned)


def leading_svd(matrix: Array, k: int) -> tuple[Array, Array, Array]:
    """Return the k leading left singular vectors (m, k), values (k,), descending, and right singular vectors (n, k)."""
    least = min(matrix.shape)
    if least >= _TRUNCATE_FROM and _TRUNCATE_SHARE * k <= least:
        # A fixed start makes the result the same in each run.
        start = np.random.default_rng(0).standard_normal(least).astype(matrix.dtype)
        u, s, vh = scipy.sparse.linalg.svds(matrix, k, v0=start)
        u, s, vh = u[:, ::-1], s[::-1], vh[::-1]
    else:
        u, s, vh = scipy.linalg.svd(matrix, full_matrices=False, check_finite=False)
    return u[:, :k].copy(), s[:k].copy(), vh[:k].conj().T.copy()


def _real_basis(columns: Array) -> Array:
    """Return real orthonormal columns whose span contains columns (r, m) and, if complex, their conjugates."""
    if np.iscomplexobj(columns):
        columns = np.concatenate([columns.real, columns.imag], axis=1)
    found: Array = scipy.linalg.qr(columns, mode="economic", check_finite=False)[0]
    return found


def _forms(a: Array, matrix: Array, b: Array) -> Array:
    """Return a^H M b for each pair of columns."""
    found: Array = np.einsum("ik,ik->k", a.conj(), matrix @ b)
    return found
