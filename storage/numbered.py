"""Names for samples without names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Numbered(Sequence[str]):
    """Zero-padded numbers as names for samples without names, computed on access.

    Parameters
    ----------
    n : int
        Number of samples.
    """

    def __init__(self, n: int) -> None:
        self._n, self._width = n, len(str(max(n - 1, 0)))

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: Any) -> Any:
        """Return one name, or a list of names for a slice or an array of numbers."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._n))]
        if np.ndim(index):
            return [self[int(i)] for i in index]
        if not -self._n <= index < self._n:
            raise IndexError(index)
        return f"{index % self._n:0{self._width}d}"

    def tolist(self) -> list[str]:
        """Return all names, as a NumPy array does."""
        return self[:]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.tolist(), dtype or np.dtypes.StringDType())
