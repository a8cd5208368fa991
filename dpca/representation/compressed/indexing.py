"""Split NumPy's indexes by axis, for arrays that are decoded when they are indexed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array


def alike(numbers: Array) -> Iterator[slice]:
    """Split ascending numbers into slices of equal ones."""
    ends = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    return (slice(*pair) for pair in itertools.pairwise(ends))


def runs(numbers: Array) -> list[Array]:
    """Split ascending numbers into runs of consecutive ones."""
    return [run for run in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if len(run)]


def per_axis(index: Any, shape: tuple[int, ...]) -> list[tuple[Any, Any]]:
    """Return for each axis the positions that an index selects, and the index itself without negative values."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(part is None for part in parts):
        raise IndexError("an index of a compressed array cannot add axes: index first, then use numpy.newaxis")
    dots = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    at = dots[0] if dots else len(parts)
    after = parts[at + 1 :]
    if at + len(after) > len(shape):
        raise IndexError(f"there are {len(shape)} axes but the index has {at + len(after)}")
    parts = [*parts[:at], *[slice(None)] * (len(shape) - at - len(after)), *after]
    found: list[tuple[Any, Any]] = []
    for part, length in zip(parts, shape, strict=True):
        if isinstance(part, slice):
            taken = range(length)[part]
            found.append((taken, slice(None, None, taken.step)))
            continue
        numbers = np.asarray(part)
        if numbers.dtype == bool:
            if numbers.shape != (length,):
                raise IndexError(f"a mask of shape {numbers.shape} does not fit an axis of {length}: give one per axis")
            numbers = np.flatnonzero(numbers)
        if numbers.size == 0 and not isinstance(part, np.ndarray):
            numbers = numbers.astype(int)
        if numbers.dtype.kind not in "iu":
            raise IndexError(f"{part!r} is not a valid index: give integers, slices, or masks of one axis")
        if numbers.size and not (-length <= numbers.min() and numbers.max() < length):
            raise IndexError(f"index {part!r} is out of bounds for an axis of {length}")
        numbers = numbers.astype(np.intp)  # the length of an axis can exceed the range of a small type
        numbers = np.where(numbers < 0, numbers + length, numbers)
        found.append((numbers.ravel(), numbers))
    return found


def moved(part: Any, start: int) -> Any:
    """Return the index of an axis for values that begin at ``start``."""
    return part if isinstance(part, slice) else part - start
