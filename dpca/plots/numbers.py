"""Numbers as text in figures, reports and pages."""

from __future__ import annotations

import math
from collections.abc import Sequence


def rounded_down(share: float, digits: int = 1) -> str:
    """Return a share in per cent, rounded down, so that 99.997% does not become 100%."""
    scale = 10 ** (digits + 2)
    return f"{math.floor(share * scale) / scale:.{digits}%}"


def counted(n: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 cell", "2 cells"."""
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


def shape_words(lengths: Sequence[int], times: str = "\N{MULTIPLICATION SIGN}") -> str:
    """Return a shape as text, such as "3 x 4"."""
    return f" {times} ".join(map(str, lengths))
