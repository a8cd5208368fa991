"""Rounding and clipping to what a stack can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpca.kernels.pixels import Pixels, to_pixels
from dpca.kernels.sweeps import add_and_round


@pytest.mark.parametrize(
    ("dtype", "data_range", "values", "expected"),
    [
        (np.uint8, (0, 255), [-3, -0.4, 0.4, 0.6, 1.5, 2.5, 254.6, 300], [0, 0, 0, 1, 2, 2, 255, 255]),
        (np.uint8, (16, 235), [0, 16.4, 300], [16, 16, 235]),
        (np.uint16, (0, 65535), [-1, 65535.4, 1e9], [0, 65535, 65535]),
        (np.uint16, (0, 4095), [-1, 4095.4, 1e9], [0, 4095, 4095]),
        (np.int16, (-1e9, 1e9), [-1e6, -2.5, 1e6], [-32768, -2, 32767]),
        (np.int8, (-1000, 1000), [-300, 300], [-128, 127]),
        (bool, (0, 1), [-1, 0.4, 0.6, 7], [False, False, True, True]),
    ],
)
@pytest.mark.parametrize("work", [np.float32, np.float64])
def test_rounding_and_clipping(
    work: type, dtype: Any, data_range: tuple[float, float], values: list[float], expected: list[Any]
) -> None:
    """To the nearest, ties to even, as numpy and IEEE round; never around the end."""
    found = to_pixels(np.array(values, work), dtype, data_range)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array(expected, dtype))
    pixels = Pixels(np.dtype(dtype), data_range)
    assert pixels.are_small == (dtype is not bool)
    if pixels.are_small:
        means, out = np.array([[8], [-4]], work), np.empty((2, 3, len(values)), dtype)
        centered = np.array(values, work) - means[:, None] * np.ones((1, 3, 1), work)
        add_and_round(centered, means * np.ones(len(values), work), *map(work, pixels.limits), out)
        np.testing.assert_array_equal(out, np.broadcast_to(np.array(expected, dtype), out.shape))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("work", [np.float32, np.float64])
def test_the_largest_integers_do_not_wrap_around(work: type, dtype: type) -> None:
    """The largest of them has no float: the nearest one lies above."""
    info = np.iinfo(dtype)
    found = to_pixels(np.array([1e30, -1e30, 5], work), dtype, (float(info.min), float(info.max)))
    assert info.max * (1 - 2.0**-23) <= int(found[0]) <= info.max
    assert int(found[1]) == info.min
    assert int(found[2]) == 5


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floating_point_stacks_take_values_as_they_are(dtype: type) -> None:
    values = np.array([-7.25, 0.5, 1e3], np.float32)
    found = to_pixels(values, dtype, (0, 1))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)


def test_values_a_little_beyond_a_narrow_type_stay_finite() -> None:
    found = to_pixels(np.array([65530.0, -65530.0, 1.5]), "f2", (-65504, 65504))
    assert found.dtype == np.float16
    assert found.tolist() == [65504, -65504, 1.5]


def test_which_pixels_every_float_holds() -> None:
    found = [Pixels(np.dtype(name), (0, 1)).are_small for name in ("u1", "i2", "u2", "i4", "u4", "i8", "f2")]
    assert found == [True] * 3 + [False] * 4
