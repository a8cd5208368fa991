"""Modes rotated to simple structure: each mode is large at few places."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.models.base.convergence import ConvergenceWarning
from dpca.models.eof.fields import MODE, scale_of
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number

ROTATIONS = ("varimax", "promax")
# The scaling of maps with the units of the field.
_IN_UNITS = 2
_MOST_TURNS, _TOLERANCE = 1000, 1e-8


@dataclass(frozen=True, eq=False)
class RotatedEOF:
    """Rotated modes of an `EOF`.

    Attributes
    ----------
    explained_variance_, explained_variance_ratio_ : xarray.DataArray (mode,), or array, float64
        Variance of each rotated mode, descending: the sum of its squared loadings. After "promax" their sum differs
        from that of the modes.
    rotation_ : array (k, k), float64
        Loadings times this matrix are the rotated loadings. Loadings are modes times the roots of their eigenvalues.
    correlation_ : array (k, k), float64
        Correlation of the time series: the identity after "varimax".
    """

    eof: Any = field(repr=False)
    loadings: Array = field(repr=False)
    rotation_: Array
    correlation_: Array
    explained_variance_: Any
    explained_variance_ratio_: Any

    def eofs(self, scaling: int = 0) -> Any:
        """Return the rotated modes as maps (k, *sample_shape); scaling as in `EOF.eofs`."""
        eof = self.eof
        maps = self.loadings / np.sqrt(self._variances) * self._scale(scaling)
        placed = eof._anomalies.placed(maps.T.astype(eof.model_.components_.dtype))
        return eof._given.maps(placed, "eofs", eof._attributes_of("rotated modes", scaling == _IN_UNITS))

    def pcs(self, scaling: int = 0) -> Any:
        """Return the time series (n_samples, k) of the samples of the fit; scaling as in `EOF.pcs`."""
        return self._turned(self.eof.pcs(), scaling)

    def project(self, X: Any, *, key: str | None = None) -> Any:
        """Return the scores (n_samples, k) of samples; see `EOF.project`."""
        return self._turned(self.eof.project(X, key=key), 0)

    def _turned(self, pcs: Any, scaling: int) -> Any:
        k = len(self.explained_variance_)
        root = np.sqrt(self.eof.model_.explained_variance_[:k])
        # For loadings L R, the time series of variance 1 are those of L times the inverse of R^T.
        turn = np.linalg.inv(self.rotation_).T / root[:, None]
        turn = turn * np.sqrt(self._variances) * self._scale(scaling)
        values = (pcs.data if is_labelled(pcs) else pcs)[:, :k] @ turn.astype(pcs.dtype)
        if not is_labelled(pcs):
            return values
        attrs = self.eof._attributes("time series of rotated modes", scaling == 0)
        return pcs.isel({MODE: slice(k)}).copy(data=values).assign_attrs(attrs)

    @property
    def _variances(self) -> Array:
        return np.asarray(self.explained_variance_)

    def _scale(self, scaling: int) -> Array:
        return scale_of(self._variances, scaling)


def rotated(eof: Any, method: str, k: int, kaiser: bool, power: int) -> RotatedEOF:
    """Rotate the first k modes of a fitted `EOF`.

    Parameters
    ----------
    method : {"varimax", "promax"}
        "varimax" keeps the time series uncorrelated (Kaiser 1958). "promax" continues from its result to oblique
        modes (Hendrickson & White 1964; Richman 1986).
    k : int
        2 or more.
    kaiser : bool
        Kaiser normalization: divide the loadings of each place by the root of the sum of their squares, so that all
        places have equal weight (Kaiser 1958).
    power : int
        Exponent of the loadings in "promax"; 1 changes nothing.

    Returns
    -------
    RotatedEOF
        Costs O(n_places k^2) for each of a few dozen iterations, and memory for four copies of the loadings in
        float64.

    Raises
    ------
    DataError
        If the method is unknown, there are fewer than 2 modes, or a mode has no variance.
    """
    check_method(method)
    variances = eof.model_.explained_variance_[:k]
    check_modes(variances, k, "variance")
    modes = eof._anomalies.packed(np.asarray(eof.model_.components_[:k]).reshape(k, -1))
    loadings = modes.T.astype(np.float64) * np.sqrt(variances)
    turn, correlation = rotation_of(loadings, method, kaiser=kaiser, power=power)
    # Places without loadings have none after the rotation.
    found = loadings @ turn
    squares = (found**2).sum(axis=0)
    order = np.argsort(squares)[::-1]
    signs = np.sign(found[np.abs(found).argmax(axis=0), np.arange(k)])
    turn, found = (turn * signs)[:, order], (found * signs)[:, order]
    correlation = (correlation * np.outer(signs, signs))[np.ix_(order, order)]
    share, by_mode = squares[order] / eof.total_variance_, eof._given.by_mode
    variance, ratio = by_mode(squares[order], "explained_variance"), by_mode(share, "explained_variance_ratio")
    return RotatedEOF(eof, found, turn, correlation, variance, ratio)


def check_method(method: str) -> None:
    """Raise `DataError` if a method of rotation is unknown."""
    if method not in ROTATIONS:
        raise DataError(f"method is {method!r}: use one of {', '.join(ROTATIONS)}")


def check_modes(sizes: Array, k: int, what: str) -> None:
    """Raise `DataError` unless there are ``k`` modes to rotate with ``what``, of these sizes, at least 2."""
    if len(sizes) < k or k < 2:
        raise DataError(f"the number of modes to rotate is {k}: use 2 to {len(sizes)}, the number of modes")
    if not sizes[-1] > 0:
        raise DataError(f"mode {k} has no {what}, and so no loadings: rotate fewer modes")


def rotation_of(loadings: Array, method: str, *, kaiser: bool, power: int) -> tuple[Array, Array]:
    """Return the matrix (k, k) that rotates loadings (d, k), real or complex, and the correlation of the time series.

    Parameters are those of `rotated`.
    """
    power = whole_number(power, "power", 1)
    turn = varimax(loadings, kaiser=kaiser)
    if method != "promax" or power == 1:
        return turn, np.eye(turn.shape[1])
    oblique = promax(loadings @ turn, power, kaiser=kaiser)
    back = np.linalg.inv(oblique)
    return turn @ oblique, back @ back.conj().T


def varimax(loadings: Array, *, kaiser: bool = True) -> Array:
    """Return the unitary matrix (k, k) that maximizes the variance of squared loadings (d, k) (Kaiser 1958).

    Iterates with the singular value decomposition of the criterion's gradient (Sherin 1966), until the sum of its
    singular values changes by less than 1e-8 of itself.
    """
    x = _alike(loadings) if kaiser else loadings
    before = 0.0
    turn: Array = np.eye(x.shape[1])
    for _ in range(_MOST_TURNS):
        y = x @ turn
        squares = (y * y.conj()).real
        left, values, right = np.linalg.svd(x.conj().T @ (y * squares - y * (squares.sum(axis=0) / len(x))))
        turn, now = left @ right, float(values.sum())
        if abs(now - before) <= _TOLERANCE * now:
            return turn
        before = now
    warnings.warn(
        f"varimax has not converged after {_MOST_TURNS} steps: rotate fewer modes", ConvergenceWarning, stacklevel=4
    )
    return turn


def promax(loadings: Array, power: int, *, kaiser: bool = True) -> Array:
    """Return the matrix (k, k) that maps loadings (d, k) closest to their powers (Hendrickson & White 1964)."""
    x = _alike(loadings) if kaiser else loadings
    target = x / np.abs(x).max(axis=0)
    turn = np.linalg.lstsq(x, target * np.abs(target) ** (power - 1), rcond=None)[0]
    # Scale to time series of variance 1.
    found: Array = turn * np.sqrt(np.diagonal(np.linalg.inv(turn.conj().T @ turn)).real)
    return found


def _alike(loadings: Array) -> Array:
    """Return loadings scaled to a sum of squares of 1 at each place; loadings of 0 remain 0."""
    lengths = np.sqrt(np.einsum("ij,ij->i", loadings, loadings.conj()).real)[:, None]
    alike: Array = np.divide(loadings, lengths, out=np.zeros_like(loadings), where=lengths > 0)
    return alike
