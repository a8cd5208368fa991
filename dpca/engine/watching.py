"""Watching a fold: when it stops between two batches, and what there is to look at."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpca.engine.plan import FoldPlan
from dpca.rules.state import State

# Samples of the first looks: few, so that there is something to see at once, and then ever more.
_EARLY = (16, 64, 256, 1024)
_LAST_EARLY = _EARLY[-1]
# A link is at most so many times as long as the one before it, whose speed may say little of it, and lasts so long.
_MOST_LONGER, _SHORTEST = 4, 0.05
# Looks take at most about this share of the time.
_SHARE = 0.05


@dataclass(frozen=True)
class FoldReport:
    """What a fold cost."""

    plan: FoldPlan
    seconds: float
    peak_memory: int
    """Bytes held at most by any one process that worked on it, interpreter and all."""
    note: str = ""
    """What its caller says about it: a choice that was made for lack of memory, for example."""


@dataclass(frozen=True)
class Look:
    """A fold between two links.

    Attributes
    ----------
    n_samples : int
        Samples that are in the states.
    states : callable
        Returns the states of all partitions, in order, each a copy; of several segments, merged.
    report : callable
        Returns what the fold has cost.
    reached : sequence of State
        Those of a chain themselves, which the fold does not change any more; empty where segments are to be merged.
    """

    n_samples: int
    states: Callable[[], list[State]]
    report: Callable[[], FoldReport]
    reached: Sequence[State] = ()


class Watch(ABC):
    """Says when a fold stops for a look, and looks. What comes out in the end does not depend on it."""

    #: Samples after which no more are taken, if any.
    most: int | None = None

    @property
    def exact(self) -> bool:
        """Whether the next link may end inside a chunk, which is then read twice."""
        return False

    @abstractmethod
    def until(self, n_samples: int) -> int:
        """Return the number of samples, more than ``n_samples``, after which the fold stops next.

        The engine rounds it up to whole chunks, unless links are to be exact, and to whole batches where the result
        depends on these.
        """

    @abstractmethod
    def look(self, look: Look) -> None:
        """Look at the fold, in this process; an exception ends it, and its checkpoints are kept."""


@dataclass
class Marks(Watch):
    """Looks after given numbers of samples."""

    marks: Sequence[int]
    seen: Callable[[Look], None]

    @property
    def exact(self) -> bool:
        """A mark is a mark."""
        return True

    def until(self, n_samples: int) -> int:
        """Return the next mark."""
        ahead = sorted(self.marks)
        at = bisect_right(ahead, n_samples)
        return ahead[at] if at < len(ahead) else 2**62

    def look(self, look: Look) -> None:
        """Look, if this is a mark."""
        if look.n_samples in self.marks:
            self.seen(look)


@dataclass
class Pace:
    """How long the links of a fold are, so that looks come early, now and then, and take little of the time.

    The first looks come after 16, 64, 256 and 1,024 samples, inside chunks if need be; further ones each ``every``
    seconds, but rarely enough to take a twentieth of the time: the cost of each is measured.

    Parameters
    ----------
    every : float
        Seconds between looks; infinity for none.
    max_seconds : float
        From now on; a link is to end then.
    clock : callable
        Tells the time in seconds.
    """

    every: float = 1.0
    max_seconds: float = math.inf
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self.began = self.clock()
        self._due, self._cost = self.began + self.every, 0.0
        self._link, self._rows, self._rate = (0, self.began), 0, 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return self.clock() - self.began

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.seconds >= self.max_seconds

    def until(self, n_samples: int) -> int:
        """Return the number of samples after which a link that begins now should end."""
        now = self.clock()
        if n_samples <= self._link[0]:  # another pass begins
            self._rows, self._rate = 0, 0.0
        self._link = n_samples, now
        early = self._early(n_samples)
        if not self._rate:
            return early or n_samples + _LAST_EARLY
        left = min(self._due, self.began + self.max_seconds - self._cost) - now
        rows = max(1, min(self._rate * max(left, _SHORTEST), _MOST_LONGER * self._rows))
        return min(n_samples + int(rows), early or 2**62)

    @property
    def is_early(self) -> bool:
        """Whether the link that has begun ends with one of the first looks."""
        return self._early(self._link[0]) is not None

    def arrived(self, n_samples: int) -> bool:
        """Note that a link has ended; return whether there should be a look."""
        now, (n_before, began) = self.clock(), self._link
        if n_samples > n_before:
            self._rows, self._rate = n_samples - n_before, (n_samples - n_before) / max(now - began, 1e-9)
        early = self._early(n_before)
        return now >= self._due or (early is not None and n_samples >= early)

    def looked(self, seconds: float) -> None:
        """Note what a look took."""
        self._cost = seconds
        self._due = self.clock() + max(self.every, seconds * (1 / _SHARE - 1))

    def _early(self, n_samples: int) -> int | None:
        """Return the number of samples of the next early look, None where there is none."""
        if n_samples >= _LAST_EARLY or math.isinf(self.every):
            return None
        return next(mark for mark in _EARLY if mark > n_samples)
