"""Callbacks of a fold: their times, and the progress so far that they receive."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpca.engine.folds.plan import FoldPlan
from dpca.rules.base.state import State

# Samples of the first callbacks. They are few, so that there is a result at once.
_EARLY = (16, 64, 256, 1024)
_LAST_EARLY = _EARLY[-1]
# Largest ratio of the lengths of consecutive links, as the speed of short links varies; shortest link in seconds.
_MOST_LONGER, _SHORTEST = 4, 0.05
# Callbacks take at most about this share of the time.
_SHARE = 0.05


@dataclass(frozen=True)
class FoldReport:
    """The cost of a fold."""

    plan: FoldPlan
    seconds: float
    peak_memory: int
    """Peak memory of any process of the fold in bytes, including the interpreter."""
    note: str = ""
    """A note of the caller, for example a choice due to limited memory."""


@dataclass(frozen=True)
class FoldProgress:
    """The progress so far of a fold, between two links.

    Attributes
    ----------
    n_samples : int
        Number of samples in the states.
    states : callable
        Returns copies of the states of all parts, in order, merged over segments.
    report : callable
        Returns the cost of the fold so far.
    reached : sequence of State
        The states of a chain themselves, which the fold does not change later; empty if segments are to be merged.
    """

    n_samples: int
    states: Callable[[], list[State]]
    report: Callable[[], FoldReport]
    reached: Sequence[State] = ()


class FoldCallback(ABC):
    """Decides when a fold pauses for a callback, and is that callback. The result of the fold does not depend on it."""

    #: Samples after which the fold ends, if any.
    most: int | None = None

    @property
    def exact(self) -> bool:
        """Whether the next link may end inside a chunk, which is then read twice."""
        return False

    @abstractmethod
    def until(self, n_samples: int) -> int:
        """Return the number of samples, more than ``n_samples``, after which the fold pauses next.

        The engine rounds it up to whole chunks unless `exact`, and to whole batches if the result depends on them.
        """

    @abstractmethod
    def __call__(self, progress: FoldProgress) -> None:
        """Receive the progress so far, in this process. An exception ends the fold, and its checkpoints are kept."""


@dataclass
class Marks(FoldCallback):
    """Callbacks after given numbers of samples."""

    marks: Sequence[int]
    seen: Callable[[FoldProgress], None]

    @property
    def exact(self) -> bool:
        """True, because links end exactly at marks."""
        return True

    def until(self, n_samples: int) -> int:
        """Return the next mark."""
        ahead = sorted(self.marks)
        at = bisect_right(ahead, n_samples)
        return ahead[at] if at < len(ahead) else 2**62

    def __call__(self, progress: FoldProgress) -> None:
        """Call ``seen``, if this is a mark."""
        if progress.n_samples in self.marks:
            self.seen(progress)


@dataclass
class Pace:
    """The lengths of the links of a fold: early callbacks, then at regular times, at little cost.

    The first callbacks come after 16, 64, 256 and 1,024 samples, inside chunks if necessary. Further ones come every
    ``every`` seconds, but take at most a twentieth of the time; the cost of each is measured.

    Parameters
    ----------
    every : float
        Seconds between callbacks; infinity for none.
    max_seconds : float
        Time budget from now on, in seconds; a link ends then.
    clock : callable
        Returns the time in seconds.
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
        """Return the number of samples at the end of a link that begins now."""
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
        """Whether the current link ends with one of the first callbacks."""
        return self._early(self._link[0]) is not None

    def arrived(self, n_samples: int) -> bool:
        """Record the end of a link; return whether a callback is due."""
        now, (n_before, began) = self.clock(), self._link
        if n_samples > n_before:
            self._rows, self._rate = n_samples - n_before, (n_samples - n_before) / max(now - began, 1e-9)
        early = self._early(n_before)
        return now >= self._due or (early is not None and n_samples >= early)

    def called_back(self, seconds: float) -> None:
        """Record the time of a callback, in seconds."""
        self._cost = seconds
        self._due = self.clock() + max(self.every, seconds * (1 / _SHARE - 1))

    def _early(self, n_samples: int) -> int | None:
        """Return the number of samples of the next early callback, None if there is none."""
        if n_samples >= _LAST_EARLY or math.isinf(self.every):
            return None
        return next(mark for mark in _EARLY if mark > n_samples)
