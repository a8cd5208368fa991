"""Results from the scores of compressed stores agree with those of decoded samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpca
from dpca import PCA, CellPCA, analysis
from dpca.engine.folds.plan import PlanError
from dpca.jobs import encode_store
from dpca.representation.compressed.compressed import Compressed
from dpca.storage import DataError, ingest, open_stack
from dpca.storage.survey import ReadOptions
from tests.conftest import smooth_images

N = 230
# Cells, and the shape of samples: with an edge that is cut, channels, three axes of space.
KINDS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "lapped, shared": ((21, 26, 2), {"cell_shape": 6, "overlap": 3, "shared": True}),
    "own": ((21, 26, 2), {"cell_shape": (8, 12)}),
    "volumes": ((9, 8, 14), {"cell_shape": (4, 4, 5), "overlap": 2}),
}


def encoded(folder: Path, values: np.ndarray, how: dict[str, Any], **goal: float) -> Compressed:
    np.save(folder / "values.npy", values)
    axes = ("y", "x", "channel") if values.shape[-1] == 2 else None
    ingest(folder / "values.npy", folder / "stack.zarr", axes=axes, reading=ReadOptions(data_range=(0, 255)))
    stack = open_stack(folder / "stack.zarr")
    CellPCA(20, **how).fit(stack).save(folder / "model.zarr")
    encode_store(stack, folder / "model.zarr", folder / "out.zarr", **goal)
    return dpca.open_compressed(folder / "out.zarr")


@pytest.fixture(scope="module", params=KINDS)
def floats(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compressed:
    """Of floating-point values, which are decoded without rounding. Few steps: components are coarse."""
    shape, how = KINDS[request.param]
    values = smooth_images(N, (21, 26, 2)).reshape(N, -1)[:, : int(np.prod(shape))].reshape(N, *shape)
    return encoded(tmp_path_factory.mktemp("floats"), values.astype(np.float32), how, psnr=28.0)


@pytest.fixture(scope="module", params=[None, 2], ids=["whole", "level 2"])
def both(request: pytest.FixtureRequest, floats: Compressed) -> tuple[Compressed, np.ndarray]:
    """A store, and its samples (N, values)."""
    store = dpca.open_compressed(floats.path, level=request.param)
    return store, store[...].astype(np.float64).reshape(N, -1)


def test_components_are_far_from_orthonormal(floats: Compressed) -> None:
    """Or there would be nothing to test."""
    rows = floats.codec.components.rows[0].astype(np.float64)
    assert np.abs(rows @ rows.T - np.eye(len(rows))).max() > 1e-3


def test_inner_products(both: tuple[Compressed, np.ndarray]) -> None:
    store, x = both
    centered = x - x.mean(axis=0)
    np.testing.assert_allclose(
        analysis.gram(store), centered @ centered.T, rtol=0, atol=2e-6 * np.square(x).sum(1).max()
    )
    np.testing.assert_allclose(analysis.gram(store, center=False), x @ x.T, rtol=2e-6)


def test_inner_products_of_few_cells_at_once(
    both: tuple[Compressed, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = analysis.gram(both[0])
    monkeypatch.setattr(analysis, "_BLOCK_BYTES", 40 * N * 8)
    np.testing.assert_allclose(analysis.gram(both[0]), whole, rtol=0, atol=1e-6 * whole.max())


def test_more_inner_products_than_memory(floats: Compressed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "usable_bytes", lambda: 500_000)
    with pytest.raises(PlanError, match="230"):
        analysis.gram(floats)


def test_scores_keep_distances_in_any_part(both: tuple[Compressed, np.ndarray]) -> None:
    store, x = both
    lazy = analysis.scores(store)
    assert lazy.name == analysis.scores(store).name
    found = lazy.compute(scheduler="threads").astype(np.float64)
    apart = np.linalg.norm(x[:9, None] - x[None], axis=2)
    np.testing.assert_allclose(np.linalg.norm(found[:9, None] - found[None], axis=2), apart, atol=2e-6 * apart.max())
    for index in (slice(3, 200, 7), slice(90, 20, -3), 229, (slice(5), slice(2, 4)), [7, 3]):
        assert np.array_equal(lazy[index].compute(scheduler="sync"), found[index].astype(lazy.dtype))


def test_the_mean(both: tuple[Compressed, np.ndarray]) -> None:
    store, x = both
    found = analysis.mean(store)
    assert found.shape == store.shape[1:]
    np.testing.assert_allclose(found.ravel(), x.mean(axis=0), rtol=1e-6)


def test_principal_components(both: tuple[Compressed, np.ndarray], tmp_path: Path) -> None:
    store, x = both
    found, expected = analysis.pca(store, 3), PCA(3).fit(x.reshape(store.shape))
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-5)
    np.testing.assert_allclose(found.total_variance_, expected.total_variance_, rtol=1e-5)
    np.testing.assert_allclose(np.abs((found.components_ * expected.components_).sum(axis=1)), 1, atol=1e-4)
    np.testing.assert_allclose(found.mean_, expected.mean_, rtol=1e-6)
    found.save(tmp_path / "model.zarr")
    scores = PCA.load(tmp_path / "model.zarr").transform(store[:5])
    np.testing.assert_allclose(np.abs(scores), np.abs(expected.transform(store[:5])), atol=0.05)


def test_nearest_samples(both: tuple[Compressed, np.ndarray]) -> None:
    store, x = both
    for sample in (0, 201, -1):
        distances = np.linalg.norm(x - x[sample], axis=1)
        found, far = analysis.nearest(store, sample, 12)
        np.testing.assert_allclose(far, np.sort(distances)[1:13], rtol=1e-4)
        np.testing.assert_allclose(distances[found], far, rtol=1e-4)
    assert len(analysis.nearest(store, 0, 10**6)[0]) == N - 1
    for wrong in (N, -N - 1, 1.0, True):
        with pytest.raises(DataError, match="230"):
            analysis.nearest(store, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-1, 0, 2.5, "3", None, True])
def test_numbers_that_make_no_sense(floats: Compressed, wrong: Any) -> None:
    n_spatial = floats.codec.components.grid.n_spatial
    calls: list[Callable[[], Any]] = [
        lambda: analysis.nearest(floats, 0, n=wrong),
        lambda: analysis.outliers(floats, wrong),
        lambda: analysis.pca(floats, wrong),
        lambda: analysis.thumbnails(floats, (wrong,) * n_spatial),
        *([lambda: analysis.outliers(floats, n_components=wrong)] if wrong != 0 else []),
    ]
    for call in calls:
        with pytest.raises(DataError):
            call()


@pytest.mark.parametrize("n_components", [0, 2])
def test_outliers(both: tuple[Compressed, np.ndarray], n_components: int) -> None:
    store, x = both
    left = x - x.mean(axis=0)
    if n_components:
        rows = np.linalg.svd(left, full_matrices=False)[2][:n_components]
        left = left - left @ rows.T @ rows
    distances = np.linalg.norm(left, axis=1)
    found, far = analysis.outliers(store, 7, n_components=n_components)
    np.testing.assert_allclose(far, np.sort(distances)[::-1][:7], rtol=1e-4)
    np.testing.assert_allclose(distances[found], far, rtol=1e-4)


def means_over(values: np.ndarray, few: int, axis: int) -> np.ndarray:
    """Means over equal parts of an axis: of each pixel as often as there are parts."""
    often = np.repeat(values, few, axis=axis)
    parts = (*values.shape[:axis], few, values.shape[axis], *values.shape[axis + 1 :])
    return often.reshape(parts).mean(axis=axis + 1)


def test_thumbnails(both: tuple[Compressed, np.ndarray]) -> None:
    store, x = both
    n_spatial = store.codec.components.grid.n_spatial
    for shape in ((5,) * n_spatial, (1,) * n_spatial, store.shape[1 : 1 + n_spatial]):
        expected = x.reshape(store.shape)
        for axis, few in enumerate(shape, start=1):
            expected = means_over(expected, few, axis)
        found = analysis.thumbnails(store, shape)
        assert (found.shape, found.dtype) == (expected.shape, store.dtype)
        np.testing.assert_allclose(found.compute(scheduler="threads"), expected, rtol=1e-5)
    for wrong in ((5,) * (n_spatial + 1), (0,) * n_spatial, (99,) * n_spatial):
        with pytest.raises(DataError, match="shape"):
            analysis.thumbnails(store, wrong)


@pytest.mark.parametrize("goal", [{"psnr": 32.0}, {"max_error": 3.0}], ids=str)
def test_integers_are_those_before_rounding(tmp_path: Path, goal: dict[str, float]) -> None:
    shape, how = KINDS["lapped, shared"]
    store = encoded(tmp_path, np.clip(smooth_images(N, shape), 60, 200), how, **goal)
    decoded = store[...].astype(np.float64)
    most = 0.5 + (
        0
        if store.facts["residual_step"] is None
        else np.abs(store.stored("residual")[...]).max() * store.facts["residual_step"]
    )
    assert np.abs(analysis.mean(store) - decoded.mean(axis=0)).max() <= most
    apart = np.linalg.norm((decoded - decoded[7]).reshape(N, -1), axis=1)
    found, far = analysis.nearest(store, 7, N)
    assert np.abs(apart[found] - far).max() <= 2 * most * np.sqrt(decoded[0].size)
    small = analysis.thumbnails(store, (7, 13)).compute()
    assert small.dtype == np.uint8
    assert np.abs(small - decoded.reshape(N, 7, 3, 13, 2, 2).mean(axis=(2, 4))).max() <= most + 0.5


def test_other_processes_compute_the_same(floats: Compressed, cluster: Any) -> None:
    for lazy in (
        analysis.scores(floats)[150:170],
        analysis.thumbnails(floats, (3,) * (floats.codec.components.grid.n_spatial))[:3],
    ):
        np.testing.assert_allclose(
            cluster.compute(lazy, sync=True), lazy.compute(scheduler="sync"), rtol=1e-6, atol=1e-4
        )


def test_a_store_of_nothing_but_its_mean(tmp_path: Path) -> None:
    values = np.repeat(smooth_images(1, (12, 10)).astype(np.float32), 20, axis=0)
    store = encoded(tmp_path, values, {"cell_shape": 6}, mse=1e-5)
    assert len(store.codec.cell) == 0
    np.testing.assert_allclose(analysis.mean(store), store[0], atol=1)
    assert np.array_equal(analysis.gram(store), np.zeros((20, 20)))
    assert analysis.nearest(store, 3, 2)[1].tolist() == [0, 0]
    np.testing.assert_allclose(analysis.thumbnails(store, (12, 10)).compute()[7], store[7], atol=1)
