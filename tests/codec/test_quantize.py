from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpca.codec.quantize import error_within_bound, integer_dtype, quantize, to_integers


@settings(deadline=None)
@given(
    hnp.arrays(st.sampled_from([np.float32, np.float64]), hnp.array_shapes(max_dims=2), elements=st.integers(-99, 99)),
    st.integers(-20, 20),
)
def test_what_is_near_a_multiple_becomes_it(codes: np.ndarray, exponent: int) -> None:
    step = 2.0**exponent
    for shift in (0, -0.39, 0.59):  # of its size
        given = (codes + np.sign(codes) * shift) * codes.dtype.type(step)
        assert (quantize(given.astype(codes.dtype), step) == codes).all()
    assert (quantize(np.full_like(codes, 0.59 * step), step) == 0).all()


@pytest.mark.parametrize(("largest", "bits"), [(0, 16), (32767, 16), (32768, 32), (2**31 - 1, 32)])
def test_sixteen_bits_where_they_suffice(largest: int, bits: int) -> None:
    assert integer_dtype(largest).itemsize * 8 == bits
    values = np.array([largest, -largest], float)
    assert to_integers(values, integer_dtype(largest)).tolist() == [largest, -largest]


@pytest.mark.parametrize("largest", [2.0**31, 1e300, np.inf, np.nan])
def test_nothing_overflows_in_silence(largest: float) -> None:
    with pytest.raises(OverflowError):
        integer_dtype(largest)
    for dtype in (np.int16, np.int32):
        with pytest.raises(OverflowError):
            to_integers(np.array([0, -largest]), dtype)


def test_promises_for_integers_are_whole_numbers() -> None:
    assert 0.48 < error_within_bound(0.5, np.uint8, 255) < 0.5
    assert 0.48 < error_within_bound(0.99, np.int32, 255) < 0.5
    assert 3.48 < error_within_bound(3, np.uint16, 255) < 3.5
    with pytest.raises(ValueError, match=r"0\.5"):
        error_within_bound(0.4, np.uint8, 255)


def test_promises_that_the_type_cannot_keep_are_refused() -> None:
    assert 0.9e-3 < error_within_bound(1e-3, np.float32, 100) < 1e-3
    with pytest.raises(ValueError, match="float32"):
        error_within_bound(1e-6, np.float32, 100)
    assert error_within_bound(1e-6, np.float64, 100) > 0
