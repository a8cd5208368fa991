"""The dual form of stacks of any shape, dtype and chunks, in blocks of any size, against numpy's SVD."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca import PCA
from dpca.models.base import attribute_blocks
from dpca.models.linear import component_store, dual_solver
from dpca.storage.errors import DataError
from dpca.storage.run import Run

DTYPES = ("bool", "uint8", "int8", "uint16", "int16", "int32", "uint64", "float16", "float32", "float64")


def stack(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return samples of a few patterns with noise."""
    n, shape = int(rng.integers(2, 24)), tuple(rng.integers(1, 14, size=rng.integers(1, 4)).tolist())
    rank, dtype = int(rng.integers(1, 5)), DTYPES[rng.integers(len(DTYPES))]
    patterns = rng.normal(size=(rank, *shape)) * 2.0 ** -np.arange(rank).reshape(-1, *(1,) * len(shape))
    x = np.tensordot(rng.normal(size=(n, rank)), patterns, 1) + 0.05 * rng.normal(size=(n, *shape))
    if dtype == "bool":
        return x > 0
    return (
        (30 * x + (100 if dtype.startswith("u") else 5)).clip(0 if dtype.startswith("u") else -120, 120).astype(dtype)
    )


def fitted(x: np.ndarray[Any, Any], path: Path, rng: np.random.Generator, k: int) -> PCA:
    """Fit a store with random chunks, in random blocks, with components in memory or on disk."""
    chunks = tuple(int(rng.integers(1, length + 1)) for length in x.shape)
    zarr.create_array(str(path), data=x, chunks=chunks, compressors=None if rng.integers(2) else "auto")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attribute_blocks, "_LARGEST_BLOCK", int(rng.integers(1, 200)))
        patch.setattr(dual_solver, "MOST_BYTES", int(rng.integers(2)) * 2**30)
        patch.setattr(component_store, "_SHARD_BYTES", int(rng.integers(1, 2000)))
        return PCA(k, solver="dual").fit(str(path), run=Run(threads=int(rng.integers(1, 3))))


@pytest.mark.cases(10)
@pytest.mark.parametrize("seed", range(200))
def test_values_and_subspaces_are_those_of_numpy(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = stack(rng)
    n, d = len(x), math.prod(x.shape[1:])
    exact = x.reshape(n, d).astype(float)
    centered = exact - exact.mean(axis=0)
    _, values, rows = np.linalg.svd(centered, full_matrices=False)
    rank = int((values > 1e-6 * max(values[0], 1e-300)).sum())
    if not rank:
        return
    k = int(rng.integers(1, rank + 1))
    model = fitted(x, tmp_path / "x.zarr", rng, k)
    np.testing.assert_allclose(model.explained_variance_, values[:k] ** 2 / (n - 1), rtol=0, atol=1e-6 * values[0] ** 2)
    np.testing.assert_allclose(np.asarray(model.mean_), exact.mean(axis=0), rtol=1e-6, atol=1e-6)
    components = np.asarray(model.components_).astype(float)
    np.testing.assert_allclose(components @ components.T, np.eye(k), atol=1e-5)
    # The error of a subspace is that of the Gram matrix divided by its gap.
    gap = (values[k - 1] ** 2 - (values[k] ** 2 if k < len(values) else 0)) / values[0] ** 2
    sine = np.linalg.norm(components - components @ rows[:k].T @ rows[:k], 2)
    assert sine < 1e-5 + 1e-7 / gap
    assert model.captured_bound_ <= 1


@pytest.mark.cases(4)
@pytest.mark.parametrize("seed", range(40))
def test_integers_have_the_same_bytes_in_any_blocks(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    x = rng.integers(0, 200, (int(rng.integers(3, 12)), *rng.integers(2, 12, 2).tolist())).astype(
        ("uint8", "uint16", "int16")[seed % 3]
    )
    k = int(rng.integers(1, min(len(x) - 1, math.prod(x.shape[1:])) + 1))
    one, two = (fitted(x, tmp_path / name, rng, k) for name in ("a.zarr", "b.zarr"))
    rows = [np.asarray(model.components_) for model in (one, two)]
    # Signs in memory are those of the largest entry, and on disk those of the largest weight.
    signs = np.sign((rows[0] * rows[1]).sum(axis=1))
    np.testing.assert_array_equal(rows[0] * signs[:, None].astype(rows[0].dtype), rows[1])
    np.testing.assert_array_equal(one.explained_variance_, two.explained_variance_)
    np.testing.assert_array_equal(np.asarray(one.mean_), np.asarray(two.mean_))


def test_one_sample_has_no_components() -> None:
    with pytest.raises(DataError, match="2"):
        PCA(1).fit(np.ones((1, 5, 6), "f4"))
