"""Blocks of attributes for rules that need all samples, but not all attributes at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.folds.fold_tasks import ResultWriter
from dpca.engine.folds.plan import FoldPlan, PlanError
from dpca.engine.sources.blockwise import BlockwiseSource
from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array
from dpca.models.base.passes import Passes
from dpca.partition.cells import CellGrid
from dpca.partition.whole import Whole
from dpca.rules.covariance.moments import Moments
from dpca.rules.dual.gram import BlockGram, whole_gram
from dpca.storage.remote.memory import usable_bytes

# Largest number of attributes of a block: the sum of the squares of 16 bits stays below 2^63.
_LARGEST_BLOCK = 2**30
# Most times that a chunk is decoded in a pass, if it extends over several blocks.
_MOST_READS = 256
# Time to decode a byte, in times to move one (measured with raw chunks).
_DECODING = 4.0
# A task that reads fewer bytes is not worth another block.
_SHORT_TASK = 64 * 2**20
# Larger arrays take new pages of memory each time: blocks of 244 MB take a third more time (measured). There are not
# many more blocks than workers, since each of them is planned.
_FAST_BLOCK, _MANY_BLOCKS = 32 * 2**20, 1024
# Units of an axis whose chunks are long. Blocks are multiples of them, so that shards can be parts of them.
_UNITS = 64


def attribute_blocks(
    rule: Any,
    passes: Passes,
    *,
    uncut: int = 0,
    writer: ResultWriter | None = None,
    moved: float = 0,
    planned: Callable[[CellGrid], FoldPlan] | None = None,
) -> CellGrid:
    """Return the blocks of attributes of a pass: large ones with all samples, at least one for each worker.

    They are cut at borders of chunks if possible. Large blocks decode each chunk once, but leave memory for short
    batches only: the cheapest ones are chosen.

    Parameters
    ----------
    rule : Rule
    passes : Passes
    uncut : int
        Number of leading axes of a sample that a block contains whole.
    writer : ResultWriter, optional
        As in the pass.
    moved : float
        Bytes that an update moves for each attribute, whatever its number of samples.
    planned : callable (grid) -> FoldPlan, optional
        Plans the pass; by default each block is a part of it.

    Raises
    ------
    PlanError
        If not even the smallest blocks fit into the memory budget.
    """
    source, (n, *lengths), found = passes.source, passes.source.shape, list[tuple[float, CellGrid]]()
    chunks = tuple(source.chunks[1:])
    size = n * math.prod(lengths) * source.dtype.itemsize
    wanted = max(min(passes.run.n_parallel(), size // _SHORT_TASK), min(_MANY_BLOCKS, size // _FAST_BLOCK))
    per_row = moved / source.dtype.itemsize
    refusal: PlanError | None = None
    for grid in cuts(tuple(lengths), chunks, uncut):
        # Times that a chunk is decoded because it extends over several blocks.
        reads = math.prod(math.ceil(c / length) for c, length in zip(chunks, grid.cell_shape, strict=True))
        enough = bool(found) and (reads > 1 or found[-1][1].n_parts >= wanted)
        if reads > _MOST_READS or (enough and reads * _DECODING + per_row / n >= min(found, key=_cost)[0]):
            break
        try:
            rows = (passes.plan(grid, rule, writer) if planned is None else planned(grid)).batch_rows
            found.append((reads * _DECODING + per_row / min(rows, n), grid))
        except PlanError as error:
            refusal = error
    if not found:
        raise refusal or PlanError(f"a block has at most {_LARGEST_BLOCK:,} attributes: give smaller chunks")
    return min([one for one in found if one[1].n_parts >= wanted] or found[-1:], key=_cost)[1]


def gram_blocks(passes: Passes, center: bool, n_components: int) -> CellGrid:
    """Return the blocks of attributes of the pass of `gram_of`.

    Raises
    ------
    PlanError
        If they do not fit into the memory budget, or the Gram matrix and its eigenproblem into that of this process.
    """
    n, room = passes.source.shape[0], usable_bytes()
    need = 8 * n * n + max(4 * n * n, linalg.eigh_bytes(n, n_components))
    if need > room:
        raise PlanError(
            f"the Gram matrix of {n:,} samples and its eigenproblem require {need / 1e6:,.0f} MB, but this process may "
            f"use {room / 1e6:,.0f} MB: use a method with a basis, or increase memory_budget"
        )
    return attribute_blocks(
        BlockGram(n, center), passes, planned=lambda grid: passes.plan(**_gram_pass(passes, grid, center))
    )


def gram_of(passes: Passes, grid: CellGrid, center: bool) -> Array:
    """Return the Gram matrix (n, n) of all samples, in one pass over blocks of attributes.

    It is float64, of centered samples with ``center``, and has only a lower triangle; or integers of any size of
    samples that are not centered, see `float_gram`. A task adds up those of all its blocks.
    """
    return whole_gram(passes.over(**_gram_pass(passes, grid, center)).pop())


def mean_by_blocks(passes: Passes, *, stage: str = "") -> Array:
    """Return the mean (d,), float64, from a pass over blocks of attributes."""
    return moments_by_blocks(passes, stage=stage)["mean"]


def moments_by_blocks(passes: Passes, *, stage: str = "") -> dict[str, Array]:
    """Return the "mean" and "variance" (d,) of `Moments`, float64, from a pass over blocks of attributes."""
    grid, rule = attribute_blocks(Moments(), passes), Moments()
    parts = passes.over(grid, rule, stage=stage)
    names = "mean", "variance"
    return {name: joined(grid, (part[name][None] for part in parts), 1, np.float64).ravel() for name in names}


def _gram_pass(passes: Passes, grid: CellGrid, center: bool) -> dict[str, Any]:
    source = BlockwiseSource(passes.source, grid)
    rule = BlockGram(source.n_samples, center, source.n_rows)
    return {"partition": Whole(source.shape[1:]), "rule": rule, "source": source}


def _cost(pair: tuple[float, CellGrid]) -> float:
    return pair[0]


def cuts(shape: tuple[int, ...], chunks: tuple[int, ...], uncut: int = 0) -> Iterator[CellGrid]:
    """Yield grids of smaller and smaller blocks: of whole chunks, then of equal parts of chunks, cut along one axis.

    The first ``uncut`` axes are not cut.
    """
    cell, axes = list(shape), range(uncut, len(shape))
    while True:
        if math.prod(cell) <= _LARGEST_BLOCK:
            yield CellGrid(shape, tuple(cell))
        in_chunks = [math.ceil(cell[axis] / chunks[axis]) for axis in axes]
        if in_chunks and max(in_chunks) > 1:
            most = int(np.argmax(in_chunks))
            along, fewer = uncut + most, in_chunks[most] - max(1, in_chunks[most] // 3)
            # As many blocks of equal lengths: workers end together.
            all_chunks = math.ceil(shape[along] / chunks[along])
            cell[along] = math.ceil(all_chunks / math.ceil(all_chunks / fewer)) * chunks[along]
        elif (axis := next((axis for axis in axes if cell[axis] > 1), None)) is not None:
            cell[axis] = _shorter(cell[axis], min(chunks[axis], shape[axis]), divides=chunks[axis] < shape[axis])
        else:
            return


def _shorter(length: int, chunk: int, *, divides: bool) -> int:
    """Return the next smaller length of equal parts of a chunk; it ``divides`` the chunk if others follow."""
    unit = 2 ** max(0, (chunk // _UNITS).bit_length() - 1)
    units, parts = math.ceil(chunk / unit), math.ceil(chunk / length)
    while (parts := parts + max(1, parts // 3)) <= units:
        shorter = math.ceil(units / parts) * unit
        if shorter < length and not (divides and chunk % shorter):
            return shorter
    return max(1, length // 2) if length <= unit else unit


def last_axes(grid: CellGrid, uncut: int) -> CellGrid:
    """Return the blocks without their first ``uncut`` axes, in the same order."""
    return CellGrid(grid.sample_shape[uncut:], grid.cell_shape[uncut:])


def joined(grid: CellGrid, parts: Iterable[Array], n_rows: int, dtype: DTypeLike) -> Array:
    """Return rows (n_rows, d) of whole samples from those (n_rows, attributes) of each block."""
    rows = grid.join(((i, part[None]) for i, part in enumerate(parts)), np.empty((n_rows, *grid.sample_shape), dtype))
    return rows.reshape(n_rows, -1)
