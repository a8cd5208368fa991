"""Compiled loops over many small symmetric matrices, given by their upper triangles.

Import this module only in functions that need it; see `dpca.kernels.compiled`.
"""

from __future__ import annotations

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.kernels.compiled import compiled


@compiled
def solve_and_invert(triangles: Array, least: Array, vectors: Array) -> None:
    """Replace positive semi-definite matrices by their inverses, and vectors by the products with these.

    By the sweep operator (Beaton 1964; Goodnight 1979), for all matrices at once: the processor computes several in
    each instruction.

    Parameters
    ----------
    triangles : array (k (k + 1) / 2, n), float64
        The upper triangles of n matrices, row by row.
    least : array (k,), float64
        Lower bounds on the pivots, positive.
    vectors : array (k, n), float64
    """
    k, n = vectors.shape
    scaled, inverse, place, last = np.empty((k, n)), np.empty(n), np.empty((k, k), np.int64), 0
    for i in range(k):
        for j in range(i, k):
            place[i, j] = place[j, i] = last
            last += 1
    for p in range(k):
        pivot = triangles[place[p, p]]
        for s in range(n):
            inverse[s] = 1 / max(pivot[s], least[p])
        for j in range(k):
            values, row = triangles[place[p, j]], scaled[j]
            for s in range(n):
                row[s] = values[s] * inverse[s]
        for i in range(k):
            values = triangles[place[p, i]]
            for j in range(i, k):
                if i != p and j != p:
                    rest, row = triangles[place[i, j]], scaled[j]
                    for s in range(n):
                        rest[s] -= values[s] * row[s]
        for i in range(k):
            values, row = triangles[place[p, i]], scaled[i]
            for s in range(n):
                values[s] = row[s]
        for s in range(n):
            pivot[s] = -inverse[s]
    for m in range(len(triangles)):
        for s in range(n):
            triangles[m, s] = -triangles[m, s]
    for i in range(k):
        for s in range(n):
            scaled[i, s], vectors[i, s] = vectors[i, s], 0
    for i in range(k):
        for j in range(k):
            total, values, row = vectors[i], triangles[place[i, j]], scaled[j]
            for s in range(n):
                total[s] += values[s] * row[s]
