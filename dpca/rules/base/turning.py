"""Products and rotations of a basis in memory, a block of columns at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.namespace import beside, dtype_of, namespace, to_numpy
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.incremental.nystrom import COLUMNS


def length(vector: Array) -> float:
    """Return the Euclidean norm of a vector."""
    return math.sqrt(float(namespace(vector).matmul(vector, vector)))


def products(a: Array, b: Array, fill: Callable[[slice], None] | None = None) -> Array:
    """Return a @ b.T as a numpy array, summed in float64. ``fill`` is called before columns are read."""
    xp = namespace(a)
    total = beside(np.zeros((a.shape[0], b.shape[0])), a)
    for columns in blocks(a.shape[1], COLUMNS):
        if fill:
            fill(columns)
        # For the product of a matrix with itself, numpy computes only one triangle (SYRK).
        total += linalg.workspace_product("product", a[:, columns], xp.matrix_transpose(b[:, columns]))
    return to_numpy(total)


def change_of(turn: Array, rank: int) -> Array:
    """Return turn - I for a rotation ``turn`` (n_kept, rank + n) of ``rank`` rows and n others.

    Signs are chosen so that each row of the basis changes least. ``turn`` is overwritten.
    """
    own = np.arange(min(len(turn), rank))
    turn[: len(own)] *= np.where(turn[own, own] < 0, -1.0, 1.0)[:, None]
    turn[own, own] -= 1
    return turn


def rotate(basis: Array, change: Array, rows: Array) -> None:
    """Add change @ [leading rows of the basis; rows] to the basis, and set the rows below to 0; see `change_of`.

    Only the change is multiplied. A small change has small rounding errors, so that they do not add up over many steps.
    """
    change = beside(np.ascontiguousarray(change, dtype_of(basis)), basis)
    kept, rank = change.shape[0], change.shape[1] - rows.shape[0]
    for columns in blocks(basis.shape[1], COLUMNS):
        part = basis[:, columns]
        added = linalg.workspace_product("from basis", change[:, :rank], part[:rank, :])
        added += linalg.workspace_product("from rows", change[:, rank:], rows[:, columns])
        part[:kept, :] += added
        part[kept:, :] = 0


def complete(rows: Array, i: int) -> None:
    """Set row ``i`` to a unit vector orthogonal to all previous rows, from the attribute that they represent least."""
    xp, above = namespace(rows), rows[:i, :]
    j = int(xp.argmin(linalg.column_squares(above))) if i else 0
    row = rows[i, :]
    row[...] = 0
    row[j] = 1
    for _ in range(2):
        row -= xp.matmul(xp.matmul(above, row), above)
        row /= math.sqrt(float(xp.matmul(row, row)))
