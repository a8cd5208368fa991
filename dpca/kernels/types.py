"""Names for the types that all rooms share."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
Region = tuple[tuple[int, int], ...]
