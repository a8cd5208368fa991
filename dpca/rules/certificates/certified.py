"""The components of a covariance, with a proven lower bound on their captured variance."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.bounded_eigh import bounded_eigh
from dpca.kernels.algebra.rounding import eigen_error, gamma, unit_roundoff
from dpca.kernels.algebra.types import Array
from dpca.rules.certificates import certificate

# Largest number of samples in one float32 product; see `dpca.rules.covariance.covariance`.
_ROWS = 1024


def error_of(diagonal: Array, total: Array, rounding: float, n: int, dtype: DTypeLike) -> float:
    """Bound the error of the covariance of shifted samples of a working dtype, in the Frobenius norm.

    Parameters
    ----------
    diagonal, total : array (d,)
        Diagonal of the sum of products of the samples, and the sum of the samples.
    rounding : float
        Sum of squares of the factors, times the rounding error of their dtype. 0 for integers of 8 and 16 bits,
        because their products and sums are exact.
    n : int
        Number of samples.
    """
    u, exact = unit_roundoff(dtype), gamma(n + 10, unit_roundoff(np.float64))
    squares, shifted = rounding / u, float(total @ total) / n
    g = gamma(min(n, _ROWS) + 6, u) if squares else 0.0
    off = g * math.sqrt(squares)
    whole = max(squares, float(diagonal.sum())) + shifted
    return (g * squares + (2 * math.sqrt(shifted) + off) * off + exact * whole) / max(n - 1, 1)


def components(
    covariance: Array, n_components: int | None, n_least: int, error: float, dtype: np.dtype[np.floating]
) -> dict[str, Array]:
    """Return the results of `CovariancePCA` and ``captured_bound``, for a covariance (d, d) with this ``error``."""
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
    # All d directions together capture everything.
    bound = certificate.exact_share(values, beyond, errors + error, dtype) if k < d and total > 0 else 1.0
    return {
        "components": rows,
        "explained_variance": values,
        "total_variance": np.asarray(total),
        "captured_bound": np.asarray(bound),
        **least,
    }
