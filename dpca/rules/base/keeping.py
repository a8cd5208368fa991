"""Stores the last state of a fold with its result, so that a later fit can add samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array
from dpca.rules.base.rule import Wrapper
from dpca.rules.base.state import State

_ARRAY, _COUNT = "state array ", "state count "


@dataclass(frozen=True)
class Keeping(Wrapper):
    """A rule with results that include the final state; see `pop_state`.

    Parameters
    ----------
    rule : Rule
    """

    # A state belongs to a single part.
    stackable: ClassVar[bool] = False

    @property
    def results_by_attribute(self) -> list[str]:
        """Names of the results with attributes along the last axis, including those of the state."""
        return [*self.rule.results_by_attribute, *(f"{_ARRAY}{name}" for name in self.rule.arrays_by_attribute())]

    def finish(self, state: State) -> dict[str, Array]:
        """Return the result of the rule, and the state."""
        kept = self.rule.part_of(state).to_numpy().copy()
        result: dict[str, Array] = self.rule.finish(state)
        arrays = {f"{_ARRAY}{name}": array for name, array in kept.arrays.items()}
        return {**result, **arrays, **{f"{_COUNT}{name}": np.asarray(count) for name, count in kept.counts.items()}}

    def is_batch_invariant(self, dtype: DTypeLike) -> bool:
        """Return the answer of the rule."""
        return bool(self.rule.is_batch_invariant(dtype))

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result, including the state."""
        return int(self.rule.result_bytes(n_features, dtype) + self.rule.state_bytes(n_features, dtype))


def pop_state(result: dict[str, Array]) -> State:
    """Remove the state of `Keeping` from a result, and return it."""
    state = State()
    for name in [name for name in result if name.startswith((_ARRAY, _COUNT))]:
        if name.startswith(_ARRAY):
            state.arrays[name.removeprefix(_ARRAY)] = result.pop(name)
        else:
            state.counts[name.removeprefix(_COUNT)] = int(result.pop(name))
    return state
