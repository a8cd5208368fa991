"""Samples of any type and order in memory are the same samples: against numpy, and against C-ordered floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator

import dpca
from dpca import PCA, BandPCA, CellPCA, KernelPCA, PatchPCA, StreamingPCA
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


@pytest.mark.cases(5)
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


#: Estimators that have `merge`, with all components where the truth is exact; numpy's kernel is the Gaussian one.
MERGED: dict[str, Callable[[np.ndarray], Any]] = {
    "covariance": lambda x: StreamingPCA(3, method="covariance"),
    "incremental SVD": lambda x: StreamingPCA(3, method="incremental-svd", oversampling=45, random_state=0),
    "kernel": lambda x: KernelPCA(3, gamma=1e-4, landmarks=np.ascontiguousarray(x, float)),
}


def gaussian_eigenvalues(flat: np.ndarray) -> np.ndarray:
    kernel = np.exp(-1e-4 * ((flat[:, None] - flat[None]) ** 2).sum(axis=-1))
    centered = kernel - kernel.mean(axis=0) - kernel.mean(axis=1)[:, None] + kernel.mean()
    return np.linalg.eigvalsh(centered)[::-1]


@pytest.mark.parametrize("name", MERGED)
@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "f4", "f8"])
def test_two_merged_fits_are_one_of_all_samples(name: str, dtype: str) -> None:
    x = of_type(dtype)
    flat = x.reshape(N, -1).astype(float)
    vectors, values, _ = np.linalg.svd(flat - flat.mean(axis=0), full_matrices=False)
    values = gaussian_eigenvalues(flat) if name == "kernel" else values**2 / (N - 1)
    orders = ordered(x)
    for i, (one, other) in enumerate(zip(orders, [*orders][1:] + [*orders][:1], strict=True)):
        cut = (1, 7, 20, 33, N - 1)[i]
        a, b = MERGED[name](x), MERGED[name](x)
        a.partial_fit(orders[one][:cut])
        b.partial_fit(orders[other][cut:])
        merged = a.merge(b)
        assert (merged.n_samples_seen_, b.n_samples_seen_) == (N, N - cut)
        found = merged.eigenvalues_ if name == "kernel" else merged.explained_variance_
        np.testing.assert_allclose(found, values[:3], rtol=1e-5)
        if name != "kernel":
            np.testing.assert_allclose(merged.mean_.ravel(), flat.mean(axis=0), rtol=1e-6, atol=1e-5)
            known = np.abs(vectors[:, :3]) * np.sqrt(values[:3] * (N - 1))
            np.testing.assert_allclose(np.abs(merged.transform(orders[other])), known, atol=1e-4 * known.max())


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "f4", "f8"])
@pytest.mark.parametrize("name", [*MODELS, "kernel"])
def test_tables_of_any_type_and_order_are_the_scores(name: str, dtype: str) -> None:
    x = of_type(dtype)
    make = (lambda: KernelPCA(3, n_landmarks=20, random_state=0)) if name == "kernel" else MODELS[name]
    model = make().fit(x)
    orders = list(ordered(x).values())
    given = orders[(len(name) + len(dtype) + ord(dtype[0])) % len(orders)]
    scores = model.transform(x).reshape(N, -1)
    table = model.set_output(transform="pandas").transform(given)
    assert isinstance(table, pd.DataFrame)
    assert list(table.columns) == list(model.get_feature_names_out())
    np.testing.assert_array_equal(table.to_numpy(), scores)
    assert isinstance(model.set_output(transform="default").transform(given), np.ndarray)


def test_which_estimators_merge_and_which_give_tables() -> None:
    """`TrajectoryPCA` merges as `StreamingPCA` does; the others have no such method."""
    kinds = [kind for kind in (getattr(dpca, name) for name in dpca.__all__) if isinstance(kind, type)]
    estimators = {kind.__name__: kind for kind in kinds if issubclass(kind, BaseEstimator)}
    merging = {name for name, kind in estimators.items() if hasattr(kind, "merge")}
    assert merging == {"KernelPCA", "StreamingPCA", "TrajectoryPCA"}
    no_tables = {name for name, kind in estimators.items() if not hasattr(kind, "set_output")}
    assert no_tables == {"CCA", "EOF", "MCA", "SpectralClustering", "StreamingRidgeClassifier"}


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
    with pytest.raises(DataError, match="64"):
        MODELS[name]().fit(VALUES.astype(np.longdouble))
