"""What holds for every partition: joining undoes splitting, parts lie side by side, tiles hold each part once."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.kernels.algebra import linalg
from dpca.partition import Bands, CellGrid, LappedGrid, SharedGrid, Whole, map_at_random
from dpca.partition.base import Partition
from tests.helpers.traced import traced_peak


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    spatial = draw(st.lists(st.integers(4, 13), min_size=1, max_size=3))
    shape = (*spatial, *draw(st.sampled_from([(), (1,), (3,), (2, 2)])))
    cell = (draw(st.integers(4, spatial[0])), *(draw(st.integers(1, s)) for s in spatial[1:]))
    overlap = draw(st.integers(2, max(cell) // 2))
    cells = draw(st.sampled_from([CellGrid(shape, cell), LappedGrid(shape, cell, overlap)]))
    bands = map_at_random(shape, draw(st.integers(1, 200)), np.random.default_rng(0))
    blocks = SharedGrid(cells, tuple(draw(st.integers(1, n)) for n in cells.grid_shape))
    return draw(st.sampled_from([cells, SharedGrid(cells), blocks, bands, Whole(shape)]))


def everywhere(partition: Partition) -> tuple[int, ...]:
    return (0,) * len(partition.sample_shape)


@given(partitions(), st.sampled_from([np.uint8, np.float32, np.float64]), st.integers(0, 70), st.data())
@settings(deadline=None)
def test_joining_undoes_splitting(partition: Partition, dtype: type, n: int, data: st.DataObject) -> None:
    x = np.random.default_rng(0).integers(0, 200, (n, *partition.sample_shape)).astype(dtype)
    numbers, values = range(partition.n_parts), partition.split_dtype(dtype)
    parts = partition.split(x, numbers, everywhere(partition), np.empty(x.size, values))
    assert [part.shape for part in parts] == [(n, partition.n_features(i)) for i in numbers]
    assert sum(part.size for part in parts) == x.size
    runs, end = [], 0
    while end < len(parts):
        equal = [i for i in range(end, len(parts)) if all(len(p.T) == len(parts[end].T) for p in parts[end : i + 1])]
        first, end = end, end + data.draw(st.integers(1, len(equal)))
        runs.append((first, np.stack(parts[first:end])))
    back = partition.join(iter(runs), np.empty(x.shape, values))
    np.testing.assert_allclose(back, x, atol=0 if values == x.dtype and not lapped(partition) else 2e-4)


def lapped(partition: Partition) -> bool:
    return isinstance(getattr(partition, "grid", partition), LappedGrid)


@given(partitions(), st.data())
@settings(deadline=None)
def test_one_part_is_that_of_all_parts(partition: Partition, data: st.DataObject) -> None:
    x = np.random.default_rng(0).normal(size=(3, *partition.sample_shape)).astype(np.float32)
    part = data.draw(st.integers(0, partition.n_parts - 1))
    np.testing.assert_allclose(partition.part_of(x, part), partition.all_parts(x)[part], atol=1e-5)


@given(partitions(), st.integers(1, 4))
@settings(deadline=None)
def test_parts_of_fewer_rows_leave_the_rest_zero(partition: Partition, n: int) -> None:
    """Components are joined so, of which parts have different numbers."""
    x = np.random.default_rng(0).random((n, *partition.sample_shape))
    parts = partition.split(x, range(partition.n_parts), everywhere(partition), np.empty(x.size))
    fewer = partition.join(((i, part[None, : i % (n + 1)]) for i, part in enumerate(parts)), np.zeros_like(x))
    again = partition.split(fewer, range(partition.n_parts), everywhere(partition), np.empty(x.size))
    for i, (part, found) in enumerate(zip(parts, again, strict=True)):
        np.testing.assert_allclose(found[: i % (n + 1)], part[: i % (n + 1)], atol=1e-12)
        np.testing.assert_allclose(found[i % (n + 1) :], 0, atol=1e-12)


@given(partitions(), st.integers(1, 5))
@settings(deadline=None)
def test_parts_lie_one_after_the_other_in_the_buffer(partition: Partition, n: int) -> None:
    """That lets equal ones be taken as one stack."""
    if isinstance(partition, Whole):
        return  # its part is a view of the block
    x = np.random.default_rng(0).random((n, *partition.sample_shape))
    buffer, end = np.empty(x.size), 0
    for part in partition.split(x, range(partition.n_parts), everywhere(partition), buffer):
        start, end = end, end + part.size
        np.testing.assert_array_equal(part.reshape(-1), buffer[start:end])
        assert part.flags.c_contiguous
        assert np.shares_memory(part, buffer)


LARGE = [
    map_at_random((900, 1000), 500_000, np.random.default_rng(0)),  # a sample is more than is gathered at once
    map_at_random((60, 50), 1500, np.random.default_rng(0)),
    LappedGrid((400, 500), (50, 50), 10),  # one sample at once
    LappedGrid((40, 50, 3), (10, 10), 4),
    SharedGrid(LappedGrid((40, 50, 3), (10, 10), 4)),
]


@pytest.mark.parametrize(
    "partition", LARGE, ids=lambda partition: f"{type(partition).__name__}{partition.sample_shape}"
)
def test_splitting_takes_the_memory_that_is_planned(partition: Partition) -> None:
    shape, numbers = partition.sample_shape, range(partition.n_parts)
    n = 7 if math.prod(shape) > 10_000 else 700
    values = partition.split_dtype(np.float32)
    partition.split(
        np.zeros((1, *shape), np.float32), numbers, everywhere(partition), np.empty(math.prod(shape), values)
    )
    places = 8 * math.prod(shape) if isinstance(partition, Bands) else 0  # of attributes, once for each call
    limit = partition.split_bytes(tuple((0, length) for length in shape), np.float32) + places + 50_000

    def prepared() -> tuple[np.ndarray, np.ndarray]:
        linalg.release_scratch()
        return np.zeros((n, *shape), np.float32), np.empty(n * math.prod(shape), values)

    def split(given: tuple[np.ndarray, np.ndarray]) -> list[np.ndarray]:
        return partition.split(given[0], numbers, everywhere(partition), given[1])

    peak, _ = traced_peak(prepared, split, limit)
    linalg.release_scratch()
    assert peak <= limit


@given(partitions(), st.lists(st.integers(1, 14), min_size=5, max_size=5))
@settings(deadline=None)
def test_what_planners_are_told(partition: Partition, lengths: list[int]) -> None:
    sizes = [partition.n_features(i) for i in range(partition.n_parts)]
    assert sum(sizes) == math.prod(partition.sample_shape)
    assert max(sizes) == partition.max_features
    assert math.prod(partition.grid_shape) == partition.n_parts
    assert len(partition.grid_axes(("z", "y", "x", "a", "b"))) == len(partition.grid_shape)
    tiles = list(partition.tiles(tuple(lengths[: len(partition.sample_shape)])))
    assert sorted(itertools.chain(*tiles)) == list(range(partition.n_parts))
    for i, size in enumerate(sizes):
        box = [b - a for a, b in partition.region(i)]
        assert size <= math.prod(box) <= math.prod(partition.sample_shape)


@given(partitions())
@settings(deadline=None)
def test_what_is_cached_is_not_sent(partition: Partition) -> None:
    before = len(pickle.dumps(partition))
    partition.region(0)
    list(partition.tiles(partition.sample_shape))
    x = np.zeros((1, *partition.sample_shape))
    partition.split(x, (0,), everywhere(partition), np.empty(x.size))
    assert len(pickle.dumps(partition)) == before
    assert pickle.loads(pickle.dumps(partition)).sample_shape == partition.sample_shape
