"""Mini-batches of one size out of a stream that comes in pieces of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import DTypeLike

from dpca.kernels.types import Array
from dpca.rules.rule import Wrapper
from dpca.rules.state import Layout, State

_HELD, _COUNT = "held_rows", "n_held"


@dataclass(frozen=True)
class InBatches(Wrapper):
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
    chain : bool
        Take the samples one batch after the other even where the rule could merge.
    at_once : int
        Samples that are best read at a time, where these are more than one batch.
    """

    size: int
    chain: bool = False
    at_once: int = 256
    counts = (_COUNT,)

    @property
    def mergeable(self) -> bool:
        """Whether states can be merged."""
        return not self.chain and bool(self.rule.mergeable)

    def _own_layout(self, n_features: int, dtype: DTypeLike) -> Layout:
        return {_HELD: ((self.size, n_features), dtype)}

    def update(self, state: State, batch: Array) -> State:
        """Take in any number of samples."""
        held, n = state.arrays[_HELD], state.counts[_COUNT]
        if n:
            taken = min(len(batch), self.size - n)
            held[n : n + taken] = batch[:taken]
            n, batch = n + taken, batch[taken:]
            if n == self.size:
                self.rule.update(state, held)
                n = 0
        if not n:
            whole = len(batch) // self.size * self.size
            for start in range(0, whole, self.size):
                self.rule.update(state, batch[start : start + self.size])
            n = len(batch) - whole
            held[:n] = batch[whole:]
        state.counts[_COUNT] = n
        return state

    def merge(self, a: State, b: State) -> State:
        """Merge two states, each with what waits in it."""
        return super().merge(self._flushed(a), self._flushed(b.copy()))

    def average(self, before: State, states: Sequence[State]) -> State:
        """Average streams that went on from ``before``, in which nothing waits, each with what waits in it.

        A single stream stays as it is, and what waits in it waits on.
        """
        if len(states) == 1:
            return states[0]
        return super().average(self._flushed(before.copy()), [self._flushed(state.copy()) for state in states])

    def finish(self, state: State) -> dict[str, Array]:
        """Return the rule's result, the last short batch included."""
        result: dict[str, Array] = self.rule.finish(self._flushed(state))
        return result

    def _flushed(self, state: State) -> State:
        """Return the state with nothing waiting; it is changed."""
        if n := state.counts[_COUNT]:
            state.counts[_COUNT] = 0
            self.rule.update(state, state.arrays[_HELD][:n])
        return state

    def takes_any_batches(self, dtype: DTypeLike) -> bool:
        """Say yes: the rule gets batches of one size."""
        return True

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Samples that an update does best with: several batches, so that few of them wait."""
        return max(self.size, self.size * (self.at_once // self.size))

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays."""
        return int(self.rule.work_bytes(min(n_rows, self.size), n_features, dtype))
