"""Bounds on rounding errors.

The standard model of arithmetic: fl(a op b) = (a op b)(1 + e), |e| <= u, with u = 2^-24 for float32 and u = 2^-53 for
float64 (Higham 2002, equation 2.4). The error of a sum of n products is at most gamma(n) times the sum of their
magnitudes. This holds for any order of additions, fused or not (Higham 2002, equations 3.4 and 3.5). For matrices,
|fl(A B) - A B| <= gamma(n) |A| |B| (equation 3.13). If the Cholesky factorization of A (n, n) succeeds, then A + E is
positive semi-definite with |E| <= gamma(n + 1) / (1 - gamma(n + 1)) trace A (Higham 2002, theorems 10.3 and 10.7; Rump
2006). The symmetric eigensolvers of LAPACK are backward stable: the error of eigenvalues is at most p(n) u |C|, with a
modest polynomial p (Anderson et al. 1999, section 4.7). This module uses p(n) = 10 n.

References: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002. S. M. Rump, Verification
of Positive Definiteness, BIT 46, 2006. E. Anderson et al., LAPACK Users' Guide, 3rd ed., SIAM 1999.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike

_EIGEN = 10


def unit_roundoff(dtype: DTypeLike) -> float:
    """Return u, the relative rounding error of one operation."""
    return float(np.finfo(dtype).eps) / 2


def gamma(n: float, u: float) -> float:
    """Return n u / (1 - n u), the relative error bound of a sum of n products; infinity if n u >= 1."""
    product = n * u
    return product / (1 - product) if product < 1 else math.inf


def eigen_error(n: int, largest: float) -> float:
    """Return a bound on the error of the computed eigenvalues (float64) of a matrix (n, n), from the largest one."""
    return _EIGEN * n * unit_roundoff(np.float64) * largest
