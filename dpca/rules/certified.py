"""The components of a covariance, with the share of the best that they are certain to capture."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels import linalg
from dpca.kernels.bounded_eigh import bounded_eigh
from dpca.kernels.rounding import eigen_error, gamma, unit
from dpca.kernels.types import Array
from dpca.rules import certificate

# Samples of one float32 product, at most; see `dpca.rules.covariance`.
_ROWS = 1024


def error_of(diagonal: Array, total: Array, rounding: float, n: int, dtype: DTypeLike) -> float:
    """Bound the error of the covariance of shifted samples of a working dtype, in the Frobenius norm.

    Parameters
    ----------
    diagonal, total : array (d,)
        Of the sum of their products, and their sum.
    rounding : float
        Sum of squares of what was multiplied, times the rounding error of its type; 0 of 8-bit integers, which are
        multiplied and added up without rounding.
    n : int
        Samples.
    """
    u, exact = unit(dtype), gamma(n + 10, unit(np.float64))
    squares, shifted = rounding / u, float(total @ total) / n
    g = gamma(min(n, _ROWS) + 6, u) if squares else 0.0
    off = g * math.sqrt(squares)
    whole = max(squares, float(diagonal.sum())) + shifted
    return (g * squares + (2 * math.sqrt(shifted) + off) * off + exact * whole) / max(n - 1, 1)


def components(
    covariance: Array, n_components: int | None, n_least: int, error: float, dtype: np.dtype[np.floating]
) -> dict[str, Array]:
    """Return what `CovariancePCA` finds of a covariance (d, d) that is off by ``error``, and ``captured_bound``."""
    d, total = len(covariance), float(np.trace(covariance))
    k = min(n_components or d, d)
    if n_least:
        values, rows, *smallest = linalg.extreme_eigh(covariance, min(k + 1, d), min(n_least, d))
        least = dict(zip(("least_variance", "least_components"), smallest, strict=True))
        lapack = eigen_error(d, float(values[0]))
        beyond = float(values[k]) + lapack if k < d else 0.0
        values, rows, errors = values[:k], rows[:k].copy(), np.full(k, lapack)
    else:
        least = {}
        values, rows, beyond, errors = bounded_eigh(covariance, k, precise=dtype == np.float64)
    # All directions together miss nothing.
    bound = certificate.exact_share(values, beyond, errors + error, dtype) if k < d and total > 0 else 1.0
    return {
        "components": rows,
        "explained_variance": values,
        "total_variance": np.asarray(total),
        "captured_bound": np.asarray(bound),
        **least,
    }
