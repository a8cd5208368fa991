"""Lapped cells: what is taken from any box of a sample are the cells of the filtered sample."""

from __future__ import annotations

import itertools
import pickle

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.engine.folds.identity import digest
from dpca.partition import CellGrid, LappedGrid
from dpca.partition.prefilter import Prefilter
from dpca.representation.linear import LinearRepresentation
from tests.partition.dense_prefilter import dense_prefilter


@st.composite
def grids(draw: st.DrawFn) -> LappedGrid:
    spatial = draw(st.lists(st.integers(4, 13), min_size=1, max_size=3))
    cell = (draw(st.integers(4, spatial[0])), *(draw(st.integers(1, s)) for s in spatial[1:]))
    channels = draw(st.sampled_from([(), (3,)]))
    return LappedGrid((*spatial, *channels), cell, draw(st.integers(2, max(cell) // 2)))


@given(grids(), st.sampled_from([bool, np.uint8, np.int16, np.int32, np.float16, ">f4", np.float64]), st.data())
@settings(deadline=None, max_examples=60)
def test_cells_of_any_group_are_those_of_the_filtered_sample(
    grid: LappedGrid, dtype: type, data: st.DataObject
) -> None:
    shape, n = grid.sample_shape, data.draw(st.integers(0, 3))
    x = np.random.default_rng(0).integers(0, 2 if dtype is bool else 100, (n, *shape)).astype(dtype)
    before = x.copy()
    dense = dense_prefilter(shape, grid.cell_shape, grid.overlap)
    filtered = (x.reshape(n, len(dense)).astype(float) @ dense.T).reshape(x.shape)
    group = data.draw(st.lists(st.integers(0, grid.n_parts - 1), min_size=1, max_size=5, unique=True))
    box = [
        (min(a), max(b)) for a, b in (zip(*axis, strict=True) for axis in zip(*map(grid.region, group), strict=True))
    ]
    block = np.ascontiguousarray(x[(slice(None), *(slice(a, b) for a, b in box))])
    buffer = np.empty(n * sum(map(grid.n_features, group)), grid.split_dtype(x.dtype))
    parts = grid.split(block, group, tuple(a for a, _ in box), buffer)
    for i, part in zip(group, parts, strict=True):
        own = filtered[(slice(None), *(slice(a, b) for a, b in grid.box(i)))].reshape(n, part.shape[1])
        np.testing.assert_allclose(part, own, atol=1e-3 if part.dtype == np.float32 else 1e-11)
    np.testing.assert_array_equal(x, before)


def test_arrays_of_other_libraries_are_refused() -> None:
    x = array_api_strict.zeros((2, 8), dtype=array_api_strict.float32)
    with pytest.raises(TypeError, match="numpy"):
        LappedGrid((8,), (4,), 2).split(x, (0, 1), (0,), array_api_strict.zeros((16,), dtype=array_api_strict.float32))


def test_rows_of_cells_that_are_too_low_to_be_filtered_are_each_filtered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    grid, filtered, apply = LappedGrid((12, 16), (3, 8), 2), [], Prefilter.apply

    def counting(self: Prefilter, block: np.ndarray, origin: tuple[int, ...]) -> np.ndarray:
        filtered.append(block.size)
        return apply(self, block, origin)

    monkeypatch.setattr(Prefilter, "apply", counting)
    x = np.random.default_rng(0).normal(size=(5, 12, 16))
    LinearRepresentation(grid, x[0], x[:2]).encode(x[2:])
    assert sum(filtered) == 6 * 12 * 16  # the mean, two components and three samples


@pytest.mark.parametrize(
    ("dtype", "values"),
    [(bool, "f4"), (np.uint8, "f4"), (np.uint16, "f4"), (np.int32, "f8"), (">f4", "f4"), (np.float64, "f8")],
)
def test_values_are_floating_point_numbers(dtype: type, values: str) -> None:
    assert LappedGrid((8,), (4,), 2).split_dtype(dtype) == np.dtype(values)


def test_the_box_to_read_holds_the_zones() -> None:
    grid = LappedGrid((23, 12, 3), (8, 6), 4)
    assert [grid.region(i)[0] for i in range(0, 6, 2)] == [(0, 12), (4, 19), (13, 23)]  # zones of 4 and 3
    assert [grid.region(i)[1] for i in range(2)] == [(0, 9), (3, 12)]
    assert grid.region(3)[2] == (0, 3)
    assert grid.box(3) == ((8, 16), (6, 12), (0, 3))
    assert [grid.n_features(i) for i in range(6)] == [144] * 4 + [126] * 2


@given(grids(), st.lists(st.integers(1, 14), min_size=4, max_size=4))
@settings(deadline=None)
def test_tiles_hold_every_cell_once(grid: LappedGrid, lengths: list[int]) -> None:
    tiles = list(grid.tiles(tuple(lengths[: len(grid.sample_shape)])))
    assert sorted(itertools.chain(*tiles)) == list(range(grid.n_parts))


def test_tiles_end_where_nothing_is_shared() -> None:
    # Cells of 2 are too short for a zone along the first axis: chunks of 4 hold two of them each.
    assert len(list(LappedGrid((8, 12), (2, 6), 2).tiles((4, 6)))) == 2
    assert len(list(CellGrid((8, 12), (2, 6)).tiles((4, 6)))) == 4


@pytest.mark.parametrize(
    ("cell", "overlap", "says"),
    [
        ((10, 10), 1, "between 2 and 5"),
        ((10, 6), 6, "between 2 and 5"),
        ((10, 10), -2, "give 0"),
        ((3, 2), 2, "only with cells of at least 4"),
    ],
)
def test_overlaps_that_make_no_sense(cell: tuple[int, int], overlap: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        LappedGrid((40, 36, 3), cell, overlap)


def test_it_is_small_to_ship_and_told_from_others() -> None:
    grid = LappedGrid((100, 100, 3), (5, 5), 2)
    before = len(pickle.dumps(grid))
    assert grid.region(7) != grid.box(7)
    assert grid.prefilter.half_widths(0)
    assert len(pickle.dumps(grid)) == before < 300
    again = pickle.loads(pickle.dumps(grid))
    assert again == grid
    others = [
        CellGrid((100, 100, 3), (5, 5)),
        LappedGrid((100, 100, 3), (6, 5), 2),
        LappedGrid((100, 100, 3), (6, 5), 3),
    ]
    assert len({digest(g) for g in (grid, again, *others)}) == 4
