"""The parameters that choose the number of components of parts, one at a time."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpca.choices import NOISE
from dpca.kernels.algebra.types import Array
from dpca.kernels.quality import psnr_from_mse
from dpca.models.base.parameters import check_value
from dpca.models.cells import rank
from dpca.models.cells.known_noise import check_noise, given_noise
from dpca.parameters.cells import CHOICES, OF_CHOICES, TARGETS, PartitionParameters
from dpca.parameters.declaration import declared_in
from dpca.storage.errors import DataError

# If ranks differ and ``max_components`` is not given, this multiple of the mean rank is computed, or this share of the
# attributes if the mean rank is unknown.
_TIMES_MEAN, _SHARE = 4, 1 / 3


class RankWarning(UserWarning):
    """Some parts keep all computed components, and might keep more."""


@dataclass(frozen=True)
class EigenvalueSpectrum:
    """The eigenvalues of all parts after a fit.

    Parameters
    ----------
    variances : array (n_parts, k)
        Variance along each component, zero if a part has fewer.
    totals : array (n_parts,)
        Total variance of each part.
    sizes : array (n_parts,)
        Attributes of each part.
    n_samples : int
    places : array (n_parts,), optional
        Number of parts that share the components of each; variances and totals are then averages over these.
    """

    variances: Array
    totals: Array
    sizes: Array
    n_samples: int
    places: Array | None = None

    @property
    def n_features(self) -> int:
        """Attributes of a sample."""
        return int(self.sizes.sum())

    @property
    def counts(self) -> Array:
        """The possible total numbers of components, ascending from 0."""
        return rank.whole_counts(self.variances, self.places is not None)

    @property
    def captured(self) -> CapturedVariance:
        """The captured energies of the samples of the fit."""
        n = self.n_samples
        energies, totals = self.variances * (n - 1), self.totals.sum(keepdims=True) * (n - 1)
        return CapturedVariance(energies[None], totals, np.array([n]), "the samples of the fit")


@dataclass(frozen=True)
class CapturedVariance:
    """The captured energies of some samples, of the fit or others.

    Parameters
    ----------
    energies : array (n_groups, n_parts, k)
        Summed squares of the scores of each group of samples. The groups give the standard error.
    totals : array (n_groups,)
        Summed squares of the differences between the samples and the mean of the fit.
    counts : array (n_groups,), integer
        Samples of each group.
    name : str
        Name of the samples in errors.
    """

    energies: Array
    totals: Array
    counts: Array
    name: str


@dataclass(frozen=True)
class Reached:
    """The value of a target's measure on the samples that it is met on, and its standard error, 0 for all samples."""

    value: float
    standard_error: float


@dataclass(frozen=True)
class RankChoice:
    """One of `CHOICES`, its value, the bound on each rank, the share of samples held out for a target, the noise."""

    name: str
    value: Any
    max_components: int | None
    validation_fraction: float | None
    sigma: Any = None
    least: int = 0
    """Smallest number of components of each part to compute if ``max_components`` is not given."""

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> RankChoice:
        """Read an estimator's parameters.

        Raises
        ------
        DataError
            If more than one is given, or a value is invalid.
        """
        given = {name: parameters[name] for name in CHOICES if parameters.get(name) is not None}
        if len(given) > 1:
            raise DataError(f"{' and '.join(given)} are given: use one of them to choose the number of components")
        name, value = next(iter(given.items()), ("n_components", None))
        bound, fraction, sigma = (parameters.get(one) for one in OF_CHOICES)
        for one in (name, *OF_CHOICES):
            check_value(one, declared_in(PartitionParameters)[one], parameters.get(one))
        if bound is not None and name == "n_components" and value != NOISE:
            raise DataError(
                f"{_option('max_components')} bounds ranks that differ, but {_option('n_components')} gives one rank: "
                f"omit one of them"
            )
        if fraction is not None and name not in TARGETS:
            raise DataError(
                f"validation_fraction is {fraction!r}, but there is no target for these samples: use one of "
                f"{', '.join(map(_option, TARGETS))}, or omit it"
            )
        sigma = given_noise(sigma)
        if sigma is not None and value != NOISE:
            raise DataError(f"sigma is the noise of n_components='{NOISE}': give both, or omit sigma")
        if np.ndim(sigma) and (parameters.get("overlap") or parameters.get("shared")):
            raise DataError(
                "sigma is a map, which cells with overlap or shared components do not support: give a number"
            )
        return cls(name, value, bound, fraction, sigma)

    @property
    def is_target(self) -> bool:
        """Whether the choice is a quality of reconstructions."""
        return self.name in TARGETS

    @property
    def adapts(self) -> bool:
        """Whether parts may keep different numbers of components."""
        return self.name != "n_components" or self.value == NOISE

    def to_compute(self, shape: tuple[int, ...], n_parts: int, largest: int, n: int | None) -> int | None:
        """Return the number of components of each part to compute, None for all."""
        if self.value == NOISE:
            if self.sigma is not None:
                check_noise(self.sigma, shape)
            # The smallest eigenvalues determine the noise floor. Few samples have no more than one for each.
            return None if n is None or n >= largest else n
        if not self.adapts:
            return None if self.value is None else int(self.value)
        mean = self.mean_rank(math.prod(shape), n_parts)
        most = max(self.least, math.ceil(largest * _SHARE if mean is None else _TIMES_MEAN * mean))
        return max(1, min(self.max_components or most, largest, largest if n is None else n))

    def mean_rank(self, n_features: int, n_parts: int) -> float | None:
        """Return the mean number of retained components of a part, None if it depends on the data."""
        if self.name == "total_components":
            return float(self.value) / n_parts
        if self.name == "ratio":
            return rank.total_for_ratio(n_features, self.value) / n_parts
        return None

    def ranks(self, known: EigenvalueSpectrum) -> Array:
        """Return the number of retained components of each part, for choices other than targets.

        Raises
        ------
        DataError
            If too few components were computed.
        """
        variances, totals = known.variances, known.totals
        if self.value == NOISE:
            found = rank.ranks_by_noise(variances, known.sizes, known.n_samples, known.places)
            return found if self.max_components is None else np.minimum(found, self.max_components)
        if self.name == "threshold":
            return rank.ranks_by_threshold(variances, totals, self.value, self.max_components)
        ratio = self.name == "ratio"
        total = rank.total_for_ratio(known.n_features, self.value) if ratio else int(self.value)
        if known.places is not None:
            counts = known.counts
            if len(counts) > 1 and total < counts[1]:
                raise rank.UnmetError(
                    f"{total:,} components in total are fewer than the {counts[1]:,} cells that share the first one: "
                    f"use at least {counts[1]:,}, or omit --shared (shared=False)"
                )
            if total <= counts[-1]:
                total = int(counts[counts <= total][-1])
        elif ratio and variances.shape[1] >= min(known.n_samples, int(known.sizes.max())):
            total = min(total, int(np.count_nonzero(variances)))  # few samples have no more components
        return rank.spread(variances, total)

    def ranks_for_error(
        self, known: EigenvalueSpectrum, captured: CapturedVariance, width: float
    ) -> tuple[Array, Reached]:
        """Return the ranks of the fewest components that meet ``target_mse`` or ``target_psnr``, and the value reached.

        Parameters
        ----------
        known : Spectrum
            Components are added in the order of its variances.
        captured : Captured
            The samples for which the target is met.
        width : float
            Difference of the largest and the smallest possible value.

        Raises
        ------
        DataError
            If the computed components do not meet it.
        """
        parts = zip(captured.energies, captured.totals, strict=True)
        left = np.stack([rank.left_by(known.variances, energies, float(total)) for energies, total in parts])
        left /= known.n_features * width
        left /= width
        mse = left.sum(axis=0) / captured.counts.sum()
        decibels = self.name == "target_psnr"
        met = mse <= (rank.mse_of_psnr(self.value, 1.0) if decibels else self.value)
        counts = known.counts
        if not met[counts].any():
            raise self.unmet(known, float((psnr_from_mse(mse) if decibels else mse)[-1]), captured.name)
        count = int(counts[met[counts].argmax()])
        value, error = float(mse[count]), standard_error(left[:, count] / captured.counts)
        if decibels:
            # To first order. Without any error, the ratio is infinite and exact.
            value, error = float(psnr_from_mse(mse)[count]), 10 / math.log(10) * error / value if value else 0.0
        return rank.spread(known.variances, count), Reached(value, error)

    def unmet(self, known: EigenvalueSpectrum, best: float, samples: str) -> rank.UnmetError:
        """Return the error for an unmet target, with the value that can be reached."""
        n, most = len(rank.falling(known.variances)), known.variances.shape[1]
        short = most < min(int(known.sizes.max()), known.n_samples)
        remedy = f"use --max-components K (max_components=K) above {most}" if short else "fit more samples"
        return rank.UnmetError(
            f"{_option(self.name)} is {self.value:g}, but all {n:,} computed components reach only {best:.6g} on "
            f"{samples}: {remedy}, or relax the target",
            most if short else None,
        )

    def wider(self, unmet: rank.UnmetError) -> RankChoice | None:
        """Return the choice with twice as many components to compute, None if that is bounded or useless."""
        if unmet.computed is None or self.max_components is not None:
            return None
        return replace(self, least=2 * unmet.computed)

    def warn_where_short(self, chosen: Array, known: EigenvalueSpectrum) -> None:
        """Warn if parts might keep more components than were computed, unless ``max_components`` is given."""
        most = known.variances.shape[1]
        capped = int(((chosen == most) & (known.sizes > most)).sum())
        if capped and self.max_components is None:
            warnings.warn(
                f"{capped} parts keep all {most} computed components and might keep more: use a larger "
                f"--max-components K (max_components=K) for the least error",
                RankWarning,
                stacklevel=4,
            )


def _option(name: str) -> str:
    """Return the command-line option of a parameter, and its name."""
    option = declared_in(PartitionParameters)[name].option
    return name if option is None else f"{option.flag} ({name})"


def standard_error(means: Array) -> float:
    """Return the standard error of the mean of groups of about equal size, 0 for a single group of all samples."""
    return float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else 0.0
