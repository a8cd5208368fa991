"""Numbers as text in figures, reports and pages."""

from __future__ import annotations

import math
from collections.abc import Sequence

_MINUTES = 120


def rounded_down(share: float, digits: int = 1) -> str:
    """Return a share in per cent, rounded down, so that 99.997% does not become 100%."""
    scale = 10 ** (digits + 2)
    return f"{math.floor(share * scale) / scale:.{digits}%}"


def counted(n: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 cell", "2 cells"."""
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """Return a time as text, from two minutes on in minutes: "26.0 s", "34 min", "1 h 05 min"."""
    if seconds < _MINUTES:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes:02d} min" if hours else f"{minutes} min"


def shape_words(lengths: Sequence[int], times: str = "\N{MULTIPLICATION SIGN}") -> str:
    """Return a shape as text, such as "3 x 4"."""
    return f" {times} ".join(map(str, lengths))
