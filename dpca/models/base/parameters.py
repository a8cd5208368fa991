"""Parameters that estimators share, checked before anything is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from sklearn.utils import check_random_state

from dpca.engine.folds.memory import usable_bytes
from dpca.engine.folds.plan import PlanError
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.rules.base.rule import Rule
from dpca.storage.arrays.layout import CHANNEL, count_spatial
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_real, whole_number

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
    """Refuse what no estimator could take: arrays for single values, and flags, names, seeds and budgets that are none.

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
            raise DataError(f"{name} is an array of {value.shape}: give a single value, or a tuple where that is meant")
        if name in _FLAGS and not (isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1))):
            raise DataError(f"{name} is {value!r}: give True or False")
        if name in _NAMES and not isinstance(value, str):
            raise DataError(f"{name} is {value!r}: give a name, as the documentation lists them")
    budget = getattr(model, "memory_budget", None)
    if budget is not None and not (is_real(budget) and 0 <= budget < math.inf):
        raise DataError(f"memory_budget is {budget!r}: give a number of bytes, or None for what the machine has")
    try:
        check_random_state(getattr(model, "random_state", None))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"random_state is {model.random_state!r}: give an integer of 0 to 2**32 - 1, a RandomState, or None"
        ) from error


def check_states_fit(rule: Rule, sizes: Iterable[int], dtype: DTypeLike) -> None:
    """Refuse states, of so many attributes each, that this process has no room for, twice, to take in a batch.

    Raises
    ------
    PlanError
    """
    need, room = 2 * sum(rule.state_bytes(size, dtype) for size in sizes), usable_bytes()
    if need > room:
        raise PlanError(
            f"what partial_fit keeps takes {need / 1e6:,.0f} MB but this process may hold {room / 1e6:,.0f} MB: use "
            f"fit, fewer components or smaller batches, cells or bands"
        )


def checked_rank(k: Any, n_features: int, n_samples: int | None, what: str = "a sample", remedy: str = "") -> int:
    """Return the number of components as an int, refusing what so many samples and attributes of ``what`` cannot have.

    Raises
    ------
    DataError
    """
    wanted = whole_number(k, "n_components", 1, ", or None to keep all where that is possible")
    if wanted > n_features:
        raise DataError(
            f"n_components is {wanted} but {what} has only {n_features} attributes: ask for at most that many{remedy}"
        )
    if n_samples is not None and wanted > n_samples:
        raise DataError(f"n_components is {wanted} but there are only {n_samples} samples: ask for at most that many")
    return wanted


def explained_share(n_components: Any) -> float | None:
    """Return the share of the variance that ``n_components`` stands for, None where it is no share."""
    share = isinstance(n_components, float | np.floating) and 0 < n_components < 1
    return float(n_components) if share else None


def spatial_lengths(value: Any, name: str, axes: Sequence[str]) -> tuple[int, ...]:
    """Return a length along each spatial axis of samples whose axes have these names.

    Parameters
    ----------
    value : int or sequence of int
        One for all of them, or one for each.
    name : str
        What errors call it.
    axes : sequence of str

    Raises
    ------
    DataError
        If it gives none, or an axis of channels is not the last one.
    """
    if CHANNEL in axes[:-1]:
        raise DataError(f"the axes of a sample are {tuple(axes)}: channels must come last, move that axis first")
    if isinstance(value, int | np.integer):
        return (int(value),) * count_spatial(axes)
    if not isinstance(value, Sequence) or not all(isinstance(length, int | np.integer) for length in value):
        raise DataError(f"{name} is {value!r}: give one integer, or one for each spatial axis")
    return tuple(int(length) for length in value)


def no_values(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return zeros that take no memory, in the place of an array that a fit will find."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def require_seed(random_state: Any) -> None:
    """Refuse a ``random_state`` that draws something else when a fit goes on from its checkpoints.

    Raises
    ------
    DataError
    """
    if not isinstance(random_state, int | np.integer):
        raise DataError(
            f"random_state is {random_state!r} but a fit with checkpoints must begin where it began before: give an "
            f"integer"
        )


def are_ordinary(rows: Array) -> bool:
    """Say whether the sum of squares of samples is a number of their working dtype, so that no rule has trouble."""
    if rows.dtype.kind not in "buif":
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.einsum("ij,ij->", rows, rows, dtype=working_dtype(rows.dtype))))
