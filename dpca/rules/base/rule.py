"""The contract of rules: their functions, and the properties that the engine reads before it runs them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array, Region
from dpca.rules.base.options import check_options
from dpca.rules.base.state import ALL, AttributeBlocks, State, StateLayout


class DivergedError(ValueError):
    """A parameter does not suit the data, such as a step too large to converge. The message says what to do."""


class Rule(ABC):
    """Base class of update rules: pure functions on arrays.

    A rule is a frozen dataclass of its options, see `dpca.rules.base.options`. It implements `_layout`, `_take` and
    `_finish`, and overrides other methods if the defaults do not suit. ``update``, ``merge``, ``combine``, ``apply``
    and ``finish`` own their first state: they may reuse its buffers and return it. No function changes a batch or a
    second state.
    """

    #: Names of the counters of a state.
    counts: ClassVar[Sequence[str]] = ("n_samples",)
    #: Smallest number of samples for a result.
    least_samples: ClassVar[int] = 1
    #: Whether states of two streams can be merged. Otherwise samples are processed in sequence.
    mergeable: ClassVar[bool] = False
    #: Whether several streams may start from one state and be averaged later, by `average`.
    averageable: ClassVar[bool] = False
    #: Whether several workers can process parts of a batch, by `partial_sums`, `combine` and `apply`.
    summable: ClassVar[bool] = False
    #: Whether states and batches may be stacked along a leading axis; see `State.stacked`.
    stackable: ClassVar[bool] = False
    #: Whether the rule assumes that samples arrive in random order.
    random_order: ClassVar[bool] = False
    #: Whether a state may be spread over blocks of attributes, see `AttributeBlocks`.
    spreadable: ClassVar[bool] = False
    #: Names of the arrays of a spreadable state with attributes along the last axis.
    by_attribute: ClassVar[Sequence[str]] = ()

    def __post_init__(self) -> None:
        check_options(self)

    @abstractmethod
    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        """Return the shape and dtype of each array of a state, for batches of ``n_features`` attributes of a dtype."""

    def _start(self, state: State, dtype: DTypeLike) -> None:  # noqa: B027 - most rules start at 0
        """Set the values of the initial state that are not 0."""

    @abstractmethod
    def _take(self, state: State, batch: Array) -> None:
        """Process and count a batch of at least one sample."""

    @abstractmethod
    def _finish(self, state: State) -> dict[str, Array]:
        """Return the result of at least ``least_samples`` samples."""

    def init(self, n_features: int, dtype: DTypeLike, blocks: AttributeBlocks = ALL) -> State:
        """Return the initial state for batches of ``n_features`` attributes of a dtype, or a block of it."""
        state = State.zeros(self._layout(n_features, dtype), self.counts, blocks, self.by_attribute)
        self._start(state, dtype)
        return state

    def part_of(self, state: State) -> State:
        """Return the rule's own part of a shared state, with the same arrays."""
        layout = self._layout(1, np.float32)
        arrays = {name: array for name, array in state.arrays.items() if name in layout}
        return State(arrays, {name: count for name, count in state.counts.items() if name in self.counts}, state.blocks)

    @property
    def results_by_attribute(self) -> Sequence[str]:
        """Names of the results of a spreadable rule with attributes along the last axis."""
        return ("components", "mean")

    def arrays_by_attribute(self) -> list[str]:
        """Return the names of the arrays of a state with attributes along the last axis."""
        return [*self.by_attribute]

    def update(self, state: State, batch: Array) -> State:
        """Process a batch (n_samples, n_features), n_samples >= 0."""
        if batch.shape[-2]:
            self._take(state, batch)
        return state

    def weigh(self, state: State, batch: Array, weights: Array) -> State:
        """Process a batch (n_samples, n_features) of numpy; ``weights`` (n_samples,) say how often each sample counts.

        The count of a state is then a sum of weights, not a whole number.
        """
        raise ValueError(
            f"{type(self).__name__} processes whole samples, but weights in sample_weight are not whole numbers: round "
            f"them"
        )

    def merge(self, a: State, b: State) -> State:
        """Return the state of both streams. By default this is the sum of all arrays and counters."""
        for name, values in b.arrays.items():
            a.arrays[name] += values
        for name, count in b.counts.items():
            a.counts[name] += count
        return a

    def flush(self, state: State) -> State:
        """Process the samples that a state holds back, if any. Only merges follow, which do this otherwise."""
        return state

    def finish(self, state: State) -> dict[str, Array]:
        """Return the result as named arrays. The state must not be used afterwards."""
        n = state.counts["n_samples"]
        if n < self.least_samples:
            what = "principal components" if self.least_samples == 1 else "variance"
            raise ValueError(f"{n:g} sample(s) have no {what}: give at least {self.least_samples}")
        return self._finish(state)

    def components_of(self, state: State) -> Array:
        """Return the components of `finish`, without certificates. The state does not change."""
        return self.finish(state.copy())["components"]

    def components_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes that `components_of` takes besides its result, for the planner."""
        return self.state_bytes(n_features, dtype) + self.result_bytes(n_features, dtype)

    def finish_all(self, states: Iterable[State]) -> Iterator[dict[str, Array]]:
        """Yield the result of each of some states. A rule with small problems may solve several together."""
        return map(self.finish, states)

    def average(self, before: State, states: Sequence[State]) -> State:
        """Return the average of states that started from ``before``. Each sample counts once. Changes no state."""
        raise NotImplementedError(f"{type(self).__name__} is not averageable")

    def partial_sums(self, state: State, part: Array) -> State:
        """Return the sums over a part (n_samples, n_features) of a batch, for an update of ``state``."""
        raise NotImplementedError(f"{type(self).__name__} is not summable")

    def combine(self, state: State, a: State, b: State) -> State:
        """Return the sums over both parts, in the buffers of ``a``. Nothing else changes."""
        raise NotImplementedError(f"{type(self).__name__} is not summable")

    def apply(self, state: State, sums: State) -> State:
        """Make one update with the sums over a batch, equal to `update` up to rounding error.

        Neither state must be used afterwards.
        """
        raise NotImplementedError(f"{type(self).__name__} is not summable")

    def for_samples(self, n_samples: int) -> Rule:
        """Return the rule for a stream of another length. Only rules with the number of all samples differ."""
        return self

    def of_part(self, part: int) -> Rule:
        """Return the rule that starts the state of a part. Only rules with parameters of each part differ."""
        return self

    def of_region(self, sample_shape: Sequence[int], region: Region) -> Rule:
        """Return the rule of a block of attributes. Only rules with parameters of each attribute differ."""
        return self

    def extrapolate(self, state: State, n_samples: int) -> None:  # noqa: B027 - most rules cost the same at any time
        """Change a state into about that after ``n_samples`` similar samples, to measure the time of later batches."""

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the best number of samples per update, for the planner. Any number is supported."""
        return 1024

    def is_batch_invariant(self, dtype: DTypeLike) -> bool:
        """Return whether the result is bit-identical for any division of samples of this dtype into batches."""
        return False

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a state, for the planner."""
        return bytes_of(self._layout(n_features, dtype))

    def held_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a state that `flush` frees, for the planner. They are proportional to ``n_features``."""
        return 0

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays in ``update`` and ``finish``, for the planner."""
        return 16 * n_rows * n_features + 4 * self.state_bytes(n_features, dtype)

    def summed_bytes(self, n_rows: int, n_features: int) -> int:
        """Return the bytes of the sums over all blocks of attributes in an update, for the planner."""
        return 0

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of the result of ``finish``, for the planner."""
        return self.state_bytes(n_features, dtype)


@dataclass(frozen=True)
class Wrapper:
    """A rule that wraps another rule and adds arrays and counters to its state.

    The inner rule works on the same state, and uses only its own arrays and counters. Everything that a wrapper does
    not implement is delegated to the inner rule.
    """

    rule: Any

    counts: ClassVar[Sequence[str]] = ()
    #: Names of the wrapper's own arrays with attributes along the last axis.
    by_attribute: ClassVar[Sequence[str]] = ()

    def __getattr__(self, name: str) -> Any:
        # Do not delegate before the fields exist, nor special methods, which Python and Dask look up on every object.
        if name == "rule" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.rule, name)

    def _own_layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        """Return the layout of the arrays of the wrapper."""
        return {}

    def init(self, n_features: int, dtype: DTypeLike, blocks: AttributeBlocks = ALL) -> State:
        """Return the initial state of the rule and of the wrapper, or a block of it."""
        state = self.rule.init(n_features, dtype, blocks)
        own = State.zeros(self._own_layout(n_features, dtype), self.counts, blocks, self.by_attribute)
        return State(state.arrays | own.arrays, state.counts | own.counts, blocks)

    def part_of(self, state: State) -> State:
        """Return the part of a shared state that belongs to the wrapper and its rule, with the same arrays."""
        inner: State = self.rule.part_of(state)
        arrays = {name: state.arrays[name] for name in self._own_layout(1, np.float32)}
        counts = inner.counts | {name: state.counts[name] for name in self.counts}
        return State(inner.arrays | arrays, counts, state.blocks)

    def arrays_by_attribute(self) -> list[str]:
        """Return the names of the arrays of a shared state with attributes along the last axis."""
        return [*self.rule.arrays_by_attribute(), *self.by_attribute]

    def merge(self, a: State, b: State) -> State:
        """Merge the states of the rule. The wrapper's own part of ``a`` does not change."""
        return self.rule.merge(a, self.rule.part_of(b))

    def of_part(self, part: int) -> Wrapper:
        """Return the wrapper of the rule of a part."""
        inner = self.rule.of_part(part)
        return self if inner is self.rule else replace(self, rule=inner)

    def of_region(self, sample_shape: Sequence[int], region: Region) -> Wrapper:
        """Return the wrapper of the rule of a block of attributes."""
        inner = self.rule.of_region(sample_shape, region)
        return self if inner is self.rule else replace(self, rule=inner)

    def finish_all(self, states: Iterable[State]) -> Iterator[dict[str, Array]]:
        """Yield the result of each of some states."""
        return map(self.finish, states)

    def average(self, before: State, states: Sequence[State]) -> State:
        """Average the states of the rule. The wrapper's own part is that of ``before``."""
        averaged = self.rule.average(self.rule.part_of(before), [self.rule.part_of(state) for state in states])
        return State(before.arrays | averaged.arrays, before.counts | averaged.counts)

    def is_batch_invariant(self, dtype: DTypeLike) -> bool:
        """Return False, because the effect of the wrapper is not known here."""
        return False

    def for_samples(self, n_samples: int) -> Wrapper:
        """Return the wrapper of the rule for a stream of another length."""
        inner = self.rule.for_samples(n_samples)
        return self if inner is self.rule else replace(self, rule=inner)

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of the state of the rule and of the wrapper."""
        return bytes_of(self._own_layout(n_features, dtype)) + int(self.rule.state_bytes(n_features, dtype))


def bytes_of(layout: StateLayout) -> int:
    """Return the bytes of the arrays of a layout."""
    return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in layout.values())


def check_products(finite: bool | np.bool_, dtype: DTypeLike = np.float64, powers: str = "squares") -> None:
    """Reject samples with products that are not ``finite`` in a dtype."""
    if not finite:
        raise ValueError(
            f"samples are not finite, or their {powers} exceed the range of {np.dtype(dtype)}: mask them, or divide "
            "them by a constant"
        )
