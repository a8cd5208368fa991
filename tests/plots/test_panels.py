"""Samples become panels: middle slices, channels, data ranges, differences, signs."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.plots.overviews import thinned
from dpca.plots.panels import NEUTRAL, align_signs, centered, difference, intensity, panel, readable_gain


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((9,), None, (9,)),
        ((5, 7), None, (5, 7)),
        ((5, 7, 3), None, (5, 7, 3)),
        ((5, 7, 4), None, (5, 7, 3)),
        ((5, 7, 1), None, (5, 7)),
        ((5, 7, 2), None, (5, 7)),
        ((6, 5, 7), None, (5, 7)),
        ((6, 5, 7, 3), None, (5, 7, 3)),
        ((2, 6, 5, 7), None, (5, 7)),
        ((6, 5, 3), ("z", "y", "x"), (5, 3)),
        ((5, 7, 8), ("y", "x", "channel"), (5, 7, 3)),
    ],
)
def test_panel_shapes(shape, axes, expected):
    assert panel(np.ones(shape, np.uint16), axes).shape == expected


def test_panel_takes_the_middle_slice_and_keeps_values():
    volume = np.arange(5 * 6 * 7, dtype=np.uint16).reshape(5, 6, 7)
    np.testing.assert_array_equal(panel(volume), volume[2])
    np.testing.assert_array_equal(panel(volume.astype(bool)), volume[2] > 0)
    two = np.dstack([np.zeros((2, 2)), np.full((2, 2), 10)])
    np.testing.assert_array_equal(panel(two), np.full((2, 2), 5.0))


def test_panel_refuses_axes_of_another_number():
    with pytest.raises(ValueError, match="axes"):
        panel(np.ones((2, 3, 4)), ("y", "x"))


def test_thinned_bounds_what_is_drawn_and_leaves_small_things_alone():
    large = np.add.outer(np.arange(3300.0), np.arange(40.0))
    np.testing.assert_array_equal(thinned(large), large[::3, ::3])
    for small in (np.ones((1600, 9)), np.ones((5, 7, 3)), np.ones(10**5)):
        assert thinned(small) is small


def test_intensity_maps_the_data_range():
    values = np.array([-300.0, -100.0, 0.0, 100.0, 300.0])
    np.testing.assert_array_equal(intensity(values, (-100, 100)), [0, 0, 0.5, 1, 1])
    with pytest.raises(ValueError, match="data_range"):
        intensity(values, (1, 1))


def test_difference_is_signed_amplified_and_centered():
    original = np.array([100.0, 100.0, 100.0, 100.0])
    rebuilt = np.array([100.0, 110.0, 90.0, 250.0])
    np.testing.assert_allclose(difference(original, rebuilt, (0, 200), 5), [0.5, 0.75, 0.25, 1.0])


@pytest.mark.parametrize(("largest", "gain"), [(0, 1), (255, 1), (100, 1), (50, 2), (6, 20), (0.01, 1000)])
def test_gain_is_the_largest_round_factor_that_fits(largest, gain):
    differences = [np.zeros(10), np.full((3, 3), -largest, float)]
    assert readable_gain(differences, (0, 255)) == gain


def test_centered_puts_zero_and_nan_at_gray():
    values = np.array([[-2.0, 0.0], [np.nan, 1.0]])
    np.testing.assert_allclose(centered(values), [[0, 0.5], [0.5, 0.75]], atol=0.01)
    np.testing.assert_array_equal(centered(np.zeros((2, 2))), NEUTRAL)


@pytest.mark.parametrize("channels", [(), (3,)])
def test_align_signs_undoes_any_flips_of_cells(channels):
    generator = np.random.default_rng(0)
    y, x = np.mgrid[:23, :31]
    smooth = np.sin((x + 2 * y) / 5)  # its zeros run across cells, not along their borders
    if channels:
        smooth = np.repeat(smooth[..., None], *channels, axis=2)
    flips = generator.choice([-1, 1], size=(5, 7)).repeat(5, axis=0).repeat(5, axis=1)[:23, :31]
    flipped = smooth * (flips[..., None] if channels else flips)
    aligned = align_signs(flipped, (5, 5))
    np.testing.assert_array_equal(np.abs(aligned), np.abs(smooth))
    np.testing.assert_array_equal(aligned, smooth * np.sign((aligned * smooth).sum()))
    assert aligned.sum() >= 0


def test_align_signs_bears_a_single_cell_and_cells_of_zeros():
    values = np.zeros((6, 6))
    np.testing.assert_array_equal(align_signs(values, (2, 2)), values)
    np.testing.assert_array_equal(align_signs(-np.ones((4, 4)), (10, 10)), np.ones((4, 4)))
    with_gap = np.ones((6, 6))
    with_gap[:2, :2] = np.nan
    np.testing.assert_array_equal(align_signs(-with_gap, (2, 2)), with_gap)
