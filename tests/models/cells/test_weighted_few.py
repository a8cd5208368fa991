"""Few samples with fractional weights in cells and bands: the decompositions of numpy, without whole samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.base import clone

from dpca import BandPCA, CellPCA, Progress
from dpca.models.base.passes import Passes
from dpca.models.base.samples import weighted_source
from dpca.models.cells import bands_by_blocks, cells_on_disk
from dpca.models.linear import weighted
from dpca.models.linear.weighted import weighted_mean
from dpca.storage import DataError
from dpca.storage.run import Run
from tests.helpers.patterned import patterned

SHAPE, N = (40, 90), 9
SHARES = np.linspace(0.3, 2.2, N)
MODELS: dict[str, Any] = {
    "cells": CellPCA(3, cell_shape=15),
    "bands": BandPCA(3, band_size=130, mapping="random", random_state=0),
}
every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all samples count as large, and be read in several blocks."""
    for module in (bands_by_blocks, weighted):
        monkeypatch.setattr(module, "LARGE_SAMPLE", 0)
    monkeypatch.setattr("dpca.models.base.attribute_blocks._SHORT_TASK", 2**12)


def stored(folder: Path, x: Any, chunks: tuple[int, ...] = (2, 16, 40)) -> str:
    zarr.create_array(str(folder / "x.zarr"), data=x, chunks=chunks)
    return str(folder / "x.zarr")


def parts_of(model: Any) -> list[np.ndarray]:
    """The place of each part in a sample."""
    numbers = np.arange(model.n_features_in_).reshape(1, *SHAPE)
    partition, everywhere = model.partition_, (0, 0)
    parts = range(partition.n_parts)
    return [part[0] for part in partition.split(numbers, parts, everywhere, np.empty(numbers.size, np.int64))]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@every_model
def test_every_part_is_the_weighted_pca_of_its_attributes(tmp_path: Path, name: str, dtype: str) -> None:
    x = patterned(N, SHAPE, dtype, 2)
    model = clone(MODELS[name]).fit(stored(tmp_path, x), sample_weight=SHARES, run=Run(threads=2))
    assert "Gram" in model.fit_report_.note
    assert model.n_samples_seen_ == N
    values = x.reshape(N, -1).astype(float)
    mean, divisor = np.average(values, axis=0, weights=SHARES), SHARES.sum() - 1
    np.testing.assert_allclose(model.mean_.ravel(), mean, rtol=1e-12)
    totals, variances = model.total_variance_.ravel(), model.explained_variance_.reshape(-1, 3)
    for i, mine in enumerate(parts_of(model)):
        rows = (values - mean)[:, mine] * np.sqrt(SHARES)[:, None]
        _, sizes, expected = np.linalg.svd(rows, full_matrices=False)
        np.testing.assert_allclose(variances[i], sizes[:3] ** 2 / divisor, rtol=1e-9)
        assert totals[i] == pytest.approx((sizes**2).sum() / divisor, rel=1e-9)
        found = model.components_.reshape(3, -1)[:, mine].astype(float)
        np.testing.assert_allclose(np.abs(found @ expected[:3].T), np.eye(3), atol=2e-5)


@every_model
def test_weights_of_one_half_are_another_divisor(name: str) -> None:
    x = patterned(N, SHAPE, "uint8", 2)
    once, half = clone(MODELS[name]).fit(x), clone(MODELS[name]).fit(x, sample_weight=np.full(N, 0.5))
    np.testing.assert_array_equal(half.ranks_, once.ranks_)
    np.testing.assert_allclose(half.mean_, once.mean_, rtol=1e-12)
    np.testing.assert_allclose(half.components_, once.components_, atol=1e-6)
    ratio = 0.5 * (N - 1) / (0.5 * N - 1)
    np.testing.assert_allclose(half.total_variance_, ratio * once.total_variance_, rtol=1e-9)


@every_model
def test_samples_of_weight_0_and_rejected_weights(name: str) -> None:
    x, shares = patterned(N, SHAPE, "float32", 2), SHARES.copy()
    shares[[1, 5]] = 0
    model, few = clone(MODELS[name]), shares > 0
    expected = clone(model).fit(x[few], sample_weight=shares[few])
    found = clone(model).fit(x, sample_weight=shares)
    for one in ("components_", "mean_", "explained_variance_"):
        np.testing.assert_allclose(getattr(found, one), getattr(expected, one), rtol=1e-6, atol=1e-7)
    with pytest.raises(DataError, match="sum"):
        clone(model).fit(x, sample_weight=np.full(N, 0.1))
    with pytest.raises(DataError, match="validation_fraction"):
        clone(model).set_params(n_components=None, target_mse=1.0, validation_fraction=0.3).fit(x, sample_weight=SHARES)


@every_model
def test_components_on_disk_are_those_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    x = patterned(N, SHAPE, "uint8", 2)
    path = stored(tmp_path, x)
    for choice in ({}, {"n_components": None, "threshold": 0.7}):
        model = clone(MODELS[name]).set_params(**choice)
        with monkeypatch.context() as patch:
            expected = clone(model).fit(path, sample_weight=SHARES)
            assert isinstance(expected.components_, np.ndarray)
            for module in (bands_by_blocks, cells_on_disk):
                patch.setattr(module, "MOST_BYTES", 0)
            found = clone(model).fit(path, sample_weight=SHARES)
        assert isinstance(found.components_, da.Array)
        for one in ("components_", "mean_", "explained_variance_", "total_variance_", "ranks_"):
            np.testing.assert_allclose(getattr(found, one), getattr(expected, one), rtol=1e-6, atol=1e-7)


def test_more_samples_than_attributes_on_disk_are_those_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, shares = patterned(30, SHAPE, "uint8", 2), np.linspace(0.1, 3, 30)
    path, model = stored(tmp_path, x), CellPCA(3, cell_shape=5)
    expected = clone(model).fit(path, sample_weight=shares)
    assert "Gram" not in expected.fit_report_.note
    monkeypatch.setattr(cells_on_disk, "MOST_BYTES", 0)
    found = clone(model).fit(path, sample_weight=shares)
    assert isinstance(found.components_, da.Array)
    np.testing.assert_allclose(np.asarray(found.mean_), np.average(x, axis=0, weights=shares), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(found.components_), expected.components_, atol=1e-6)


def test_shared_cells_by_blocks_are_those_of_whole_samples(tmp_path: Path) -> None:
    x = patterned(7, (300, 1100), "uint8", 2)
    path, shares = stored(tmp_path, x, (1, 50, 550)), np.linspace(0.2, 2, 7)
    model = CellPCA(3, cell_shape=10, shared=True)
    whole = clone(model).fit(x, sample_weight=shares)
    found = clone(model).fit(path, sample_weight=shares, run=Run(threads=1, memory=36 * 2**20))
    assert "blocks of cells" in found.fit_report_.note
    np.testing.assert_allclose(found.mean_, np.average(x, axis=0, weights=shares), rtol=1e-6)
    np.testing.assert_allclose(found.explained_variance_, whole.explained_variance_, rtol=1e-5)
    first = [m.components_[:, :10, :10].reshape(3, -1) for m in (found, whole)]
    np.testing.assert_allclose(first[0] @ first[1].T, np.eye(3), atol=1e-4)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_the_mean_far_from_zero_is_exact_by_blocks(tmp_path: Path, dtype: str) -> None:
    x = patterned(N, SHAPE, "float64", 2) + (0 if dtype == "uint8" else 1e5)
    x = x.astype(dtype)
    source = weighted_source(clone(MODELS["cells"]), stored(tmp_path, x), SHARES)
    passes = Passes(source, Run(threads=2))
    found = weighted_mean(source, passes)
    assert sum(len(group.partitions) for group in passes.report.plan.groups) > 1
    np.testing.assert_allclose(found, np.average(x.astype(float), axis=0, weights=SHARES), rtol=1e-7)
    bad = patterned(N, SHAPE, "float32", 2)
    bad[3, 2, 2] = np.nan
    with pytest.raises(DataError, match="finite"):
        CellPCA(2, cell_shape=10).fit(bad, sample_weight=SHARES)


def test_models_of_the_samples_so_far_have_their_own_mean() -> None:
    x, seen = patterned(40, SHAPE, "uint8", 2), list[Progress]()
    shares = np.linspace(0.3, 2.2, 40)
    CellPCA(2, cell_shape=20).fit(da.from_array(x, chunks=(4, 40, 90)), sample_weight=shares, callback=seen.append)
    first = seen[0]
    n = first.n_samples_seen
    assert n < 40
    np.testing.assert_allclose(first.model.mean_, np.average(x[:n], axis=0, weights=shares[:n]), rtol=1e-9)
    expected = CellPCA(2, cell_shape=20).fit(x[:n], sample_weight=shares[:n])
    np.testing.assert_allclose(first.model.explained_variance_, expected.explained_variance_, rtol=1e-9)
