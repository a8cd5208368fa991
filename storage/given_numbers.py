"""Validation of numbers from callers: Python and NumPy numbers, but no booleans."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpca.storage.errors import DataError


def is_whole(value: Any) -> bool:
    """Return whether a value is an integer."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    """Return whether a value is an integer or a floating-point number, including infinities and NaN."""
    return is_whole(value) or isinstance(value, float | np.floating)


def require_one_array(x: Any, name: str) -> None:
    """Reject a list or tuple of arrays, which NumPy would stack. Nested lists of numbers are accepted.

    Raises
    ------
    DataError
        If ``x`` is or contains a list or tuple of arrays.
    """
    if not isinstance(x, list | tuple):
        return
    kinds = set(map(type, x))
    if any(hasattr(kind, "__array__") and not issubclass(kind, np.generic) for kind in kinds):
        raise DataError(
            f"{name} is a {type(x).__name__} of {len(x)} arrays, which would mean several variables: give one array "
            f"(np.stack joins samples)"
        )
    if any(issubclass(kind, list | tuple) for kind in kinds):
        for inner in x:
            require_one_array(inner, name)


def whole_number(value: Any, name: str, least: int, otherwise: str = "") -> int:
    """Return the value of a parameter as an int.

    Raises
    ------
    DataError
        If it is not an integer, or less than ``least``.
    """
    if not is_whole(value) or value < least:
        expected = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise DataError(f"{name} is {value!r}: give {expected}{otherwise}")
    return int(value)
