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


def rotate(basis: Array, turn: Array, rows: Array) -> None:
    """Write turn @ [leading rows of the basis; rows] over the basis, and zeros below.

    Only the difference is multiplied: the less a step changes, the less it rounds, however many steps there are.
    """
    kept, rank = turn.shape[0], turn.shape[1] - rows.shape[0]
    change = np.concatenate([turn[:, :rank] - np.eye(kept, rank), turn[:, rank:]], axis=1)
    turn = beside(np.ascontiguousarray(change, dtype_of(basis)), basis)
    for columns in blocks(basis.shape[1]):
        part = basis[:, columns]
        added = linalg.workspace_product("from basis", turn[:, :rank], part[:rank, :])
        added += linalg.workspace_product("from rows", turn[:, rank:], rows[:, columns])
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
