"""Samples of any type and order in memory are the same samples: against numpy, and against C-ordered floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpca import PCA, BandPCA, CellPCA, PatchPCA, StreamingPCA
from dpca.storage import DataError

N, SHAPE = 40, (8, 6)
RNG = np.random.default_rng(0)
VALUES = (RNG.normal(size=(N, 3)) @ RNG.normal(size=(3, 48)) * 20 + RNG.normal(size=(N, 48)) + 120).clip(0, 255)
VALUES = VALUES.reshape(N, *SHAPE)
DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", ">u2", ">i4", ">f4", ">f8"]
MODELS: dict[str, Callable[[], Any]] = {
    "whole": lambda: PCA(3),
    "streamed": lambda: StreamingPCA(3, method="incremental-svd", batch_size=10, random_state=0),
    "cells": lambda: CellPCA(2, cell_shape=4),
    "lapped": lambda: CellPCA(2, cell_shape=4, overlap=2),
    "shared": lambda: CellPCA(2, cell_shape=4, shared=True),
    "bands": lambda: BandPCA(2, band_size=12, random_state=0),
    "patches": lambda: PatchPCA(2, patch_shape=3),
}


def of_type(dtype: str) -> np.ndarray:
    kind = np.dtype(dtype).kind
    return VALUES > 120 if kind == "b" else (VALUES - 128 if kind == "i" else VALUES).astype(dtype)


def ordered(x: np.ndarray) -> dict[str, np.ndarray]:
    wide = np.zeros((N, 2 * SHAPE[0], 3 * SHAPE[1]), x.dtype)
    wide[:, ::2, 1::3] = x
    shifted = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    shifted[...] = x
    shifted.flags.writeable = False
    return {
        "Fortran": np.asfortranarray(x),
        "strided": wide[:, ::2, 1::3],
        "backward": np.ascontiguousarray(x[::-1, ::-1, ::-1])[::-1, ::-1, ::-1],
        "moved": np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0),
        "unaligned": shifted,
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_type_and_order(dtype: str) -> None:
    x = of_type(dtype)
    flat = x.reshape(N, -1).astype(float)
    values = np.linalg.svd(flat - flat.mean(axis=0), compute_uv=False) ** 2 / (N - 1)
    orders = list(ordered(x).values())
    for i, make in enumerate(MODELS.values()):
        given = orders[(i + DTYPES.index(dtype)) % len(orders)]
        found, known = make().fit(given), make().fit(np.ascontiguousarray(x, float))
        expected = known.transform(np.ascontiguousarray(x, float))
        # Signs hang on which of two entries, as large but for rounding, is the largest.
        scores = np.abs(found.transform(given))
        np.testing.assert_allclose(scores, np.abs(expected), atol=2e-3 * scores.max())
        if isinstance(found, PCA):
            np.testing.assert_allclose(found.explained_variance_, values[:3], rtol=1e-3)
            np.testing.assert_allclose(found.score(given), known.score(flat.reshape(x.shape)), rtol=1e-3)
    # All components, a few samples at a time.
    streamed = StreamingPCA(3, method="incremental-svd", oversampling=45, random_state=0)
    for some in np.split(orders[DTYPES.index(dtype) % len(orders)], 4):
        streamed.partial_fit(some)
    np.testing.assert_allclose(streamed.explained_variance_, values[:3], rtol=1e-3)


def test_one_value_in_many_places() -> None:
    """Arrays whose strides are 0 have no variance along these axes."""
    rows = np.broadcast_to(VALUES[:, :1], VALUES.shape)
    np.testing.assert_allclose(
        PCA(3).fit(rows).explained_variance_, PCA(3).fit(rows.copy()).explained_variance_, rtol=1e-6
    )
    same = PCA(2).fit(np.broadcast_to(VALUES[:1], VALUES.shape))
    np.testing.assert_allclose(same.explained_variance_, 0, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_numbers_of_128_bits_are_refused(name: str) -> None:
    if np.dtype(np.longdouble).itemsize <= 8:
        pytest.skip("long doubles are doubles on this machine")
    with pytest.raises(DataError, match="values: convert them to .* of at most 64 bits"):
        MODELS[name]().fit(VALUES.astype(np.longdouble))
