"""Cells as integers: few components of each, quantized like the scores by one step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.codec.dead_zone import USUAL, DeadZone
from dpca.codec.interpolation import Interpolation
from dpca.codec.quantize import quantize, to_integers
from dpca.codec.slabs import Part, slabs_of, unfiltered, whole_of
from dpca.codec.spectra import lengths_of, to_spectrum
from dpca.codec.waves import from_waves, stored, to_waves
from dpca.kernels.pixels import Pixels, to_pixels
from dpca.kernels.types import Array, Region
from dpca.partition.cells import CellGrid

# Rows of scores that become codes at once: they stay in a core's own cache.
_ROWS = 512


@dataclass(frozen=True, eq=False)
class Components:
    """Components of cells, which several cells may share.

    Parameters
    ----------
    grid : CellGrid
        The cells; of the filtered sample if it is a `LappedGrid`.
    mean : array (*sample_shape,)
        Of the filtered samples.
    group : array (n_cells,) of integers
        Which components each cell has.
    rows : sequence of array (rank, n_features)
        Components of every group, orthonormal or nearly so.
    """

    grid: CellGrid
    mean: Array
    group: Array
    rows: Sequence[Array]

    @cached_property
    def offset(self) -> Array:
        """What the mean is of samples that are not filtered, in the type of the components."""
        mean: Array = unfiltered(self.grid, self.mean.astype(np.float64)[None])[0]
        return mean.astype(self.rows[0].dtype)

    @cached_property
    def spectra(self) -> list[Array]:
        """The rows as cosines; see `dpca.codec.spectra`."""
        return [to_spectrum(*both) for both in zip(self.rows, lengths_of(self.grid, self.group), strict=True)]

    def split(self, samples: Array) -> Iterator[tuple[slice, Part, Array]]:
        """Yield which samples, which cell, and its values (n_features, n) minus their means."""
        return slabs_of(self.grid, whole_of(samples.shape[1:])).split(samples, self.offset)

    def pictured(self, count: int) -> Array:
        """Return the first components of every cell in place (count, *sample_shape); zero where a cell has fewer.

        Those of lapped cells are of filtered samples: as samples they would reach into their neighbors.
        """
        shown = np.zeros((count, *self.grid.sample_shape), self.rows[0].dtype)
        for cell, group in enumerate(self.group):
            box = tuple(slice(*ends) for ends in self.grid.box(cell))
            rows = self.rows[group][:count]
            shown[(slice(len(rows)), *box)] = rows.reshape(len(rows), *(part.stop - part.start for part in box))
        return shown

    def scores(self, samples: Array) -> Array:
        """Return the scores (n_cells, most components, n) of samples, zero where a cell has no such component."""
        found = np.zeros((len(self.group), max(map(len, self.rows)), len(samples)), self.rows[0].dtype)
        for few, part, values in self.split(samples):
            rows = self.rows[self.group[part.cell]]
            np.matmul(rows, values, out=found[part.cell, : len(rows), few])
        return found


@dataclass(frozen=True, eq=False)
class CellCodec:
    """Maps samples to integers, one row for every kept component of every cell, and back.

    Parameters
    ----------
    components : Components
    step : float
        Of scores.
    cell, component : array (n_positions,) of integers
        What each row of codes is the score of.
    waves : bool
        Whether codes are those of waves; see `dpca.codec.waves`.
    interpolation : Interpolation, optional
        What residuals are predicted by, if they are.
    """

    components: Components
    step: float
    cell: Array
    component: Array
    waves: bool = False
    interpolation: Interpolation | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Floating-point type of decoded samples."""
        return self.components.rows[0].dtype

    @cached_property
    def _of_cell(self) -> list[Array]:
        """Rows of codes of every cell, ascending."""
        order = np.argsort(self.cell, kind="stable")
        ends = np.searchsorted(self.cell[order], np.arange(1, self.components.grid.n_partitions))
        return np.split(order, ends)

    @cached_property
    def _analysis(self) -> list[Array]:
        """What samples are multiplied with to find the scores of each group's components.

        These are hardly orthonormal any more: without their dual, the large scores of the first would leak into those
        of the last.
        """
        wide = [rows.astype(np.float64) for rows in self.components.rows]
        return [(np.linalg.pinv(rows @ rows.T, hermitian=True) @ rows).astype(self.dtype) for rows in wide]

    def encode(self, samples: Array, dtype: DTypeLike, zone: DeadZone = USUAL) -> Array:
        """Return codes (n_positions, n) of samples.

        Those of waves are of whole runs: there are as many of them as the runs have samples.

        Raises
        ------
        OverflowError
            If the type does not hold one of them.
        """
        scores = np.empty((len(self.cell), len(samples)), self.dtype)
        for few, part, values in self.components.split(samples):
            at = self._of_cell[part.cell]
            scores[at, few] = self._analysis[self.components.group[part.cell]][self.component[at]] @ values
        if self.waves:
            scores = to_waves(scores)
        codes = np.empty(scores.shape, dtype)
        for start in range(0, len(codes), _ROWS):
            few = slice(start, start + _ROWS)
            if zone.least is not None:
                scores[few][np.abs(scores[few]) < (zone.least[few, None] * self.step).astype(self.dtype)] = 0
            codes[few] = to_integers(quantize(scores[few], self.step, zone.rounding), dtype)
        return codes

    def of_samples(self, codes: Array) -> Array:
        """Return codes (n_positions, n), of whole runs if of waves, as those of samples, which `decode` takes."""
        return from_waves(stored(codes), self.dtype) if self.waves else codes

    def decode(
        self,
        codes: Array,
        box: Region | None = None,
        chosen: Array | None = None,
        pixels: Pixels | None = None,
        out: Array | None = None,
    ) -> Array:
        """Return the samples (n, *lengths of the box) that codes stand for.

        Parameters
        ----------
        codes : array (n_positions, n)
            Of samples.
        box : region of a sample, optional
            Decode only this; default all.
        chosen : array of integers, ascending, optional
            Which rows of all codes those given are: at least what `rows_of` names that are to be used. Rows that are
            not given count as zero. Default all.
        pixels : Pixels, optional
            What values are rounded to; default none, but floating point.
        out : array (n, *lengths of the box), C-ordered, optional
            Where they go, of the type of the pixels; default a new array.
        """
        from dpca.kernels.sweeps import add_components

        grid = self.components.grid
        box = whole_of(grid.sample_shape) if box is None else box
        slabs = slabs_of(grid, box)
        if chosen is not None and len(chosen) == len(self.cell):
            chosen = None
        # To look all of them up takes longer than to decode one sample.
        every = chosen is None and box == whole_of(grid.sample_shape)
        taken = self._all_taken if every else {part.cell: self._taken(part, chosen) for part in slabs.parts}

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

    def _taken(self, part: Part, chosen: Array | None) -> tuple[Array, Array, Array]:
        """Return what a part is decoded from: which rows of the codes, of which components, and these."""
        at = where = self._of_cell[part.cell]
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
    def _all_taken(self) -> dict[int, tuple[Array, Array, Array]]:
        parts = slabs_of(self.components.grid, whole_of(self.components.grid.sample_shape)).parts
        return {part.cell: self._taken(part, None) for part in parts}

    @cached_property
    def _scaled(self) -> list[Array]:
        """The components of each group times the step."""
        return [rows * self.dtype.type(self.step) for rows in self.components.rows]

    def rows_of(self, box: Region) -> Array:
        """Return the rows of codes that a box of a sample is decoded from, ascending."""
        if box == whole_of(self.components.grid.sample_shape):
            return np.arange(len(self.cell))
        parts = slabs_of(self.components.grid, box).parts
        return np.sort(np.concatenate([self._of_cell[part.cell] for part in parts]))
