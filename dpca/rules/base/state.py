"""The state of a rule between batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.namespace import beside, copy_of, namespace, to_numpy
from dpca.kernels.algebra.types import Array

#: The shape and the dtype of each array of a state.
StateLayout = Mapping[str, tuple[tuple[int, ...], DTypeLike]]
T = TypeVar("T")


class AttributeBlocks:
    """The blocks of attributes over which a state is spread, as one of them sees them. Here it is the only one.

    Every block runs the same rule on its own attributes of the same batches. Where a rule needs a sum over all
    attributes, it adds those of all blocks by `summed`. Everything without an axis of attributes has the same value in
    all blocks. LAPACK may round differently on other processors, so that its results come from one block, by `once`.
    """

    index = 0
    alone = True
    """Whether there are no other blocks. A state that comes from another process has a block that is not `ALL`."""

    def whole(self, n_features: int) -> int:
        """Return the number of attributes of all blocks, from that of this one."""
        return n_features

    def part(self, n_features: int) -> int:
        """Return the number of attributes of this block, from that of all."""
        return n_features

    def gathered(self, value: Any) -> tuple[Any, ...]:
        """Return the values of all blocks, in order."""
        return (value,)

    def summed(self, *arrays: Array) -> tuple[Array, ...]:
        """Return the sum of each array over all blocks. In the only block, these are the arrays themselves."""
        return arrays

    def once(self, make: Callable[[], T]) -> T:
        """Return what ``make`` returns in the first block. The other blocks do not call it."""
        found: T = self.gathered(None if self.index else make())[0]
        return found


#: The only block.
ALL = AttributeBlocks()


@dataclass
class State:
    """Named arrays and exact counters: everything that a rule has learned so far.

    Counters are integers, except the number of samples after `Rule.weigh`.

    The engine can therefore save, send and merge the state of any rule without knowing the rule.

    Initial states are numpy arrays. Rules that support arrays of other libraries move the state to the device of the
    batch (`move_to`). A stored state can therefore continue on any device.

    ``blocks`` are the blocks of attributes of which this state is one.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    blocks: AttributeBlocks = ALL

    @classmethod
    def zeros(
        cls,
        layout: StateLayout,
        counts: Sequence[str] = ("n_samples",),
        blocks: AttributeBlocks = ALL,
        by_attribute: Sequence[str] = (),
    ) -> State:
        """Return a state of zeros. The last axis of the arrays ``by_attribute`` has the attributes of its block."""
        shapes = {name: (*s[:-1], blocks.part(s[-1])) if name in by_attribute else s for name, (s, _) in layout.items()}
        arrays = {name: np.zeros(shapes[name], dtype) for name, (_, dtype) in layout.items()}
        return cls(arrays, dict.fromkeys(counts, 0), blocks)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays."""
        return sum(a.nbytes for a in self.arrays.values())

    def copy(self) -> State:
        """Return an independent state with the same values."""
        return replace(self, arrays={name: copy_of(a) for name, a in self.arrays.items()}, counts=dict(self.counts))

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
        return replace(self, arrays={name: to_numpy(a) for name, a in self.arrays.items()}, counts=dict(self.counts))
