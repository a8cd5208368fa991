"""The state of a rule between batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.namespace import beside, copy_of, namespace, to_numpy
from dpca.kernels.algebra.types import Array

#: The shape and the dtype of each array of a state.
StateLayout = Mapping[str, tuple[tuple[int, ...], DTypeLike]]


@dataclass
class State:
    """Named arrays and exact integer counters: everything that a rule has learned so far.

    The engine can therefore save, send and merge the state of any rule without knowing the rule.

    Initial states are numpy arrays. Rules that support arrays of other libraries move the state to the device of the
    batch (`move_to`). A stored state can therefore continue on any device.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def zeros(cls, layout: StateLayout, counts: Sequence[str] = ("n_samples",)) -> State:
        """Return a state of zeros."""
        return cls({name: np.zeros(*array) for name, array in layout.items()}, dict.fromkeys(counts, 0))

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays."""
        return sum(a.nbytes for a in self.arrays.values())

    def copy(self) -> State:
        """Return an independent state with the same values."""
        return State({name: copy_of(array) for name, array in self.arrays.items()}, dict(self.counts))

    def move_to(self, batch: Array, names: Sequence[str] | None = None) -> None:
        """Move the arrays of these names, by default all, to the library and device of a batch."""
        for name in names or self.arrays:
            self.arrays[name] = beside(self.arrays[name], batch)

    def stacked(self, n: int) -> State:
        """Return ``n`` copies of this state, stacked along a new first axis, for batches (n, n_samples, n_features)."""
        arrays = {name: namespace(a).broadcast_to(a, (n, *a.shape)) for name, a in self.arrays.items()}
        return State(arrays, self.counts).copy()

    def to_numpy(self) -> State:
        """Return this state with numpy arrays. Arrays that are numpy arrays already are not copied."""
        return State({name: to_numpy(array) for name, array in self.arrays.items()}, dict(self.counts))
