from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from dpca.codec.cells import CellCodec, Components
from dpca.codec.quantized import quantized
from dpca.codec.spectra import from_spectrum, lengths_of, to_spectrum
from dpca.partition.cells import CellGrid


def cosines(n: int) -> np.ndarray:
    rows = np.cos(np.pi / n * np.arange(n)[:, None] * (np.arange(n) + 0.5)) * np.sqrt(2 / n)
    rows[0] /= np.sqrt(2)
    return rows


@settings(deadline=None, max_examples=30)
@given(array_shapes(min_dims=1, max_dims=4, max_side=5), st.integers(1, 3))
def test_spectra_are_orthonormal_cosines_along_all_axes(lengths: tuple[int, ...], n: int) -> None:
    rows = np.random.default_rng(0).normal(size=(n, *lengths))
    expected = rows
    for axis, length in enumerate(lengths, 1):
        expected = np.moveaxis(np.tensordot(cosines(length), expected, (1, axis)), 0, axis)
    found = to_spectrum(rows.reshape(n, -1), lengths)
    np.testing.assert_allclose(found, expected.reshape(n, -1), atol=1e-12)
    np.testing.assert_allclose(from_spectrum(found, lengths), rows.reshape(n, -1), atol=1e-12)


@pytest.mark.parametrize("spectral", [True, False])
def test_components_are_stored_as_what_is_shorter(spectral: bool) -> None:
    # Two cells of 8 x 6 with a component each: a single cosine, or a single pixel.
    grid = CellGrid((8, 12), (8, 6))
    rows = np.zeros((2, 1, 48))
    rows[:, 0, 9] = 1
    if spectral:
        rows = np.stack([from_spectrum(row, (8, 6)) for row in rows])
    whole = Components(grid, np.zeros((8, 12)), np.arange(2), list(rows))
    scores = np.random.default_rng(0).normal(0, 50, (2, 1, 30))
    kept = quantized(whole, scores, 2.0, 30)
    assert kept.spectral is spectral
    assert np.count_nonzero(kept.basis) == 2
    found = kept.components(grid, np.float64)
    np.testing.assert_allclose(np.concatenate(found.rows), np.concatenate(rows), atol=2.0 ** -kept.exponent.min())
    # Older stores lack the key and hold the values themselves.
    del (stated := kept.settings)["spectral"]
    assert not type(kept).of(kept.arrays, stated).spectral
    assert type(kept).of(kept.arrays, kept.settings).settings == replace(kept).settings


@pytest.mark.parametrize(("shape", "cell"), [((9, 7, 2), (2, 3)), ((40, 40), (2, 2))])
def test_cells_are_quantized_and_decoded_as_each_alone(shape: tuple[int, ...], cell: tuple[int, ...]) -> None:
    # Cells of several shapes, with and without components that pay.
    rng, grid, step, n = np.random.default_rng(0), CellGrid(shape, cell), 1.5, 30
    lengths = [tuple(stop - start for start, stop in grid.box(i)) for i in range(grid.n_parts)]
    assert lengths_of(grid, np.arange(grid.n_parts)) == lengths
    ranks = [min(math.prod(each), 1 + i % 3) for i, each in enumerate(lengths)]
    rows = [np.linalg.qr(rng.normal(size=(math.prod(e), k)))[0].T for e, k in zip(lengths, ranks, strict=True)]
    scores = np.zeros((len(rows), 3, n))
    for i, k in enumerate(ranks):
        scores[i, :k] = rng.normal(0, [[40.0], [6.0], [2.0]][:k], (k, n)) * (i % 4 > 0)
    whole = quantized(Components(grid, np.zeros(shape), np.arange(len(rows)), rows), scores, step, n)
    decoded, at = whole.components(grid, np.float64), 0
    analysis, parts = CellCodec(decoded, step, whole.cell, whole.component)._analysis, []
    for i, (each, k) in enumerate(zip(lengths, ranks, strict=True)):
        alone = Components(CellGrid(each, each[: len(cell)]), np.zeros(each), np.zeros(1, int), [rows[i]])
        one = quantized(alone, scores[i : i + 1, :k], step, n)
        assert whole.rank[i] == one.rank[0]
        np.testing.assert_array_equal(whole.exponent[at : at + whole.rank[i]], one.exponent)
        at += whole.rank[i]
        codes = rows[i] if not whole.spectral else to_spectrum(rows[i], each)
        codes = np.rint(codes[: one.rank[0]] * 2.0 ** one.exponent[:, None])
        parts.append(codes.ravel())
        values = codes / 2.0 ** one.exponent[:, None]
        values = from_spectrum(values, each) if whole.spectral and len(values) else values
        np.testing.assert_allclose(decoded.rows[i], values, atol=1e-12)
        dual = np.linalg.pinv(values).T if len(values) else values
        np.testing.assert_allclose(analysis[i], dual, atol=1e-9)
    np.testing.assert_array_equal(whole.basis, np.concatenate(parts))
    assert len(set(whole.rank.tolist())) > 2
