"""Modes rotated to simple structure: each is large at few places."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.models.base.convergence import ConvergenceWarning
from dpca.models.eof.fields import MODE, on_grid, scale_of
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number

METHODS = ("varimax", "promax")
_MOST_TURNS, _TOLERANCE = 1000, 1e-8


@dataclass(frozen=True, eq=False)
class RotatedEOF:
    """Rotated modes of an `EOF`.

    Attributes
    ----------
    explained_variance_, explained_variance_ratio_ : array (k,), float64
        Of each rotated mode, descending: the squares of its loadings. After "promax" they do not add up to those
        before.
    rotation_ : array (k, k), float64
        The rotated loadings are the loadings, modes times the roots of their eigenvalues, times this.
    correlation_ : array (k, k), float64
        Between the time functions: the identity after "varimax".
    """

    eof: Any = field(repr=False)
    loadings: Array = field(repr=False)
    rotation_: Array
    correlation_: Array
    explained_variance_: Array
    explained_variance_ratio_: Array

    def eofs(self, scaling: int = 0) -> Any:
        """Return the rotated modes as maps (k, *sample_shape); scaling as in `EOF.eofs`."""
        eof = self.eof
        maps = self.loadings / np.sqrt(self.explained_variance_) * self._scale(scaling)
        dtype = eof.model_.components_.dtype
        return on_grid(eof._anomalies.placed(maps.T.astype(dtype)), eof._given.labels, "eofs")

    def pcs(self, scaling: int = 0) -> Any:
        """Return the time functions (n_samples, k) of the samples of the fit; scaling as in `EOF.pcs`."""
        return self._turned(self.eof.pcs(), scaling)

    def project(self, X: Any, *, key: str | None = None) -> Any:
        """Return the scores (n_samples, k) of samples; see `EOF.project`."""
        return self._turned(self.eof.project(X, key=key), 0)

    def _turned(self, pcs: Any, scaling: int) -> Any:
        k = len(self.explained_variance_)
        root = np.sqrt(self.eof.explained_variance_[:k])
        # Of loadings L R the time functions of variance 1 are those of L times the inverse of R^T.
        turn = np.linalg.inv(self.rotation_).T / root[:, None]
        turn = turn * np.sqrt(self.explained_variance_) * self._scale(scaling)
        values = (pcs.data if is_labelled(pcs) else pcs)[:, :k] @ turn.astype(pcs.dtype)
        return pcs.isel({MODE: slice(k)}).copy(data=values) if is_labelled(pcs) else values

    def _scale(self, scaling: int) -> Array:
        return scale_of(self.explained_variance_, scaling)


def rotated(eof: Any, method: str, k: int, kaiser: bool, power: int) -> RotatedEOF:
    """Rotate the first k modes of a fitted `EOF`.

    Parameters
    ----------
    method : {"varimax", "promax"}
        "varimax" keeps the time functions uncorrelated (Kaiser 1958). "promax" goes on from there to oblique modes
        (Hendrickson & White 1964; Richman 1986).
    k : int
        2 or more.
    kaiser : bool
        Whether each place counts alike, its loadings divided by the root of their squares' sum (Kaiser 1958).
    power : int
        Of "promax": to what the loadings are raised; 1 changes nothing.

    Returns
    -------
    RotatedEOF
        Costs O(n_places k^2) for each of some tens of turns, and memory for as many loadings in float64, four times.

    Raises
    ------
    DataError
        For another method, fewer than 2 modes, or one without variance.
    """
    if method not in METHODS:
        raise DataError(f"method is {method!r}: choose one of {', '.join(METHODS)}")
    variances, power = eof.explained_variance_[:k], whole_number(power, "power", 1)
    if len(variances) < k or k < 2:
        raise DataError(f"{k} modes are to be rotated and there are {len(variances)}: give 2 to that many")
    if not variances[-1] > 0:
        raise DataError(f"mode {k} has no variance, and so no loadings: rotate fewer")
    loadings = eof.model_.components_[:k].T.astype(np.float64) * np.sqrt(variances)
    turn = varimax(loadings, kaiser=kaiser)
    found = loadings @ turn
    correlation = np.eye(k)
    if method == "promax" and power > 1:
        oblique = promax(found, power, kaiser=kaiser)
        turn = turn @ oblique
        # Places without loadings have none after it.
        found = loadings @ turn
        back = np.linalg.inv(oblique)
        correlation = back @ back.T
    squares = (found**2).sum(axis=0)
    order = np.argsort(squares)[::-1]
    signs = np.sign(found[np.abs(found).argmax(axis=0), np.arange(k)])
    turn, found = (turn * signs)[:, order], (found * signs)[:, order]
    correlation = (correlation * np.outer(signs, signs))[np.ix_(order, order)]
    share = squares[order] / eof.total_variance_
    return RotatedEOF(eof, found, turn, correlation, squares[order], share)


def varimax(loadings: Array, *, kaiser: bool = True) -> Array:
    """Return the orthogonal matrix (k, k) that makes squares of loadings (d, k) vary most (Kaiser 1958).

    By the singular value decomposition of the criterion's gradient (Sherin 1966), until that grows by less than 1e-8 of
    itself.
    """
    x = _alike(loadings) if kaiser else loadings
    before = 0.0
    turn: Array = np.eye(x.shape[1])
    for _ in range(_MOST_TURNS):
        y = x @ turn
        left, values, right = np.linalg.svd(x.T @ (y**3 - y * ((y**2).sum(axis=0) / len(x))))
        turn, now = left @ right, float(values.sum())
        if abs(now - before) <= _TOLERANCE * now:
            return turn
        before = now
    warnings.warn(
        f"varimax still turns after {_MOST_TURNS} steps: rotate fewer modes", ConvergenceWarning, stacklevel=4
    )
    return turn


def promax(loadings: Array, power: int, *, kaiser: bool = True) -> Array:
    """Return the matrix (k, k) that takes loadings (d, k) nearest to their powers (Hendrickson & White 1964)."""
    x = _alike(loadings) if kaiser else loadings
    target = x / np.abs(x).max(axis=0)
    turn = np.linalg.lstsq(x, target * np.abs(target) ** (power - 1), rcond=None)[0]
    # Time functions of variance 1.
    found: Array = turn * np.sqrt(np.diagonal(np.linalg.inv(turn.T @ turn)))
    return found


def _alike(loadings: Array) -> Array:
    """Return loadings whose squares sum to 1 at each place; where all are 0 they stay so."""
    lengths = np.sqrt(np.einsum("ij,ij->i", loadings, loadings))[:, None]
    alike: Array = np.divide(loadings, lengths, out=np.zeros_like(loadings), where=lengths > 0)
    return alike
