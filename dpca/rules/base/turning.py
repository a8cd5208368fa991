"""Products and rotations of a basis in memory, a block of columns at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.namespace import beside, cast, dtype_of, namespace, to_numpy
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.state import ALL, AttributeBlocks
from dpca.rules.incremental.nystrom import COLUMNS


def length(vector: Array, over: AttributeBlocks = ALL) -> float:
    """Return the Euclidean norm of a vector of attributes."""
    return joint_length([math.sqrt(float(namespace(vector).matmul(vector, vector)))], over)


def joint_length(lengths: list[float], over: AttributeBlocks) -> float:
    """Return the length of a vector of attributes from those of its parts in this block."""
    return math.hypot(*over.gathered(math.hypot(*lengths)))


def products(a: Array, b: Array, fill: Callable[[slice], None] | None = None, *, over: AttributeBlocks = ALL) -> Array:
    """Return a @ b.T as a numpy array, summed in float64. ``fill`` is called before columns are read."""
    xp = namespace(a)
    total = beside(np.zeros((a.shape[0], b.shape[0])), a)
    for columns in blocks(a.shape[1], COLUMNS):
        if fill:
            fill(columns)
        # For the product of a matrix with itself, numpy computes only one triangle (SYRK).
        total += linalg.workspace_product("product", a[:, columns], xp.matrix_transpose(b[:, columns]))
    return over.summed(to_numpy(total))[0]


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


def complete(rows: Array, i: int, over: AttributeBlocks = ALL) -> None:
    """Set row ``i`` to a unit vector orthogonal to all previous rows, from the attribute that they represent least."""
    xp, above, row = namespace(rows), rows[:i, :], rows[i, :]
    squares = linalg.column_squares(above)
    j = int(xp.argmin(squares)) if i else 0
    least = over.gathered(float(squares[j]) if i else 0.0)
    row[...] = 0
    if least.index(min(least)) == over.index:
        row[j] = 1
    for _ in range(2):
        (along,) = over.summed(to_numpy(xp.matmul(above, row)))
        row -= xp.matmul(beside(along, row), above)
        row /= length(row, over)


def fix_signs(rows: Array, over: AttributeBlocks = ALL) -> None:
    """Make the entry of largest magnitude of each row positive, in place."""
    peaks = np.stack(over.gathered(to_numpy(linalg.peaks(rows))[:, 0]))
    largest = np.take_along_axis(peaks, np.abs(peaks).argmax(axis=0)[None], axis=0)[0]
    rows *= cast(beside(np.where(largest < 0, -1.0, 1.0)[:, None], rows), dtype_of(rows))
