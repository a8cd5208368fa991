"""Projection and reconstruction by hand, and rounding to what a stack can hold."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from dpca.kernels import linalg
from dpca.kernels.pixels import to_pixels
from dpca.partition import CellGrid
from dpca.representation.basis import kept_rows
from dpca.representation.cell_basis import CellBasis

HALF = np.sqrt(0.5)


def two_cells() -> CellBasis:
    """Samples of three values: a cell of two and an edge cell of one, with two components."""
    components = np.array([[HALF, HALF, 1], [HALF, -HALF, 0]])
    return CellBasis(CellGrid((3,), (2,)), np.array([1.0, 2.0, 3.0]), components)


def test_a_projection_by_hand() -> None:
    scores = two_cells().project(np.array([[2.0, 3.0, 7.0], [1.0, 2.0, 3.0]]))
    np.testing.assert_allclose(scores, [[[2 * HALF, 0], [4, 0]], [[0, 0], [0, 0]]], atol=1e-15)


def test_a_reconstruction_by_hand() -> None:
    scores = np.array([[[2 * HALF, 4 * HALF], [4, 99]]])
    np.testing.assert_allclose(two_cells().reconstruct(scores), [[4, 1, 7]], atol=1e-15)


def test_reconstructing_into_given_memory() -> None:
    out = np.full((2, 3), np.nan, np.float32)
    found = two_cells().reconstruct(np.zeros((2, 2, 2)), out)
    assert found is out
    np.testing.assert_array_equal(out, [[1, 2, 3], [1, 2, 3]])


def basis(shape: tuple[int, ...], cell: tuple[int, ...], k: int, dtype: Any = np.float32) -> CellBasis:
    rng = np.random.default_rng(0)
    return CellBasis(CellGrid(shape, cell), rng.normal(100, 5, shape), rng.normal(size=(k, *shape)).astype(dtype))


@pytest.mark.parametrize(
    "dtype", [bool, np.uint8, np.int16, np.uint16, np.int32, np.float16, np.float32, np.float64, ">f4"]
)
def test_every_dtype_against_sums_written_out(dtype: Any) -> None:
    model = basis((5, 7, 2), (2, 3), 3)
    x = np.random.default_rng(1).integers(0, 2 if dtype is bool else 120, (4, 5, 7, 2)).astype(dtype)
    scores = model.project(x)
    assert scores.dtype == (np.float64 if dtype in (np.int32, np.float64) else np.float32)
    assert scores.shape == (4, 3, 3, 3)
    expected, rebuilt = np.zeros(scores.shape), np.empty(x.shape)
    for place in np.ndindex(3, 3):
        box = (slice(2 * place[0], 2 * place[0] + 2), slice(3 * place[1], 3 * place[1] + 3))
        rows = model.components[(slice(None), *box)].astype(float)
        centered = x[(slice(None), *box)].astype(float) - model.mean[box]
        expected[(slice(None), *place)] = np.einsum("nyxc,kyxc->nk", centered, rows)
        rebuilt[(slice(None), *box)] = model.mean[box] + np.einsum("nk,kyxc->nyxc", scores[(slice(None), *place)], rows)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=2e-3)
    found = model.reconstruct(scores)
    assert found.dtype == scores.dtype
    np.testing.assert_allclose(found, rebuilt, rtol=1e-5, atol=3e-3)


def test_no_samples_have_no_scores() -> None:
    model = basis((5, 7, 2), (2, 3), 3)
    assert model.project(np.zeros((0, 5, 7, 2), np.uint8)).shape == (0, 3, 3, 3)
    assert model.reconstruct(np.zeros((0, 3, 3, 3), np.float32)).shape == (0, 5, 7, 2)


def test_samples_and_scores_that_are_views() -> None:
    model = basis((5, 7, 2), (2, 3), 3)
    x = np.random.default_rng(2).integers(0, 256, (6, 7, 9, 4), dtype=np.uint8)[::2, 1:6, 2:, ::2]
    scores = model.project(x)
    np.testing.assert_array_equal(scores, model.project(x.copy()))
    backwards = scores[::-1, ..., ::-1][..., ::-1]
    np.testing.assert_array_equal(model.reconstruct(backwards), model.reconstruct(backwards.copy()))


def test_temporaries_stay_below_what_is_promised() -> None:
    model = basis((60, 50, 3), (10, 10), 20)
    x = np.zeros((200, 60, 50, 3), np.uint8)
    linalg.release_scratch()
    tracemalloc.start()
    model.reconstruct(model.project(x))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    linalg.release_scratch()
    # Scores are held while samples are put back together: one call's results beside the other's temporaries.
    assert 0.3 * model.work_bytes(200, x.dtype) < peak <= 2 * model.work_bytes(200, x.dtype)


@pytest.mark.parametrize(
    ("dtype", "data_range", "values", "expected"),
    [
        (np.uint8, (0, 255), [-3, -0.4, 0.4, 0.6, 1.5, 2.5, 254.6, 300], [0, 0, 0, 1, 2, 2, 255, 255]),
        (np.uint8, (16, 235), [0, 16.4, 300], [16, 16, 235]),
        (np.uint16, (0, 65535), [-1, 65535.4, 1e9], [0, 65535, 65535]),
        (np.uint16, (0, 4095), [-1, 4095.4, 1e9], [0, 4095, 4095]),
        (np.int16, (-1e9, 1e9), [-1e6, -2.5, 1e6], [-32768, -2, 32767]),
        (np.int8, (-1000, 1000), [-300, 300], [-128, 127]),
        (bool, (0, 1), [-1, 0.4, 0.6, 7], [False, False, True, True]),
    ],
)
@pytest.mark.parametrize("work", [np.float32, np.float64])
def test_rounding_and_clipping(
    work: type, dtype: Any, data_range: tuple[float, float], values: list[float], expected: list[Any]
) -> None:
    """To the nearest, ties to even, as numpy and IEEE round; never around the end."""
    found = to_pixels(np.array(values, work), dtype, data_range)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array(expected, dtype))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("work", [np.float32, np.float64])
def test_the_largest_integers_do_not_wrap_around(work: type, dtype: type) -> None:
    """The largest of them has no float: the nearest one lies above."""
    info = np.iinfo(dtype)
    found = to_pixels(np.array([1e30, -1e30, 5], work), dtype, (float(info.min), float(info.max)))
    assert info.max * (1 - 2.0**-23) <= int(found[0]) <= info.max
    assert int(found[1]) == info.min
    assert int(found[2]) == 5


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floating_point_stacks_take_values_as_they_are(dtype: type) -> None:
    values = np.array([-7.25, 0.5, 1e3], np.float32)
    found = to_pixels(values, dtype, (0, 1))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)


def test_rows_that_are_kept() -> None:
    rows = np.eye(4, 6, dtype=np.float32)
    assert kept_rows(rows) == 4
    rows[3] = 1e-7  # rounding
    assert kept_rows(rows) == 3
    rows[1] = 0  # one in between takes no rank away from those behind it
    assert kept_rows(rows) == 3
    assert kept_rows(0 * rows) == 0
    assert kept_rows(rows[:0]) == 0
