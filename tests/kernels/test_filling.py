"""Gaps that are filled from the values around them."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.kernels.filling import filled_from_around, filling_bytes
from tests.helpers.traced import traced_peak


@pytest.mark.parametrize(("shape", "n_spatial"), [((37, 52), 2), ((9, 8, 11), 3), ((20, 31, 3), 2), ((50,), 1)])
def test_values_stay_and_gaps_lie_between_their_neighbors(shape: tuple[int, ...], n_spatial: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(np.float32)
    x[rng.random(shape) < 0.6] = np.nan
    found = filled_from_around(x, n_spatial, 99.0)
    there = ~np.isnan(x)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found[there], x[there])
    assert x[there].min() <= found.min() <= found.max() <= x[there].max()
    peak, _ = traced_peak(lambda: None, lambda _: filled_from_around(x, n_spatial, 0.0), 2**20)
    assert peak <= filling_bytes(shape) + 2**16


@pytest.mark.parametrize("hole", [1, 7, 20, 38])
def test_a_smooth_field_is_continued(hole: int) -> None:
    """Of a plane, a hole is filled with an error that is small beside the range of the values around it."""
    plane = np.add.outer(np.arange(40.0), 2 * np.arange(60.0))
    x = plane.copy()
    x[1 : 1 + hole, 11 : 11 + hole] = np.nan
    error = np.abs(filled_from_around(x, 2, 0.0) - plane).max()
    assert error <= 1.6 * hole  # the values around the hole span three times its length


def test_channels_have_gaps_of_their_own() -> None:
    x = np.empty((12, 9, 2))
    x[..., 0], x[..., 1] = 3, 70
    x[2:9, 3:, 1] = np.nan
    np.testing.assert_array_equal(filled_from_around(x, 2, 0.0), np.broadcast_to([3.0, 70.0], x.shape))


def test_nothing_to_fill_from() -> None:
    """Without any value there is one that is given; without any gap, nothing changes."""
    np.testing.assert_array_equal(filled_from_around(np.full((5, 4), np.nan), 2, 7.0), np.full((5, 4), 7.0))
    x = np.arange(20.0).reshape(5, 4)
    np.testing.assert_array_equal(filled_from_around(x, 2, 7.0), x)
