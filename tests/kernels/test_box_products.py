"""Products of boxes of samples with vectors, against slices of numpy arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.kernels.boxes import add_boxes, project_boxes
from dpca.models.denoising.averages import BoxFilters, CellFilters, runs_of
from dpca.partition.shifted import ShiftedGrids


@st.composite
def boxes_of_regions(draw: st.DrawFn) -> tuple[Any, Any]:
    """Draw a region, and a box in it."""
    region, box = [], []
    for _ in range(draw(st.integers(1, 4))):
        start, length = draw(st.integers(0, 5)), draw(st.integers(1, 6))
        region.append((start, start + length))
        low = draw(st.integers(start, start + length - 1))
        box.append((low, draw(st.integers(low + 1, start + length))))
    return tuple(region), tuple(box)


@given(boxes_of_regions())
def test_runs_are_the_values_of_a_box_in_its_order(given_boxes: tuple[Any, Any]) -> None:
    region, box = given_boxes
    values = np.arange(math.prod(b - a for a, b in region)).reshape([b - a for a, b in region])
    inside = values[tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(box, region, strict=True))]
    starts, length = runs_of(box, region)
    np.testing.assert_array_equal((starts[:, None] + np.arange(length)).ravel(), inside.ravel())


def test_the_runs_of_a_whole_region_are_one() -> None:
    assert [
        values.tolist() if isinstance(values, np.ndarray) else values for values in runs_of(*[((2, 5), (0, 4))] * 2)
    ] == [[0], 12]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 15, 16, 37])
def test_projections_and_sums_are_those_of_slices(n: int, dtype: Any) -> None:
    rng = np.random.default_rng(n)
    samples = rng.normal(size=(n, 60)).astype(dtype)
    table, starts, weights, scores, out = [], [], [], [], np.zeros((n, 60))
    for rank in range(10):
        runs, length = rank % 3 + 1, 2 + rank
        here = np.sort(rng.choice(60 // length, runs, replace=False)) * length
        vectors = rng.normal(size=(rank, runs * length)).astype(dtype)
        table.append((len(starts), runs, length, sum(map(np.size, weights)), rank, sum(s.shape[1] for s in scores)))
        starts.extend(here.tolist())
        weights.append(vectors)
        places = (here[:, None] + np.arange(length)).ravel()
        scores.append(samples[:, places].astype(float) @ vectors.T.astype(float))
        out[:, places] += scores[-1].astype(dtype).astype(float) @ vectors
    boxes = (np.array(table), np.array(starts), np.concatenate([one.ravel() for one in weights]))
    found = np.full((n, 45), np.nan, dtype)
    project_boxes(samples, *boxes, found)
    accuracy = 200 * np.finfo(dtype).eps
    np.testing.assert_allclose(found, np.concatenate(scores, axis=1), rtol=0, atol=accuracy)
    summed = np.ones((n, 60), dtype)
    add_boxes(found, *boxes, summed)
    np.testing.assert_allclose(summed, 1 + out, rtol=0, atol=10 * accuracy)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.booleans())
def test_filters_of_any_box_are_the_sums_over_its_cells(seed: int, n_axes: int, channels: bool) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 12, n_axes + channels).tolist())
    grids = ShiftedGrids(shape, tuple(rng.integers(1, 6, n_axes).tolist()))
    filters = {part: rng.normal(size=(2 * rng.integers(0, 6), grids.n_features(part))) for part in range(grids.n_parts)}
    whole = tuple((0, length) for length in shape)
    cells = CellFilters(grids, filters, rng.normal(size=shape), whole)
    x = rng.normal(size=(3, *shape))
    expected = np.repeat(cells.mean[None], 3, axis=0)
    for part, rows in filters.items():
        place = (slice(None), *(slice(a, b) for a, b in grids.boxes[part]))
        values, rank = x[place].reshape(3, -1), len(rows) // 2
        expected[place] += (values @ rows[:rank].T @ rows[rank:]).reshape(expected[place].shape)
    corners = [np.sort(rng.choice(length + 1, 2, replace=False)).tolist() for length in shape]
    core = tuple((a, b) for a, b in corners)
    region = grids.reach(core)
    seen = x[(slice(None), *(slice(a, b) for a, b in region))]
    kept = BoxFilters.unpacked(cells.within(region, core).packed())
    np.testing.assert_allclose(kept.apply(seen), expected[(slice(None), *(slice(a, b) for a, b in core))], atol=1e-9)
