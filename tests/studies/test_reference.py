"""The exact reference, by either solver, against a singular value decomposition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import Source, as_source
from dpca.metrics import convergence, principal_angles
from dpca.pipelines.studies.convergence import reference as module
from dpca.pipelines.studies.convergence.reference import exact_reference
from dpca.storage.errors import DataError
from tests.conftest import smooth_images

K = 4


def svd(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = x.reshape(len(x), -1).astype(np.float64)
    mean = rows.mean(axis=0)
    _, values, components = np.linalg.svd(rows - mean, full_matrices=False)
    return mean, components, values**2 / (len(x) - 1)


def check(source: Source, x: np.ndarray, solver: str) -> None:
    found, (mean, components, values) = exact_reference(source, K), svd(x)
    assert found.solver == solver
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12 if solver == "covariance" else 1e-7)
    np.testing.assert_allclose(found.explained_variance, values[:K], rtol=1e-5)
    assert found.total_variance == pytest.approx(values.sum(), rel=1e-6)
    assert principal_angles(found.components, components[:K]).max() < 2e-3
    rows = x.reshape(len(x), -1)
    off = components[:K] + 0.01 * np.random.default_rng(0).normal(size=(K, rows.shape[1]))
    expected = convergence(off, components[:K], rows)
    assert found.convergence([off, components[:K]])[0] == pytest.approx(expected, abs=1e-6)
    assert found.convergence([components[:K]])[0] < -9
    assert found.first(2).convergence([off[:2]])[0] == pytest.approx(
        convergence(off[:2], components[:2], rows), abs=1e-6
    )


def test_few_attributes_go_by_the_covariance() -> None:
    x = smooth_images(300, (6, 5, 3))
    check(as_source(x), x, "covariance")


def test_few_samples_go_by_the_dual(tmp_path: Path) -> None:
    x = smooth_images(40, (19, 14, 3))
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(16, 5, 6, 3))
    check(as_source(str(tmp_path / "x.zarr")), x, "dual")
    check(as_source(x), x, "dual")


def test_captured_variances_come_with_the_total() -> None:
    x = smooth_images(30, (8, 9, 3))
    found = exact_reference(as_source(x), 2)
    (captured, all_of_it), total = found.captured([found.components, svd(x)[1][:-1]])
    assert captured == pytest.approx(found.explained_variance.sum(), rel=1e-6)
    assert all_of_it == pytest.approx(total, rel=1e-9)


def test_what_cannot_be_computed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = smooth_images(10, (6, 5, 3))
    with pytest.raises(DataError, match=r"\b9\b"):
        exact_reference(as_source(x), 10)
    with pytest.raises(DataError, match="directions"):
        exact_reference(as_source(np.outer([1.0, 2, 4], np.ones(50))), 2)
    bad = x.astype(np.float32)
    bad[3, 2, 2, 1] = np.nan
    with pytest.raises(DataError, match="sample.3"):
        exact_reference(as_source(bad), 2)
    monkeypatch.setattr(module, "usable_bytes", lambda: 1000)
    with pytest.raises(PlanError, match="exact"):
        exact_reference(as_source(x), 2)
