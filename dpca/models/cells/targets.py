"""Targets of quality: keep the fewest components that meet a target on samples of the fit, or on held-out ones.

Components are added in the order of the eigenvalues until the target is met.

* Squared error: for held-out samples, it follows from the energies of their scores for all numbers of components, so
  they are read once.
* SSIM: the number is searched, on a few hundred samples in memory with their scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq

from dpca.engine.folds.fold_tasks import Results
from dpca.engine.sources.sampling import read_samples, spread_samples
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import Pixels
from dpca.kernels.quality import WINDOW, has_ssim, ssim_per_sample
from dpca.models.cells.known_noise import keep_above_noise
from dpca.models.cells.rank import spread
from dpca.models.cells.rank_choice import CapturedVariance, EigenvalueSpectrum, RankChoice, Reached, standard_error
from dpca.models.cells.target_boxes import CellBoxes, HeldInBoxes
from dpca.representation.linear import LinearRepresentation
from dpca.storage.errors import DataError
from dpca.storage.ranges import checked_range, type_range
from dpca.storage.remote.memory import thread_count, usable_bytes
from dpca.storage.remote.tasks import run_in_order

#: Number of samples for SSIM. The standard error of their mean is .001 if single images vary by .02.
SSIM_SAMPLES = 500
# Neighbors in the stack may be similar, so the standard error of a mean follows from groups of samples.
_GROUPS = 10
# Bytes of the floating-point copy of one block of samples.
_BLOCK_BYTES = 2**25


@dataclass(frozen=True)
class TargetCheck:
    """The samples on which a target is met.

    Parameters
    ----------
    source : Source
        The whole stack.
    samples : array of integers
        Their numbers, ascending.
    name : str
        The origin of the samples in errors: "measured" or "held out".
    n_spatial : int
        Number of spatial axes of a sample.
    room : int
        Bytes of memory that may be used.
    """

    source: Source
    samples: Array
    name: str
    n_spatial: int
    room: int

    def fitting(self, score_shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return the numbers of the samples, or of fewer ones if they and their scores exceed half of the room."""
        row = math.prod(self.source.shape[1:]) * self.source.dtype.itemsize + math.prod(score_shape) * dtype.itemsize
        n = min(len(self.samples), max(2, self.room // 2 // row))
        return self.samples[np.arange(n) * len(self.samples) // n]


@dataclass(frozen=True)
class Validation:
    """What the quality of a target is measured with.

    Attributes
    ----------
    value_range : (low, high) or None
        The data range of the values.
    check : TargetCheck or None
        The samples on which to meet the target; None if the eigenvalues suffice.
    left_out : array or None
        Indices of the held-out samples.
    """

    value_range: tuple[float, float] | None
    check: TargetCheck | None = None
    left_out: Array | None = None


def check_for(
    choice: RankChoice,
    source: Source,
    left_out: Array | None,
    n_spatial: int,
    rng: np.random.Generator,
    memory: int | None,
) -> TargetCheck | None:
    """Return the samples on which to meet a target: the held-out ones, or samples for SSIM.

    None for the squared error of the samples of the fit, which follows from the eigenvalues.

    Raises
    ------
    DataError
        If SSIM is undefined for such samples.
    """
    samples = left_out
    if choice.name == "target_ssim":
        shape = tuple(source.shape[1:])
        remedy = "use --target-psnr DB (target_psnr) or --target-mse MSE (target_mse) instead"
        check_ssim(f"target_ssim is {choice.value:g}", shape, n_spatial, remedy)
        n = source.shape[0] if left_out is None else len(left_out)
        samples = spread_samples(n, min(SSIM_SAMPLES, n), rng)
        samples = samples if left_out is None else left_out[samples]
    if samples is None:
        return None
    room = usable_bytes() if memory is None else memory
    return TargetCheck(source, samples, "measured" if left_out is None else "held out", n_spatial, room)


def check_ssim(asked: str, sample_shape: tuple[int, ...], n_spatial: int, remedy: str) -> None:
    """Raise an error if SSIM is undefined for these samples.

    Raises
    ------
    DataError
    """
    if not has_ssim(sample_shape, n_spatial):
        raise DataError(
            f"{asked}, but samples are {sample_shape}, and SSIM requires images or volumes of at least {WINDOW} pixels "
            f"along every spatial axis: {remedy}"
        )


def value_range_for(
    choice: RankChoice,
    data_range: tuple[float, float] | None,
    stack: Any,
    find: Callable[[], tuple[float, float]] | None = None,
) -> tuple[float, float] | None:
    """Return the smallest and the largest possible value for a target, None without a target.

    They are ``data_range``, the data range of the stack, the range of its type, or the result of ``find``.

    Raises
    ------
    DataError
        If none of these is available.
    """
    if not choice.is_target:
        return None
    known = data_range if data_range is not None else getattr(stack, "data_range", None)
    if known is None and (known := type_range(np.dtype(stack.dtype)) or (find and find())) is None:
        raise DataError(
            f"{choice.name} requires the range of the values, which a batch does not have: use data_range=(low, high)"
        )
    return checked_range(known)


def stated_target(choice: RankChoice, reached: Reached | None, validation: Validation) -> dict[str, Any]:
    """Return the target of a fit and the value reached, for its store and its report; empty without a target."""
    if reached is None or validation.value_range is None:
        return {}
    return {
        "name": choice.name,
        "asked": float(choice.value),
        # The PSNR of an exact reconstruction is infinite, which JSON cannot represent.
        "reached": reached.value if math.isfinite(reached.value) else None,
        "standard_error": reached.standard_error,
        "left_out": 0 if validation.left_out is None else len(validation.left_out),
        "data_range": list(validation.value_range),
    }


def keep_chosen(
    choice: RankChoice,
    partition: Any,
    results: Results,
    n_samples: int,
    value_range: tuple[float, float] | None,
    check: TargetCheck | None,
    places: Array | None = None,
) -> Reached | None:
    """Truncate the results of each part to the chosen components, and return the value reached of a target.

    Parameters
    ----------
    choice : RankChoice
    partition : Partition
    results : list of dict
        Mean, components and variances of each part.
    n_samples : int
        Samples of the fit.
    value_range : (float, float) or None
        Smallest and largest possible value, None without a target.
    check : Check or None
        Samples on which to meet a target, None for those of the fit.
    places : array (n_parts,), optional
        Number of parts that share the components of each.

    Raises
    ------
    DataError
        If the computed components do not meet the choice.
    """
    if not choice.adapts:
        return None
    if choice.sigma is not None:
        keep_above_noise(choice.sigma, partition, results, n_samples, places, choice.max_components)
        return None
    variances = np.zeros((len(results), max(len(result["explained_variance"]) for result in results)))
    for row, result in zip(variances, results, strict=True):
        row[: len(result["explained_variance"])] = result["explained_variance"]
    totals = np.array([float(result["total_variance"]) for result in results])
    sizes = np.array([partition.n_features(i) for i in range(partition.n_parts)])
    known, reached = EigenvalueSpectrum(variances, totals, sizes, n_samples, places), None
    if value_range is None:
        ranks = choice.ranks(known)
    elif check is not None and choice.name == "target_ssim":
        held = _held(partition, results, check, value_range)
        ranks, reached = _ranks_for_ssim(choice, known, held, check.name)
    else:
        captured = known.captured if check is None else _captured(partition, results, check)
        ranks, reached = choice.ranks_for_error(known, captured, value_range[1] - value_range[0])
    choice.warn_where_short(ranks, known)
    for result, r in zip(results, ranks, strict=True):
        result["components"] = result["components"][:r]
        result["explained_variance"] = result["explained_variance"][:r]
    return reached


def _ranks_for_ssim(
    choice: RankChoice, known: EigenvalueSpectrum, held: Held | HeldInBoxes, name: str
) -> tuple[Array, Reached]:
    """Return the ranks of the fewest components with a mean SSIM of at least the target, and the value reached."""
    counts = known.counts
    seen: dict[int, Array] = {}

    def mean_ssim(step: int) -> float:
        seen[step] = held.ssim(spread(known.variances, int(counts[step])))
        return float(seen[step].mean())

    step, reached = fewest(mean_ssim, float(choice.value), len(counts) - 1)
    if reached < choice.value:
        raise choice.unmet(known, reached, f"the {held.n_samples:,} samples {name}")
    return spread(known.variances, int(counts[step])), Reached(reached, standard_error(seen[step]))


def _all_found(partition: Any, results: Results, check: TargetCheck) -> LinearRepresentation:
    """Return all computed components in the dtype of the model."""
    shape, k = partition.sample_shape, max(len(result["components"]) for result in results)
    means = ((i, result["mean"][None, None]) for i, result in enumerate(results))
    rows = ((i, result["components"][None]) for i, result in enumerate(results))
    components = partition.join(rows, np.zeros((k, *shape), working_dtype(check.source.dtype)))
    return LinearRepresentation(partition, partition.join(means, np.empty((1, *shape)))[0], components)


def _captured(partition: Any, results: Results, check: TargetCheck) -> CapturedVariance:
    """Read the samples of a check once, and return their energies along every component.

    Costs 2 d k operations for a sample of d attributes, for k components of each part.
    """
    groups = np.array_split(check.samples, min(_GROUPS, len(check.samples)))
    counts, name = np.array([len(chosen) for chosen in groups]), f"the {len(check.samples):,} samples {check.name}"
    if CellBoxes.suit(partition):
        boxes = CellBoxes(partition, results, check.source, check.samples)
        energies, totals = boxes.energies(counts.tolist())
        return CapturedVariance(energies.reshape(len(groups), -1, boxes.n_components), totals, counts, name)
    basis = _all_found(partition, results, check)
    energies, totals = np.zeros((len(groups), *basis.score_shape)), np.zeros(len(groups))
    for g, chosen in enumerate(groups):
        for samples in _blocks(check.source, chosen):
            energies[g] += np.square(basis.encode(samples), dtype=np.float64).sum(axis=0)
            # The filters of lapped cells are orthogonal, so they do not change the sum of squares.
            totals[g] += sum(float(np.square(x - basis.mean).sum()) for x in samples)
    return CapturedVariance(energies.reshape(len(groups), -1, basis.score_shape[-1]), totals, counts, name)


def _held(partition: Any, results: Results, check: TargetCheck, value_range: tuple[float, float]) -> Held | HeldInBoxes:
    """Return the samples for SSIM: with all components in memory, or box by box if they are large."""
    if not CellBoxes.suit(partition):
        return Held(_all_found(partition, results, check), check, value_range)
    boxes = CellBoxes(partition, results, check.source, check.samples)
    few = replace(boxes, chosen=check.fitting(boxes.score_shape, boxes.dtype))
    return HeldInBoxes(few, value_range, check.n_spatial)


def fewest(measure: Callable[[int], float], target: float, most: int) -> tuple[int, float]:
    """Return the least number for which an increasing measure reaches a target, and the measure of this number.

    Uses Brent's method on the integers, which requires about two thirds of the steps of bisection for a smooth measure.
    Returns ``most`` if it does not reach the target.
    """
    seen: dict[int, float] = {}

    def above(number: float) -> float:
        n = math.ceil(number)
        if n not in seen:
            seen[n] = measure(n)
        return (seen[n] - target) or math.ulp(0.0)  # a target that is reached exactly counts as reached

    if above(most) < 0:
        return most, seen[most]
    if above(0) < 0:
        # The ends of a bracket shorter than 1/2 round to neighbors: one reaches the target, and the other does not.
        brentq(above, 0, most, xtol=0.5, maxiter=1000)
    found = min(n for n, value in seen.items() if value >= target)
    return found, seen[found]


class Held:
    """Samples in memory with all their scores, for the SSIM of any ranks.

    Parameters
    ----------
    basis : LinearRepresentation
        All computed components.
    check : Check
        If samples and scores exceed half of its room, a smaller number of samples is held, spread over all.
    value_range : (float, float)
    """

    def __init__(self, basis: LinearRepresentation, check: TargetCheck, value_range: tuple[float, float]) -> None:
        self._basis, self._value_range, self._n_spatial = basis, value_range, check.n_spatial
        chosen = check.fitting(basis.score_shape, basis.dtype)
        self.n_samples, self._samples = len(chosen), list(_blocks(check.source, chosen))
        self._scores = list(self._in_threads(lambda b: basis.encode(self._samples[b])))

    def ssim(self, ranks: Array) -> Array:
        """Return the SSIM of each sample for these ranks, with values rounded to pixels as in stores."""
        kept = (np.arange(self._basis.score_shape[-1]) < ranks[:, None]).reshape(self._basis.score_shape)
        return np.concatenate(list(self._in_threads(lambda b: self._ssim(b, kept))))

    def _in_threads(self, function: Callable[[int], Any]) -> Iterator[Any]:
        return run_in_order(function, [(b,) for b in range(len(self._samples))], threads=thread_count())

    def _ssim(self, b: int, kept: Array) -> Array:
        samples, (low, high) = self._samples[b], self._value_range
        pixels = self._basis.decode(self._scores[b] * kept, pixels=Pixels(samples.dtype, self._value_range))
        return ssim_per_sample(samples, pixels, data_range=high - low, n_spatial=self._n_spatial)


def _blocks(source: Source, chosen: Array) -> Iterator[Array]:
    """Yield the chosen samples in blocks of `_BLOCK_BYTES`, C-ordered."""
    row = math.prod(source.shape[1:]) * working_dtype(source.dtype).itemsize
    rows = max(1, _BLOCK_BYTES // row)
    left, filled = len(chosen), 0
    block = np.empty((min(rows, left), *source.shape[1:]), source.dtype)
    for samples in read_samples(source, chosen):
        start = 0
        while start < len(samples):
            some = samples[start : start + len(block) - filled]
            block[filled : filled + len(some)] = some
            start, filled, left = start + len(some), filled + len(some), left - len(some)
            if filled == len(block):
                yield block
                block, filled = np.empty((min(rows, left), *source.shape[1:]), source.dtype), 0
