"""Checks of the parameters of estimators, before samples are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.folds.plan import PlanError
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.parameters.declaration import Parameter, declared_in
from dpca.rules.base.rule import Rule
from dpca.storage.arrays.layout import CHANNEL, count_spatial
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number
from dpca.storage.remote.memory import usable_bytes

F = TypeVar("F", bound=Callable[..., Any])


def also_called(other: str, name: str) -> Callable[[F], F]:
    """Return a decorator of methods: ``other`` is a second name of their argument ``name``, as another library has."""

    def decorate(method: F) -> F:
        @wraps(method)
        def call(*given: Any, **named: Any) -> Any:
            if other in named:
                if named.get(name) is not None:
                    raise DataError(f"{other} and {name} are two names of one argument: give one of them")
                named[name] = named.pop(other)
            return method(*given, **named)

        return cast("F", call)

    return decorate


def check_parameters(model: Any) -> None:
    """Check the type and range of all declared parameters of an estimator.

    Raises
    ------
    DataError
    """
    for name, declared in declared_in(type(model)).items():
        check_value(name, declared, getattr(model, name))


def check_value(name: str, declared: Parameter, value: Any) -> None:
    """Check the value of a parameter.

    Raises
    ------
    DataError
    """
    if not declared.accepts(value):
        given = f"an array of {value.shape}" if isinstance(value, np.ndarray) else repr(value)
        raise DataError(f"{name} is {given}: give {declared.expected}")


def given_parameters(model: Any) -> dict[str, Any]:
    """Return the parameters of an estimator that differ from their defaults."""
    defaults = signature(type(model)).parameters
    values = model.get_params(deep=False).items()
    return {name: value for name, value in values if not np.array_equal(value, defaults[name].default)}


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
    """Return whether the sum of squares of samples is finite in their working dtype, so that no rule overflows.

    NaN, a missing value, does not count.
    """
    if rows.dtype.kind not in "buif":
        return False
    with np.errstate(over="ignore"):
        total = np.einsum("ij,ij->", rows, rows, dtype=working_dtype(rows.dtype))
        if np.isnan(total):
            values = np.where(np.isnan(rows), rows.dtype.type(0), rows)
            total = np.einsum("ij,ij->", values, values, dtype=working_dtype(rows.dtype))
        return bool(np.isfinite(total))
