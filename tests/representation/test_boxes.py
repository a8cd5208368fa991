"""Boxes of samples: their scores add up to those of whole samples, and nothing else of the model is read."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.kernels.pixels import Pixels
from dpca.partition import CellGrid, LappedGrid, Whole, map_at_random
from dpca.partition.base import Partition
from dpca.representation import base, linear
from dpca.representation.base import array_digest
from dpca.representation.linear import LinearRepresentation
from dpca.representation.whitened import Whitened
from dpca.storage.arrays.layout import box_shape, boxes_of
from tests.helpers.sliced import Sliced


def made(partition: Partition, k: int, dtype: type = np.float32) -> LinearRepresentation:
    rng, shape = np.random.default_rng(0), partition.sample_shape
    components = np.zeros((k, *shape), dtype)
    plain = partition.plain if isinstance(partition, LappedGrid) else partition
    everywhere = plain.all_parts(np.arange(prod(shape)).reshape(1, *shape))
    for (places,) in everywhere:
        rows = np.linalg.qr(rng.normal(size=(len(places), min(k, len(places)))))[0].T
        components.reshape(k, -1)[: len(rows), places] = rows
    if isinstance(partition, LappedGrid):
        partition.prefilter.apply(components, (0,) * len(shape), inverse=True)
    return LinearRepresentation(partition, rng.normal(100, 5, shape), components)


@st.composite
def divided(draw: st.DrawFn) -> tuple[Partition, tuple[int, ...], list]:
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    units, partition = tuple(draw(st.integers(1, n)) for n in shape), Whole(shape)
    if draw(st.booleans()):
        n_spatial = draw(st.integers(1, len(shape)))
        cell = units[:n_spatial]
        units = (*cell, *shape[n_spatial:])
        partition = CellGrid(shape, cell)
    return partition, shape, boxes_of(shape, box_shape(shape, draw(st.integers(1, 300)), units))


@st.composite
def lapped(draw: st.DrawFn) -> tuple[Partition, tuple[int, ...], list]:
    """Cells of two to six pixels in boxes of one to three cells along each axis; some have channels."""
    cell = tuple(draw(st.lists(st.sampled_from([4, 5, 6, 2]), min_size=1, max_size=2)))
    shape = tuple(draw(st.integers(max(cell), 4 * max(cell))) for _ in cell)
    units = tuple(draw(st.integers(1, 3)) * c for c in cell)
    channels = draw(st.sampled_from([(), (2,)]))
    most = max(cell) // 2
    partition = LappedGrid((*shape, *channels), cell, draw(st.integers(2, most))) if most > 1 else CellGrid(shape, cell)
    return partition, partition.sample_shape, boxes_of(partition.sample_shape, (*units, *partition.channel_shape))


@settings(deadline=None)
@given(
    st.one_of(divided(), lapped()),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
)
def test_boxes_are_the_whole(case, k, n, dtype) -> None:
    partition, shape, boxes = case
    basis = made(partition, k, np.float64 if dtype == np.float64 else np.float32)
    x = np.random.default_rng(1).integers(0, 120, (n, *shape)).astype(dtype)
    stored = replace(basis, mean=Sliced(basis.mean), components=Sliced(basis.components))
    scores, decoded = np.zeros((n, *basis.score_shape)), np.empty((n, *shape), dtype)
    for region in boxes:
        around = stored.aligned(region)
        assert around == region or isinstance(partition, LappedGrid)
        here, part = (slice(None), *(slice(a, b) for a, b in around)), stored.box(around)
        assert isinstance(part.components, np.ndarray)
        found = part.encode(np.ascontiguousarray(x[here]))
        scores[(slice(None), *stored.score_places(region))] += stored.own_scores(found, region, around)
    whole = basis.encode(x)
    tol = 1e-4 if whole.dtype == np.float32 else 1e-11
    np.testing.assert_allclose(scores, whole, rtol=1e-4, atol=tol * prod(shape) ** 0.5 * 10)
    for region in boxes:
        here, around = (slice(None), *(slice(a, b) for a, b in region)), stored.aligned(region)
        mine = whole[(slice(None), *stored.score_places(around))]
        values = stored.box(around).decode(mine, pixels=Pixels(np.dtype(dtype), (0, 120)))
        inner = (slice(a - o, b - o) for (a, b), (o, _) in zip(region, around, strict=True))
        decoded[here] = values[(slice(None), *inner)]
    expected = basis.decode(whole, pixels=Pixels(np.dtype(dtype), (0, 120)))
    np.testing.assert_allclose(
        decoded.astype("f8"), expected.astype("f8"), atol=1 if np.dtype(dtype).kind in "iu" else tol
    )
    largest = max(prod(b - a for a, b in region) for region in map(stored.aligned, boxes))
    assert stored.components.largest <= k * largest
    assert stored.mean.largest <= largest


@settings(deadline=None)
@given(st.one_of(divided(), lapped()), st.integers(1, 4))
def test_ranks_are_counted_in_boxes(case, k) -> None:
    partition = case[0]
    basis = made(partition, k)
    expected = [min(k, partition.n_features(i)) for i in range(partition.n_parts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "_READ_FEATURES", 50)
        stored = replace(basis, components=Sliced(basis.components))
        np.testing.assert_array_equal(stored.ranks, expected)
    np.testing.assert_array_equal(basis.ranks, expected)
    assert basis.ranks.shape == (partition.n_parts,)


def test_only_the_first_components_are_read() -> None:
    basis = made(Whole((6, 7)), 4)
    stored = replace(basis, components=Sliced(basis.components))
    part = stored.box(((0, 3), (2, 7)), 2)
    np.testing.assert_array_equal(part.components, basis.components[:2, :3, 2:])
    assert stored.components.largest == 2 * 15
    assert part.score_shape == (2,)
    scales = Whitened(basis.partition, basis.mean, basis.components, np.arange(1, 5.0)).box(((0, 3), (2, 7)), 2).scales
    np.testing.assert_array_equal(scales, [1, 2])


def test_short_rows_of_a_box_are_used() -> None:
    """Almost all of a component may lie in another box."""
    components = np.full((1, 100), 1e-4, np.float32)
    components[0, 0] = 1
    basis = LinearRepresentation(Whole((100,)), np.zeros(100), components)
    x = np.full((1, 100), 50.0, np.float32)
    parts = [basis.box(((a, a + 10),)).encode(x[:, a : a + 10])[0, 0] for a in range(0, 100, 10)]
    np.testing.assert_allclose(parts, [50.045, *[0.05] * 9], rtol=1e-5)


def test_a_box_is_aligned_with_cells() -> None:
    cells = made(CellGrid((10, 9, 2), (4, 5)), 1)
    assert cells.aligned(((5, 6), (4, 6), (0, 2))) == ((4, 8), (0, 9), (0, 2))
    assert cells.score_places(((4, 8), (0, 9), (0, 2))) == (slice(1, 2), slice(0, 2))
    assert made(Whole((10, 9)), 1).aligned(((5, 6), (4, 6))) == ((5, 6), (4, 6))


def test_scores_of_bands_are_sums_over_boxes() -> None:
    """Their attributes are everywhere in a sample."""
    rng = np.random.default_rng(0)
    x, bands = rng.normal(size=(3, 12, 12)), map_at_random((12, 12), 9, rng)
    basis = LinearRepresentation(bands, rng.normal(size=(12, 12)), rng.normal(size=(2, 12, 12)))
    assert basis.divides
    left, right = ((0, 12), (0, 5)), ((0, 12), (5, 12))
    scores = [basis.box(box).encode(x[(slice(None), *(slice(*ends) for ends in box))]) for box in (left, right)]
    np.testing.assert_allclose(scores[0] + scores[1], basis.encode(x), atol=1e-12)
    parts = basis.box(right).partition.all_parts(x[..., 5:])
    joined = basis.box(right).partition.join(((i, part[None]) for i, part in enumerate(parts)), np.empty((3, 12, 7)))
    np.testing.assert_array_equal(joined, x[..., 5:])


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4, 5), (1, 1, 7)])
@pytest.mark.parametrize("most", [1, 16, 100, 2**24])
def test_hashes_do_not_depend_on_slices(shape, most, monkeypatch) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    known = array_digest(values)
    monkeypatch.setattr(base, "_HASHED_BYTES", most)
    assert array_digest(values) == known == array_digest(np.array(values, order="F"))
    assert known[0] == blake2b(values.tobytes(), digest_size=16).hexdigest()
    if shape:
        stored = Sliced(values)
        assert array_digest(stored) == known
        assert stored.largest * 8 <= max(most, 8)


def test_boxes_state_their_memory_without_reading() -> None:
    basis = made(Whole((40, 50)), 3)
    stored = replace(basis, mean=Sliced(basis.mean), components=Sliced(basis.components))
    region = ((0, 20), (0, 50))
    assert stored.box_bytes(region, 2, np.uint8) == basis.box(region).work_bytes(2, np.uint8) + 1000 * (8 - 3 * 4)
    assert stored.components.largest == 0
    assert stored.held_bytes == 0
    assert basis.held_bytes == basis.nbytes
