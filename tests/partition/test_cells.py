"""Cells: every attribute in exactly one, taken unchanged."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.partition import CellGrid, LappedGrid


@st.composite
def grids(draw: st.DrawFn) -> CellGrid:
    spatial = draw(st.lists(st.integers(1, 13), min_size=1, max_size=3))
    cell = tuple(draw(st.integers(1, s)) for s in spatial)
    channels = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    return CellGrid((*spatial, *channels), cell)


@given(grids())
@settings(deadline=None)
def test_every_attribute_belongs_to_one_cell(grid: CellGrid) -> None:
    seen = np.zeros(grid.sample_shape, int)
    for i in range(grid.n_parts):
        region = grid.region(i)
        box = seen[tuple(slice(a, b) for a, b in region)]
        assert box.size == grid.n_features(i)
        box += 1
    assert (seen == 1).all()
    assert grid.n_parts == np.prod(grid.grid_shape)


@given(grids(), st.sampled_from([np.uint8, np.float32, np.float64]), st.integers(1, 4))
@settings(deadline=None)
def test_what_is_split_is_what_slicing_gives(grid: CellGrid, dtype: type, n: int) -> None:
    x = np.random.default_rng(0).integers(0, 200, (n, *grid.sample_shape)).astype(dtype)
    origin = (0,) * len(grid.sample_shape)
    for i in range(grid.n_parts):
        (out,) = grid.split(x, (i,), origin, np.empty(n * grid.n_features(i), dtype))
        box = (slice(None), *(slice(a, b) for a, b in grid.region(i)))
        np.testing.assert_array_equal(out, x[box].reshape(n, -1))


def test_a_block_that_begins_inside_the_sample() -> None:
    grid = CellGrid((10, 12, 3), (4, 5))
    x = np.arange(2 * 10 * 12 * 3).reshape(2, 10, 12, 3)
    block = np.ascontiguousarray(x[:, 4:10, 5:12])
    (out,) = grid.split(block, (8,), (4, 5, 0), np.empty(2 * grid.n_features(8), x.dtype))
    np.testing.assert_array_equal(out, x[:, 8:10, 10:12].reshape(2, -1))


def test_centers_are_means_over_each_cell() -> None:
    grid = CellGrid((10, 12, 3), (4, 5))
    np.testing.assert_allclose(grid.centers(0, np.arange(10) ** 2), [14 / 4, 126 / 4, (64 + 81) / 2])
    days = np.datetime64("2001-01-01", "s") + 86_400 * np.arange(12)
    expected = np.array(["2001-01-03T00", "2001-01-08T00", "2001-01-11T12"], "M8[s]")
    np.testing.assert_array_equal(grid.centers(1, days), expected)
    assert grid.centers(2, np.arange(3)) is None  # channels
    assert grid.centers(0, np.array(list("abcdefghij"))) is None


def test_the_drawing_in_the_docstring() -> None:
    grid = CellGrid((10, 12), (4, 5))
    assert grid.grid_shape == (3, 3)
    assert grid.region(2) == ((0, 4), (10, 12))
    assert grid.region(8) == ((8, 10), (10, 12))


@given(grids(), st.lists(st.integers(1, 14), min_size=6, max_size=6))
@settings(deadline=None)
def test_tiles_are_disjoint_and_share_no_chunk_where_borders_meet(grid: CellGrid, lengths: list[int]) -> None:
    chunk = tuple(lengths[: len(grid.sample_shape)])
    tiles = list(grid.tiles(chunk))
    assert sorted(itertools.chain(*tiles)) == list(range(grid.n_parts))
    if any(c % k for c, k in zip(chunk, grid.cell_shape, strict=False)):
        return
    # Cells divide chunks: no chunk is needed by two tiles.
    owners: dict[tuple[int, ...], int] = {}
    for number, tile in enumerate(tiles):
        for i in tile:
            corner = tuple(a // c for (a, _), c in zip(grid.region(i)[: grid.n_spatial], chunk, strict=False))
            assert owners.setdefault(corner, number) == number


@given(grids(), st.lists(st.integers(1, 14), min_size=6, max_size=6))
@settings(deadline=None)
def test_finer_tiles_are_more_and_more_boxes_of_all_cells(grid: CellGrid, lengths: list[int]) -> None:
    before = 1
    for tiles in grid.finer_tiles(tuple(lengths[: len(grid.sample_shape)])):
        assert sorted(itertools.chain(*tiles)) == list(range(grid.n_parts))
        assert len(tiles) >= before
        before = len(tiles)
        for tile in tiles:
            places = np.unravel_index(tile, grid.grid_shape)
            assert len(tile) == math.prod(int(np.ptp(along)) + 1 for along in places)


@pytest.mark.parametrize(("cell", "overlap"), [(20, 4), (100, 10), (25, 2), (16, 4), (30, 8)])
def test_boxes_of_cells_with_an_overlap_share_one_chunk_at_a_border(cell: int, overlap: int) -> None:
    grid, chunk = LappedGrid((4000,), (cell,), overlap), 500
    for tiles in grid.finer_tiles((chunk,)):
        ends = [(grid.region(tile[0])[0][0] // chunk, (grid.region(tile[-1])[0][1] - 1) // chunk) for tile in tiles]
        assert sum(last - first + 1 for first, last in ends) <= 4000 // chunk + len(tiles) - 1


@given(grids(), st.lists(st.integers(1, 14), min_size=3, max_size=3))
@settings(deadline=None)
def test_a_tile_ends_where_a_border_of_cells_is_one_of_chunks(grid: CellGrid, lengths: list[int]) -> None:
    """Along every axis by itself: cells that share a chunk, or are joined by cells that do, are one tile."""
    group = np.zeros((grid.n_spatial, max(grid.grid_shape)), int)
    for axis, (cell, chunk, n) in enumerate(zip(grid.cell_shape, lengths, grid.grid_shape, strict=False)):
        for i in range(1, n):
            group[axis, i] = group[axis, i - 1] + (i * cell % chunk == 0)
    expected: dict[tuple[int, ...], list[int]] = {}
    for i, place in enumerate(np.ndindex(grid.grid_shape)):
        expected.setdefault(tuple(group[axis, j] for axis, j in enumerate(place)), []).append(i)
    found = list(grid.tiles((*lengths[: grid.n_spatial], *grid.channel_shape)))
    assert sorted(map(sorted, found)) == sorted(expected.values())


@given(grids(), st.data())
@settings(deadline=None)
def test_runs_are_the_longest_of_equal_cells_side_by_side(grid: CellGrid, data: st.DataObject) -> None:
    cells = data.draw(st.permutations(range(grid.n_parts))) if data.draw(st.booleans()) else None
    cells = list(range(grid.n_parts)) if cells is None else cells
    runs = list(grid.runs(cells))
    assert list(itertools.chain(*runs)) == cells
    starts = set(itertools.accumulate(map(len, runs)))
    for i, (left, right) in enumerate(itertools.pairwise(cells), 1):
        one, other = grid.box(left), grid.box(right)
        axis = grid.n_spatial - 1
        same_row = one[:axis] == other[:axis]
        equal = one[axis][1] - one[axis][0] == other[axis][1] - other[axis][0]
        assert (i in starts) == (not (same_row and equal and one[axis][1] == other[axis][0]))


@pytest.mark.parametrize(
    ("sample", "cell", "says"),
    [((10, 10), (11, 5), "larger"), ((10, 10), (0, 5), "empty"), ((10,), (2, 2), "axes"), ((10, 10), (), "axes")],
)
def test_cells_that_make_no_sense(sample: tuple[int, ...], cell: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        CellGrid(sample, cell)
