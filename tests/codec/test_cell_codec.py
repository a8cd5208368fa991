from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.codec.cells import CellCodec, Components
from dpca.codec.quantized import quantized
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.partition.shared import SharedGrid


def components(grid: CellGrid, shared: bool, seed: int = 0) -> Components:
    """All components of every cell, any orthonormal ones."""
    rng = np.random.default_rng(seed)
    cells = SharedGrid(grid).cells if shared else [[i] for i in range(grid.n_parts)]
    group = np.empty(grid.n_parts, int)
    for g, members in enumerate(cells):
        group[members] = g
    sizes = [grid.n_features(members[0]) for members in cells]
    rows = [np.linalg.qr(rng.normal(size=(d, d)))[0] for d in sizes]
    return Components(grid, rng.normal(0, 9, grid.sample_shape), group, rows)


@st.composite
def grids(draw: st.DrawFn) -> CellGrid:
    n_spatial = draw(st.integers(1, 3))
    cell = tuple(draw(st.integers(2, 5)) for _ in range(n_spatial))
    shape = tuple(draw(st.integers(c, 12)) for c in cell) + draw(st.sampled_from([(), (2,)]))
    if max(cell) >= 4 and draw(st.booleans()):
        return LappedGrid(shape, cell, 2)
    return CellGrid(shape, cell)


def codec_of(grid: CellGrid, shared: bool, step: float, samples: np.ndarray) -> CellCodec:
    whole = components(grid, shared)
    kept = quantized(whole, whole.scores(samples), step, 10**6)
    return CellCodec(kept.components(grid, np.float64), kept.step, kept.cell, kept.component)


@settings(deadline=None, max_examples=20)
@given(grids(), st.booleans(), st.integers(0, 3))
def test_fine_steps_give_samples_back(grid: CellGrid, shared: bool, seed: int) -> None:
    samples = np.random.default_rng(seed).normal(0, 100, (40, *grid.sample_shape))
    codec = codec_of(grid, shared, 0.01, samples)
    assert len(codec.cell) == np.prod(grid.sample_shape)  # nothing is dropped
    decoded = codec.decode(codec.encode(samples, np.int32))
    # Errors of at most .6 steps a score, orthonormal components.
    assert np.abs(decoded - samples).max() < 0.01 * 0.6 * np.sqrt(grid.max_features * 2**grid.n_spatial)


@settings(deadline=None, max_examples=40)
@given(grids(), st.booleans(), st.data())
def test_a_box_is_decoded_from_its_own_rows_alone(grid: CellGrid, shared: bool, data: st.DataObject) -> None:
    samples = np.random.default_rng(0).normal(0, 100, (9, *grid.sample_shape))
    codec = codec_of(grid, shared, 5.0, samples)
    codes = codec.encode(samples, np.int16)
    starts = [data.draw(st.integers(0, length - 1)) for length in grid.sample_shape]
    box = tuple((a, data.draw(st.integers(a + 1, n))) for a, n in zip(starts, grid.sample_shape, strict=True))
    rows = codec.rows_of(box)
    whole = codec.decode(codes)[(slice(None), *(slice(*ends) for ends in box))]
    np.testing.assert_array_equal(codec.decode(codes[rows], box, rows), whole)
    np.testing.assert_array_equal(codec.decode(codes[rows, 5:6], box, rows), whole[5:6])


def test_quantized_components_are_near_and_use_no_more_bits_than_pay() -> None:
    rng = np.random.default_rng(0)
    grid = CellGrid((12, 12), (4, 4))
    whole = components(grid, shared=True)
    # Three components, and noise far below the step.
    scores = rng.normal(0, 1, (9, 16, 200)) * np.r_[[90.0, 40, 20], np.full(13, 0.01)][:, None]
    kept = quantized(whole, scores, 2.0, 2000)
    assert kept.rank.tolist() == [3]
    assert sorted(zip(kept.cell, kept.component, strict=True)) == [(c, k) for c in range(9) for k in range(3)]
    (rows,) = kept.components(grid, np.float64).rows
    # The error of a component times its scores is that of the scores themselves: half a step at most in all.
    energy = 10 * np.square(scores[:, :3]).sum(axis=(0, 2))
    assert (np.sqrt(energy)[:, None] * np.abs(rows - whole.rows[0][:3]) <= 2.0 * np.sqrt(2) / 2).all()
    assert np.abs(np.ldexp(kept.mean, -kept.mean_exponent) - whole.mean).max() <= 2.0 / np.sqrt(2000) / 2


def test_a_type_that_is_too_short_is_an_error() -> None:
    grid = CellGrid((4, 4), (4, 4))
    samples = np.random.default_rng(0).normal(0, 1e6, (40, 4, 4))
    with pytest.raises(OverflowError, match="int16"):
        codec_of(grid, False, 1.0, samples).encode(samples, np.int16)


def test_samples_without_variance_keep_nothing() -> None:
    grid = CellGrid((4, 6), (4, 4))
    samples = np.zeros((5, 4, 6)) + components(grid, False).mean
    codec = codec_of(grid, False, 1.0, samples)
    assert codec.encode(samples, np.int16).shape == (0, 5)
    np.testing.assert_allclose(codec.decode(np.empty((0, 5), np.int16)), samples, atol=1e-3)


@pytest.mark.parametrize("kind", ["independent", "zero", "repeated", "nearly repeated"])
def test_dual_bases_of_dependent_rows_are_pseudoinverses(kind: str) -> None:
    """Coarsely quantized components can be zero or equal."""
    rng = np.random.default_rng(0)
    rows = np.array([np.linalg.qr(rng.normal(size=(16, 3)))[0].T + rng.normal(0, 0.05, (3, 16)) for _ in range(4)])
    if kind != "independent":
        rows[2, 1] = {"zero": 0.0, "repeated": 1.0, "nearly repeated": 1.0}[kind] * rows[2, 0]
        rows[2, 1] += (kind == "nearly repeated") * rng.normal(0, 3e-9, 16)  # its square is at the edge of rounding
    components = Components(CellGrid((8, 8), (4, 4)), np.zeros((8, 8)), np.arange(4), list(rows))
    found = CellCodec(components, 1.0, np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4))._analysis
    for one, expected in zip(found, rows, strict=True):
        np.testing.assert_allclose(one, np.linalg.pinv(expected, rcond=1e-6).T, atol=1e-6)
