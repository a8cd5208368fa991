from __future__ import annotations

from itertools import pairwise
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca.storage.arrays.layout import Layout, axes_for, box_shape, boxes_of, choose_layout

MIB = 1 << 20
RANGES = {1: (16384, 8192, 32768), 2: (64, 32, 128), 3: (32, 16, 64)}


@st.composite
def stacks(draw: st.DrawFn) -> tuple[tuple[int, ...], int, tuple[str, ...], tuple[int, ...] | None]:
    n_spatial = draw(st.integers(1, 3))
    longest = {1: 10**6, 2: 5000, 3: 600}[n_spatial]
    spatial = tuple(draw(st.integers(1, longest)) for _ in range(n_spatial))
    channels = draw(st.sampled_from([(), (1,), (3,), (4,), (200,)]))
    axes = ("sample", *("t", "z", "y", "x")[-n_spatial:], *("channel",)[: len(channels)])
    cell = draw(st.none() | st.tuples(*(st.integers(1, 300) for _ in spatial)))
    n_samples = draw(st.integers(0, 10**7))
    return (n_samples, *spatial, *channels), draw(st.sampled_from([1, 2, 4, 8])), axes, cell


@given(stacks())
def test_layout_keeps_its_rules(stack):
    shape, itemsize, axes, cell = stack
    layout = choose_layout(shape, itemsize, axes, cell)
    n_spatial = len([axis for axis in axes[1:] if axis != "channel"])
    whole, shortest, longest = RANGES[n_spatial]

    # a shard is made of whole chunks; it covers whole samples, and wastes less than one chunk an axis, or is a part
    assert all(s % c == 0 for s, c in zip(layout.shards, layout.chunks, strict=True))
    padded = prod(-(-n // c) * c for n, c in zip(shape[1:], layout.chunks[1:], strict=True))
    if padded * itemsize > 128 * MIB:
        tile = prod(layout.chunks[1:]) * itemsize
        assert layout.shards[0] == layout.chunks[0] == 1
        assert prod(layout.shards) * itemsize <= max(tile, 128 * MIB)
    else:
        for length, chunk, shard in zip(shape[1:], layout.chunks[1:], layout.shards[1:], strict=True):
            assert length <= shard < length + chunk
    if axes[-1] == "channel":
        assert layout.chunks[-1] == layout.shards[-1] == shape[-1]

    for k in range(n_spatial):
        length, chunk = shape[1 + k], layout.chunks[1 + k]
        assert chunk == length if length <= whole else shortest <= chunk <= longest
        if cell is not None and length > whole and cell[k] <= longest // 2 and cell[k] < length:
            assert chunk % cell[k] == 0

    rows, tile = layout.chunks[0], prod(layout.chunks[1:])
    assert rows & (rows - 1) == 0
    assert 1 <= rows <= max(1, min(4096, shape[0]))
    assert rows <= 512 or padded * itemsize < 4096
    assert rows == 1 or rows * tile * itemsize <= 4 * MIB
    assert layout.shards[0] == rows or layout.shards[0] * padded * itemsize <= 128 * MIB
    assert rows * padded * itemsize <= 128 * MIB or rows == 1
    assert layout.shards[0] == rows or layout.n_shards(shape[0]) >= 16


@given(st.integers(65, 5000), st.none() | st.integers(1, 64))
def test_no_allowed_length_wastes_less(length, cell):
    chunk = choose_layout((10, length, 8), 1, ("sample", "y", "x"), None if cell is None else (cell, 1)).chunks[1]
    allowed = [c for c in range(32, min(128, length) + 1) if cell is None or c % cell == 0]
    assert -length % chunk == min(-length % c for c in allowed or [chunk])


@given(st.integers(1, 10**6), st.integers(1, 5000))
def test_shards_tile_the_samples(n_samples, rows):
    layout = Layout((1, 8), (rows, 8))
    parts = [layout.rows(i, n_samples) for i in range(min(50, layout.n_shards(n_samples)))]
    assert parts[0][0] == 0
    assert all(a[1] == b[0] for a, b in pairwise(parts))
    assert layout.rows(layout.n_shards(n_samples) - 1, n_samples)[1] == n_samples
    assert layout.rows_per_shard == rows


@pytest.mark.parametrize(
    ("shape", "cell", "chunks", "shards"),
    [
        ((13233, 250, 250, 3), (10, 10), (512, 50, 50, 3), (512, 250, 250, 3)),
        ((13233, 250, 250, 3), None, (512, 50, 50, 3), (512, 250, 250, 3)),
        ((2000, 218, 178, 3), (10, 10), (128, 110, 60, 3), (128, 220, 180, 3)),
        ((2000, 218, 178, 3), None, (128, 109, 89, 3), (128, 218, 178, 3)),
        ((60000, 28, 28), (7, 7), (4096, 28, 28), (4096, 28, 28)),
        ((1000, 1000, 1000), (200, 200), (128, 50, 50), (128, 1000, 1000)),
        ((3, 40, 40), None, (2, 40, 40), (2, 40, 40)),
        ((0, 40, 40), None, (1, 40, 40), (1, 40, 40)),
    ],
)
def test_known_layouts(shape, cell, chunks, shards):
    axes = ("sample", *axes_for(shape[1:]))
    assert choose_layout(shape, 1, axes, cell) == Layout(chunks, shards)


@pytest.mark.parametrize(
    ("shape", "itemsize", "cell", "chunks", "shards"),
    [
        ((100, 512, 512, 512), 4, None, (1, 32, 32, 32), (1, 256, 256, 512)),
        ((8, 16000, 16000), 1, (400, 400), (1, 50, 50), (1, 8000, 16000)),
        ((8, 20000, 9999), 1, (300, 300), (1, 50, 50), (1, 10200, 10000)),
        ((8, 1000, 300000), 1, (1000, 37), (1, 50, 37), (1, 1000, 100011)),
        # Cells of a prime length have no small common multiple with a chunk.
        ((8, 1000, 300000), 1, (1000, 9973), (1, 50, 60), (1, 1000, 100020)),
        ((2, 10**9), 1, None, (1, 16000), (1, 125008000)),
        ((2, 40, 4000000), 8, None, (1, 40, 64), (1, 40, 400000)),
    ],
)
def test_a_large_sample_is_divided_into_shards(shape, itemsize, cell, chunks, shards):
    axes = ("sample", *axes_for(shape[1:]))
    layout = choose_layout(shape, itemsize, axes, cell)
    assert layout == Layout(chunks, shards)
    assert choose_layout(shape, itemsize, axes, cell, part_bytes=None).shards[1:] >= shape[1:]
    covered = sum(prod(b - a for a, b in box) for box in layout.boxes(shape[1:]))
    assert covered == prod(shape[1:])


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 70)), min_size=1, max_size=3),
    st.integers(1, 5000),
)
def test_boxes_cover_a_sample_once_and_end_at_units(axes, most):
    shape, units = [n for n, _ in axes], [u for _, u in axes]
    box = box_shape(shape, most, units)
    unit = prod(min(u, n) for n, u in axes)
    assert prod(box) <= max(most, unit)
    assert all(b == n or b % u == 0 for b, n, u in zip(box, shape, units, strict=True))
    boxes = boxes_of(shape, box)
    assert sorted(boxes) == boxes
    assert sum(prod(b - a for a, b in region) for region in boxes) == prod(shape)
    if prod(shape) <= most:
        assert len(boxes) == 1
    elif unit <= most // 2 ** len(shape):
        # few and large: no more than four times as many as boxes of any shape would be
        assert len(boxes) <= 4 ** len(shape) * -(-prod(shape) // most)


@pytest.mark.parametrize(
    ("sample_shape", "axes"),
    [
        ((784,), ("feature",)),
        ((28, 28), ("y", "x")),
        ((4, 4), ("y", "x")),
        ((218, 178, 3), ("y", "x", "channel")),
        ((64, 64, 64), ("z", "y", "x")),
        ((16, 64, 64, 2), ("z", "y", "x", "channel")),
        ((8, 16, 64, 64), ("t", "z", "y", "x")),
        ((5, 8, 16, 64, 64), ("axis_1", "t", "z", "y", "x")),
        ((5, 8, 16, 64, 64, 3), ("axis_1", "t", "z", "y", "x", "channel")),
    ],
)
def test_axes_by_shape(sample_shape, axes):
    assert axes_for(sample_shape) == axes


@pytest.mark.parametrize(
    ("shape", "axes", "cell", "match"),
    [
        ((10, 8, 8), ("sample", "y"), None, "axes"),
        ((10, 8, 8), ("y", "x", "sample"), None, "'sample' first"),
        ((10,), ("sample",), None, "at least one more"),
        ((10, 0, 8), ("sample", "y", "x"), None, "empty"),
        ((10, 8, 8), ("sample", "y", "x"), (2,), "give 2 lengths"),
        ((10, 8, 8), ("sample", "y", "x"), (2, 0), "at least 1"),
    ],
)
def test_nonsense_is_refused(shape, axes, cell, match):
    with pytest.raises(ValueError, match=match):
        choose_layout(shape, 1, axes, cell)
