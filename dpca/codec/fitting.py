"""Components of cells that are fitted in memory to a few hundred samples, for trials of cells."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dpca.codec.cells import Components
from dpca.codec.slabs import slabs_of, whole_of
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.linalg import gram_lower, iterates, leading_eigh
from dpca.kernels.algebra.types import Array
from dpca.kernels.algebra.unlocked import eigh, syrk
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid

# Upper limit of the bytes of a row of cells in floating point. If a row has more, fewer samples are fitted.
_ROW_BYTES = 2**27
# Own components to begin with. More are computed if the last one may be needed.
_FIRST_OWN = 16


def shared_components(grid: CellGrid, group: Array, mean: Array, samples: Array, k: int, unit: float) -> Components:
    """Fit at most k components to the cells of each group.

    Parameters
    ----------
    grid : CellGrid
    group : array (n_cells,) of integers
    mean : array (*sample_shape,)
    samples : array (n, *sample_shape)
    k : int
    unit : float
        Factor of values. Directions do not depend on it, but squares may overflow.
    """
    dtype, squares = working_dtype(samples.dtype), dict[int, Array]()
    for _, part, values in slabs_of(grid, whole_of(grid.sample_shape)).split(samples, mean.astype(dtype)):
        total = squares.setdefault(int(group[part.cell]), np.zeros((len(values),) * 2, dtype))
        scaled = values if unit == 1 else values * dtype.type(unit)
        syrk(scaled, total, beta=1.0, rows=True)
    rows = [_eigenpairs(squares[g], k)[1] for g in range(len(squares))]
    return Components(grid, _filtered_mean(grid, mean), group, rows)


def own_components(grid: CellGrid, mean: Array, samples: Array, k: int, unit: float, least: float) -> Components:
    """Fit at most k components to each cell; the other arguments are those of `shared_components`.

    Components with a root mean square of scores below ``least``, times the unit, may be missing.
    """
    dtype, rows = working_dtype(samples.dtype), dict[int, Array]()
    for cell, values in _filtered(grid, samples, mean.astype(dtype)):
        if unit != 1:
            values *= dtype.type(unit)
        rows[cell] = _leading(values, k, least)
    group = np.arange(len(rows))
    return Components(grid, _filtered_mean(grid, mean), group, [rows[cell] for cell in range(len(rows))])


def _filtered_mean(grid: CellGrid, mean: Array) -> Array:
    """Return the mean of filtered samples."""
    if not isinstance(grid, LappedGrid):
        return mean
    found: Array = grid.prefilter.apply(mean[None].copy(), (0,) * mean.ndim)[0]
    return found


def _filtered(grid: CellGrid, samples: Array, mean: Array) -> Iterator[tuple[int, Array]]:
    """Yield each cell and its centered values (n_features, n) in some samples."""
    length, height = grid.cell_shape[0], mean.shape[0]
    few = samples[:: math.ceil(len(samples) * mean.nbytes * length / height / _ROW_BYTES)]
    reach = grid.overlap if isinstance(grid, LappedGrid) else 0
    in_row = math.prod(grid.grid_shape[1:])
    for row, start in enumerate(range(0, height, length)):
        low, high = max(0, start - reach), min(height, start + length + reach)
        found: dict[int, Array] = {}
        box = ((low, high), *((0, n) for n in mean.shape[1:]))
        for some, part, values in slabs_of(grid, box).split(few[:, low:high], mean[low:high]):
            if part.cell // in_row == row:
                if part.cell not in found:
                    found[part.cell] = np.empty((len(values), len(few)), values.dtype)
                found[part.cell][:, some] = values
        yield from found.items()


def _leading(values: Array, k: int, least: float) -> Array:
    """Return the leading left singular vectors (at most k, d) of values (d, n), as rows.

    Vectors whose products with the values have a root mean square below ``least`` may be missing.
    """
    d, n = values.shape
    by_samples = n < d
    square = gram_lower("cells", values) if by_samples else values @ values.T
    most, enough = min(k, len(square)), n * least**2
    count, squares, rows = min(most, _FIRST_OWN), np.full(1, np.inf), square[:0]
    # A few are computed by iterations, without the others.
    while len(rows) < most and squares[-1] > enough and iterates(len(square), count):
        squares, rows = leading_eigh(square.astype(np.float64), count)
        count = min(most, 2 * count)
    if len(rows) < most and squares[-1] > enough:
        squares, rows = _eigenpairs(square, most)
        most = min(most, max(1, int(np.count_nonzero(squares > enough))))
        squares, rows = squares[:most], rows[:most]
    if not by_samples:
        return rows.astype(values.dtype)
    # In single precision, smaller squares cannot be distinguished from zero.
    there = squares > 1e-6 * squares[0]
    there[0] = True
    length = np.sqrt(squares[there, None]).clip(np.finfo(values.dtype).tiny).astype(values.dtype)
    found: Array = (rows[there].astype(values.dtype) @ values.T) / length
    return found


def _eigenpairs(square: Array, k: int) -> tuple[Array, Array]:
    """Return at most k eigenvalues of a matrix, descending and not negative, and eigenvectors as rows, in its dtype.

    All are computed. Only the lower triangle is read; the matrix is overwritten. Single precision suffices for trials.
    """
    values = eigh(square)
    return np.maximum(values[::-1][:k], 0), np.ascontiguousarray(square[::-1][:k])
