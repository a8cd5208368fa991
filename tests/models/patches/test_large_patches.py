"""Patches of samples that do not fit into a task are those of whole samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca import PatchPCA, Progress
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import as_source
from dpca.storage.run import Run

GIVEN: dict[str, Any] = {"patch_shape": 5, "stride": (3, 2)}
# A task of the fit has temporary arrays of 25 MB whatever the samples are.
SLABS = Run(threads=2, memory=32 * 10**6)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = np.sin(np.linspace(0, 60, 2100))[:, None] + np.cos(np.linspace(0, 30, 700))
    return (rng.integers(0, 100, (2, 2100, 700, 3)) + 70 * rows[..., None] ** 2 / 4).astype(np.uint8)


@pytest.fixture(scope="module")
def whole(images: np.ndarray) -> PatchPCA:
    model = PatchPCA(4, **GIVEN).fit(images, run=Run(threads=1))
    assert len(model.fit_report_.plan.groups) == 1
    return model


def assert_same(model: PatchPCA, other: PatchPCA, rtol: float = 0) -> None:
    for name in ("components_", "mean_", "explained_variance_", "total_variance_"):
        found, expected = getattr(model, name), getattr(other, name)
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * (1 + np.abs(expected).max()))
    assert (model.n_samples_seen_, model.sample_shape_) == (other.n_samples_seen_, other.sample_shape_)


def test_integers_have_the_same_bits(images: np.ndarray, whole: PatchPCA, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=images, chunks=(1, 300, 700, 3))
    for samples in (images, str(tmp_path / "x.zarr")):
        model = PatchPCA(4, **GIVEN).fit(samples, run=SLABS)
        assert len(model.fit_report_.plan.groups) > 5
        assert model.fit_report_.plan.task_bytes <= SLABS.memory  # type: ignore[operator]
        assert_same(model, whole)


def test_floats_are_the_same_up_to_rounding(images: np.ndarray, whole: PatchPCA) -> None:
    model = PatchPCA(4, **GIVEN).fit(images[:, :600].astype(np.float32), run=Run(threads=2, memory=30 * 10**6))
    assert len(model.fit_report_.plan.groups) > 1
    assert_same(model, PatchPCA(4, **GIVEN).fit(images[:, :600].astype(np.float64), run=Run(threads=1)), 1e-4)


def test_all_patches_at_once_and_weights(images: np.ndarray) -> None:
    few = images[:, :600]
    weights = np.linspace(0, 1, few[0].size).reshape(few[0].shape)
    model = PatchPCA(3, **GIVEN).fit(few, run=Run(threads=1, memory=27 * 10**6))
    assert len(model.fit_report_.plan.groups) > 1
    patches = np.concatenate([rows.copy() for _, rows in model.grid_.rows(few)]).astype(float)
    variances = np.linalg.eigvalsh(np.cov(patches.T))[::-1]
    np.testing.assert_allclose(model.explained_variance_, variances[:3], rtol=1e-9)
    weighted = PatchPCA(3, **GIVEN, weights=weights).fit(few, run=Run(threads=1, memory=40 * 10**6))
    assert len(weighted.fit_report_.plan.groups) > 1
    assert_same(weighted, PatchPCA(3, **GIVEN, weights=weights).fit(few, run=Run(threads=1)), 1e-4)


def test_results_so_far(images: np.ndarray, whole: PatchPCA) -> None:
    seen: list[Progress] = []
    model = PatchPCA(4, **GIVEN).fit(np.concatenate([images] * 10), run=SLABS, callback=seen.append, max_samples=16)
    assert model.n_samples_seen_ == 16
    np.testing.assert_allclose(seen[0].model.explained_variance_, whole.explained_variance_, rtol=1e-5)


def test_plans_and_refusals(images: np.ndarray) -> None:
    PatchPCA(4, **GIVEN).plan_fit(as_source(images), ("y", "x", "channel"), SLABS)
    for plan in (False, True):
        with pytest.raises(PlanError, match="parts"):
            if plan:
                PatchPCA(4, **GIVEN).plan_fit(as_source(images), ("y", "x", "channel"), Run(memory=10**7))
            else:
                PatchPCA(4, **GIVEN).fit(images, run=Run(memory=10**7))
