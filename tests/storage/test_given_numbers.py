from __future__ import annotations

import math

import numpy as np
import pytest

from dpca.storage import DataError
from dpca.storage.given_numbers import is_real, is_whole, whole_number


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3)])
def test_integers(value: object) -> None:
    assert is_whole(value)
    assert is_real(value)
    found = whole_number(value, "k", 3)
    assert (found, type(found)) == (3, int)
    with pytest.raises(DataError, match=r"^k\b.*\b4\b"):
        whole_number(value, "k", 4, ", or None")


@pytest.mark.parametrize("value", [True, np.True_, 3.0, np.float32(3), math.nan, "3", None, [3], np.array([3])])
def test_what_is_no_integer(value: object) -> None:
    assert not is_whole(value)
    assert is_real(value) == isinstance(value, float | np.floating)
    with pytest.raises(DataError, match="positive"):
        whole_number(value, "k", 1)
