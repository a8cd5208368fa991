"""Ranges of values, by hand at their limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpca.storage.errors import DataError
from dpca.storage.ranges import checked_range, found_range, type_range


@pytest.mark.parametrize(
    "given", [(1, 1), (2, 1), (0, np.nan), (0, np.inf), (-np.inf, 0), 5, (1,), (1, 2, 3), ("a", 1), None, (0, 10**400)]
)
def test_ranges_that_are_none(given: Any) -> None:
    with pytest.raises(DataError, match="data_range"):
        checked_range(given)


def test_a_width_beyond_what_floats_hold() -> None:
    for check in (lambda: checked_range((-1e308, 1e308)), lambda: found_range(-1e308, 1e308)):
        with pytest.raises(DataError, match="difference"):
            check()


def test_ranges_of_what_was_found() -> None:
    assert checked_range(["-1", 2]) == (-1.0, 2.0)
    assert found_range(3, 7) == (3, 7)
    assert (found_range(3, 3), found_range(-3, -3), found_range(0, 0)) == ((0, 3), (-3, 0), (0, 1))


def test_types_that_are_used_whole() -> None:
    found = {name: type_range(np.dtype(name)) for name in ("?", "u1", "u2", "u4", "i1", "i2", "f4")}
    assert found == {"?": (0, 1), "u1": (0, 255), "u2": None, "u4": None, "i1": None, "i2": None, "f4": None}
