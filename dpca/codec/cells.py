"""Cells as integers: few components of each, quantized like the scores by one step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.codec.interpolation import Interpolation
from dpca.codec.quantize import quantize, to_integers
from dpca.codec.rate import least_worth_keeping, rows_at
from dpca.codec.slabs import Part, slabs_of, whole_of
from dpca.codec.spectra import from_spectrum, length_in_bits, lengths_of, to_spectrum
from dpca.codec.waves import from_waves, to_waves
from dpca.kernels.pixels import Pixels, to_pixels
from dpca.kernels.types import Array, Region
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid

# Scores are ordered by tiles of so many cells, then by variance: few cells are read without the rest, and scores that
# are stored together are alike. Tiles of 64 cells take 3 % fewer bytes, and four times longer for a cell.
_TILE_CELLS = 16
# Rows of scores that become codes at once: they stay in a core's own cache.
_ROWS = 512
# What of `Quantized` is among the settings of a store.
_CODING = ("waves", "spectral", "residual_codec", "differences", "interpolated", "level_steps")
_SETTINGS = ("step", "mean_exponent", *_CODING)


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
        mean = self.mean.astype(np.float64)
        if isinstance(self.grid, LappedGrid):
            mean = self.grid.prefilter.invert(mean[None].copy(), (0,) * mean.ndim)[0]
        return mean.astype(self.rows[0].dtype)

    @cached_property
    def spectra(self) -> list[Array]:
        """The rows as cosines; see `dpca.codec.spectra`."""
        return [to_spectrum(*both) for both in zip(self.rows, lengths_of(self.grid, self.group), strict=True)]

    def split(self, samples: Array) -> Iterator[tuple[slice, Part, Array]]:
        """Yield which samples, which cell, and its values (n_features, n) minus their means."""
        return slabs_of(self.grid, whole_of(samples.shape[1:])).split(samples, self.offset)

    def scores(self, samples: Array) -> Array:
        """Return the scores (n_cells, most components, n) of samples, zero where a cell has no such component."""
        found = np.zeros((len(self.group), max(map(len, self.rows)), len(samples)), self.rows[0].dtype)
        for few, part, values in self.split(samples):
            rows = self.rows[self.group[part.cell]]
            np.matmul(rows, values, out=found[part.cell, : len(rows), few])
        return found


@dataclass(frozen=True, eq=False)
class Quantized:
    """Integers that stand for components and for what every cell keeps of them; see ``storage/FORMAT.md``.

    Attributes
    ----------
    step : float
        Of scores.
    cell, component : array (n_positions,) of integers
        What each row of codes is the score of.
    group : array (n_cells,) of integers
        Which components each cell has.
    rank : array (n_groups,) of integers
        Components of each group.
    exponent : array (sum of ranks,) of integers
        Values of a component are integers times 2 to the power of minus this.
    basis : array (values of all components,) of integers
    spectral : bool
        Whether values of components are those of cosines; see `dpca.codec.spectra`.
    mean : array (*sample_shape,) of integers
    mean_exponent : int
    waves : bool
        Whether codes are those of waves; see `dpca.codec.waves`.
    differences : tuple of int
        Axes of the stack along which residuals are stored as differences.
    residual_codec : {"packed", "shuffled", "bzip2"}
        What packs them; see `dpca.storage.arrays.create_array`.
    interpolated : tuple of int
        Axes of the stack along which residuals are predicted, see `dpca.codec.interpolation`, none if they are not.
    level_steps : tuple of float
    weights : array of integers
        Of predictions.
    least : array (n_positions,), optional
        Smallest scores, in steps, that are not made 0: for encoding only, no part of a store.
    """

    step: float
    cell: Array
    component: Array
    group: Array
    rank: Array
    exponent: Array
    basis: Array
    mean: Array
    mean_exponent: int
    waves: bool = False
    spectral: bool = False
    differences: tuple[int, ...] = ()
    residual_codec: str = "packed"
    interpolated: tuple[int, ...] = ()
    level_steps: tuple[float, ...] = ()
    weights: Array = field(default_factory=lambda: np.zeros((0, 0, 0, 2), np.int32))
    least: Array | None = None

    @classmethod
    def of(cls, arrays: Mapping[str, Array], settings: Mapping[str, Any]) -> Quantized:
        """Return what arrays, and `settings` among others, were taken from."""
        return cls(
            step=float(settings["step"]),
            mean_exponent=int(settings["mean_exponent"]),
            waves=bool(settings["waves"]),
            # Stores that do not state it are older.
            spectral=bool(settings.get("spectral", False)),
            differences=tuple(map(int, settings["differences"])),
            residual_codec=str(settings["residual_codec"]),
            interpolated=tuple(map(int, settings.get("interpolated", ()))),
            level_steps=tuple(map(float, settings.get("level_steps", ()))),
            **arrays,
        )

    @property
    def arrays(self) -> dict[str, Array]:
        """All that is not among the settings."""
        return {name: np.asarray(value) for name, value in vars(self).items() if name not in _SETTINGS}

    @property
    def settings(self) -> dict[str, Any]:
        """What a store states, JSON-able."""
        return {name: getattr(self, name) for name in _SETTINGS}

    @property
    def interpolation(self) -> Interpolation | None:
        """What residuals are predicted by."""
        return Interpolation(self.interpolated, self.level_steps, self.weights) if self.interpolated else None

    def without_components(self) -> Quantized:
        """Return what leaves samples as they are to the residual."""
        none = np.zeros(0, np.int64)
        return replace(
            self, cell=none, component=none, rank=np.zeros_like(self.rank), exponent=none, basis=none,
            mean=np.zeros_like(self.mean), waves=False, least=np.zeros(0),
        )  # fmt: skip

    def components(self, grid: CellGrid, dtype: DTypeLike) -> Components:
        """Return what the integers stand for."""
        rows, first, end = [], 0, 0
        for rank, lengths in zip(self.rank.tolist(), lengths_of(grid, self.group), strict=True):
            size = math.prod(lengths)
            start, end = end, end + rank * size
            codes = self.basis[start:end].reshape(rank, size).astype(np.float64)
            found = np.ldexp(codes, -self.exponent[first : first + rank, None].astype(np.int64))
            rows.append((from_spectrum(found, lengths) if self.spectral and rank else found).astype(dtype))
            first += rank
        return Components(grid, np.ldexp(self.mean.astype(np.float64), -self.mean_exponent), self.group, rows)


def quantized(components: Components, scores: Array, step: float, n_samples: int, waves: bool = False) -> Quantized:
    """Choose what is kept of every cell for one step, and quantize components to match.

    A component's own step is such that the error of its values does as much harm as that of its scores: with the square
    root of the sum of its squared scores times the step of its values equal to that of scores, or the nearest power of
    two.

    Parameters
    ----------
    components : Components
        Of which the first ones of every cell may be kept.
    scores : array (n_cells, k, n)
        Of some samples, which stand for all.
    step : float
    n_samples : int
        Number of all samples.
    waves : bool
        Whether scores are those of waves.
    """
    n_cells, k, n = scores.shape
    group, rows = components.group, components.rows
    n_groups, times = len(rows), n_samples / max(1, n)
    measured = rows_at(scores.reshape(n_cells * k, n), step)
    powers = measured.power.reshape(n_cells, k)  # in steps squared
    energy = np.zeros((n_groups, k))
    np.add.at(energy, group, times * powers)
    places = np.bincount(group, minlength=n_groups)
    bits = np.zeros((n_groups, k))
    for g, spectrum in enumerate(components.spectra):
        bits[g, : len(spectrum)] = length_in_bits(spectrum * np.sqrt(energy[g, : len(spectrum), None]))
    shares = (bits / places[:, None])[group]
    kept = measured.worth_keeping(times, shares.ravel()).reshape(n_cells, k)
    grid_shape = components.grid.grid_shape
    edge = max(1, round(_TILE_CELLS ** (1 / max(1, len(grid_shape)))))
    coordinates = np.unravel_index(np.arange(n_cells), grid_shape)
    tile = np.ravel_multi_index([at // edge for at in coordinates], [-(-s // edge) for s in grid_shape])
    cell, component = np.nonzero(kept)
    power = powers[cell, component]
    # Few waves are packed together: it takes many cells to tell how often each integer comes.
    alike = np.floor(np.log2(np.maximum(power, np.finfo(power.dtype).tiny)))
    order = np.lexsort((cell, component, -alike) if waves else (-power, tile[cell]))
    cell, component = cell[order], component[order]
    rank = np.zeros(n_groups, np.int64)
    np.maximum.at(rank, group[cell], component + 1)
    exponents, plain, cosines = list[Array](), list[Array](), list[Array]()
    for g in range(n_groups):
        with np.errstate(divide="ignore"):
            exponent = np.rint(np.log2(energy[g, : rank[g]]) / 2)
        # A component that only other cells keep, or hardly any sample has, still has values.
        exponent = np.where(np.isfinite(exponent), np.clip(exponent, 0, 30), 0).astype(np.int64)
        exponents.append(exponent)
        for codes, values in ((plain, rows[g]), (cosines, components.spectra[g])):
            codes.append(np.rint(np.ldexp(values[: rank[g]].astype(np.float64), exponent[:, None])).ravel())
    basis, spectrum = np.concatenate(plain), np.concatenate(cosines)
    spectral = bool(length_in_bits(spectrum) < length_in_bits(basis))
    mean_exponent = -math.floor(math.log2(step / math.sqrt(n_samples)))
    mean = np.rint(np.ldexp(components.mean, mean_exponent))
    return Quantized(
        step,
        cell,
        component,
        group,
        rank,
        np.concatenate(exponents),
        spectrum if spectral else basis,
        mean,
        mean_exponent,
        waves and bool(len(cell)),
        spectral,
        least=least_worth_keeping(scores[cell, component], step),
    )


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

    def encode(self, samples: Array, dtype: DTypeLike, least: Array | None = None) -> Array:
        """Return codes (n_positions, n) of samples, 0 for scores of fewer steps than the ``least`` (n_positions,).

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
            if least is not None:
                scores[few][np.abs(scores[few]) < (least[few, None] * self.step).astype(self.dtype)] = 0
            codes[few] = to_integers(quantize(scores[few], self.step), dtype)
        return codes

    def of_samples(self, codes: Array) -> Array:
        """Return codes (n_positions, n), of whole runs if of waves, as those of samples, which `decode` takes."""
        return from_waves(codes.astype(self.dtype)) if self.waves else codes

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
