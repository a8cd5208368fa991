"""What is kept of every cell for one step: which components, and integers for them, their means and their places."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.codec.cells import Components
from dpca.codec.interpolation import Interpolation
from dpca.codec.rate import least_worth_keeping, rows_at
from dpca.codec.spectra import from_spectrum, length_in_bits, lengths_of
from dpca.kernels.types import Array
from dpca.partition.cells import CellGrid

# Scores are ordered by tiles of so many cells, then by variance: few cells are read without the rest, and scores that
# are stored together are alike. Tiles of 64 cells take 3 % fewer bytes, and four times longer for a cell.
_TILE_CELLS = 16
# Of integers that stand for a mean, at most.
_MEAN_BITS = 30
# What of `Quantized` is among the settings of a store.
_CODING = ("waves", "spectral", "residual_codec", "differences", "interpolated", "level_steps")
_SETTINGS = ("step", "mean_exponent", *_CODING)


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
    # What is far from zero, beside its range, is known as well as 32 bits hold it.
    mean_exponent = min(mean_exponent, _MEAN_BITS - math.frexp(float(np.abs(components.mean).max(initial=0)))[1])
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
