"""Arrays that are read by slices alone, as those in a store."""

from __future__ import annotations

from typing import Any

import numpy as np


class Sliced:
    """An array with a shape, a type and slices, and nothing else; it counts the largest slice that was read."""

    def __init__(self, values: np.ndarray) -> None:
        self._values, self.largest = values, 0
        self.shape, self.dtype, self.nbytes = values.shape, values.dtype, values.nbytes

    def __getitem__(self, box: Any) -> np.ndarray:
        parts = box if isinstance(box, tuple) else (box,)
        assert all(isinstance(part, slice) for part in parts)
        found = self._values[parts].copy()
        self.largest = max(self.largest, found.size)
        return found
