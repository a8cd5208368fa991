"""The linear representation of every partition: against sums written out, by hand, and what it takes."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpca.kernels.algebra import linalg
from dpca.kernels.pixels import Pixels, to_pixels
from dpca.partition import Bands, CellGrid, LappedGrid, Whole, map_at_random
from dpca.partition.base import Partition
from dpca.representation import linear
from dpca.representation.cell_runs import ranks_of
from dpca.representation.linear import LinearRepresentation
from dpca.storage.errors import DataError

HALF = np.sqrt(0.5)
SHAPE = (10, 9, 2)
PARTITIONS = {
    "whole": Whole(SHAPE),
    "cells": CellGrid(SHAPE, (3, 4)),
    "lapped": LappedGrid(SHAPE, (4, 5), 2),
    "bands": map_at_random(SHAPE, 50, np.random.default_rng(0)),
}
every_partition = pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)


def made(partition: Partition, k: int = 3, dtype: Any = np.float32) -> LinearRepresentation:
    rng = np.random.default_rng(0)
    shape = partition.sample_shape
    return LinearRepresentation(partition, rng.normal(100, 5, shape), rng.normal(size=(k, *shape)).astype(dtype))


def parts_of(partition: Partition, x: np.ndarray) -> list[np.ndarray]:
    return partition.split(x, range(partition.n_parts), (0,) * (x.ndim - 1), np.empty(x.size, x.dtype))


def test_cells_by_hand() -> None:
    """Samples of three values: a cell of two and an edge cell of one, with two components."""
    components = np.array([[HALF, HALF, 1], [HALF, -HALF, 0]])
    cells = LinearRepresentation(CellGrid((3,), (2,)), np.array([1.0, 2.0, 3.0]), components)
    scores = cells.encode(np.array([[2.0, 3.0, 7.0], [1.0, 2.0, 3.0]]))
    np.testing.assert_allclose(scores, [[[2 * HALF, 0], [4, 0]], [[0, 0], [0, 0]]], atol=1e-15)
    np.testing.assert_allclose(cells.decode(np.array([[[2 * HALF, 4 * HALF], [4, 99]]])), [[4, 1, 7]], atol=1e-15)


def test_bands_by_hand() -> None:
    """Samples of three values: a band of the first and the last, and one of the middle, with two components."""
    components = np.array([[HALF, 1, HALF], [HALF, 0, -HALF]])
    bands = LinearRepresentation(Bands(np.array([0, 1, 0])), np.array([1.0, 3.0, 2.0]), components)
    scores = bands.encode(np.array([[2.0, 7.0, 3.0], [1.0, 3.0, 2.0]]))
    np.testing.assert_allclose(scores, [[[2 * HALF, 0], [4, 0]], [[0, 0], [0, 0]]], atol=1e-15)
    np.testing.assert_allclose(bands.decode(np.array([[[2 * HALF, 4 * HALF], [4, 99]]])), [[4, 7, 1]], atol=1e-15)


@pytest.mark.parametrize(
    ("name", "kind", "scores", "cell", "axes", "n_spatial"),
    [
        ("whole", "scores", (3,), None, ("component",), 2),
        ("cells", "cell-scores", (4, 3, 3), (3, 4), ("cell_y", "cell_x", "component"), 2),
        ("lapped", "cell-scores", (3, 2, 3), (4, 5), ("cell_y", "cell_x", "component"), 2),
        ("bands", "band-scores", (4, 3), None, ("band", "component"), 2),
    ],
)
def test_what_stores_are_told(name: str, kind: str, scores: Any, cell: Any, axes: Any, n_spatial: int) -> None:
    model = made(PARTITIONS[name])
    assert (model.scores_kind, model.sample_shape, model.score_shape, model.cell_shape) == (kind, SHAPE, scores, cell)
    assert model.score_axes(("y", "x", "channel")) == axes
    assert model.n_spatial(("y", "x", "channel")) == n_spatial
    assert model.dtype == np.float32
    assert model.nbytes == 180 * (8 + 3 * 4)


# As programs before version 1 stated them in the stores of scores that they wrote.
@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("whole", "f67efe072f9c386812635ec2ed764443"),
        ("cells", "508e4905b5cf1d7a49bfc97d7590e684"),
        ("lapped", "1461443312c584734c14fd4ef95dae0b"),
        ("bands", "ebcb80924be41ca20cb127d0840c5326"),
    ],
)
def test_fingerprints_are_those_of_stores_written_before(name: str, known: str) -> None:
    shape = (6, 5, 2)
    labels = np.arange(60).reshape(shape) % 7
    partitions = {
        "whole": Whole(shape),
        "cells": CellGrid(shape, (3, 4)),
        "lapped": LappedGrid(shape, (4, 5), 2),
        "bands": Bands(labels.astype(np.int32)),
    }
    mean, components = np.arange(60.0).reshape(shape), np.arange(120, dtype=np.float32).reshape(2, *shape)
    if name == "whole":
        mean, components = mean.ravel(), components.reshape(2, -1)
    assert LinearRepresentation(partitions[name], mean, components).fingerprint() == known


@every_partition
@pytest.mark.parametrize(
    "dtype", [bool, np.uint8, np.int16, np.uint16, np.int32, np.float16, np.float32, np.float64, ">f4"]
)
def test_every_dtype_against_sums_written_out(dtype: Any, partition: Partition) -> None:
    model = made(partition)
    x = np.random.default_rng(1).integers(0, 2 if dtype is bool else 120, (4, *SHAPE)).astype(dtype)
    scores = model.encode(x)
    assert scores.dtype == (np.float64 if dtype in (np.int32, np.float64) else np.float32)
    assert scores.shape == (4, *partition.grid_shape, 3)
    found = model.decode(scores)
    assert found.dtype == scores.dtype
    samples, mean, rows = (
        parts_of(partition, values) for values in (x.astype(float), model.mean[None], model.components.astype(float))
    )
    flat = scores.reshape(4, partition.n_parts, 3)
    rebuilt = []
    for i in range(partition.n_parts):
        np.testing.assert_allclose(flat[:, i], (samples[i] - mean[i]) @ rows[i].T, rtol=1e-5, atol=5e-3)
        rebuilt.append((i, (mean[i] + flat[:, i] @ rows[i])[None]))
    expected = partition.join(rebuilt, np.empty((4, *SHAPE)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=5e-3)


@every_partition
def test_samples_and_scores_that_are_views_or_none(partition: Partition) -> None:
    model = made(partition)
    before = len(pickle.dumps(model))
    assert model.encode(np.zeros((0, *SHAPE), np.uint8)).shape == (0, *model.score_shape)
    assert model.decode(np.zeros((0, *model.score_shape), np.float32)).shape == (0, *SHAPE)
    assert len(pickle.dumps(model)) == before  # what is cached is not sent
    x = np.random.default_rng(2).integers(0, 256, (6, 12, 9, 4), dtype=np.uint8)[::2, 1:11, :, ::2]
    copied, scores = x.copy(), model.encode(x)
    np.testing.assert_array_equal(scores, model.encode(copied))
    np.testing.assert_array_equal(x, copied)
    backwards = scores[::-1, ..., ::-1][..., ::-1]
    np.testing.assert_array_equal(model.decode(backwards), model.decode(backwards.copy()))


@every_partition
@pytest.mark.parametrize("block", [1, 2**11])
def test_blocks_of_samples_change_nothing(block: int, partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made(partition, 4), np.random.default_rng(2).integers(0, 256, (23, *SHAPE), dtype=np.uint8)
    scores = model.encode(x)
    samples = model.decode(scores)
    monkeypatch.setattr(linear, "_BLOCK_BYTES", block)
    monkeypatch.setattr(linear, "_RUN_FEATURES", 60)
    again = made(partition, 4)
    np.testing.assert_allclose(again.encode(x), scores, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(again.decode(scores), samples, rtol=1e-5, atol=2e-3)


def test_components_of_several_ranks_and_shared_ones() -> None:
    grid = CellGrid((20, 12), (5, 4))
    rng = np.random.default_rng(0)
    rows = np.linalg.qr(rng.normal(size=(20, 20)))[0][:6].reshape(6, 5, 4)
    shared = np.tile(rows, (1, 4, 3))
    x = rng.integers(0, 256, (30, 20, 12)).astype(np.uint8)
    mean = x.mean(axis=0)
    ranks = np.array([6, 6, 6, 2, 2, 0, 1, 3, 3, 6, 6, 4])
    kept = shared.copy()
    for i, rank in enumerate(ranks):
        kept[(slice(rank, None), *(slice(a, b) for a, b in grid.box(i)))] = 0
    scores = LinearRepresentation(grid, mean, shared).encode(x)
    fewer = LinearRepresentation(grid, mean, kept)
    expected = scores.reshape(30, 12, 6) * (np.arange(6) < ranks[:, None])
    np.testing.assert_allclose(fewer.encode(x).reshape(30, 12, 6), expected, atol=1e-9)
    flat = (expected.reshape(30, 240 // 20, 6)[:, :, :, None, None] * rows).sum(axis=2).reshape(30, 4, 3, 5, 4)
    np.testing.assert_allclose(fewer.decode(scores), flat.swapaxes(2, 3).reshape(30, 20, 12) + mean, atol=1e-9)


@every_partition
def test_leading_components(partition: Partition) -> None:
    model = made(partition)
    x = np.random.default_rng(2).integers(0, 256, (5, *SHAPE), dtype=np.uint8)
    np.testing.assert_allclose(model.leading(2).encode(x), model.encode(x)[..., :2], rtol=1e-5)
    assert model.leading(None) is model
    with pytest.raises(DataError, match=r"\b3\b"):
        model.leading(4)
    for wrong in (0, True, 1.0, "2"):
        with pytest.raises(DataError, match="positive"):
            model.leading(wrong)  # type: ignore[arg-type]


@every_partition
def test_values_beyond_arithmetic_are_refused_on_either_side(partition: Partition) -> None:
    model = made(partition)
    x = np.ones((4, *SHAPE), np.float32)
    x[2, 3, 4, 1] = np.nan
    with pytest.raises(DataError, match="sample.9"):
        model.encode(x, "the stack", 7)
    with pytest.raises(DataError, match="sample.1.*float32"):
        model.encode(np.where(np.arange(4) == 1, np.float32(3e38), 1)[:, None, None, None] * np.ones(SHAPE, np.float32))
    scores = np.ones((3, *model.score_shape), np.float32)
    scores[1] = 3e38
    with pytest.raises(DataError, match="sample.5.*beyond"):
        model.decode(scores, first=4)
    scores[1] = np.inf
    with pytest.raises(DataError, match="sample.5"):
        model.decode(scores, first=4)


@pytest.mark.cases(8)
@pytest.mark.parametrize("block", [2**18, 2**25])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@pytest.mark.parametrize("kind", PARTITIONS)
@pytest.mark.parametrize("pixels", [False, True])
def test_temporaries_stay_below_what_is_promised(
    pixels: bool, kind: str, dtype: Any, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "_BLOCK_BYTES", block)
    shape = (120, 100, 3)
    partitions: dict[str, Partition] = {
        "whole": Whole(shape),
        "cells": CellGrid(shape, (20, 20)),
        "lapped": LappedGrid(shape, (20, 20), 5),
        "bands": map_at_random(shape, 1200, np.random.default_rng(0)),
    }
    components = np.random.default_rng(0).normal(size=(20, *shape)).astype(np.float32)
    model = LinearRepresentation(partitions[kind], np.zeros(shape), components)
    x = np.zeros((120, *shape), dtype)  # of float64 more than the larger block
    limits = Pixels(np.dtype(dtype), (0, 255)) if pixels else None
    replace(model)._decode(np.zeros((1, *model.score_shape), model.score_dtype(dtype)), limits)  # compiles
    linalg.release_scratch()
    tracemalloc.start()
    model._decode(model._encode(x), limits)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    linalg.release_scratch()
    # Scores are held while samples are put back together, as planned. Clients of other tests may still have
    # threads that allocate.
    promised = model.work_bytes(120, dtype, pixels=pixels)
    assert 0.5 * promised < peak <= promised + 2**20


@every_partition
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16, np.float32])
def test_decoding_to_pixels_is_decoding_and_rounding(dtype: Any, partition: Partition) -> None:
    model = made(partition)
    pixels = Pixels(np.dtype(dtype), (-3.0, 100.0))
    scores = np.random.default_rng(0).normal(0, 60, (5, *model.score_shape)).astype(np.float32)
    found = model.decode(scores, pixels=pixels)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, to_pixels(model.decode(scores), *pixels))


def test_ranks() -> None:
    rows = np.eye(4, 6, dtype=np.float32)
    assert ranks_of([rows]) == [4]
    rows[3] = 1e-7  # rounding
    assert ranks_of([rows]) == [3]
    rows[1] = 0  # one in between takes no rank away from those behind it
    assert ranks_of([rows]) == [3]
    assert ranks_of([0 * rows]) == [0]
    assert ranks_of([rows[:0]]) == [0]
