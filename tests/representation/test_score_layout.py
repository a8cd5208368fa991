"""Where scores are cut: whole levels of components, none too small, hardly anything padded."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca.representation.score_layout import score_layout
from dpca.storage.arrays.layout import Layout


@pytest.mark.parametrize(
    ("rows", "shape", "expected"),
    [
        # Photographs of 250 x 250 in cells of 10, 25 and 5.
        (512, (25, 25, 20), Layout((64, 25, 25, 4), (512, 25, 25, 20))),
        (512, (10, 10, 125), Layout((64, 10, 10, 18), (512, 10, 10, 126))),
        (512, (50, 50, 5), Layout((64, 50, 50, 1), (512, 50, 50, 5))),
        # Whole images: a chunk of a component would be small, so a level has several.
        (2560, (50,), Layout((2560, 10), (2560, 50))),
        (256, (50,), Layout((256, 50), (256, 50))),
        # One sample is more than a chunk should be, and is not cut but by components.
        (1, (300, 300, 300, 4), Layout((1, 300, 300, 300, 1), (1, 300, 300, 300, 4))),
        (7, (400, 400, 13), Layout((7, 400, 400, 2), (7, 400, 400, 14))),
    ],
)
def test_layouts_worked_out(rows: int, shape: tuple[int, ...], expected: Layout) -> None:
    assert score_layout(rows, shape, 4) == expected


@given(st.integers(1, 4096), st.lists(st.integers(1, 60), max_size=3), st.integers(1, 400), st.sampled_from([4, 8]))
def test_what_every_layout_keeps(rows: int, grid: list[int], k: int, itemsize: int) -> None:
    layout = score_layout(rows, (*grid, k), itemsize)
    assert all(shard % chunk == 0 for shard, chunk in zip(layout.shards, layout.chunks, strict=True))
    assert layout.shards[:-1] == (rows, *grid)
    assert layout.chunks[1:-1] == tuple(grid)
    level = layout.chunks[-1]
    # No level is all padding, there are eight at most, and a chunk is the whole or no small one.
    assert 0 <= layout.shards[-1] - k < level <= k
    assert -(-k // level) <= 8
    assert level == k or math.prod(layout.chunks) * itemsize >= 2**16
    assert layout.shards[-1] <= 1.1 * k
