"""Blocks of a state that is spread over attributes, and the threads that update them.

::

    this process            a worker                            another worker
    +-----------------+     +--------------------------+        +--------------------------+
    | adds the sums   |<--->| block 0: basis, mean,    |        | block 1: basis, mean,    |
    | of the blocks   |<----|   its part of each batch |------->|   its part of each batch |
    +-----------------+     +--------------------------+        +--------------------------+

A block runs the update of a rule in a thread. Where it needs the sums over all blocks, it gives away its own, and waits
for the answer. So only sums travel: q x B and B x B numbers for q directions and batches of B samples.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import numpy as np

from dpca.engine.folds.boundary import named_errors
from dpca.engine.folds.checkpoint import load_states, save_states
from dpca.engine.folds.fold_tasks import GroupTask
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.linalg import release_scratch
from dpca.kernels.algebra.types import Array
from dpca.partition.cells import CellGrid
from dpca.rules.base.state import AttributeBlocks, State
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.remote.tasks import one_blas_thread


class Message(NamedTuple):
    """What a block says: it waits for an answer, or its work is done."""

    kind: str
    """"sum" or "gather": it waits for the sums, or for all values. "done" or "error": it has ended."""
    value: Any
    at: int
    """Number of samples that it has read."""


class BlockStore(Protocol):
    """A store of components and a mean that blocks write to, each its attributes."""

    def create(self) -> None:
        """Create the store, or open that of an interrupted run."""

    def write_checked(self, part: int, components: Array, mean: Array) -> float:
        """Write the components and the mean of a block, and return the largest absolute value of the mean."""

    def arrays(self, owner: Any) -> Mapping[str, Any]:
        """Return ``components`` and ``mean`` for reading. The store may be removed with its owner."""


class StoreOfBlocks(Protocol):
    """Makes the store of a result, or of a result so far."""

    def __call__(self, grid: CellGrid, n_components: int, so_far: bool, /) -> tuple[BlockStore, Any]:
        """Return a store with these blocks, and its owner."""


class _Closed(BaseException):
    """The fold has ended. Not an `Exception`, so that no handler of errors catches it."""


class _Exchange(AttributeBlocks):
    """The other blocks, as one of them sees them."""

    alone = False

    def __init__(self, index: int, n_features: int, own: int) -> None:
        self.index, self._n_features, self._own = index, n_features, own
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.outbox: SimpleQueue[Message] = SimpleQueue()
        self.at = 0

    def whole(self, n_features: int) -> int:
        """Return the number of attributes of all blocks."""
        return self._n_features

    def part(self, n_features: int) -> int:
        """Return the number of attributes of this block."""
        return self._own

    def gathered(self, value: Any) -> tuple[Any, ...]:
        """Return the values of all blocks, in order."""
        return tuple(self._ask("gather", value))

    def summed(self, *arrays: Array) -> tuple[Array, ...]:
        """Return the sum of each array over all blocks, as new arrays."""
        # Blocks in one process receive the same arrays, and a rule may change them.
        return tuple(np.array(total) for total in self._ask("sum", arrays))

    def _ask(self, kind: str, value: Any) -> Any:
        self.outbox.put(Message(kind, value, self.at))
        answer = self.inbox.get()
        if answer is None:
            raise _Closed
        return answer[0]


class _Block:
    """One block: its state, and its part of the samples."""

    def __init__(self, index: int, work: GroupTask, source: Source, n_features: int) -> None:
        own = work.partition.n_features(0)
        self.work, self.source, self.n_features = work, source, n_features
        self.others, self.result = _Exchange(index, n_features, own), dict[str, Array]()
        self.state = State()
        threading.Thread(target=_serve, args=(self,), name=f"block-{index}", daemon=True).start()

    def start(self) -> None:
        """Make the initial state."""
        make = named_errors(self.work.rule.init, self.work.called)
        self.state, self.others.at = make(self.n_features, self.work.dtype, self.others), 0

    def load(self, turn: int) -> int | None:
        """Load the state of a checkpoint, and return the number of its samples."""
        kept = self.work.checkpoints
        found = None if kept is None else load_states(kept, f"{self.work.name}-{turn}")
        if found is None:
            return None
        self.state, mark = found
        self.state.blocks, self.others.at = self.others, mark.counts["at"]
        return self.others.at

    def keep(self, turn: int) -> None:
        """Write a checkpoint."""
        if self.work.checkpoints is not None:
            mark = State({}, {"at": self.others.at})
            save_states(self.work.checkpoints, f"{self.work.name}-{turn}", [self.state, mark])

    def fold(self, stop: int) -> None:
        """Update the state with the samples up to ``stop``."""
        work = self.work
        with one_blas_thread():
            for here, (part,) in work.parts(self.source, (self.others.at, stop)):
                self.state = named_errors(work.rule.update, work.called, here)(self.state, part)
                self.others.at += len(part)

    def finish(self, copy: bool) -> tuple[dict[str, Array], dict[str, int | None]]:
        """Compute the result. Without ``copy``, the state is consumed.

        Returns
        -------
        small : dict of str to array
            The arrays without an axis of attributes.
        rows : dict of str to int or None
            The number of rows of each of the other arrays, None for an array with one axis.
        """
        release_scratch()
        state = self.state.copy() if copy else self.state
        self.state = self.state if copy else State()
        with one_blas_thread():
            self.result = named_errors(self.work.rule.finish, self.work.called)(state)
        small = dict(self.result)
        large = {name: small.pop(name) for name in self.work.rule.results_by_attribute}
        return small, {name: len(array) if array.ndim > 1 else None for name, array in large.items()}

    def write(self, store: BlockStore) -> float:
        """Write the components and the mean of the result, and return the largest absolute value of the mean."""
        return store.write_checked(self.others.index, self.result["components"], self.result["mean"])


def _serve(block: _Block) -> None:
    """Run the commands for a block until its holder is gone."""
    others = block.others
    while (command := others.inbox.get()) is not None:
        name, arguments = command
        try:
            kind, value = "done", getattr(block, name)(*arguments)
        except _Closed:
            return
        except Exception as error:
            kind, value = "error", error
        others.outbox.put(Message(kind, value, others.at))


class BlockHolder:
    """Some blocks of a state in one process. Their threads end with the holder.

    Parameters
    ----------
    works : mapping of int to GroupTask
        The work of each block, with the block as its only part.
    source : Source
    n_features : int
        Attributes of all blocks.
    """

    def __init__(self, works: Mapping[int, GroupTask], source: Source, n_features: int) -> None:
        self._blocks = {index: _Block(index, work, source, n_features) for index, work in works.items()}

    def command(self, name: str, *arguments: Any) -> list[Message]:
        """Start a method of all blocks, and return what each of them says first."""
        return self._say((name, arguments))

    def answer(self, value: Any) -> list[Message]:
        """Give all blocks what they wait for, and return what each of them says next."""
        return self._say((value,))

    def fetch(self, index: int, name: str, row: int) -> Array:
        """Return a row of a result of a block."""
        found: Array = np.atleast_2d(self._blocks[index].result[name])[row]
        return found

    def drop(self) -> int:
        """Free the results, and return the peak memory of this process."""
        for block in self._blocks.values():
            block.result = {}
        return peak_resident_bytes()

    def _say(self, item: Any) -> list[Message]:
        for block in self._blocks.values():
            block.others.inbox.put(item)
        return [block.others.outbox.get() for block in self._blocks.values()]

    def __del__(self) -> None:
        for block in vars(self).get("_blocks", {}).values():
            block.others.inbox.put(None)


def joined(messages: Sequence[Message]) -> Any:
    """Return the answer to blocks that wait: the sums, in the order of the blocks, or all values."""
    values = [message.value for message in messages]
    if messages[0].kind == "gather":
        return values
    # Squares that are out of range are then scaled or rejected by the rule.
    with np.errstate(all="ignore"):
        return [sum(arrays[1:], start=arrays[0]) for arrays in zip(*values, strict=True)]
