"""The ways to ask for components of partitions: one parameter at a time, each a target that the user understands."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.models import rank
from storage.errors import DataError

Array = NDArray[Any]

#: The parameters of an estimator that say how many components it keeps; None of them keeps all.
CHOICES = (
    "n_components",
    "threshold",
    "total_components",
    "ratio",
    "target_mse",
    "target_psnr",
)
NOISE = "marchenko-pastur"
# Where ranks differ, so many times the mean rank are computed unless ``max_components`` says otherwise, or this share
# of the attributes where no mean is asked for.
_TIMES_MEAN, _SHARE = 4, 1 / 3


class RankWarning(UserWarning):
    """Some partitions would have kept more components than were computed."""


@dataclass(frozen=True)
class Spectrum:
    """What is known of all partitions once their components were computed.

    Parameters
    ----------
    variances : array (n_partitions, k)
        What each component captures, zero where a partition has fewer.
    totals : array (n_partitions,)
        Total variance of each partition.
    sizes : array (n_partitions,)
        Attributes of each partition.
    n_samples : int
    """

    variances: Array
    totals: Array
    sizes: Array
    n_samples: int

    @property
    def n_features(self) -> int:
        """Attributes of a sample."""
        return int(self.sizes.sum())


@dataclass(frozen=True)
class RankChoice:
    """One of `CHOICES`, its value, and the bound ``max_components`` on each rank."""

    name: str
    value: Any
    max_components: int | None

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> RankChoice:
        """Read an estimator's parameters.

        Raises
        ------
        DataError
            If more than one is given, or one makes no sense.
        """
        given = {name: parameters[name] for name in CHOICES if parameters.get(name) is not None}
        if len(given) > 1:
            raise DataError(f"{' and '.join(given)} are given: ask for components in one way at a time")
        name, value = next(iter(given.items()), ("n_components", None))
        bound = parameters.get("max_components")
        if bound is not None:
            _check_count("max_components", bound)
            if name == "n_components" and value != NOISE:
                raise DataError("max_components bounds ranks that differ: with n_components, leave it out")
        if name == "total_components":
            _check_count(name, value)
        elif name != "n_components" and not _is_positive(value):
            raise DataError(f"{name} is {value!r}: give a positive number")
        return cls(name, value, None if bound is None else int(bound))

    @property
    def adapts(self) -> bool:
        """Whether partitions may keep different numbers of components."""
        return self.name != "n_components" or self.value == NOISE

    def to_compute(self, n_features: int, n_partitions: int, largest: int, n: int | None) -> int | None:
        """Return how many components of each partition must be computed, None for all."""
        if self.value == NOISE:
            return None  # the noise shows in the smallest
        if not self.adapts:
            return None if self.value is None else int(self.value)
        mean = self._mean_rank(n_features, n_partitions)
        most = math.ceil(largest * _SHARE if mean is None else _TIMES_MEAN * mean)
        return max(1, min(self.max_components or most, largest, largest if n is None else n))

    def _mean_rank(self, n_features: int, n_partitions: int) -> float | None:
        if self.name == "total_components":
            return float(self.value) / n_partitions
        if self.name == "ratio":
            return rank.total_for_ratio(n_features, self.value) / n_partitions
        return None

    def ranks(self, known: Spectrum, peak: float | None) -> Array:
        """Return how many components each partition keeps.

        Parameters
        ----------
        known : Spectrum
        peak : float or None
            Largest possible value less the smallest, for the targets, which need it.

        Raises
        ------
        DataError
            If the target cannot be met with the components that were computed.
        """
        chosen = self._unbounded(known, peak)
        most = known.variances.shape[1]
        capped = int(((chosen == most) & (known.sizes > most)).sum())
        if capped and self.max_components is None:
            warnings.warn(
                f"{capped} partitions keep all {most} components that were computed and might have kept more: "
                f"raise max_components for the least error",
                RankWarning,
                stacklevel=4,
            )
        return chosen

    def checked_range(self, peak: float | None) -> float:
        """Return the width of the range of the values, which targets need.

        Raises
        ------
        DataError
            If nobody stated it.
        """
        if peak is None:
            raise DataError(
                f"{self.name} needs the range of the values: give data_range=(low, high) (--data-range LOW,HIGH)"
            )
        return peak

    @property
    def needs_range(self) -> bool:
        """Whether errors are compared with the range of the values."""
        return self.name.startswith("target_")

    def _unbounded(self, known: Spectrum, peak: float | None) -> Array:
        variances, totals = known.variances, known.totals
        if self.value == NOISE:
            found = rank.ranks_by_noise(variances, known.sizes, known.n_samples)
            return found if self.max_components is None else np.minimum(found, self.max_components)
        if self.name == "threshold":
            return rank.ranks_by_threshold(variances, totals, self.value, self.max_components)
        if self.name == "total_components":
            return rank.spread(variances, int(self.value))
        if self.name == "ratio":
            return rank.spread(variances, rank.total_for_ratio(known.n_features, self.value))
        peak = self.checked_range(peak)
        mse = self.value * peak**2 if self.name == "target_mse" else rank.mse_of_psnr(self.value, peak)
        allowed = mse * known.n_features * known.n_samples / (known.n_samples - 1)
        return rank.ranks_for_error(variances, float(totals.sum()), allowed)


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise DataError(f"{name} is {value!r}: give a positive integer")


def _is_positive(value: Any) -> bool:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return number and bool(value > 0)
