"""What every rule shares: the functions that it is made of, and what the engine asks before it runs them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.types import Array
from dpca.rules.state import Layout, State


class DivergedError(ValueError):
    """A parameter is beyond what the values bear, as a step too large to converge; the message has the remedy."""


class Rule(ABC):
    """An update rule: pure functions on arrays.

    A rule is a frozen dataclass of its options. It writes `_layout`, `_take` and `_finish`, and overrides the defaults
    below where it differs. ``update``, ``merge``, ``combine``, ``apply`` and ``finish`` own the state that they change:
    they may reuse its buffers and return it. No function changes a batch or a second state.
    """

    #: Names of the counters of a state.
    counts: ClassVar[Sequence[str]] = ("n_samples",)
    #: Samples without which there is no result.
    least_samples: ClassVar[int] = 1
    #: Whether states of two streams can be merged; otherwise the samples are taken one after the other.
    mergeable: ClassVar[bool] = False
    #: Whether streams may part from one state and be averaged again, by `average`.
    averageable: ClassVar[bool] = False
    #: Whether workers can take in parts of a batch, by `partial`, `combine` and `apply`.
    summable: ClassVar[bool] = False
    #: Whether states and batches may be stacked along a leading axis; see `State.stacked`.
    stackable: ClassVar[bool] = False
    #: Whether samples are assumed to come in random order.
    random_order: ClassVar[bool] = False

    @abstractmethod
    def _layout(self, n_features: int, dtype: DTypeLike) -> Layout:
        """Return the shape and dtype of each array of a state, for batches of ``n_features`` attributes of a dtype."""

    def _start(self, state: State, dtype: DTypeLike) -> None:  # noqa: B027 - most rules start at 0
        """Set what is not 0 in the state before any sample."""

    @abstractmethod
    def _take(self, state: State, batch: Array) -> None:
        """Take in, and count, a batch of at least one sample."""

    @abstractmethod
    def _finish(self, state: State) -> dict[str, Array]:
        """Return the result; there are at least ``least_samples`` samples."""

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        """Return the state before any sample, for batches of ``n_features`` attributes of ``dtype``."""
        state = State.zeros(self._layout(n_features, dtype), self.counts)
        self._start(state, dtype)
        return state

    def part_of(self, state: State) -> State:
        """Return what the rule keeps in a state that others share, with the same arrays."""
        layout = self._layout(1, np.float32)
        arrays = {name: array for name, array in state.arrays.items() if name in layout}
        return State(arrays, {name: count for name, count in state.counts.items() if name in self.counts})

    def update(self, state: State, batch: Array) -> State:
        """Take in a batch of shape (n_samples, n_features), n_samples >= 0."""
        if batch.shape[-2]:
            self._take(state, batch)
        return state

    def merge(self, a: State, b: State) -> State:
        """Return the state of both streams together: by default the sum of all arrays and counters."""
        for name, values in b.arrays.items():
            a.arrays[name] += values
        for name, count in b.counts.items():
            a.counts[name] += count
        return a

    def finish(self, state: State) -> dict[str, Array]:
        """Return the result as named arrays; the state is used up."""
        n = state.counts["n_samples"]
        if n < self.least_samples:
            what = "principal components" if self.least_samples == 1 else "variance"
            raise ValueError(f"{n} sample(s) have no {what}: give at least {self.least_samples}")
        return self._finish(state)

    def average(self, before: State, states: Sequence[State]) -> State:
        """Return the average of states that went on from ``before``; each sample is counted once. Changes none."""
        raise NotImplementedError(f"{type(self).__name__} is not averageable")

    def partial(self, state: State, part: Array) -> State:
        """Return the sums over a part (n_samples, n_features) of a batch, as an update from ``state`` needs them."""
        raise NotImplementedError(f"{type(self).__name__} is not summable")

    def combine(self, state: State, a: State, b: State) -> State:
        """Return the sums over two parts together, in the buffers of ``a``; changes nothing else."""
        raise NotImplementedError(f"{type(self).__name__} is not summable")

    def apply(self, state: State, sums: State) -> State:
        """Make one update with the sums over a batch, as `update` does up to rounding; both states are used up."""
        raise NotImplementedError(f"{type(self).__name__} is not summable")

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Samples that an update does best with, for the planner; any number is taken."""
        return 1024

    def takes_any_batches(self, dtype: DTypeLike) -> bool:
        """Return whether the result does not depend, to the last bit, on how samples of ``dtype`` come in batches."""
        return False

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a state, for the planner."""
        return bytes_of(self._layout(n_features, dtype))

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays in ``update`` and ``finish``, for the planner."""
        return 16 * n_rows * n_features + 4 * self.state_bytes(n_features, dtype)

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of what ``finish`` returns, for the planner."""
        return self.state_bytes(n_features, dtype)


@dataclass(frozen=True)
class Wrapper:
    """A rule around another one, in whose state it keeps more arrays and counters of its own.

    The other rule works on the same state and looks only at what it has put there. Whatever a wrapper does not write
    itself is delegated.
    """

    rule: Any

    counts: ClassVar[Sequence[str]] = ()

    def __getattr__(self, name: str) -> Any:
        # Not before the fields are there, and nothing that Python or Dask asks every object for.
        if name == "rule" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.rule, name)

    def _own_layout(self, n_features: int, dtype: DTypeLike) -> Layout:
        """Return the layout of the arrays that the wrapper keeps."""
        return {}

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        """Return the rule's state, with what the wrapper keeps there."""
        state, own = self.rule.init(n_features, dtype), State.zeros(self._own_layout(n_features, dtype), self.counts)
        return State(state.arrays | own.arrays, state.counts | own.counts)

    def part_of(self, state: State) -> State:
        """Return what the wrapper and its rule keep in a state that others share, with the same arrays."""
        inner: State = self.rule.part_of(state)
        arrays = {name: state.arrays[name] for name in self._own_layout(1, np.float32)}
        return State(inner.arrays | arrays, inner.counts | {name: state.counts[name] for name in self.counts})

    def merge(self, a: State, b: State) -> State:
        """Merge; what the wrapper keeps in ``a`` stays."""
        merged: State = self.rule.merge(a, self.rule.part_of(b))
        return merged

    def average(self, before: State, states: Sequence[State]) -> State:
        """Average; what the wrapper keeps in ``before`` stays."""
        averaged = self.rule.average(self.rule.part_of(before), [self.rule.part_of(state) for state in states])
        return State(before.arrays | averaged.arrays, before.counts | averaged.counts)

    def takes_any_batches(self, dtype: DTypeLike) -> bool:
        """Say no, as what the wrapper changes is not known here."""
        return False

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of the rule's state and of what the wrapper keeps there."""
        return bytes_of(self._own_layout(n_features, dtype)) + int(self.rule.state_bytes(n_features, dtype))


def bytes_of(layout: Layout) -> int:
    """Bytes of the arrays of a layout."""
    return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in layout.values())


def check_number(
    name: str, value: Any, words: str, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> None:
    """Refuse an option that is no finite number with above < number, least <= number <= most; ``words`` say what is."""
    number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    if not number or not (above < value and least <= value <= most and abs(value) < math.inf):
        raise ValueError(f"{name} is {value!r}: give {words}")


def check_count(name: str, value: Any, what: str, *, least: int = 1) -> None:
    """Refuse an option that is no whole number, ``least`` or more, of ``what``."""
    if not isinstance(value, Integral):
        raise ValueError(f"{name} is {value!r}: give a whole number of {what}")
    check_number(name, value, f"{least} or more {what}", least=least)
