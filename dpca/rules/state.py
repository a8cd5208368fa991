"""The state that a rule carries from batch to batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.namespace import beside, copy_of, namespace, to_numpy
from dpca.kernels.types import Array

#: The shape and the dtype of each array of a state.
Layout = Mapping[str, tuple[tuple[int, ...], DTypeLike]]


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

    @classmethod
    def zeros(cls, layout: Layout, counts: Sequence[str] = ("n_samples",)) -> State:
        """Return a state of zeros."""
        return cls({name: np.zeros(*array) for name, array in layout.items()}, dict.fromkeys(counts, 0))

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
