"""Types that the whole library uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Region = tuple[tuple[int, int], ...]  #: (start, stop) along each axis of a sample


class PickledByFields:
    """Base class of dataclasses with cached properties, which may be far larger than their fields."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the class and the fields. Every task of a graph receives them, without the cached properties."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]


def even_parts(batch: Array, most: int) -> Iterator[Array]:
    """Split a batch into as few parts as possible, of at most ``most`` rows and nearly equal size."""
    n = batch.shape[0]
    n_parts = -(-n // most)
    return (batch[n * i // n_parts : n * (i + 1) // n_parts, :] for i in range(n_parts))


def blocks(n: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices of ``size`` that cover ``n`` rows or columns. The last one may be shorter."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def box_around(regions: Sequence[Region]) -> Region:
    """Return the bounding box of some boxes."""
    return tuple((min(a for a, _ in axis), max(b for _, b in axis)) for axis in zip(*regions, strict=True))


def box_of_run(shape: tuple[int, ...], start: int, stop: int) -> Region:
    """Return the smallest box of whole rows, planes and so on that contains a run of a flattened sample.

    The box is a run of the flattened sample itself.
    """
    ends = zip(np.unravel_index(start, shape), np.unravel_index(stop - 1, shape), strict=True)
    box: list[tuple[int, int]] = []
    for first, last in ends:
        box.append((int(first), int(last) + 1))
        if first != last:
            break
    return (*box, *((0, length) for length in shape[len(box) :]))
