"""Types that the whole library uses."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
Region = tuple[tuple[int, int], ...]  #: (start, stop) along each axis of a sample
