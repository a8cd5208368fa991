"""Mini-batches of one size out of a stream that comes in pieces of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.rules.state import Array, State

_HELD, _COUNT = "held_rows", "n_held"
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class InBatches:
    """Give a rule its samples in batches of exactly ``size``, the last one shorter.

    A store is read in whole chunks, but the result of a streaming rule depends on where its mini-batches end. Samples
    that do not fill one wait in the state, so that what comes out depends neither on the chunks of the store nor on
    where a run was interrupted.

    Parameters
    ----------
    rule : Rule
        What gets the batches.
    size : int
        Samples of one update.
    """

    rule: Any
    size: int

    @property
    def mergeable(self) -> bool:
        """Whether states can be merged."""
        return bool(self.rule.mergeable)

    @property
    def averageable(self) -> bool:
        """Whether streams can be averaged in rounds."""
        return bool(self.rule.averageable)

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        """Return the rule's state, with room for the samples that wait."""
        state: State = self.rule.init(n_features, dtype)
        state.arrays[_HELD] = np.empty((self.size, n_features), dtype)
        state.counts[_COUNT] = 0
        return state

    def update(self, state: State, batch: Array) -> State:
        """Take in any number of samples."""
        held, n = state.arrays.pop(_HELD), state.counts.pop(_COUNT)
        if n:
            taken = min(len(batch), self.size - n)
            held[n : n + taken] = batch[:taken]
            n, batch = n + taken, batch[taken:]
            if n == self.size:
                state, n = self.rule.update(state, held), 0
        if not n:
            whole = len(batch) // self.size * self.size
            for start in range(0, whole, self.size):
                state = self.rule.update(state, batch[start : start + self.size])
            n = len(batch) - whole
            held[:n] = batch[whole:]
        state.arrays[_HELD], state.counts[_COUNT] = held, n
        return state

    def merge(self, a: State, b: State) -> State:
        """Merge two states, each with what waits in it."""
        merged: State = self.rule.merge(self._flushed(a), self._flushed(b.copy()))
        merged.arrays[_HELD] = np.empty_like(a.arrays[_HELD])
        merged.counts[_COUNT] = 0
        return merged

    def average(self, before: State, states: Sequence[State]) -> State:
        """Average streams that went on from ``before``, in which nothing waits, each with what waits in it.

        A single stream stays as it is, and what waits in it waits on.
        """
        if len(states) == 1:
            return states[0]
        averaged: State = self.rule.average(
            self._flushed(before.copy()), [self._flushed(state.copy()) for state in states]
        )
        averaged.arrays[_HELD] = np.empty_like(before.arrays[_HELD])
        averaged.counts[_COUNT] = 0
        return averaged

    def finish(self, state: State) -> dict[str, Array]:
        """Return the rule's result, the last short batch included."""
        result: dict[str, Array] = self.rule.finish(self._flushed(state))
        return result

    def _flushed(self, state: State) -> State:
        """Return the rule's own state, nothing waiting; ``state`` is used up."""
        arrays = {name: value for name, value in state.arrays.items() if name != _HELD}
        counts = {name: value for name, value in state.counts.items() if name != _COUNT}
        held = state.arrays[_HELD][: state.counts[_COUNT]]
        own = State(arrays, counts)
        return self.rule.update(own, held) if len(held) else own

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Samples that an update does best with: several batches, so that few of them wait."""
        return max(self.size, self.size * (_ROWS_AT_ONCE // self.size))

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a state."""
        held = self.size * n_features * np.dtype(dtype).itemsize
        return int(self.rule.state_bytes(n_features, dtype)) + held

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays."""
        return int(self.rule.work_bytes(min(n_rows, self.size), n_features, dtype))

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a result."""
        return int(self.rule.result_bytes(n_features, dtype))


@dataclass(frozen=True)
class InOrder(InBatches):
    """The same, for one stream: also a rule that could merge takes its samples one batch after the other."""

    @property
    def mergeable(self) -> bool:
        """Return False."""
        return False
