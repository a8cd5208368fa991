"""Modes of two fields, rotated to simple structure: each mode is large at few places of both fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.models.coupled.coupled_fit import FittedField
from dpca.models.coupled.coupling import Coupling
from dpca.models.coupled.results import CoupledResults, oriented
from dpca.models.eof.rotation import check_method, check_modes, rotation_of


@dataclass(eq=False)
class RotatedModes(CoupledResults):
    """Rotated modes of an `MCA` or a `CCA`, with the same methods; see `rotated_modes`.

    Attributes
    ----------
    singular_values_, squared_covariance_fraction_, covariance_fraction_, correlation_ : DataArray (mode,), or array
        As in `MCA`. The singular value of a rotated mode is the product of the lengths of its loadings of both fields
        (Cheng & Dunkerton 1995), descending.
    explained_variance_ratio_ : tuple of two
    rotation_ : array (k, k)
        Loadings times this matrix are the rotated loadings, before they are ordered. Loadings are patterns times the
        roots of their singular values.
    """

    rotation_: Array
    _coupling: Coupling = field(repr=False)
    _fields: tuple[FittedField, FittedField] = field(repr=False)


def rotated_modes(model: Any, method: str, k: int, kaiser: bool, power: int) -> RotatedModes:
    """Rotate the first k modes of a fitted `MCA` or `CCA` (Cheng & Dunkerton 1995).

    The patterns of both fields, times the roots of their singular values, are rotated together. Scores are rotated so
    that their products with the patterns give the same fields.

    Parameters
    ----------
    model : MCA or CCA
    method, kaiser, power
        As in `dpca.models.eof.rotation.rotated`; xeofs uses Kaiser normalization.
    k : int
        2 or more.

    Returns
    -------
    RotatedModes
        Costs O((d_x + d_y) k^2) for each of a few dozen iterations.

    Raises
    ------
    DataError
        If the method is unknown, there are fewer than 2 modes, or a mode has no covariance.
    """
    check_method(method)
    values = model._coupling.singular_values[:k]
    check_modes(values, k, "covariance")
    root = np.sqrt(values)
    loadings = np.concatenate([model._maps(i)[:k].T for i in range(2)]) * root
    turn, _ = rotation_of(loadings, method, kaiser=kaiser, power=power)
    # The lengths of the rotated loadings in coordinates in which the patterns are orthonormal.
    squares = values @ np.abs(turn) ** 2
    order = np.argsort(squares)[::-1]
    lengths, ordered = np.sqrt(squares[order]), turn[:, order]
    back = np.linalg.inv(turn).conj().T[:, order]
    empty = np.zeros((len(model._coupling.singular_values) - k, k))
    weights = np.concatenate([back / root[:, None] * lengths, empty])
    patterns = np.concatenate([ordered * root[:, None] / lengths, empty])
    found = RotatedModes(turn, model._coupling.turned(weights, patterns, squares[order]), model._fields)
    found._coupling = oriented(found)
    return found
