"""Checks of common parameters of estimators, before samples are read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from sklearn.utils import check_random_state

from dpca.engine.folds.plan import PlanError
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.rules.base.rule import Rule
from dpca.storage.arrays.layout import CHANNEL, count_spatial
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_real, whole_number
from dpca.storage.remote.memory import usable_bytes

_FLAGS = (
    "center",
    "shuffle",
    "shared",
    "keep_channels",
    "flatten",
    "whiten",
    "keep_state",
    "track_scores",
    "standardize",
)
_ARRAYS = ("landmarks", "reference", "weights", "fit_weights", "alphas")
_NAMES = ("solver", "mapping", "execution")


def check_parameters(model: Any) -> None:
    """Check flags, names, seeds and memory budgets, and reject arrays instead of single values.

    Raises
    ------
    DataError
    """
    for name, value in model.get_params(deep=False).items():
        if (
            isinstance(value, np.ndarray)
            and name not in _ARRAYS
            and (value.ndim > 1 or name not in ("cell_shape", "data_range"))
        ):
            raise DataError(f"{name} is an array of {value.shape}: use a single value or a tuple")
        if name in _FLAGS and not (isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1))):
            raise DataError(f"{name} is {value!r}: use True or False")
        if name in _NAMES and not isinstance(value, str):
            raise DataError(f"{name} is {value!r}: use one of the names in the documentation")
    budget = getattr(model, "memory_budget", None)
    if budget is not None and not (is_real(budget) and 0 <= budget < math.inf):
        raise DataError(f"memory_budget is {budget!r}: use a number of bytes, or None for the default")
    try:
        check_random_state(getattr(model, "random_state", None))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"random_state is {model.random_state!r}: use an integer from 0 to 2**32 - 1, a RandomState, or None"
        ) from error


def check_states_fit(rule: Rule, sizes: Iterable[int], dtype: DTypeLike) -> None:
    """Raise an error if states of these numbers of attributes do not fit into memory twice, as an update requires.

    Raises
    ------
    PlanError
    """
    need, room = 2 * sum(rule.state_bytes(size, dtype) for size in sizes), usable_bytes()
    if need > room:
        raise PlanError(
            f"partial_fit requires {need / 1e6:,.0f} MB for its state, but this process may use {room / 1e6:,.0f} MB: "
            f"use fit, fewer components, or smaller batches, cells or bands"
        )


def checked_rank(k: Any, n_features: int, n_samples: int | None, what: str = "a sample", remedy: str = "") -> int:
    """Return the number of components as an int.

    Raises
    ------
    DataError
        If it exceeds the number of samples, or of attributes of ``what``.
    """
    wanted = whole_number(k, "n_components", 1, ", or None to keep all where that is possible")
    if wanted > n_features:
        raise DataError(
            f"n_components is {wanted}, but {what} has only {n_features} attributes: use at most {n_features}{remedy}"
        )
    if n_samples is not None and wanted > n_samples:
        raise DataError(f"n_components is {wanted}, but there are only {n_samples} samples: use at most {n_samples}")
    return wanted


def explained_share(n_components: Any) -> float | None:
    """Return ``n_components`` if it is a share of the variance, else None."""
    share = isinstance(n_components, float | np.floating) and 0 < n_components < 1
    return float(n_components) if share else None


def spatial_lengths(value: Any, name: str, axes: Sequence[str]) -> tuple[int, ...]:
    """Return a length along each spatial axis of samples whose axes have these names.

    Parameters
    ----------
    value : int or sequence of int
        One length for all spatial axes, or one for each.
    name : str
        Name of the parameter in errors.
    axes : sequence of str

    Raises
    ------
    DataError
        If ``value`` is not such a length, or an axis of channels is not the last one.
    """
    if CHANNEL in axes[:-1]:
        raise DataError(f"the axes of a sample are {tuple(axes)}: move the axis of channels to the end")
    if isinstance(value, int | np.integer):
        return (int(value),) * count_spatial(axes)
    if not isinstance(value, Sequence) or not all(isinstance(length, int | np.integer) for length in value):
        raise DataError(f"{name} is {value!r}: use one integer, or one for each spatial axis")
    return tuple(int(length) for length in value)


def no_values(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return zeros that use no memory, as a placeholder for an array of a fitted model."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def require_seed(random_state: Any) -> None:
    """Reject a ``random_state`` that draws other numbers when a fit resumes from its checkpoints.

    Raises
    ------
    DataError
    """
    if not isinstance(random_state, int | np.integer):
        raise DataError(
            f"random_state is {random_state!r}, but a fit with checkpoints must draw the same numbers when it resumes: "
            f"use an integer"
        )


def are_ordinary(rows: Array) -> bool:
    """Return whether the sum of squares of samples is finite in their working dtype, so that no rule overflows."""
    if rows.dtype.kind not in "buif":
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.einsum("ij,ij->", rows, rows, dtype=working_dtype(rows.dtype))))
