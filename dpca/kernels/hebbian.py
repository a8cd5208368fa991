"""Compiled steps of the kernel Hebbian algorithm. All arrays are float64; symbols as in `dpca.rules.kernel.kha`."""

from __future__ import annotations

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.kernels.compiled import compiled


@compiled
def add_below(rows: Array, y: Array, weights: Array, new: Array) -> None:
    """Add weights_i (new - sum_(j <= i) y_j row_j) to row i of ``rows`` (r, c).

    With weights g y this is diag(g) (y new^T - lt(y y^T) rows). lt(A) is the lower triangle of A with its diagonal.
    """
    left = new.copy()
    for i in range(len(rows)):
        weight, share = weights[i], y[i]
        for c in range(len(left)):
            left[c] -= share * rows[i, c]
            rows[i, c] += weight * left[c]


@compiled
def add_beside(rows: Array, y: Array, weights: Array) -> None:
    """Apply `add_below` to the columns of a matrix. The last of its r + 1 columns is ``new``."""
    for i in range(len(rows)):
        left = rows[i, len(y)]
        for c in range(len(y)):
            left -= y[c] * rows[i, c]
            rows[i, c] += weights[c] * left


@compiled
def derive_below(a: Array, b: Array, y: Array, z: Array, head: Array, tail: Array, decay: float, new: Array) -> None:
    """Update B (r, c) by one step (Günter, Schraudolph & Vishwanathan 2007, equation 37).

    ``y`` is A times the kernels k of the sample, ``z`` is B times k.
    """
    left, past = new.copy(), np.zeros(len(new))
    for i in range(len(a)):
        for c in range(len(left)):
            left[c] -= y[i] * a[i, c]
            past[c] -= y[i] * b[i, c] + z[i] * a[i, c]
            b[i, c] = decay * b[i, c] + head[i] * left[c] + tail[i] * past[c]
