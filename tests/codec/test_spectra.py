from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from dpca.codec.cells import Components
from dpca.codec.quantized import quantized
from dpca.codec.spectra import from_spectrum, to_spectrum
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
