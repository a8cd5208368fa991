"""Mini-batches of a fixed size from a stream with pieces of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array
from dpca.rules.base.rule import Wrapper
from dpca.rules.base.state import State, StateLayout

_HELD, _COUNT = "buffered_rows", "n_held"


@dataclass(frozen=True)
class InBatches(Wrapper):
    """Pass samples to a rule in batches of exactly ``size``. The last batch may be shorter.

    A store is read in whole chunks, but the result of a streaming rule depends on the borders of its mini-batches. The
    state buffers an incomplete mini-batch. Therefore the result depends neither on the chunks of the store nor on
    interruptions.

    Parameters
    ----------
    rule : Rule
        The rule that processes the batches.
    size : int
        Number of samples of one update.
    chain : bool
        Process all batches in sequence even if the rule supports merging.
    at_once : int
        Number of samples to read at a time. Whole batches are read if they are not larger.
    """

    size: int
    chain: bool = False
    at_once: int = 256
    counts = (_COUNT,)
    by_attribute = (_HELD,)

    @property
    def mergeable(self) -> bool:
        """Whether states can be merged."""
        return not self.chain and bool(self.rule.mergeable)

    def _own_layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return {_HELD: ((self.size, n_features), dtype)}

    def update(self, state: State, batch: Array) -> State:
        """Process any number of samples."""
        held, n = state.arrays[_HELD], state.counts[_COUNT]
        if len(held) < self.size:  # a flushed state
            held = state.arrays[_HELD] = np.zeros((self.size, held.shape[1]), held.dtype)
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

    def weigh(self, state: State, batch: Array, weights: Array) -> State:
        """Process the buffered samples, then samples with weights at once."""
        weighted: State = self.rule.weigh(self._flushed(state), batch, weights)
        return weighted

    def merge(self, a: State, b: State) -> State:
        """Merge two states, including their buffered samples."""
        return super().merge(self._flushed(a), self._flushed(b.copy()) if b.counts[_COUNT] else b)

    def flush(self, state: State) -> State:
        """Process the buffered samples, and free the buffer: it can be larger than the rest of the state."""
        state = self._flushed(state)
        state.arrays[_HELD] = state.arrays[_HELD][:0].copy()
        return state

    def average(self, before: State, states: Sequence[State]) -> State:
        """Average streams that started from ``before``, including their buffered samples.

        ``before`` is used without buffered samples. A single stream is returned with its buffer.
        """
        if len(states) == 1:
            return states[0]
        return super().average(self._flushed(before.copy()), [self._flushed(state.copy()) for state in states])

    def finish(self, state: State) -> dict[str, Array]:
        """Return the result of the rule, including the last short batch."""
        return self.rule.finish(self._flushed(state))

    def _flushed(self, state: State) -> State:
        """Process the buffered samples, and return the changed state."""
        if n := state.counts[_COUNT]:
            state.counts[_COUNT] = 0
            self.rule.update(state, state.arrays[_HELD][:n])
        return state

    def is_batch_invariant(self, dtype: DTypeLike) -> bool:
        """Return True, because the rule always receives batches of one size."""
        return True

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the best number of samples per update: whole batches if possible, so that few are buffered."""
        return self.size * (self.at_once // self.size) or self.at_once

    def held_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of the buffer."""
        return self.size * n_features * np.dtype(dtype).itemsize

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays. Fewer samples fill a batch together."""
        return int(self.rule.work_bytes(self.size, n_features, dtype))

    def summed_bytes(self, n_rows: int, n_features: int) -> int:
        """Return the bytes of sums over blocks of attributes."""
        return int(self.rule.summed_bytes(self.size, n_features))
