"""Going on with `partial_fit`: which models can, what the others say, and states in stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dpca.kernels.types import Array
from dpca.models.store import StoredModel
from dpca.rules.state import State
from dpca.storage.errors import DataError


class NoStateError(DataError, AttributeError):
    """A model was fitted or loaded without its state: it has no ``partial_fit``."""


class WhereStateIsKept:
    """A method that a fitted model lacks unless it keeps the state of its fit: ``hasattr`` is False, a call says why.

    So scikit-learn treats methods that depend on parameters (``available_if``): what inspects an estimator does not
    call them.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, model: Any, owner: type[Any]) -> Any:
        if model is not None and model._states is None and model.__sklearn_is_fitted__():
            raise NoStateError(
                f"this {owner.__name__} was fitted by fit() or read by load() and keeps no state to go on from: give "
                f"all samples to fit(), or begin with a new estimator, sklearn.base.clone(model), and keep_state=True"
            )
        return self._method.__get__(model, owner)


def stored_arrays(states: Sequence[State]) -> dict[str, tuple[Array, tuple[str, ...]]]:
    """Return states as arrays for a store, with the names of their axes: the values of all states in a row."""
    arrays: dict[str, tuple[Array, tuple[str, ...]]] = {}
    for name in states[0].arrays:
        values = np.concatenate([state.arrays[name].ravel() for state in states])
        if values.size:
            arrays[f"state_{name}"] = values, (f"state_{name}_value",)
    counts = np.array([[state.counts[name] for name in sorted(state.counts)] for state in states])
    return arrays | {"state_counts": (counts, ("state_partition", "state_count"))}


def stated_dtype(facts: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the type of the samples that a stored state has taken in; ValueError where it is that of no samples."""
    dtype: np.dtype[Any] = np.dtype(facts["dtype"])
    if dtype.kind not in "buif":
        raise ValueError(f"its state is of {dtype} samples")
    return dtype


def read_states(stored: StoredModel, states: Sequence[State]) -> None:
    """Fill states, which have their shapes and types, with what `stored_arrays` put into a store.

    Raises
    ------
    StoreError
        If something else is there.
    """
    sizes = {name: sum(state.arrays[name].size for state in states) for name in states[0].arrays}
    shapes: dict[str, tuple[int, ...]] = {f"state_{name}": (size,) for name, size in sizes.items() if size}
    integers = [f"state_{name}" for name, array in states[0].arrays.items() if array.dtype.kind != "f"]
    shapes["state_counts"] = len(states), len(states[0].counts)
    found = stored.arrays(shapes, integers=[*integers, "state_counts"])
    for name, size in sizes.items():
        at = 0
        for array in (state.arrays[name] for state in states if size):
            array[...] = found[f"state_{name}"][at : at + array.size].reshape(array.shape)
            at += array.size
    for state, counts in zip(states, found["state_counts"].tolist(), strict=True):
        state.counts = dict(zip(sorted(state.counts), counts, strict=True))
