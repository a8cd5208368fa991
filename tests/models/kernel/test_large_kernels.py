"""Exact kernel PCA of few large samples: kernels from inner products by blocks, against scikit-learn."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import KernelPCA as Reference
from sklearn.metrics.pairwise import pairwise_kernels

from dpca import KernelPCA
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import as_source
from dpca.kernels.algebra import integers
from dpca.kernels.inner_products import Kernel
from dpca.models.base.attribute_blocks import cuts
from dpca.models.kernel import kernel_model, large_samples
from dpca.storage.errors import DataError
from dpca.storage.run import Run
from tests.helpers.forked import Programs, printed_by

SHAPE, N, K = (40, 60, 70), 9, 3
LITTLE = Run(memory=36 * 2**20, threads=2)
KERNELS: dict[str, dict[str, Any]] = {"rbf": {}, "poly": {"degree": 2}, "linear": {}, "cosine": {}}
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def drawn(n: int, seed: int = 0) -> np.ndarray[Any, Any]:
    rng, patterns = np.random.default_rng(seed), np.random.default_rng(9).normal(size=(4, *SHAPE))
    return (5 + np.tensordot(rng.normal(size=(n, 4)), patterns, 1) + rng.normal(size=(n, *SHAPE))).astype("f4")


@pytest.fixture(scope="module")
def x() -> np.ndarray[Any, Any]:
    return drawn(N)


def rows(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1).astype(float)


def fitted(kernel: str, x: Any, run: Run = LITTLE) -> KernelPCA:
    model = KernelPCA(K, kernel=kernel, method="exact", **KERNELS[kernel]).fit(x, run=run)
    assert model._stored is not None
    return model


def check(model: KernelPCA, x: np.ndarray, new: np.ndarray, scores: Any, new_scores: Any) -> None:
    known = Reference(K, kernel=model.kernel, gamma=model.gamma_, degree=model.degree, coef0=model.coef0).fit(rows(x))
    expected = known.transform(rows(x))
    signs = np.sign((np.asarray(scores) * expected).sum(axis=0))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(model.eigenvalues_, known.eigenvalues_, rtol=1e-6)
    np.testing.assert_allclose(scores, expected * signs, atol=1e-6 * scale)
    np.testing.assert_allclose(model.landmark_scores_, expected * signs, atol=1e-6 * scale)
    np.testing.assert_allclose(new_scores, known.transform(rows(new)) * signs, atol=1e-6 * scale)
    np.testing.assert_allclose(np.abs((model.eigenvectors_ * known.eigenvectors_).sum(axis=0)), 1, rtol=1e-9)
    assert 0.99999 < model.captured_bound_ <= 1


@pytest.mark.cases(4)
@pytest.mark.pairwise
@every_kernel
@pytest.mark.parametrize("chunks", [(1, *SHAPE), (2, 16, 60, 35), (9, 7, 13, 70)])
def test_no_task_holds_a_sample(x: np.ndarray, tmp_path: Path, kernel: str, chunks: tuple[int, ...]) -> None:
    zarr.create_array(path := str(tmp_path / "x.zarr"), data=x, chunks=chunks)
    model, new = fitted(kernel, path), drawn(4, 1)
    plan = model.fit_report_.plan
    assert plan.groups[0].region[0][1] < math.prod(SHAPE)  # attributes of a block
    assert plan.task_bytes <= LITTLE.memory  # type: ignore[operator]
    scores, new_scores = model.transform(path), model.transform(new)
    assert isinstance(scores, da.Array)
    assert isinstance(new_scores, np.ndarray)
    assert scores.dtype == new_scores.dtype == np.float64
    check(model, x, new, scores.compute(), new_scores)
    with_memory = KernelPCA(K, kernel=kernel, method="exact", **KERNELS[kernel]).fit(path)
    assert with_memory._stored is None
    for name in ("gamma_", "inverse_gamma_", "eigenvalues_", "total_"):
        np.testing.assert_allclose(getattr(model, name), getattr(with_memory, name), rtol=1e-6)
    np.testing.assert_allclose(model.landmarks_.compute(), with_memory.landmarks_)


@pytest.mark.cases(2)
@every_kernel
def test_arrays_in_memory_and_in_dask_with_names(x: np.ndarray, kernel: str) -> None:
    lazy = xr.DataArray(da.from_array(x, chunks=(3, 20, 60, 70)), dims=("run", "z", "y", "x"), name="f")
    new, named = drawn(4, 1), fitted(kernel, lazy, Run(memory=50 * 2**20, threads=1))
    assert named.transform(lazy).dims == ("run", "component")
    check(named, x, new, named.transform(lazy).values, named.transform(lazy.copy(data=x)[:4].copy(data=new)).values)
    plain = fitted(kernel, x)
    check(plain, x, new, plain.transform(x), plain.transform(da.from_array(new, chunks=(1, 40, 60, 35))).compute())


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(3, 12),
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    dtype=st.sampled_from(["u1", "i1", "i2", "f4", "f8", "i8"]),
    compiled=st.booleans(),
    kernel=st.sampled_from([*KERNELS]),
    tile=st.sampled_from([1, 700, 10**6]),
    rows_at_once=st.sampled_from([1, 2, 256]),
)
def test_any_shape_type_and_tile(
    n: int, shape: list[int], dtype: str, kernel: str, tile: int, rows_at_once: int, compiled: bool
) -> None:
    """Kernels of tiles are the kernels, whatever the tiles are."""
    rng = np.random.default_rng(n)
    a, b = ((rng.normal(size=(m, *shape)) * 9 + 20).astype(dtype) for m in (n, n + 2))
    one = Kernel(kernel, 0.01, 2, 0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_samples, "TASK_BYTES", tile)
        patch.setattr(large_samples, "_ROWS", rows_at_once)
        patch.setattr(integers, "compiled_pays", lambda _: compiled)
        patch.setattr(large_samples, "_COLUMNS", 100)
        centered = rows(a) - (rows(a).mean(axis=0) if large_samples.is_centered(kernel, a.dtype) else 0)
        stored = large_samples.StoredLandmarks(as_source(a), np.einsum("ij,ij->i", centered, centered))
        found = stored.kernels_of(as_source(b), one).compute(scheduler="sync")
        np.testing.assert_array_equal(stored.rows().compute(scheduler="sync"), rows(a))
    options = {"rbf": {"gamma": 0.01}, "poly": {"gamma": 0.01, "degree": 2, "coef0": 0.5}}.get(kernel, {})
    known = pairwise_kernels(rows(b), rows(a), kernel if kernel != "poly" else "polynomial", **options)
    if kernel == "linear" and a.dtype.itemsize == 1:
        np.testing.assert_array_equal(found, known)
    np.testing.assert_allclose(found, known, rtol=1e-9, atol=1e-9 * np.abs(known).max())


def test_blocks_end_at_borders_of_chunks() -> None:
    shapes = [grid.cell_shape for grid in cuts((40, 60, 70), (16, 60, 35))]
    assert shapes[:6] == [(40, 60, 70), (32, 60, 70), (16, 60, 70), (16, 60, 35), (8, 60, 35), (4, 60, 35)]
    assert shapes[-1] == (1, 1, 1)
    assert {grid.cell_shape[0] for grid in cuts((50, 6, 8), (1, 6, 8), 1)} == {50}
    assert [grid.cell_shape for grid in cuts((1, 1), (1, 1))] == [(1, 1)]
    # Long chunks are cut into parts that have factors, so that shards can be parts of them.
    assert [grid.cell_shape for grid in cuts((8000,), (8000,))][:4] == [(8000,), (4032,), (2688,), (2048,)]


def test_integers_give_the_same_bytes_for_any_blocks(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (6, 60, 80, 100)).astype(np.uint8)
    found = []
    for i, chunks in enumerate([(1, 60, 80, 100), (4, 7, 80, 11), (6, 16, 9, 50)]):
        zarr.create_array(path := str(tmp_path / f"{i}.zarr"), data=x, chunks=chunks)
        found.append(fitted("rbf", path, Run(memory=(33 + i) * 2**20, threads=1 + i % 2)))
    for model in found[1:]:
        for name in ("eigenvalues_", "coefficients_", "landmark_scores_", "total_", "gamma_"):
            np.testing.assert_array_equal(getattr(model, name), getattr(found[0], name))


def test_workers_find_the_same_bytes(x: np.ndarray, tmp_path: Path, cluster: Any) -> None:
    zarr.create_array(path := str(tmp_path / "x.zarr"), data=x, chunks=(2, 16, 60, 35))
    here = fitted("rbf", path, Run(memory=LITTLE.memory, threads=1))
    there = fitted("rbf", path, Run(memory=LITTLE.memory, client=cluster))
    np.testing.assert_array_equal(there.eigenvalues_, here.eigenvalues_)
    np.testing.assert_allclose(cluster.compute(there.transform(path)).result(), here.landmark_scores_, atol=1e-6)


def test_saved_with_landmarks_that_fit_into_memory(x: np.ndarray, tmp_path: Path) -> None:
    model = fitted("rbf", x)
    model.save(tmp_path / "m.zarr")
    loaded = KernelPCA.load(tmp_path / "m.zarr")
    np.testing.assert_allclose(loaded.transform(x), model.transform(x), atol=1e-9)
    np.testing.assert_array_equal(loaded.landmarks_, rows(x))
    np.testing.assert_allclose(
        model.inverse_transform(model.landmark_scores_[:2]), loaded.inverse_transform(loaded.landmark_scores_[:2])
    )


def test_landmarks_that_do_not_fit_are_named(x: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted("rbf", x)
    monkeypatch.setattr(kernel_model, "usable_bytes", lambda: 10**6)
    for call in (lambda: model.save(tmp_path / "m.zarr"), lambda: model.inverse_transform(np.zeros((1, K)))):
        with pytest.raises(PlanError, match="168,000"):
            call()
    model.transform(x)


def test_a_value_that_is_not_finite_is_named(x: np.ndarray) -> None:
    model, new = fitted("linear", x), drawn(4, 1)
    new[2, 39, 59, 69] = np.nan
    with pytest.raises(DataError, match="sample.2"):
        model.transform(new)
    with pytest.raises(DataError, match="sample.2"):
        model.transform(da.from_array(new, chunks=(1, 40, 60, 35))).compute()
    with pytest.raises(DataError, match="shape"):
        model.transform(np.zeros((3, 40, 60)))


def test_plans_and_refusals(x: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    source = as_source(x)
    basis, known = KernelPCA(K, method="exact").plan_fit(source, ("z", "y", "x"), LITTLE)
    assert known
    assert basis.score_shape == (K,)
    with pytest.raises(PlanError, match="'exact'"):
        KernelPCA(K).fit(x, run=LITTLE)
    with pytest.raises(PlanError, match="allow"):
        KernelPCA(K, method="exact").fit(x, run=Run(memory=24 * 2**20))
    monkeypatch.setattr(large_samples, "usable_bytes", lambda: 1000)
    with pytest.raises(PlanError, match="allow"):
        KernelPCA(K, method="exact").fit(x, run=LITTLE)


_PROBE = """
import json, sys
import numpy as np
import psutil
from dpca import KernelPCA
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.run import Run
small = np.random.default_rng(0).normal(size=(9, 2000)).astype("f4")
KernelPCA(1, method="exact").fit(small, run=Run(threads=1)).transform(small)
before = psutil.Process().memory_info().rss
model = KernelPCA(1, method="exact").fit(sys.argv[1], run=Run(memory=80 * 2**20, threads=1))
fitted = peak_resident_bytes() - before
scores = model.transform(sys.argv[1]).compute(scheduler="sync")
assert np.allclose(scores, model.landmark_scores_, atol=1e-5)
plan = model.fit_report_.plan
planned, transform = plan.task_bytes + plan.caller_bytes, peak_resident_bytes() - before
print(json.dumps({"fit": fitted, "transform": transform, "planned": planned}))
"""


@pytest.mark.memory
def test_measured_memory_stays_below_the_plan(tmp_path: Path, programs: Programs) -> None:
    """The stack has 250 MB, its landmarks in float64 twice that."""
    n, shape = 60, (64, 128, 128)
    store = zarr.create_array(str(tmp_path / "x.zarr"), shape=(n, *shape), chunks=(20, 8, 64, 64), dtype="f4")
    for start in range(0, n, 20):
        store[start : start + 20] = np.random.default_rng(start).normal(size=(20, *shape)).astype("f4")
    found = json.loads(printed_by(programs, [sys.executable, "-c", _PROBE, str(tmp_path / "x.zarr")]))
    assert found["fit"] <= found["planned"] < 110 * 2**20
    assert found["transform"] < n * 4 * int(np.prod(shape)) * 0.75
