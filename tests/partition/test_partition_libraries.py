"""Cells and bands of arrays of other libraries: the same values as from numpy's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.kernels.algebra.namespace import empty, namespace, to_numpy
from dpca.partition import Bands, CellGrid, Whole, map_at_random
from tests.conftest import sender

Send = Callable[[np.ndarray], Any]


@st.composite
def partitions(draw: st.DrawFn) -> CellGrid | Bands:
    spatial = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    shape = (*spatial, *draw(st.sampled_from([(), (1,), (3,)])))
    if draw(st.booleans()):
        return CellGrid(shape, tuple(draw(st.integers(1, s)) for s in spatial))
    return map_at_random(shape, draw(st.integers(1, 30)), np.random.default_rng(0))


@given(partitions(), st.sampled_from([np.uint8, np.float32]), st.integers(1, 4), st.data())
@pytest.mark.parametrize("library", ["array-api-strict", "torch"])
@settings(deadline=None, max_examples=60)
def test_what_is_split_there_is_what_is_split_here(
    library: str, partition: CellGrid | Bands, dtype: type, n: int, data: st.DataObject
) -> None:
    send = sender(library)
    x = np.random.default_rng(0).integers(0, 200, (n, *partition.sample_shape)).astype(dtype)
    origin = (0,) * (x.ndim - 1)
    parts = data.draw(st.lists(st.integers(0, partition.n_parts - 1), min_size=1, max_size=9))
    size = n * sum(partition.n_features(i) for i in parts)
    here = partition.split(x, parts, origin, np.empty(size, dtype))
    block = send(x)
    there = partition.split(block, parts, origin, empty((size,), dtype, block))
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(to_numpy(other), one)


def test_equal_cells_lie_side_by_side_in_the_buffer(send: Send) -> None:
    """What lets a rule take them in as one stack."""
    grid = CellGrid((10, 12, 3), (4, 5))
    x = np.random.default_rng(1).integers(0, 256, (6, 10, 12, 3), dtype=np.uint8)
    whole = [0, 1, 3, 4]
    block, buffer = send(x), empty((x.size,), np.uint8, send(x))
    grid.split(block, whole, (0, 0, 0), buffer)
    stack = to_numpy(namespace(buffer).reshape(buffer[: 4 * 6 * 60], (4, 6, 60)))
    for cell, index in zip(stack, whole, strict=True):
        box = tuple(slice(a, b) for a, b in grid.region(index))
        np.testing.assert_array_equal(cell, x[(slice(None), *box)].reshape(6, -1))


def test_blocks_that_begin_inside_the_sample(send: Send) -> None:
    x = np.arange(2 * 10 * 12 * 3).reshape(2, 10, 12, 3)
    grid, bands = CellGrid((10, 12, 3), (4, 5)), Bands(np.repeat(np.arange(10), 36).reshape(10, 12, 3))
    for partition, index, box in ((grid, 8, np.s_[:, 4:, 5:]), (bands, 7, np.s_[:, 6:9])):
        block = send(np.ascontiguousarray(x[box]))
        origin = tuple(s.start or 0 for s in (*box[1:], *(slice(None),) * (4 - len(box))))
        (out,) = partition.split(block, (index,), origin, empty((2 * partition.n_features(index),), x.dtype, block))
        region = tuple(slice(a, b) for a, b in partition.region(index))
        np.testing.assert_array_equal(to_numpy(out), x[(slice(None), *region)].reshape(2, -1))


def test_the_whole_sample_is_a_view(send: Send) -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    whole, block = Whole((3, 4)), send(x)
    (rows,) = whole.split(block, (0,), (0, 0), block)
    assert rows.shape == (2, math.prod((3, 4)))
    rows[0, 0] = 7
    assert float(block[0, 0, 0]) == 7
