"""Shifted grids: every attribute is in one cell of each grid, and no cell is much shorter than asked."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.partition.shifted import ShiftedGrids

SHAPES = st.lists(st.integers(1, 20), min_size=1, max_size=3).map(tuple)


@given(SHAPES, st.integers(1, 9), st.booleans(), st.sampled_from([(), (3,)]))
@settings(deadline=None)
def test_every_attribute_is_in_one_cell_of_each_grid(
    shape: tuple[int, ...], cell: int, shifted: bool, channels: tuple[int, ...]
) -> None:
    grids = ShiftedGrids((*shape, *channels), (cell,) * len(shape), shifted)
    counts = np.zeros((*shape, *channels), int)
    for box in grids.boxes:
        counts[tuple(slice(a, b) for a, b in box)] += 1
    divided = sum(round(length / cell) > 1 for length in shape)
    assert (counts == (1 if not shifted else 4 if divided == 3 else 2**divided)).all()


@given(SHAPES, st.integers(1, 9), st.integers(1, 5))
@settings(deadline=None)
def test_the_mean_of_all_cells_is_the_sample(shape: tuple[int, ...], cell: int, n: int) -> None:
    grids = ShiftedGrids(shape, (cell,) * len(shape))
    x = np.random.default_rng(0).random((n, *shape))
    numbers = range(grids.n_parts)
    size = n * sum(map(grids.n_features, numbers))
    parts = grids.split(x, numbers, (0,) * len(shape), np.empty(size))
    for index, part in enumerate(parts):
        np.testing.assert_array_equal(part, x[(slice(None), *(slice(*ab) for ab in grids.boxes[index]))].reshape(n, -1))
    joined = grids.join(((i, part[None]) for i, part in enumerate(parts)), np.empty_like(x))
    np.testing.assert_allclose(joined, x)


@given(SHAPES, st.integers(1, 9), st.integers(1, 9))
@settings(deadline=None)
def test_tiles_have_each_cell_once(shape: tuple[int, ...], cell: int, chunk: int) -> None:
    grids = ShiftedGrids(shape, (cell,) * len(shape))
    found = list(itertools.chain.from_iterable(grids.tiles((chunk,) * len(shape))))
    assert sorted(found) == list(range(grids.n_parts))


def test_cells_that_overlap_a_box() -> None:
    grids = ShiftedGrids((20, 30), (5, 6))
    box = ((3, 11), (29, 30))
    slow = [
        i
        for i, cell in enumerate(grids.boxes)
        if math.prod(max(0, min(b, d) - max(a, c)) for (a, b), (c, d) in zip(cell, box, strict=True))
    ]
    assert grids.overlapping(box) == slow


def test_cells_of_no_length_are_rejected() -> None:
    with pytest.raises(ValueError, match="cell_shape"):
        ShiftedGrids((20, 30), (5, 0))
