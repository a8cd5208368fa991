"""Cells ordered by their shape: every attribute once, at the place that was said."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.partition import CellGrid, LappedGrid, SharedGrid


@st.composite
def made_grids(draw: st.DrawFn) -> CellGrid:
    spatial = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    channels = draw(st.sampled_from([(), (3,), (2, 2)]))
    return CellGrid((*spatial, *channels), tuple(draw(st.integers(1, s)) for s in spatial))


def test_the_picture_in_the_docstring() -> None:
    shared = SharedGrid(CellGrid((10, 12), (4, 5)))
    assert shared.cells == [[0, 1, 3, 4], [2, 5], [6, 7], [8]]
    assert shared.groups == ((4, 20), (2, 8), (2, 10), (1, 4))


def test_blocks_of_cells_by_hand() -> None:
    """The picture in the docstring, in blocks of 2 x 2 cells: each has its own shapes."""
    blocks = SharedGrid(CellGrid((10, 12), (4, 5)), (2, 2))
    assert [blocks.members(i) for i in range(4)] == [
        [(0, [0, 1, 3, 4])],
        [(1, [2, 5])],
        [(2, [6, 7])],
        [(3, [8])],
    ]
    assert [blocks.region(i) for i in (0, 3)] == [((0, 8), (0, 10)), ((8, 10), (10, 12))]
    assert SharedGrid(CellGrid((10, 12), (4, 5)), (2, 3)).members(0) == [(0, [0, 1, 3, 4]), (1, [2, 5])]


@given(made_grids(), st.data())
@settings(deadline=None)
def test_parts_are_the_columns_of_their_cells(grid: CellGrid, data: st.DataObject) -> None:
    blocks = SharedGrid(grid, tuple(data.draw(st.integers(1, n)) for n in grid.grid_shape))
    x = np.random.default_rng(0).integers(0, 200, (3, *grid.sample_shape), dtype=np.uint8)
    cells, shapes = grid.all_parts(x), SharedGrid(grid).cells
    found = list[int]()
    for part, rows in enumerate(blocks.all_parts(x)):
        order = [i for _, members in blocks.members(part) for i in members]
        np.testing.assert_array_equal(rows, np.concatenate([cells[i] for i in order], axis=1))
        for shape, members in blocks.members(part):
            assert set(members) <= set(shapes[shape])
        assert blocks.groups_in(part) == tuple((len(m), cells[m[0]].shape[1]) for _, m in blocks.members(part))
        found += order
    assert sorted(found) == list(range(grid.n_parts))


def test_cells_of_as_many_pixels_but_another_shape_share_nothing() -> None:
    shared = SharedGrid(CellGrid((6, 6), (4, 4)))
    assert shared.cells == [[0], [1], [2], [3]]
    assert shared.groups == ((1, 16), (1, 8), (1, 8), (1, 4))


@given(made_grids(), st.sampled_from([np.uint8, np.float32, np.float64]), st.integers(0, 70))
@settings(deadline=None)
def test_rows_are_the_cells_one_shape_after_the_other(grid: CellGrid, dtype: type, n: int) -> None:
    shared = SharedGrid(grid)
    assert sum(places * d for places, d in shared.groups) == math.prod(grid.sample_shape) == shared.n_features(0)
    x = np.random.default_rng(0).integers(0, 200, (n, *grid.sample_shape)).astype(dtype)
    origin = (0,) * len(grid.sample_shape)
    (rows,) = shared.split(x, (0,), origin, np.empty(x.size + 5, dtype))
    assert rows.flags.c_contiguous
    order = itertools.chain(*shared.cells)
    cells = grid.split(x, list(order), origin, np.empty(x.size, dtype))
    np.testing.assert_array_equal(rows, np.concatenate(cells, axis=1))


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_lapped_cells_are_ordered_by_the_shape_of_their_boxes(dtype: type) -> None:
    grid = LappedGrid((13, 17, 3), (5, 5), 2)
    shared = SharedGrid(grid)
    assert shared.groups == ((6, 75), (2, 30), (3, 45), (1, 18))
    x = np.random.default_rng(0).integers(0, 200, (40, 13, 17, 3)).astype(dtype)
    values = shared.split_dtype(dtype)
    (rows,) = shared.split(x, (0,), (0, 0, 0), np.empty(x.size, values))
    cells = grid.split(x, list(itertools.chain(*shared.cells)), (0, 0, 0), np.empty(x.size, values))
    np.testing.assert_array_equal(rows, np.concatenate(cells, axis=1))
