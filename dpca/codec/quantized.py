"""Choice of the components of every cell for one step, and their quantization with means and order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from dpca.codec.cells import Components
from dpca.codec.interpolation import Interpolation
from dpca.codec.noise import NoiseSteps
from dpca.codec.rate import least_worth_keeping, rows_at
from dpca.codec.spectra import alike, from_spectrum, length_in_bits, lengths_of, stacked
from dpca.kernels.algebra.types import Array
from dpca.partition.cells import CellGrid

# Scores are ordered by tiles of so many cells, then by variance. A few cells can then be read alone, and neighboring
# scores are similar. Tiles of 64 cells need 3 % fewer bytes, but reading one cell takes four times longer.
_TILE_CELLS = 16
# Largest number of bits of the integers of a mean.
_MEAN_BITS = 30
# Attributes of `Quantized` that are settings of a store.
_CODING = ("waves", "spectral", "residual_codec", "differences", "interpolated", "level_steps")
_SETTINGS = ("step", "mean_exponent", *_CODING)


@dataclass(frozen=True, eq=False)
class Quantized:
    """Quantized components, and the choice of components of every cell; see ``storage/FORMAT.md``.

    Attributes
    ----------
    step : float
        Quantization step of the scores.
    cell, component : array (n_positions,) of integers
        Cell and component of each row of codes.
    group : array (n_cells,) of integers
        Group of each cell: the cells of a group share their components.
    rank : array (n_groups,) of integers
        Number of components of each group.
    exponent : array (sum of ranks,) of integers
        Values of a component are integers times 2^(-exponent).
    basis : array (values of all components,) of integers
    spectral : bool
        Whether components are stored as cosine transforms; see `dpca.codec.spectra`.
    mean : array (*sample_shape,) of integers
    mean_exponent : int
    waves : bool
        Whether codes are those of waves; see `dpca.codec.waves`.
    differences : tuple of int
        Axes of the stack along which residuals are stored as differences.
    residual_codec : {"packed", "shuffled", "bzip2"}
        Compression of the residuals; see `dpca.storage.arrays.arrays.create_array`.
    interpolated : tuple of int
        Axes of the stack along which residuals are predicted, see `dpca.codec.interpolation`; empty if they are not.
    level_steps : tuple of float
    weights : array of integers
        Weights of the predictions.
    noise_steps : array (*sample_shape)
        Steps of the residuals of each attribute; empty if they have one step.
    noise_share : float
        Share of the noise that these are expected to lose, see `dpca.codec.noise`.
    least : array (n_positions,), optional
        Scores below this number of steps become 0. For encoding only; it is not stored.
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
    noise_steps: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    noise_share: float = 0.0
    least: Array | None = None

    @classmethod
    def of(cls, arrays: Mapping[str, Array], settings: Mapping[str, Any]) -> Quantized:
        """Return the object with these `arrays` and `settings`. Other settings are ignored."""
        return cls(
            step=float(settings["step"]),
            mean_exponent=int(settings["mean_exponent"]),
            waves=bool(settings["waves"]),
            # Older stores lack this key.
            spectral=bool(settings.get("spectral", False)),
            differences=tuple(map(int, settings["differences"])),
            residual_codec=str(settings["residual_codec"]),
            interpolated=tuple(map(int, settings.get("interpolated", ()))),
            level_steps=tuple(map(float, settings.get("level_steps", ()))),
            noise_share=float(settings.get("noise_share", 0.0)),
            **arrays,
        )

    @property
    def arrays(self) -> dict[str, Array]:
        """All attributes that are not settings."""
        others = {*_SETTINGS, "noise_share"}
        return {name: np.asarray(value) for name, value in vars(self).items() if name not in others}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of a store, as JSON values."""
        noise = {"noise_share": self.noise_share} if self.noise_share else {}
        return {name: getattr(self, name) for name in _SETTINGS} | noise

    @property
    def interpolation(self) -> Interpolation | None:
        """Prediction of the residuals, if any."""
        return Interpolation(self.interpolated, self.level_steps, self.weights) if self.interpolated else None

    def noise(self, dtype: DTypeLike) -> NoiseSteps | None:
        """Return the steps of the residuals of each attribute, for values of a type, if they have any."""
        whole = np.dtype(dtype).kind != "f"
        return NoiseSteps(self.noise_steps, self.noise_share, whole) if self.noise_share else None

    @property
    def least_noise_step(self) -> float:
        """The smallest of the steps of noise, 1 if there are none."""
        return float(self.noise_steps.min(initial=np.inf)) if self.noise_share else 1.0

    def without_components(self) -> Quantized:
        """Return a copy without components and mean: the residual holds the samples themselves."""
        none = np.zeros(0, np.int64)
        return replace(
            self, cell=none, component=none, rank=np.zeros_like(self.rank), exponent=none, basis=none,
            mean=np.zeros_like(self.mean), waves=False, least=np.zeros(0),
        )  # fmt: skip

    def components(self, grid: CellGrid, dtype: DTypeLike) -> Components:
        """Decode the components."""
        lengths, ranks, found = lengths_of(grid, self.group), self.rank.tolist(), dict[int, Array]()
        sizes = [rank * math.prod(each) for rank, each in zip(ranks, lengths, strict=True)]
        ends, firsts = itertools.accumulate(sizes, initial=0), np.cumsum([0, *ranks])
        basis = [self.basis[start:end] for start, end in itertools.pairwise(ends)]
        for few in alike((rank, *each) for rank, each in zip(ranks, lengths, strict=True)):
            rank = ranks[few[0]]
            codes = stacked(basis, few).astype(np.float64).reshape(len(few), rank, math.prod(lengths[few[0]]))
            exponents = self.exponent[firsts[few, None] + np.arange(rank)].astype(np.int64)
            values = codes * np.ldexp(1.0, -exponents)[..., None]
            values = from_spectrum(values, lengths[few[0]]) if self.spectral and rank else values
            found.update(zip(few.tolist(), values.astype(dtype), strict=True))
        rows = [found[g] for g in range(len(ranks))]
        return Components(grid, np.ldexp(self.mean.astype(np.float64), -self.mean_exponent), self.group, rows)


class KeptRows(NamedTuple):
    """The rows of scores that are worth their bits. Squares are in steps squared.

    Attributes
    ----------
    kept : array (n_cells, k) of bool
    saved, power : array (n_cells, k)
        Of the measured samples, see `dpca.codec.rate.Rows`.
    bits : array (n_cells, k)
        Of all samples, and of the share of a row in its component.
    energy : array (n_groups, k)
        Power of each component in all samples.
    error : array (n_groups, k)
        Squared error of each quantized component, relative to its square.
    """

    kept: Array
    saved: Array
    power: Array
    bits: Array
    energy: Array
    error: Array


def rows_kept(components: Components, scores: Array, step: float, n_samples: int) -> KeptRows:
    """Choose the components of every cell for one step; the arguments are those of `quantized`."""
    n_cells, k, n = scores.shape
    group, n_groups, times = components.group, len(components.rows), n_samples / max(1, n)
    measured = rows_at(scores.reshape(n_cells * k, n), step)
    powers = measured.power.reshape(n_cells, k)
    energy = np.zeros((n_groups, k))
    np.add.at(energy, group, times * powers)
    places = np.bincount(group, minlength=n_groups)
    bits, error = np.zeros((2, n_groups, k))
    for few, spectra in components.spectra:
        some = few, slice(spectra.shape[1])
        power = energy[some]
        codes = spectra * np.sqrt(power[..., None])
        bits[some] = length_in_bits(codes)
        # Small values become 0, and the error of the others is that of rounding.
        lost = np.minimum(np.square(codes), 1 / 12).sum(axis=-1)
        error[some] = np.divide(lost, power, out=np.zeros(power.shape), where=power > 0)
    shares = (bits / places[:, None])[group]
    kept = measured.pays_off(times, shares.ravel()).reshape(n_cells, k)
    saved, spent = measured.saved.reshape(n_cells, k), times * measured.bits.reshape(n_cells, k) + shares
    return KeptRows(kept, saved, powers, spent, energy, error)


def quantized(components: Components, scores: Array, step: float, n_samples: int, waves: bool = False) -> Quantized:
    """Choose the components of every cell for one step, and quantize the components.

    The step of a component is chosen so that errors of its values cost as much as errors of its scores. The norm of its
    scores times the step of its values equals the step of the scores, up to the nearest power of two.

    Parameters
    ----------
    components : Components
        Candidates. Only the first k components of every cell are considered.
    scores : array (n_cells, k, n)
        Scores of a subset of the samples.
    step : float
    n_samples : int
        Number of all samples.
    waves : bool
        Whether scores are those of waves.
    """
    group, rows = components.group, components.rows
    n_cells, n_groups = len(group), len(rows)
    kept, _, powers, _, energy, _ = rows_kept(components, scores, step, n_samples)
    grid_shape = components.grid.grid_shape
    edge = max(1, round(_TILE_CELLS ** (1 / max(1, len(grid_shape)))))
    coordinates = np.unravel_index(np.arange(n_cells), grid_shape)
    tile = np.ravel_multi_index([at // edge for at in coordinates], [-(-s // edge) for s in grid_shape])
    cell, component = np.nonzero(kept)
    power = powers[cell, component]
    # For waves, similar rows of all cells lie together. A chunk has too few waves of one row to estimate frequencies.
    alike = np.floor(np.log2(np.maximum(power, np.finfo(power.dtype).tiny)))
    order = np.lexsort((cell, component, -alike) if waves else (-power, tile[cell]))
    cell, component = cell[order], component[order]
    rank = np.zeros(n_groups, np.int64)
    np.maximum.at(rank, group[cell], component + 1)
    with np.errstate(divide="ignore"):
        exponent = np.rint(np.log2(energy) / 2)
    # A component must keep its values even if its scores have almost no energy.
    exponent = np.where(np.isfinite(exponent), np.clip(exponent, 0, 30), 0).astype(np.int64)
    plain, cosines = dict[int, Array](), dict[int, Array]()
    for few, spectra in components.spectra:
        most = min(spectra.shape[1], rank[few].max())
        for found, values in ((plain, stacked(rows, few)), (cosines, spectra)):
            codes = np.rint(values[:, :most] * np.ldexp(values.dtype.type(1), exponent[few, :most, None]))
            found.update((g, one[: rank[g]].ravel()) for g, one in zip(few.tolist(), codes, strict=True))
    basis, spectrum = (np.concatenate([found[g] for g in range(n_groups)]) for found in (plain, cosines))
    spectral = bool(length_in_bits(spectrum) < length_in_bits(basis))
    mean_exponent = -math.floor(math.log2(step / math.sqrt(n_samples)))
    # Means far from zero are limited to the precision of 32 bits.
    mean_exponent = min(mean_exponent, _MEAN_BITS - math.frexp(float(np.abs(components.mean).max(initial=0)))[1])
    mean = np.rint(np.ldexp(components.mean, mean_exponent))
    return Quantized(
        step,
        cell,
        component,
        group,
        rank,
        exponent[np.arange(exponent.shape[1]) < rank[:, None]],
        spectrum if spectral else basis,
        mean,
        mean_exponent,
        waves and bool(len(cell)),
        spectral,
        least=least_worth_keeping(scores[cell, component], step),
    )
