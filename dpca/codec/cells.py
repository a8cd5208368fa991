"""Encodes cells as integers: scores of a few components each, quantized by one step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.codec.dead_zone import USUAL, DeadZone
from dpca.codec.interpolation import Interpolation
from dpca.codec.noise import NoiseSteps
from dpca.codec.quantize import quantize, to_integers
from dpca.codec.slabs import Part, slabs_of, unfiltered, whole_of
from dpca.codec.spectra import alike, lengths_of, stacked, to_spectrum
from dpca.codec.waves import from_waves, stored, to_waves
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.kernels.pixels import Pixels, to_pixels
from dpca.partition.cells import CellGrid

# Rows of scores that are quantized together: they stay in the cache of one core.
_ROWS = 512
# Rows with a smaller pivot, relative to the largest one, depend on others.
_DEPENDENT = 1e-3


@dataclass(frozen=True, eq=False)
class Components:
    """Components of cells. Several cells may share them.

    Parameters
    ----------
    grid : CellGrid
        The cells. Those of a `LappedGrid` are cells of the filtered sample.
    mean : array (*sample_shape,)
        Mean of the filtered samples.
    group : array (n_cells,) of integers
        Group of each cell: the cells of a group share their components.
    rows : sequence of array (rank, n_features)
        Components of every group, orthonormal or nearly so.
    """

    grid: CellGrid
    mean: Array
    group: Array
    rows: Sequence[Array]

    @cached_property
    def offset(self) -> Array:
        """Mean of the samples before the filter, in the dtype of the components."""
        mean: Array = unfiltered(self.grid, self.mean.astype(np.float64)[None])[0]
        return mean.astype(self.rows[0].dtype)

    @cached_property
    def spectra(self) -> list[tuple[Array, Array]]:
        """Groups (m,) of cells of the same shape, and the cosine transforms (m, rank, n_features) of their rows."""
        lengths, found = lengths_of(self.grid, self.group), list[tuple[Array, Array]]()
        for few in alike((len(rows), *both) for rows, both in zip(self.rows, lengths, strict=True)):
            found.append((few, to_spectrum(stacked(self.rows, few), lengths[few[0]])))
        return found

    def split(self, samples: Array) -> Iterator[tuple[slice, Part, Array]]:
        """Yield the range of samples, the cell, and its values (n_features, n) minus their means."""
        return slabs_of(self.grid, whole_of(samples.shape[1:])).split(samples, self.offset)

    def pictured(self, count: int) -> Array:
        """Return the first components of all cells as images (count, *sample_shape); zero if a cell has fewer.

        Components of lapped cells are shown before the inverse filter, which would extend them into neighboring cells.
        """
        shown = np.zeros((count, *self.grid.sample_shape), self.rows[0].dtype)
        for cell, group in enumerate(self.group):
            box = tuple(slice(*ends) for ends in self.grid.box(cell))
            rows = self.rows[group][:count]
            shown[(slice(len(rows)), *box)] = rows.reshape(len(rows), *(part.stop - part.start for part in box))
        return shown

    def scores(self, samples: Array) -> Array:
        """Return the scores (n_cells, largest rank, n) of samples, zero if a cell has fewer components."""
        found = np.zeros((len(self.group), max(map(len, self.rows)), len(samples)), self.rows[0].dtype)
        for few, part, values in self.split(samples):
            rows = self.rows[self.group[part.cell]]
            np.matmul(rows, values, out=found[part.cell, : len(rows), few])
        return found


@dataclass(frozen=True, eq=False)
class CellCodec:
    """Maps samples to integers and back: one row for every retained component of every cell.

    Parameters
    ----------
    components : Components
    step : float
        Quantization step of the scores.
    cell, component : array (n_positions,) of integers
        Cell and component of each row of codes.
    waves : bool
        Whether codes are those of waves; see `dpca.codec.waves`.
    interpolation : Interpolation, optional
        Predicts residuals. By default they are not predicted.
    noise : NoiseSteps, optional
        Units of the residuals, which follow the noise of each attribute. By default they have the unit of the values.
    """

    components: Components
    step: float
    cell: Array
    component: Array
    waves: bool = False
    interpolation: Interpolation | None = None
    noise: NoiseSteps | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Floating-point type of decoded samples."""
        return self.components.rows[0].dtype

    @cached_property
    def rows_of_cell(self) -> list[Array]:
        """Rows of the codes of every cell, ascending."""
        order = np.argsort(self.cell, kind="stable")
        ends = np.searchsorted(self.cell[order], np.arange(1, self.components.grid.n_parts))
        return np.split(order, ends)

    @cached_property
    def _analysis(self) -> list[Array]:
        """Dual bases of the components of each group: their products with samples are the scores.

        Quantized components are no longer orthonormal. Without the dual basis, the large scores of the first components
        would leak into those of the last.
        """
        rows, found = self.components.rows, dict[int, Array]()
        for few in alike(one.shape for one in rows):
            duals = _duals(stacked(rows, few).astype(np.float64)).astype(self.dtype)
            found.update(zip(few.tolist(), duals, strict=True))
        return [found[g] for g in range(len(rows))]

    def encode(self, samples: Array, dtype: DTypeLike, zone: DeadZone = USUAL) -> Array:
        """Return codes (n_positions, n) of samples. For waves, n is rounded up to whole runs.

        Raises
        ------
        OverflowError
            If a code does not fit into the dtype.
        """
        scores = np.empty((len(self.cell), len(samples)), self.dtype)
        for few, part, values in self.components.split(samples):
            at = self.rows_of_cell[part.cell]
            scores[at, few] = self._analysis[self.components.group[part.cell]][self.component[at]] @ values
        if self.waves:
            scores = to_waves(scores)
        codes = np.empty(scores.shape, dtype)
        for few in blocks(len(codes), _ROWS):
            if zone.least is not None:
                scores[few][np.abs(scores[few]) < (zone.least[few, None] * self.step).astype(self.dtype)] = 0
            codes[few] = to_integers(quantize(scores[few], self.step, zone.rounding), dtype)
        return codes

    def of_samples(self, codes: Array) -> Array:
        """Convert codes (n_positions, n) to codes of samples for `decode`. Codes of waves must cover whole runs."""
        return from_waves(stored(codes), self.dtype) if self.waves else codes

    def decode(
        self,
        codes: Array,
        box: Region | None = None,
        chosen: Array | None = None,
        pixels: Pixels | None = None,
        out: Array | None = None,
    ) -> Array:
        """Decode samples (n, *lengths of the box).

        Parameters
        ----------
        codes : array (n_positions, n)
            Codes of samples, see `of_samples`.
        box : region of a sample, optional
            Part of the samples to decode. Default: all.
        chosen : array of integers, ascending, optional
            The rows of all codes that are given. Missing rows count as zero; `rows_of` returns the rows that a box
            requires. Default: all.
        pixels : Pixels, optional
            Values are rounded to these. Default: no rounding.
        out : array (n, *lengths of the box), C-ordered, optional
            Output, in the dtype of the pixels. Default: a new array.
        """
        from dpca.kernels.sweeps import add_components

        grid = self.components.grid
        box = whole_of(grid.sample_shape) if box is None else box
        slabs = slabs_of(grid, box)
        if chosen is not None and len(chosen) == len(self.cell):
            chosen = None
        # Cached, because the lookup for all cells takes longer than decoding one sample.
        every = chosen is None and box == whole_of(grid.sample_shape)
        taken = self._part_bases if every else {part.cell: self._part_basis(part, chosen) for part in slabs.parts}

        def fill(few: slice, part: Part, values: Array) -> None:
            where, component, basis = taken[part.cell]
            add_components(codes, few.start, where, component, basis, values)

        offset = self.components.offset[tuple(slice(*ends) for ends in box)]
        shape = (codes.shape[1], *offset.shape)
        if pixels is not None and pixels.are_small:
            made = np.empty(shape, pixels.dtype) if out is None else out
            slabs.join(fill, offset, made, pixels)
            return made
        slabs.join(fill, offset, made := np.empty(shape, self.dtype))
        if pixels is not None:
            made = to_pixels(made, *pixels)
        if out is not None:
            out[...] = made
        return made

    def _part_basis(self, part: Part, chosen: Array | None) -> tuple[Array, Array, Array]:
        """Return the rows of codes of a part, their components, and the scaled basis of the part."""
        at = where = self.rows_of_cell[part.cell]
        if chosen is not None:
            where = np.minimum(np.searchsorted(chosen, at), max(0, len(chosen) - 1))
            given = chosen[where] == at if len(chosen) else np.zeros(len(at), bool)
            at, where = at[given], where[given]
        basis = self._scaled[self.components.group[part.cell]]
        if part.inside is not None:
            lengths = (stop - start for start, stop in self.components.grid.box(part.cell))
            inside = basis.reshape(len(basis), *lengths)[(slice(None), *(slice(*ends) for ends in part.inside))]
            basis = np.ascontiguousarray(inside.reshape(len(basis), math.prod(inside.shape[1:])))
        return where, self.component[at], basis

    @cached_property
    def _part_bases(self) -> dict[int, tuple[Array, Array, Array]]:
        parts = slabs_of(self.components.grid, whole_of(self.components.grid.sample_shape)).parts
        return {part.cell: self._part_basis(part, None) for part in parts}

    @cached_property
    def _scaled(self) -> list[Array]:
        """The components of each group times the step."""
        return [rows * self.dtype.type(self.step) for rows in self.components.rows]

    def rows_of(self, box: Region) -> Array:
        """Return the rows of codes, ascending, that are required to decode a box of a sample."""
        if box == whole_of(self.components.grid.sample_shape):
            return np.arange(len(self.cell))
        parts = slabs_of(self.components.grid, box).parts
        return np.sort(np.concatenate([self.rows_of_cell[part.cell] for part in parts]))


def _duals(rows: Array) -> Array:
    """Return the dual bases (m, k, n_features) of rows, float64: their products with the transposed rows are 1."""
    squares = rows @ rows.swapaxes(1, 2)
    with suppress(np.linalg.LinAlgError):  # not positive definite
        pivots = np.linalg.cholesky(squares).diagonal(axis1=1, axis2=2)
        if (pivots > _DEPENDENT * pivots.max(axis=1, keepdims=True, initial=0)).all():
            duals: Array = np.linalg.inv(squares) @ rows  # the pseudoinverse takes several times longer
            return duals
    duals = np.linalg.pinv(squares, hermitian=True) @ rows
    return duals
