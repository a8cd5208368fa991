"""The state that `partial_fit` continues from: the error of models without it, copies, and states in stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dpca.kernels.algebra.linalg import scratch
from dpca.kernels.algebra.types import Array
from dpca.models.base.store import StoredModel, count_of
from dpca.rules.base.state import State
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_whole


class NoStateError(DataError, AttributeError):
    """A model was fitted or loaded without its state and has no ``partial_fit``."""


class RequiresState:
    """A method that a fitted model has only if it keeps the state of its fit.

    Without the state, access raises `NoStateError`, and ``hasattr`` is False. This corresponds to ``available_if`` of
    scikit-learn for methods that depend on parameters: tools that inspect estimators do not call such a method.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, model: Any, owner: type[Any]) -> Any:
        if model is not None and model._states is None and model.__sklearn_is_fitted__():
            raise NoStateError(
                f"this {owner.__name__} keeps no state to continue from: give all samples to fit(), or start again "
                f"from sklearn.base.clone(model) with keep_state=True"
            )
        return self._method.__get__(model, owner)


def stored_arrays(states: Sequence[State]) -> dict[str, tuple[Array, tuple[str, ...]]]:
    """Return states as arrays for a store, with the names of their axes. The values of all states are concatenated."""
    arrays: dict[str, tuple[Array, tuple[str, ...]]] = {}
    for name in states[0].arrays:
        values = np.concatenate([state.arrays[name].ravel() for state in states])
        if values.size:
            arrays[f"state_{name}"] = values, (f"state_{name}_value",)
    counts = np.array([[state.counts[name] for name in sorted(state.counts)] for state in states])
    if (counts == np.rint(counts)).all():
        counts = counts.astype(np.int64)
    return arrays | {"state_counts": (counts, ("state_partition", "state_count"))}


def stated_dtype(facts: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the dtype of the samples of a stored state.

    Raises
    ------
    ValueError
        If samples cannot have this dtype.
    """
    dtype: np.dtype[Any] = np.dtype(facts["dtype"])
    if dtype.kind not in "buif":
        raise ValueError(f"its state has dtype {dtype}")
    return dtype


def read_states(stored: StoredModel, states: Sequence[State]) -> None:
    """Fill states in place with the arrays that `stored_arrays` created; shapes and dtypes are those of the states.

    Raises
    ------
    StoreError
        If the stored arrays differ in shape or dtype.
    """
    sizes = {name: sum(state.arrays[name].size for state in states) for name in states[0].arrays}
    shapes: dict[str, tuple[int, ...]] = {f"state_{name}": (size,) for name, size in sizes.items() if size}
    integers = [f"state_{name}" for name, array in states[0].arrays.items() if array.dtype.kind != "f"]
    shapes["state_counts"] = len(states), len(states[0].counts)
    if is_whole(stored.n_samples):
        integers.append("state_counts")
    found = stored.arrays(shapes, integers=integers)
    for name, size in sizes.items():
        at = 0
        for array in (state.arrays[name] for state in states if size):
            array[...] = found[f"state_{name}"][at : at + array.size].reshape(array.shape)
            at += array.size
    for state, counts in zip(states, found["state_counts"].tolist(), strict=True):
        state.counts = dict(zip(sorted(state.counts), map(count_of, counts), strict=True))


def set_aside(state: State) -> State:
    """Return a copy of a state, in memory that the next call in this thread reuses."""
    arrays = {name: scratch(f"before: {name}", array.shape, array.dtype) for name, array in state.arrays.items()}
    for name, array in arrays.items():
        np.copyto(array, state.arrays[name])
    return State(arrays, dict(state.counts))
