"""Bands: every attribute in exactly one, by the rule that was asked for, taken and put back unchanged."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.partition import Bands, map_at_random, map_by_moments, map_in_raster_order


@st.composite
def made_bands(draw: st.DrawFn) -> Bands:
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    together = draw(st.sampled_from([1, shape[-1]]))
    size = draw(st.integers(together, 2 * math.prod(shape) + together))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    mean, variance = rng.integers(0, 5, (2, *shape)) / 3.0
    return draw(
        st.sampled_from(
            [
                map_at_random(shape, size, rng, together=together),
                map_in_raster_order(shape, size, together=together),
                map_by_moments(mean, None, size, 4, together=together),
                map_by_moments(mean, variance, size, 7, together=together),
            ]
        )
    )


@given(made_bands(), st.sampled_from([np.uint8, np.int16, np.float32, np.float64]), st.integers(0, 5))
@settings(deadline=None)
def test_what_is_split_is_what_indexing_gives(bands: Bands, dtype: type, n: int) -> None:
    x = np.random.default_rng(0).integers(0, 200, (n, *bands.sample_shape)).astype(dtype)
    origin = (0,) * (x.ndim - 1)
    parts = bands.split(x, range(bands.n_parts), origin, np.empty(x.size, dtype))
    assert sum(bands.n_features(i) for i in range(bands.n_parts)) == math.prod(bands.sample_shape)
    for i, part in enumerate(parts):
        assert part.flags.c_contiguous
        np.testing.assert_array_equal(part, x[:, bands.labels == i])


@given(made_bands())
@settings(deadline=None)
def test_a_region_holds_its_band_and_no_less(bands: Bands) -> None:
    x = np.arange(2 * math.prod(bands.sample_shape)).reshape(2, *bands.sample_shape)
    for i in range(bands.n_parts):
        places = np.argwhere(bands.labels == i)
        expected = tuple(zip(places.min(0).tolist(), (places.max(0) + 1).tolist(), strict=True))
        assert bands.region(i) == expected
        box = np.ascontiguousarray(x[(slice(None), *(slice(a, b) for a, b in expected))])
        (out,) = bands.split(box, (i,), tuple(a for a, _ in expected), np.empty(box.size, x.dtype))
        np.testing.assert_array_equal(out, x[:, bands.labels == i])


def test_many_samples_pass_the_cache_piece_by_piece() -> None:
    bands = map_at_random((3000, 3), 1000, np.random.default_rng(0), together=3)
    x = np.random.default_rng(1).integers(0, 256, (500, 3000, 3), dtype=np.uint8)
    for part, i in zip(bands.split(x, (9, 0, 3), (0, 0), np.empty(x.size, np.uint8)), (9, 0, 3), strict=True):
        np.testing.assert_array_equal(part, x[:, bands.labels == i])


def test_intervals_of_the_mean_by_hand() -> None:
    # The range 0..10 in 2 intervals: attributes 0, 2, 4, 5 below 5, the others from 5 on.
    mean = np.array([0.0, 10, 4.9, 5, 1, 3, 7])
    by_mean = map_by_moments(mean, None, 2, 2)
    # Sorted by mean: 0 4 | 5 2 (four below), 3 6 | 1 (three above, the last one alone).
    np.testing.assert_array_equal(by_mean.labels, [0, 3, 1, 2, 0, 1, 2])
    variance = np.array([4.0, 2, 1, 3, 3, 2, 1])
    both = map_by_moments(mean, variance, 2, 2)
    # Sorted by variance: 2 5 | 4 0, then 6 1 | 3.
    np.testing.assert_array_equal(both.labels, [1, 2, 0, 3, 1, 0, 2])


def test_a_pixel_is_mapped_by_the_average_of_its_channels() -> None:
    mean = np.array([[0.0, 8], [9, 1], [3, 3], [6, 8]])  # averages 4, 5, 3, 7: intervals 0, 1, 0, 1
    variance = np.array([[9.0, 0], [1, 0], [4, 4], [0, 0]])  # averages 4.5, .5, 4, 0
    bands = map_by_moments(mean, variance, 3, 2, together=2)
    np.testing.assert_array_equal(bands.labels, [[1, 1], [3, 3], [0, 0], [2, 2]])
    apart = map_by_moments(mean, None, 3, 1)
    np.testing.assert_array_equal(apart.labels, [[0, 1], [2, 0], [0, 1], [1, 2]])


def test_equal_means_are_one_interval() -> None:
    bands = map_by_moments(np.full(5, 2.0), np.array([5.0, 4, 3, 2, 1]), 3, 50)
    np.testing.assert_array_equal(bands.labels, [1, 1, 0, 0, 0])


def test_raster_and_random_take_the_rest_last() -> None:
    np.testing.assert_array_equal(map_in_raster_order((7,), 3).labels, [0, 0, 0, 1, 1, 1, 2])
    shuffled = map_at_random((7,), 3, np.random.default_rng(1))
    assert np.bincount(shuffled.labels).tolist() == [3, 3, 1]
    again = map_at_random((7,), 3, np.random.default_rng(1))
    np.testing.assert_array_equal(shuffled.labels, again.labels)
    assert (shuffled.labels != map_at_random((7,), 3, np.random.default_rng(2)).labels).any()


def test_tasks_are_sent_labels_and_nothing_that_follows_from_them() -> None:
    bands = map_at_random((100, 70), 30, np.random.default_rng(0))
    bands.region(0)
    sent = pickle.dumps(bands)
    assert len(sent) < bands.labels.nbytes + 500
    np.testing.assert_array_equal(pickle.loads(sent).order, bands.order)


def test_bands_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="gaps"):
        Bands(np.array([0, 2]))
    with pytest.raises(ValueError, match="gaps"):
        Bands(np.array([0, 2, 2]))  # as many attributes as numbers
    with pytest.raises(ValueError, match="gaps"):
        Bands(np.array([-1, 0]))
    with pytest.raises(ValueError, match="gaps"):
        Bands(np.array([0, 2**40]))
    with pytest.raises(ValueError, match="attribute"):
        Bands(np.empty((0, 3), np.int32))
    with pytest.raises(ValueError, match="keep_channels=False"):
        map_in_raster_order((4, 3), 2, together=3)


def test_means_that_span_more_than_float64_are_refused() -> None:
    with pytest.raises(ValueError, match="float64"):
        map_by_moments(np.array([-1.7e308, 0.0, 1.7e308]), None, 2, 3)
