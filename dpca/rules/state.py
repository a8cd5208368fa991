"""What every rule shares: the state it carries and the four functions it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import DTypeLike, NDArray

from dpca.kernels.namespace import beside, copy_of, namespace, to_numpy

Array = NDArray[Any]


@dataclass
class State:
    """Named arrays and exact integer counters: all that a rule remembers between batches.

    Because it is no more than that, the engine can checkpoint, ship and merge the state of any rule
    without knowing the rule.

    Rules begin with numpy arrays. Those that take the arrays of other libraries bring what they need of a state to
    where the batch is (`move_to`), so a state that was kept on disk goes on anywhere.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        return sum(a.nbytes for a in self.arrays.values())

    def copy(self) -> State:
        """Return a state of its own with the same values."""
        return State({name: copy_of(array) for name, array in self.arrays.items()}, dict(self.counts))

    def move_to(self, batch: Array, names: Sequence[str] | None = None) -> None:
        """Bring the arrays of these names, or all, to the library and the memory of a batch; most often they are."""
        for name in names or self.arrays:
            self.arrays[name] = beside(self.arrays[name], batch)

    def stacked(self, n: int) -> State:
        """Return ``n`` of this state in one, along a new leading axis, for batches (n, n_samples, n_features)."""
        return State({name: _repeated(array, n) for name, array in self.arrays.items()}, dict(self.counts))

    def to_numpy(self) -> State:
        """Return this state in numpy arrays, the same ones where they are."""
        return State({name: to_numpy(array) for name, array in self.arrays.items()}, dict(self.counts))


def _repeated(array: Array, n: int) -> Array:
    return copy_of(namespace(array).broadcast_to(array, (n, *array.shape)))


class Rule(Protocol):
    """An update rule.

    ``update`` and ``merge`` own their first argument: they may reuse its buffers and return it. They
    never change a batch or a second state.
    """

    @property
    def mergeable(self) -> bool:
        """Whether states of two streams can be merged; without it the samples are taken one after the other."""

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        """Return the state before any sample, for batches of ``n_features`` attributes of ``dtype``."""

    def update(self, state: State, batch: Array) -> State:
        """Take in a batch of shape (n_samples, n_features)."""

    def merge(self, a: State, b: State) -> State:
        """Return the state of both streams together."""

    def finish(self, state: State) -> dict[str, Array]:
        """Return the result as named arrays."""

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Samples that an update does best with, for the planner; it takes any number."""

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a state, for the planner."""

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays in ``update`` and ``finish``, for the planner."""

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of what ``finish`` returns, for the planner."""


class AveragingRule(Rule, Protocol):
    """A rule whose streams may part from one state and be averaged again; the engine asks for ``averageable``."""

    @property
    def averageable(self) -> bool:
        """Whether it is one: some rules are only with some parameters."""

    def average(self, before: State, states: Sequence[State]) -> State:
        """Return the average of states that went on from ``before``; each sample is counted once. Changes none."""


class SummingRule(Rule, Protocol):
    """A rule whose update is a sum over the batch, so that its parts can be taken in by different workers.

    ``update`` with a batch is ``apply`` with the ``partial`` sums of its parts combined, up to rounding.
    """

    @property
    def summable(self) -> bool:
        """Whether it is one: some rules are only with some parameters."""

    def partial(self, state: State, part: Array) -> State:
        """Return the sums over a part (n_samples, n_features) of a batch, as an update from ``state`` needs them."""

    def combine(self, state: State, a: State, b: State) -> State:
        """Return the sums over two parts together. Owns ``a``; changes nothing else."""

    def apply(self, state: State, sums: State) -> State:
        """Make one update with the sums over a batch. Owns both."""


def count_of(state: State) -> int:
    """Samples seen by a state."""
    return state.counts["n_samples"]
