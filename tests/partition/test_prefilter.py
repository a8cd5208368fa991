"""The prefilter: the published matrix, orthogonal, in place on any box, and what it is for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.partition import CellGrid
from dpca.partition.prefilter import Prefilter
from tests.partition.dense_prefilter import dct2, dense_prefilter


@st.composite
def prefilters(draw: st.DrawFn) -> Prefilter:
    spatial = draw(st.lists(st.integers(1, 13), min_size=1, max_size=3))
    cell = tuple(draw(st.integers(1, s)) for s in spatial)
    channels = draw(st.sampled_from([(), (1,), (3,), (2, 2), (17,)]))
    return Prefilter(CellGrid((*spatial, *channels), cell), draw(st.integers(2, 6)))


def start(prefilter: Prefilter) -> tuple[int, ...]:
    return (0,) * len(prefilter.grid.sample_shape)


@given(prefilters(), st.sampled_from([np.float32, np.float64]), st.integers(0, 3))
@settings(deadline=None)
def test_the_inverse_is_the_transpose(prefilter: Prefilter, dtype: type, n: int) -> None:
    shape = prefilter.grid.sample_shape
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, n, *shape)).astype(dtype)
    px, pty = prefilter.apply(x.copy(), start(prefilter)), prefilter.apply(y.copy(), start(prefilter), inverse=True)
    tolerance = 1e-6 if dtype is np.float32 else 1e-13
    # P^T P x = x, and <P x, y> = <x, P^T y>: together they say that P is orthogonal.
    np.testing.assert_allclose(prefilter.apply(px.copy(), start(prefilter), inverse=True), x, atol=10 * tolerance)
    inner = [(a.astype(float) * b).sum() for a, b in ((px, y), (x, pty))]
    assert inner[0] == pytest.approx(inner[1], abs=100 * tolerance * np.sqrt(max(x.size, 1)))


@pytest.mark.parametrize(
    ("shape", "cell", "overlap"),
    [
        ((23,), (8,), 4),  # an edge cell of 7
        ((17,), (5,), 2),  # an edge cell of 2: one pixel on each side has no filter
        ((13, 11, 3), (5, 4), 2),
        ((5, 9, 40), (2, 4), 2),  # many channels, and an axis whose cells are too short
        ((7, 8, 9, 2), (4, 4, 4), 2),
        ((20, 20), (10, 10), 5),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_is_the_published_matrix(shape: tuple[int, ...], cell: tuple[int, ...], overlap: int, dtype: type) -> None:
    dense = dense_prefilter(shape, cell, overlap)
    prefilter = Prefilter(CellGrid(shape, cell), overlap)
    d, everywhere = len(dense), (0,) * len(shape)
    found = prefilter.apply(np.eye(d, dtype=dtype).reshape(d, *shape), everywhere).reshape(d, d).T
    atol = 1e-6 if dtype is np.float32 else 1e-14
    np.testing.assert_allclose(found, dense, atol=atol)
    np.testing.assert_allclose(found @ found.T, np.eye(d), atol=atol)
    back = prefilter.apply(np.eye(d, dtype=dtype).reshape(d, *shape), everywhere, inverse=True).reshape(d, d).T
    np.testing.assert_allclose(back, dense.T, atol=atol)


@given(prefilters(), st.data())
@settings(deadline=None)
def test_a_box_is_filtered_as_in_the_sample_where_it_holds_whole_zones(
    prefilter: Prefilter, data: st.DataObject
) -> None:
    grid = prefilter.grid
    box = []
    for axis, (size, cell) in enumerate(zip(grid.sample_shape, grid.cell_shape, strict=False)):
        halves, first = [0, *prefilter.half_widths(axis), 0], data.draw(st.integers(0, grid.grid_shape[axis] - 1))
        last = data.draw(st.integers(first, grid.grid_shape[axis] - 1))
        box.append((first * cell - halves[first], min((last + 1) * cell, size) + halves[last + 1]))
    box += [(0, size) for size in grid.channel_shape]
    x = np.random.default_rng(0).normal(size=(2, *grid.sample_shape))
    # Only the cells themselves: the outer halves of their zones belong to neighbors.
    inner = tuple(
        slice(-(-a // c) * c, b // c * c if b < s else s)
        for (a, b), c, s in zip(box, (*grid.cell_shape, *grid.channel_shape), grid.sample_shape, strict=True)
    )
    where = (slice(None), *(slice(i.start - a, i.stop - a) for i, (a, _) in zip(inner, box, strict=True)))
    part = x[(slice(None), *(slice(a, b) for a, b in box))].copy()
    found = prefilter.apply(part, tuple(a for a, _ in box))[where]
    whole = prefilter.apply(x.copy(), start(prefilter))[(slice(None), *inner)]
    np.testing.assert_allclose(found, whole, atol=1e-14)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_zone_that_a_block_cuts_stays_as_it_is(axis: int) -> None:
    """Zones of 6 pixels about 8 and 16, in blocks that begin and end anywhere."""
    shape, cells = ((24, 2), (8, 2)) if axis == 0 else ((2, 24), (2, 8))
    prefilter, dense = Prefilter(CellGrid(shape, cells), 3), dense_prefilter((16,), (8,), 3)[5:11, 5:11]
    x = np.random.default_rng(0).normal(size=(1, *shape))
    for begin, end in itertools.combinations(range(25), 2):
        cut = np.s_[:, begin:end] if axis == 0 else np.s_[:, :, begin:end]
        expected = x.copy()
        lines = np.moveaxis(expected, axis + 1, 0)
        for zone in (slice(5, 11), slice(13, 19)):
            if begin <= zone.start and zone.stop <= end:
                lines[zone] = np.tensordot(dense, lines[zone], 1)
        found = prefilter.apply(np.ascontiguousarray(x[cut]), (begin, 0) if axis == 0 else (0, begin))
        np.testing.assert_allclose(found, expected[cut], atol=1e-13)


def test_zones_at_edge_cells() -> None:
    assert Prefilter(CellGrid((23,), (8,)), 4).half_widths(0) == [4, 3]
    assert Prefilter(CellGrid((23,), (8,)), 2).half_widths(0) == [2, 2]
    assert Prefilter(CellGrid((19,), (8,)), 4).half_widths(0) == [4, 0]  # 3 pixels: one each side is the identity
    assert Prefilter(CellGrid((21, 6), (7, 3)), 5).half_widths(0) == [3, 3]
    assert Prefilter(CellGrid((21, 6), (7, 3)), 5).half_widths(1) == [0]
    assert Prefilter(CellGrid((6,), (6,)), 3).half_widths(0) == []


def ar1(n: int, rho: float) -> np.ndarray:
    return rho ** np.abs(np.subtract.outer(np.arange(n), np.arange(n)))


def coding_gain(basis: np.ndarray, rho: float) -> float:
    """Of an orthonormal transform of AR(1) samples, in dB: arithmetic over geometric mean of the variances."""
    variances = np.einsum("ij,jk,ik->i", basis, ar1(basis.shape[1], rho), basis)
    return float(-10 * np.log10(variances).mean())


def test_with_the_dct_it_is_the_lapped_orthogonal_transform() -> None:
    """Coding gains of 8 channels at rho = .95 as the literature gives them: DCT 8.83 dB, LOT 9.22 dB."""
    prefilter = Prefilter(CellGrid((24,), (8,)), 4)
    p = prefilter.apply(np.eye(24), (0,)).T
    lot = (dct2(8) @ p[8:16])[:, 4:20]  # 8 basis functions of 16 values
    assert np.count_nonzero(np.abs(p[8:16, :4]) + np.abs(p[8:16, 20:])) == 0
    np.testing.assert_allclose(lot @ lot.T, np.eye(8), atol=1e-14)
    assert coding_gain(dct2(8), 0.95) == pytest.approx(8.83, abs=0.005)
    assert coding_gain(lot, 0.95) == pytest.approx(9.22, abs=0.005)
    # Functions are even or odd, a constant needs the first alone, and they end near zero; the DCT's end at their peak.
    np.testing.assert_allclose(lot[::2], lot[::2, ::-1], atol=1e-14)
    np.testing.assert_allclose(lot[1::2], -lot[1::2, ::-1], atol=1e-14)
    np.testing.assert_allclose(lot.sum(axis=1), [np.sqrt(8), *[0] * 7], atol=1e-14)
    assert np.abs(lot[:, 0]).max() < 0.08
    assert np.abs(dct2(8)[:, 0]).max() > 0.49


@pytest.mark.parametrize(("cell", "overlap"), [(4, 2), (5, 2), (8, 3), (10, 2), (10, 5), (25, 4), (25, 12)])
def test_smooth_signals_are_compacted_better(cell: int, overlap: int) -> None:
    """The variance that one or two principal components of a cell of an AR(1) process leave out."""
    grid = CellGrid((3 * cell,), (cell,))
    p = Prefilter(grid, overlap).apply(np.eye(3 * cell), (0,)).T[cell : 2 * cell]
    lapped = np.linalg.eigvalsh(p @ ar1(3 * cell, 0.95) @ p.T)[::-1]
    plain = np.linalg.eigvalsh(ar1(cell, 0.95))[::-1]
    assert lapped[1:].sum() < 0.99 * plain[1:].sum()
    assert lapped[2:].sum() < 0.97 * plain[2:].sum()


def test_what_is_even_about_a_border_stays_to_the_last_bit() -> None:
    """However large it is, so that an offset leaves no rounding behind."""
    prefilter = Prefilter(CellGrid((30, 20, 3), (10, 10)), 4)
    constant = np.full((2, 30, 20, 3), 16_777_215.0, np.float32)
    np.testing.assert_array_equal(prefilter.apply(constant.copy(), (0, 0, 0)), constant)
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 8, (2, 30, 20, 3)).astype(np.float32)
    offset = 2.0**20
    found = prefilter.apply(x + np.float32(offset), (0, 0, 0)) - offset
    # Of each axis one sum, rounded to an eighth.
    np.testing.assert_allclose(found, prefilter.apply(x.copy(), (0, 0, 0)), atol=0.2)


def test_the_largest_numbers_are_infinite_in_silence() -> None:
    x = np.full((1, 8), np.finfo(np.float32).max)
    x[:, 4:] *= -1
    found = Prefilter(CellGrid((8,), (4,)), 2).apply(x, (0,))
    assert not np.isfinite(found).all()


def test_an_array_that_cannot_be_filtered_in_place() -> None:
    with pytest.raises(ValueError, match="C-ordered"):
        Prefilter(CellGrid((8, 8), (4, 4)), 2).apply(np.zeros((2, 8, 8)).swapaxes(1, 2), (0, 0))
