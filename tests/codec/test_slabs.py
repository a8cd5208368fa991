"""Slabs against the cells of samples that the partition filters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.codec import slabs
from dpca.codec.fitting import own_components
from dpca.codec.slabs import slabs_of, whole_of
from dpca.kernels.pixels import Pixels
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from tests.codec.test_cell_codec import grids


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slabs, "_HELD_BYTES", 2**13)


def cells_of(grid: CellGrid, samples: np.ndarray) -> list[np.ndarray]:
    """Return the cells (n, n_features) of filtered samples."""
    samples = samples.copy()
    if isinstance(grid, LappedGrid):
        grid.prefilter.apply(samples, (0,) * len(grid.sample_shape))
    return CellGrid(grid.sample_shape, grid.cell_shape).all_parts(samples)


@settings(deadline=None, max_examples=40)
@given(grids(), st.integers(1, 40), st.sampled_from([np.uint8, np.int16, np.float64]))
def test_cells_are_those_of_filtered_samples_and_go_back(grid: CellGrid, n: int, dtype: type) -> None:
    rng = np.random.default_rng(0)
    samples, mean = rng.integers(0, 256, (n, *grid.sample_shape)).astype(dtype), rng.normal(size=grid.sample_shape)
    expected = cells_of(grid, samples - mean)
    found = [np.full_like(part, np.nan) for part in expected]
    whole = slabs_of(grid, whole_of(grid.sample_shape))
    for few, part, values in whole.split(samples, mean):
        found[part.cell][few] = values.T
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)
    back = np.empty(samples.shape)
    whole.join(lambda few, part, values: np.copyto(values, found[part.cell][few].T), mean, back)
    np.testing.assert_allclose(back, samples, rtol=0, atol=1e-11)


@settings(deadline=None, max_examples=40)
@given(grids(), st.data())
def test_a_box_needs_its_parts_alone(grid: CellGrid, data: st.DataObject) -> None:
    samples = np.random.default_rng(0).integers(0, 256, (7, *grid.sample_shape)).astype(float)
    starts = [data.draw(st.integers(0, length - 1)) for length in grid.sample_shape]
    box = tuple((a, data.draw(st.integers(a + 1, n))) for a, n in zip(starts, grid.sample_shape, strict=True))
    cells, plain = cells_of(grid, samples), CellGrid(grid.sample_shape, grid.cell_shape)
    needed = slabs_of(grid, box)

    def fill(few: slice, part: slabs.Part, values: np.ndarray) -> None:
        lengths = [stop - start for start, stop in plain.box(part.cell)]
        inside = part.inside or whole_of(lengths)
        of_part = cells[part.cell][few].reshape(-1, *lengths)[(slice(None), *(slice(*ends) for ends in inside))]
        np.copyto(values, of_part.reshape(len(of_part), -1).T)

    where = (slice(None), *(slice(*ends) for ends in box))
    out = np.empty(samples[where].shape, np.uint8)
    needed.join(fill, np.zeros(out.shape[1:]), out, Pixels(out.dtype, (3.0, 250.0)))
    np.testing.assert_array_equal(out, samples[where].clip(3, 250))
    if not isinstance(grid, LappedGrid):
        assert sum(part.end - part.begin for part in needed.parts) == out[0].size


def test_own_components_of_samples_that_are_processed_in_parts() -> None:
    samples = np.random.default_rng(0).normal(size=(40, 12, 8))
    grid, mean = CellGrid((12, 8), (4, 4)), samples.mean(axis=0)
    found = own_components(grid, mean, samples, 3, 1.0, 0.0)
    for cell, rows in enumerate(found.rows):
        values = (samples - mean)[(slice(None), *(slice(*ends) for ends in grid.box(cell)))].reshape(40, -1)
        expected = np.linalg.svd(values, full_matrices=False)[2][:3]
        np.testing.assert_allclose(np.abs((rows * expected).sum(axis=1)), 1, atol=1e-9)
