"""Rounds: the assignment of samples to streams that start from one state and are joined to one. No I/O.

::

    round 0                      round 1
    +----------+----------+      +----------+----------+
    | stream 0 | stream 1 |      | stream 0 | stream 1 |     samples, in the order of the stack
    +----------+----------+      +----------+----------+
    state --> both --> join --> state --> both --> join -->

The result depends on the assignment of samples, but not on the workers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array
from dpca.rules.base.options import check_count
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State

Span = tuple[int, int]

# Samples of one matrix product: enough for products to be fast.
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Averaging:
    """Each stream folds its own samples. After each round the average of their states is the new state of all.

    The synchronous rounds of Amid & Warmuth (2020), section "Distributed Setting": ten machines with a thousand samples
    each between two averages. The result depends on these numbers, but not on the number of workers.

    Parameters
    ----------
    n_streams : int
        Number of streams. With one stream, the result is that of a chain.
    round_size : int
        Samples of each stream in a round. The samples of the last round are divided evenly.
    batch_size : int
        Samples of one update, which one stream folds together; it divides ``round_size``.
    """

    n_streams: int
    round_size: int
    batch_size: int = 1

    def __post_init__(self) -> None:
        check_count("n_streams", self.n_streams, "streams")
        check_count("round_size", self.round_size, "samples")
        check_count("batch_size", self.batch_size, "samples")
        if over := self.round_size % self.batch_size:
            raise ValueError(
                f"round_size is {self.round_size}, not a whole number of batches of {self.batch_size} samples: give "
                f"{self.round_size - over + self.batch_size}"
            )

    @property
    def round_rows(self) -> int:
        """Samples of one round."""
        return self.n_streams * self.round_size

    def rows_together(self, chunk_rows: int) -> int:
        """Return the number of samples that stay together in one stream: a batch, for one update."""
        return self.batch_size

    def batch_rows(self, rule: Rule, dtype: DTypeLike) -> int:
        """Return the best number of samples for an update."""
        return rule.batch_rows(dtype)

    def take(self, rule: Rule, state: State, piece: State | None, part: Array) -> State:
        """Update the stream's own state, ``piece``. Initially it is a copy of the round's initial state."""
        return rule.update(state.copy() if piece is None else piece, part)

    def join(self, rule: Rule, state: State, pieces: Sequence[State]) -> State:
        """Return the average of the streams. The arguments are not changed."""
        return rule.average(state, pieces)


@dataclass(frozen=True)
class DataParallel:
    """Each round is one update with one large batch. The streams sum over parts of it.

    The result is that of the same batches on one worker, up to rounding error.

    Parameters
    ----------
    batch_size : int
        Samples of a batch.
    n_streams : int
        Parts of a batch.
    """

    batch_size: int
    n_streams: int

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size, "samples")
        check_count("n_streams", self.n_streams, "streams")

    @property
    def round_rows(self) -> int:
        """Samples of one round."""
        return self.batch_size

    def rows_together(self, chunk_rows: int) -> int:
        """Return the samples of a chunk, if batches consist of enough whole chunks; each is then decoded once."""
        whole = self.batch_size % chunk_rows == 0 and self.batch_size >= chunk_rows * self.n_streams
        return chunk_rows if whole else 1

    def batch_rows(self, rule: Rule, dtype: DTypeLike) -> int:
        """Return the number of samples of one product."""
        return min(_ROWS_AT_ONCE, math.ceil(self.batch_size / self.n_streams))

    def take(self, rule: Rule, state: State, piece: State | None, part: Array) -> State:
        """Add samples to the stream's sums, ``piece``, which are None initially."""
        sums = rule.partial_sums(state, part)
        return sums if piece is None else rule.combine(state, piece, sums)

    def join(self, rule: Rule, state: State, pieces: Sequence[State]) -> State:
        """Return the state after an update with the sums of all streams. The arguments are not changed."""
        sums = reduce(lambda a, b: rule.combine(state, a, b), pieces[1:], pieces[0].copy())
        return rule.apply(state.copy(), sums)


RoundScheme = Averaging | DataParallel
"""The work of the streams in a round."""


def rounds(samples: Span, scheme: RoundScheme, chunk_rows: int) -> Iterator[tuple[Span, ...]]:
    """Yield the runs of samples of the streams in each round, in order."""
    for start in range(*samples, scheme.round_rows):
        stop = min(start + scheme.round_rows, samples[1])
        yield runs_of_streams(start, stop, scheme.n_streams, scheme.rows_together(chunk_rows))


def runs_of_streams(start: int, stop: int, n_streams: int, rows_together: int) -> tuple[Span, ...]:
    """Cut samples into one run per stream, of whole groups of ``rows_together`` samples.

    Lengths differ by at most one group, and none is empty.
    """
    groups = math.ceil((stop - start) / rows_together)
    each, more = divmod(groups, n_streams)
    lengths = [each + (stream < more) for stream in range(n_streams)]
    edges = [start + rows_together * sum(lengths[:stream]) for stream in range(n_streams + 1)]
    return tuple((a, min(b, stop)) for a, b in itertools.pairwise(edges) if b > a)


def segments(n: int, round_rows: int, longest: int) -> tuple[Span, ...]:
    """Cut n samples into segments of whole rounds, at least one, with at most ``longest`` samples if possible."""
    length = max(1, longest // round_rows) * round_rows
    return tuple((start, min(start + length, n)) for start in range(0, n, length))
