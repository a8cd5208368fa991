"""Products of a basis in memory, and its turns, some columns at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpca.kernels import linalg
from dpca.kernels.namespace import beside, dtype_of, namespace, to_numpy
from dpca.kernels.types import Array
from dpca.rules.nystrom import blocks


def length(vector: Array) -> float:
    """Return the Euclidean norm of a vector."""
    return math.sqrt(float(namespace(vector).matmul(vector, vector)))


def products(a: Array, b: Array, fill: Callable[[slice], None] | None = None) -> Array:
    """Return a @ b.T, added up in float64, as numpy's; ``fill`` is called before columns are read."""
    xp = namespace(a)
    total = beside(np.zeros((a.shape[0], b.shape[0])), a)
    for columns in blocks(a.shape[1]):
        if fill:
            fill(columns)
        # Of a matrix with itself numpy computes one triangle (SYRK).
        total += linalg.workspace_product("product", a[:, columns], xp.matrix_transpose(b[:, columns]))
    return to_numpy(total)


def change_of(turn: Array, rank: int) -> Array:
    """Return turn - I for a turn (kept, rank + n) of ``rank`` rows and n others; the turn is used up.

    Its rows have the signs that leave each row of the basis nearest to what it was.
    """
    own = np.arange(min(len(turn), rank))
    turn[: len(own)] *= np.where(turn[own, own] < 0, -1.0, 1.0)[:, None]
    turn[own, own] -= 1
    return turn


def rotate(basis: Array, change: Array, rows: Array) -> None:
    """Add change @ [leading rows of the basis; rows] to the basis, and write zeros below; see `change_of`.

    Only the difference is multiplied: the less a step changes, the less it rounds, however many steps there are.
    """
    change = beside(np.ascontiguousarray(change, dtype_of(basis)), basis)
    kept, rank = change.shape[0], change.shape[1] - rows.shape[0]
    for columns in blocks(basis.shape[1]):
        part = basis[:, columns]
        added = linalg.workspace_product("from basis", change[:, :rank], part[:rank, :])
        added += linalg.workspace_product("from rows", change[:, rank:], rows[:, columns])
        part[:kept, :] += added
        part[kept:, :] = 0


def complete(rows: Array, i: int) -> None:
    """Make row ``i`` a unit vector orthogonal to those before it, from the attribute that they represent least."""
    xp, above = namespace(rows), rows[:i, :]
    j = int(xp.argmin(linalg.column_squares(above))) if i else 0
    row = rows[i, :]
    row[...] = 0
    row[j] = 1
    for _ in range(2):
        row -= xp.matmul(xp.matmul(above, row), above)
        row /= math.sqrt(float(xp.matmul(row, row)))
