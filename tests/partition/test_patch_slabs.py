"""Slabs hold every patch of a sample once, whatever their height."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpca.kernels.patches import PatchGrid
from dpca.partition.patch_slabs import PatchSlabs


@st.composite
def grids(draw: st.DrawFn) -> PatchGrid:
    spatial = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    patch = tuple(draw(st.integers(1, length)) for length in spatial)
    stride = tuple(draw(st.integers(1, 4)) for _ in spatial)
    return PatchGrid((*spatial, *draw(st.sampled_from([(), (3,)]))), patch, stride)


@given(grids(), st.integers(1, 12), st.integers(0, 3))
def test_every_patch_is_in_one_slab(grid: PatchGrid, rows: int, n: int) -> None:
    slabs = PatchSlabs(grid, min(rows, grid.grid_shape[0]))
    x = np.random.default_rng(0).integers(0, 255, (n, *grid.sample_shape)).astype(np.uint8)
    sizes = [slabs.n_features(part) for part in range(slabs.n_parts)]
    buffer = np.zeros(n * sum(sizes) + 1, np.uint8)
    parts = slabs.split(x, range(slabs.n_parts), (0,) * (x.ndim - 1), buffer)
    assert [part.shape for part in parts] == [(n, size) for size in sizes]
    np.testing.assert_array_equal(buffer[:-1], np.concatenate([part.ravel() for part in parts]))
    found = []
    for part in parts:
        length = part.shape[1] // int(np.prod(grid.sample_shape[1:]))
        own = replace(grid, sample_shape=(length, *grid.sample_shape[1:]))
        for i in range(n):
            found += [(i, *patch) for _, block in own.rows(part[i].reshape(1, *own.sample_shape)) for patch in block]
    expected = [(i, *patch) for i in range(n) for _, block in grid.rows(x[i : i + 1]) for patch in block]
    assert sorted(found) == sorted(expected)


@given(grids(), st.integers(1, 12))
def test_joined_slabs_are_the_sample(grid: PatchGrid, rows: int) -> None:
    slabs = PatchSlabs(grid, min(rows, grid.grid_shape[0]))
    covered = slabs.region(slabs.n_parts - 1)[0][1]
    x = np.random.default_rng(0).integers(1, 255, (2, *grid.sample_shape)).astype(np.uint8)
    parts = slabs.split(x, range(slabs.n_parts), (0,) * (x.ndim - 1), np.empty(x.size * slabs.n_parts, np.uint8))
    back = slabs.join(((i, part[None]) for i, part in enumerate(parts)), np.zeros_like(x))
    gaps = np.zeros(grid.sample_shape[0], bool)
    for part in range(slabs.n_parts):
        gaps[slice(*slabs.region(part)[0])] = True
    np.testing.assert_array_equal(back[:, gaps], x[:, gaps])
    assert not back[:, covered:].any()
    assert [part for tile in slabs.tiles(grid.sample_shape) for part in tile] == list(range(slabs.n_parts))


@given(grids(), st.integers(1, 12))
def test_slabs_become_smaller_and_begin_at_chunks(grid: PatchGrid, chunk: int) -> None:
    found = list(PatchSlabs.of(grid, chunk))
    heights = [slabs.rows for slabs in found]
    assert heights == sorted(heights, reverse=True)
    if grid.grid_shape[0] > 1:
        assert heights[-1] == 1
        assert heights[0] <= grid.grid_shape[0]
    step = max(1, chunk // grid.stride[0])
    assert all(height % step == 0 or height in (*range(step), grid.grid_shape[0]) for height in heights)
