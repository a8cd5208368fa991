"""A region of samples, with a constant outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class FilledRegion:
    """A region of samples, or of a box of them, and the constant outside. It is small, because tasks receive it.

    Parameters
    ----------
    packed : bytes
        Whether each place is in the region, as bits.
    shape : tuple of int
        Shape of the samples, or of their first axes.
    fill_value : numpy scalar, of the type of the samples
    """

    packed: bytes
    shape: tuple[int, ...]
    fill_value: Any

    @classmethod
    def of(cls, inside: NDArray[np.bool_], fill_value: Any) -> FilledRegion:
        """Pack a map of truth values."""
        return cls(np.packbits(inside).tobytes(), inside.shape, fill_value)

    def filled(self, values: NDArray[Any], *, n_before: int = 0) -> NDArray[Any]:
        """Return values with the constant outside; ``n_before`` axes come before those of a sample."""
        bits = np.unpackbits(np.frombuffer(self.packed, np.uint8), count=int(np.prod(self.shape)))
        inside = bits.astype(bool).reshape(*self.shape, *(1,) * (values.ndim - n_before - len(self.shape)))
        where: Any = np.ma.where if np.ma.isMaskedArray(values) else np.where
        found: NDArray[Any] = where(inside, values, self.fill_value)
        return found
