"""The fold on an accelerator: parts of equal size are stacked, and one call of the rule updates a whole stack.

::

    batch (n, *sample_shape), sent once         parts of 75 attributes:    of 45:
      |                                           (m, n, 75)                      (m', n, 45)
      +-- split, on the accelerator -->           update, finish                  update, finish

A call to an accelerator takes some microseconds, about as long as the arithmetic of a small cell. A thousand separate
calls for a thousand cells would leave the accelerator idle.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.engine.folds.boundary import named_errors
from dpca.engine.folds.device import Device
from dpca.engine.folds.fold_tasks import Results
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.derived import DerivedSource
from dpca.engine.sources.source import BatchReader, Source, batches
from dpca.kernels.algebra.namespace import empty, namespace, to_numpy
from dpca.kernels.algebra.types import Array, Region, box_around
from dpca.partition.base import Partition
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State
from dpca.storage.remote.memory import thread_count

# Memory of a stack in addition to its states, in multiples of a state: eigensolvers copy their matrices.
_COPIES = 6


@dataclass(frozen=True)
class Piece:
    """Partitions with stacked states, of ``n_features`` attributes each."""

    partitions: tuple[int, ...]
    n_features: int


class ThreadedSource(DerivedSource):
    """Another source, read by several threads at once, for a fold that is a single task.

    Each thread reads some whole chunks of samples of a box.
    """

    def __init__(self, source: Source, n_threads: int) -> None:
        super().__init__(source, window_rows=0, n_readers=n_threads)
        self.n_threads = n_threads

    def reader(self) -> BatchReader:
        """Open the source once for each thread; the threads end with the reader."""
        readers = [self.source.reader() for _ in range(self.n_threads)]
        pool = ThreadPoolExecutor(self.n_threads, thread_name_prefix="read")

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            (start, stop), length = samples, self.chunks[0]
            first, last = start // length, -(-stop // length)
            cuts = {(first + (last - first) * i // self.n_threads) * length for i in range(1, self.n_threads)}
            edges = [start, *sorted(cut for cut in cuts if start < cut < stop), stop]
            parts = [
                pool.submit(one, (a, b), region, out[a - start : b - start])
                for one, (a, b) in zip(readers, itertools.pairwise(edges), strict=False)
            ]
            for part in parts:
                part.result()

        return read


def fold_on_device(
    rule: Rule, source: Source, partition: Partition, device: Device, *, budget: int | None = None
) -> Results:
    """Fold a rule over each part of a partition of a stack, on an accelerator.

    All processors read batches, one batch ahead. Batches are checked and sent with their dtype: 8-bit pixels travel as
    8 bits. If the memory of the accelerator does not hold all states, the stack is read again for the rest.

    Parameters
    ----------
    rule : Rule
    source : Source
    partition : Partition
    device : Device
    budget : int, optional
        Memory on the accelerator, in bytes; the default is most of the free memory.

    Returns
    -------
    list of dict of numpy arrays
        Result of each part, as from `dpca.engine.folds.fold`, up to rounding error.

    Raises
    ------
    DataError
        At a value that is not finite.
    PlanError
        If a single part does not fit.
    TypeError
        For a partition that supports numpy arrays only: overlapping cells.
    ValueError
        If the device computes float32 products with reduced precision; the message contains the remedy.
    """
    device.check_products()
    room = device.free_bytes() if budget is None else budget
    rows = _rows(rule, source, room // 8)
    results: Results = [{} for _ in range(partition.n_parts)]
    pieces = list(_pieces(rule, source, partition, rows, room // 4))
    for some in _passes(rule, source, pieces, room // 2):
        for piece, found in zip(some, _fold(rule, source, partition, device, some, rows), strict=True):
            for place, index in enumerate(piece.partitions):
                results[index] = {name: array[place, ...] if rule.stackable else array for name, array in found.items()}
    return results


def _rows(rule: Rule, source: Source, room: int) -> int:
    """Return the samples of a batch, in whole chunks if possible, so that two batches fit into ``room``."""
    fit = max(1, room // (2 * math.prod(source.shape[1:]) * source.dtype.itemsize))
    rows = max(1, min(rule.batch_rows(source.dtype), source.shape[0], fit))
    return rows // source.chunks[0] * source.chunks[0] or rows


def _pieces(rule: Rule, source: Source, partition: Partition, rows: int, room: int) -> Iterator[Piece]:
    """Yield pieces of equal-sized parts, as many as can be updated and finished at once."""
    order = sorted(range(partition.n_parts), key=partition.n_features)
    for d, same in itertools.groupby(order, partition.n_features):
        need = rows * d * source.dtype.itemsize + 2 * rule.work_bytes(rows, d, source.dtype)
        need += _COPIES * rule.state_bytes(d, source.dtype)
        if need > room:
            raise PlanError(
                f"one part of {d:,} attributes needs {need / 1e6:,.0f} MB of the accelerator's memory, and "
                f"{room / 1e6:,.0f} MB are available: {partition.remedy}"
            )
        members, most = list(same), room // need if rule.stackable else 1
        for start in range(0, len(members), most):
            yield Piece(tuple(members[start : start + most]), d)


def _passes(rule: Rule, source: Source, pieces: Sequence[Piece], room: int) -> Iterator[list[Piece]]:
    """Yield lists of pieces with states that fit into memory together."""
    some: list[Piece] = []
    held = 0
    for piece in pieces:
        need = len(piece.partitions) * rule.state_bytes(piece.n_features, source.dtype)
        if some and held + need > room:
            yield some
            some, held = [], 0
        some.append(piece)
        held += need
    if some:
        yield some


def _fold(
    rule: Rule, source: Source, partition: Partition, device: Device, pieces: Sequence[Piece], rows: int
) -> Iterator[dict[str, Array]]:
    """Fold some pieces in one pass over the stack, and yield the result of each."""
    region = box_around([partition.region(i) for piece in pieces for i in piece.partitions])
    origin = tuple(start for start, _ in region)
    states: list[State] = []
    together = ThreadedSource(source, thread_count())
    for first, batch in batches(together, (0, source.shape[0]), region, rows):
        block = device.send(batch)
        if not states:
            states = [_start(rule, partition.split_dtype(source.dtype), piece, block) for piece in pieces]
            most = rows * max(len(piece.partitions) * piece.n_features for piece in pieces)
            buffer = empty((most,), partition.split_dtype(source.dtype), block)
        for number, piece in enumerate(pieces):
            parts = partition.split(block, piece.partitions, origin, buffer)
            update = named_errors(rule.update, source.name, source.numbers(first, first + len(batch)))
            states[number] = update(states[number], _stacked(parts, buffer) if rule.stackable else parts[0])
    states.reverse()
    finish = named_errors(rule.finish, source.name)
    while states:
        yield {name: to_numpy(array) for name, array in finish(states.pop()).items()}


def _start(rule: Rule, dtype: np.dtype[Any], piece: Piece, block: Array) -> State:
    state = rule.init(piece.n_features, dtype)
    if rule.stackable:
        state.move_to(block)
        state = state.stacked(len(piece.partitions))
    return state


def _stacked(parts: Sequence[Array], buffer: Array) -> Array:
    """Return parts of equal size, which ``buffer`` contains one after the other, as one array (m, n, d)."""
    if len(parts) == 1:  # a single part may be a view of the block instead
        return parts[0][None, ...]
    shape = (len(parts), *parts[0].shape)
    stack: Array = namespace(buffer).reshape(buffer[: math.prod(shape)], shape)
    return stack
