"""Blocks of attributes for rules that need all samples, but not all attributes at once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.folds.plan import PlanError
from dpca.kernels.algebra.types import Array
from dpca.models.base.passes import Passes
from dpca.partition.cells import CellGrid

# Largest number of blocks. Each block may require a read of all data.
_MOST_BLOCKS = 256
# Largest number of attributes of a block: the sum of the squares of 16 bits stays below 2^63.
_LARGEST_BLOCK = 2**30


def halved(cell: tuple[int, ...], chunks: tuple[int, ...], uncut: int = 0) -> tuple[int, ...]:
    """Return the shape of about half of a block, cut at a border of chunks if possible.

    The axis with the most chunks is cut, else the longest one; the first ``uncut`` axes are not. A block that cannot be
    cut is returned unchanged.
    """
    in_chunks = [math.ceil(length / chunk) for length, chunk in zip(cell, chunks, strict=True)]
    sizes = in_chunks if max(in_chunks[uncut:]) > 1 else list(cell)
    longest = uncut + int(np.argmax(sizes[uncut:]))
    step = chunks[longest] if in_chunks[longest] > 1 else 1
    shorter = math.ceil(math.ceil(cell[longest] / step) / 2) * step
    return (*cell[:longest], min(shorter, cell[longest]), *cell[longest + 1 :])


def attribute_blocks(rule: Any, passes: Passes, *, uncut: int = 0) -> CellGrid:
    """Return the fewest blocks of attributes with which a pass of a rule fits into the memory budget.

    Parameters
    ----------
    rule : Rule
    passes : Passes
    uncut : int
        Number of leading axes of a sample that a block contains whole.

    Raises
    ------
    PlanError
        If not even the smallest blocks fit.
    """
    shape, chunks = tuple(passes.source.shape[1:]), tuple(passes.source.chunks[1:])
    cell = shape
    while True:
        grid, smaller = CellGrid(shape, cell), halved(cell, chunks, uncut)
        try:
            if math.prod(cell) > _LARGEST_BLOCK:
                raise PlanError(f"a block has at most {_LARGEST_BLOCK:,} attributes")
            passes.plan(grid, rule)
            return grid
        except PlanError:
            if smaller == cell or grid.n_parts > _MOST_BLOCKS:
                raise
        cell = smaller


def last_axes(grid: CellGrid, uncut: int) -> CellGrid:
    """Return the blocks without their first ``uncut`` axes, in the same order."""
    return CellGrid(grid.sample_shape[uncut:], grid.cell_shape[uncut:])


def joined(grid: CellGrid, parts: Iterable[Array], n_rows: int, dtype: DTypeLike) -> Array:
    """Return rows (n_rows, d) of whole samples from those (n_rows, attributes) of each block."""
    rows = grid.join(((i, part[None]) for i, part in enumerate(parts)), np.empty((n_rows, *grid.sample_shape), dtype))
    return rows.reshape(n_rows, -1)
