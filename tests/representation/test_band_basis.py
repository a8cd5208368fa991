"""Projection and reconstruction of bands by hand, and what they take."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from dpca.kernels import linalg
from dpca.partition import map_at_random
from dpca.partition.bands import Bands
from dpca.representation import band_basis
from dpca.representation.band_basis import BandBasis

HALF = np.sqrt(0.5)


def two_bands() -> BandBasis:
    """Samples of three values: a band of the first and the last, and one of the middle, with two components."""
    components = np.array([[HALF, 1, HALF], [HALF, 0, -HALF]])
    return BandBasis(Bands(np.array([0, 1, 0])), np.array([1.0, 3.0, 2.0]), components)


def test_maps_by_hand() -> None:
    basis = two_bands()
    scores = basis.project(np.array([[2.0, 7.0, 3.0], [1.0, 3.0, 2.0]]))
    np.testing.assert_allclose(scores, [[[2 * HALF, 0], [4, 0]], [[0, 0], [0, 0]]], atol=1e-15)
    np.testing.assert_allclose(basis.reconstruct(np.array([[[2 * HALF, 4 * HALF], [4, 99]]])), [[4, 7, 1]], atol=1e-15)


def test_names_and_shapes() -> None:
    basis = two_bands()
    assert (basis.sample_shape, basis.score_shape, basis.cell_shape) == ((3,), (2, 2), None)
    assert basis.score_axes(("feature",)) == ("band", "component")
    assert basis.n_spatial(("y", "x", "channel")) == 2


@pytest.mark.parametrize("block", [2**16, 2**25])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_temporaries_stay_below_what_is_promised(dtype: Any, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(band_basis, "_BLOCK_BYTES", block)
    rng = np.random.default_rng(0)
    bands = map_at_random((120, 100, 3), 1200, rng)
    components = rng.normal(size=(20, 120, 100, 3)).astype(np.float32)
    basis = BandBasis(bands, np.zeros((120, 100, 3)), components)
    x = np.zeros((200, 120, 100, 3), dtype)
    linalg.release_scratch()
    tracemalloc.start()
    basis.reconstruct(basis.project(x))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    linalg.release_scratch()
    # Scores are held while samples are put back together, as the promise has it. Clients of other tests may still have
    # threads that allocate.
    assert 0.5 * basis.work_bytes(200, dtype) < peak <= basis.work_bytes(200, dtype) + 2**20
