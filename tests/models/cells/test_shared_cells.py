"""CellPCA with components that cells share: numbers against numpy, certificates against measured errors, stores."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca import CellPCA
from dpca.engine.folds.fold import plan_for
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import as_source
from dpca.models.cells.rank import ranks_by_noise, whole_counts
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.storage import DataError, StoreError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.conftest import smooth_images
from tests.helpers.resealing import edit_facts

LEARNED = ("components_", "mean_", "explained_variance_", "explained_variance_ratio_", "total_variance_", "ranks_")


def error_of(model: CellPCA, x: np.ndarray) -> float:
    rebuilt = model.inverse_transform(model.transform(x)).astype(float)
    return float(((rebuilt - x) ** 2).mean())


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """40 x 36 x 3: cells of 16 leave edges of 8 and 4."""
    return smooth_images(120)


@pytest.fixture(scope="module")
def fitted(images: np.ndarray) -> CellPCA:
    return CellPCA(5, cell_shape=16, shared=True).fit(images)


def test_cells_of_each_shape_share_the_eigenvectors_of_their_average_covariance(
    images: np.ndarray, fitted: CellPCA
) -> None:
    by_shape: dict[tuple[int, int], list[tuple[slice, slice]]] = {}
    for y in (slice(0, 16), slice(16, 32), slice(32, 40)):
        for x in (slice(0, 16), slice(16, 32), slice(32, 36)):
            by_shape.setdefault((y.stop - y.start, x.stop - x.start), []).append((y, x))
    assert list(map(len, by_shape.values())) == [4, 2, 2, 1]
    scores = fitted.transform(images)
    for boxes in by_shape.values():
        cells = [images[(slice(None), *box)].reshape(120, -1).astype(float) for box in boxes]
        values, vectors = np.linalg.eigh(np.mean([np.cov(cell, rowvar=False) for cell in cells], axis=0))
        expected, rows = values[::-1][:5], vectors.T[::-1][:5]
        for box, cell in zip(boxes, cells, strict=True):
            place = (box[0].start // 16, box[1].start // 16)
            found = fitted.components_[(slice(None), *box)].reshape(5, -1)
            signs = np.sign((found * rows).sum(1))
            np.testing.assert_allclose(found, signs[:, None] * rows, atol=1e-5)
            np.testing.assert_allclose(fitted.mean_[box].ravel(), cell.mean(0), rtol=1e-13)
            np.testing.assert_allclose(fitted.explained_variance_[place], expected, rtol=1e-9)
            np.testing.assert_allclose(fitted.total_variance_[place], values.sum(), rtol=1e-12)
            np.testing.assert_allclose(scores[:, *place], (cell - cell.mean(0)) @ found.T, atol=3e-3)
        variances = np.mean([((cell - cell.mean(0)) @ rows.T).var(0, ddof=1) for cell in cells], axis=0)
        np.testing.assert_allclose(expected, variances, rtol=1e-9)  # the variances that are averaged


def test_the_eigenvalues_tell_the_error_and_each_cells_own_components_leave_less(
    images: np.ndarray, fitted: CellPCA
) -> None:
    assert fitted.expected_mse((0, 1)) == pytest.approx(error_of(fitted, images), rel=1e-5)
    own = CellPCA(5, cell_shape=16).fit(images)
    assert error_of(own, images) < error_of(fitted, images)
    np.testing.assert_allclose(own.mean_, fitted.mean_, rtol=1e-14)
    assert own.total_variance_.sum() == pytest.approx(fitted.total_variance_.sum(), rel=1e-12)
    assert fitted.fit_report_.note == ""


@given(
    st.lists(st.integers(1, 11), min_size=1, max_size=3),
    st.sampled_from([(), (3,)]),
    st.sampled_from([np.uint8, np.int16, np.float32, np.float64, ">f4"]),
    st.data(),
)
@settings(deadline=None, max_examples=12)
def test_all_components_give_the_input_back_and_fewer_never_beat_each_cells_own(
    spatial: list[int], channels: tuple[int, ...], dtype: Any, data: st.DataObject
) -> None:
    cell = tuple(data.draw(st.integers(1, s)) for s in spatial)
    x = np.random.default_rng(0).normal(100, 20, (9, *spatial, *channels)).astype(dtype)
    model = CellPCA(None, cell_shape=cell, shared=True).fit(x)
    rebuilt = model.inverse_transform(model.transform(x))
    assert rebuilt.shape == x.shape
    assert np.abs(rebuilt - x).max() <= 1e-5 * 160
    k = data.draw(st.integers(1, min(model.n_components_, 9)))
    few, own = (CellPCA(k, cell_shape=cell, shared=shared).fit(x) for shared in (True, False))
    measured = error_of(few, x)
    assert few.expected_mse((0, 1)) == pytest.approx(measured, rel=1e-4, abs=1e-3)
    assert error_of(own, x) <= measured * (1 + 1e-5) + 1e-3


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_grid_of_one_cell_is_plain_cell_pca(images: np.ndarray, dtype: type) -> None:
    # More samples than half of the attributes: both use covariances.
    x = images[:, :6, :10].astype(dtype)
    plain, shared = (CellPCA(4, cell_shape=(6, 10), shared=shared).fit(x) for shared in (False, True))
    for name in LEARNED:
        np.testing.assert_allclose(getattr(shared, name), getattr(plain, name), rtol=1e-5, atol=1e-5)
        if dtype is np.uint8:
            np.testing.assert_array_equal(getattr(shared, name), getattr(plain, name))


def test_equal_cells_lose_nothing_by_sharing() -> None:
    """All cells have the same picture with another brightness, so shared components represent it completely."""
    one = smooth_images(60, (8, 9, 3)).astype(np.float32)
    x = np.concatenate([one, one + 1000], axis=2)
    own, shared = (CellPCA(6, cell_shape=(8, 9), shared=shared).fit(x) for shared in (False, True))
    np.testing.assert_allclose(shared.explained_variance_, own.explained_variance_, rtol=1e-5)
    np.testing.assert_array_equal(shared.components_[:, :, :9], shared.components_[:, :, 9:])


@pytest.mark.parametrize(("cell", "n_segments"), [(16, 1), (2, 2)])
def test_numpy_dask_zarr_a_cluster_and_partial_fit_agree_to_the_last_bit(
    images: np.ndarray, cell: int, n_segments: int, tmp_path: Path, cluster: Any
) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=images, chunks=(40, 20, 36, 3))
    fitted = CellPCA(5, cell_shape=cell, shared=True).fit(images)
    models = [
        CellPCA(5, cell_shape=cell, shared=True).fit(x) for x in (da.from_array(images, chunks=(37, 15, 36, 3)), path)
    ]
    models.append(CellPCA(5, cell_shape=cell, shared=True).fit(path, run=Run(client=cluster)))
    assert len(models[-1].fit_report_.plan.segments) == n_segments  # side by side, and merged
    streamed = CellPCA(5, cell_shape=cell, shared=True)
    for start, stop in ((0, 1), (1, 50), (50, 120)):
        streamed.partial_fit(images[start:stop])
    for model in (*models, streamed):
        for name in LEARNED:
            np.testing.assert_array_equal(getattr(model, name), getattr(fitted, name))
    scores = fitted.transform(path)
    assert isinstance(scores, da.Array)
    np.testing.assert_allclose(scores.compute(scheduler="sync"), fitted.transform(images), atol=1e-3)


def test_a_fit_that_was_stopped_goes_on(images: np.ndarray, fitted: CellPCA, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    class Bar:
        def advance(self, amount: int) -> None:
            if amount:
                raise Stopped

        def close(self) -> None:
            pass

    kept = Checkpoints(str(tmp_path))
    with pytest.raises(Stopped):
        CellPCA(5, cell_shape=16, shared=True).fit(images, run=Run(checkpoints=kept, progress=lambda *_: Bar()))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")}
    assert before
    again = CellPCA(5, cell_shape=16, shared=True).fit(images, run=Run(checkpoints=kept))
    np.testing.assert_array_equal(again.components_, fitted.components_)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")} == before
    # The same settings without sharing are another fold.
    own = CellPCA(5, cell_shape=16).fit(images, run=Run(checkpoints=kept))
    assert own.explained_variance_.sum() > again.explained_variance_.sum()


def test_large_cells_need_one_covariance_and_not_one_each() -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, 48, 96), dtype=np.uint8)
    budget = 40 * 2**20
    shared = CellPCA(3, cell_shape=24, shared=True, memory_budget=budget).fit(x)
    assert shared.fit_report_.plan.task_bytes <= budget
    assert len(shared.fit_report_.plan.groups) == 1
    own = plan_for(CovariancePCA(3), as_source(x), shared.grid_, run=Run(memory=budget))
    assert len(own.groups) > 1
    with pytest.raises(PlanError, match="smaller"):
        CellPCA(3, cell_shape=24, shared=True, memory_budget=28 * 2**20).fit(x)


# -- ranks


def test_a_target_is_met_and_no_shape_keeps_a_component_too_many(images: np.ndarray) -> None:
    model = CellPCA(cell_shape=16, shared=True, target_mse=6e-4, max_components=60).fit(images)
    assert error_of(model, images) / 255**2 <= 6e-4
    assert model.expected_mse((0, 255)) == pytest.approx(error_of(model, images) / 255**2, rel=1e-5)
    for box in ((slice(2), slice(2)), (slice(2), 2), (2, slice(2))):  # cells of one shape keep the same
        assert len(np.unique(model.ranks_[box])) == 1
    ranks, variances = model.ranks_.ravel(), model.explained_variance_.reshape(9, -1)
    last = variances[np.arange(9), ranks - 1].min()
    at = np.unravel_index(np.abs(model.explained_variance_ - last).argmin(), model.explained_variance_.shape)[:2]
    places = {(0, 0): 4, (0, 2): 2, (2, 0): 2, (2, 2): 1}[(2 * (at[0] == 2), 2 * (at[1] == 2))]
    without = model.expected_mse((0, 255)) + places * last * 119 / 120 / images[0].size / 255**2
    assert without > 6e-4


def test_a_ratio_is_kept_and_what_cannot_be_shared_out_is_refused(images: np.ndarray) -> None:
    model = CellPCA(cell_shape=16, shared=True, ratio=60, max_components=60).fit(images)
    assert 72 - 4 < model.ranks_.sum() <= 72
    with pytest.raises(DataError, match=r"\b3\b.*\b4\b"):
        CellPCA(cell_shape=16, shared=True, total_components=3, max_components=60).fit(images)
    threshold = CellPCA(cell_shape=16, shared=True, threshold=0.9, max_components=60).fit(images)
    share = np.cumsum(threshold.explained_variance_, axis=-1) / threshold.total_variance_[..., None]
    assert (share[..., -1] > 0.9).all()


@pytest.mark.parametrize("asked", [{"target_ssim": 0.8}, {"target_psnr": 32, "validation_fraction": 0.3}])
def test_targets_on_samples_that_are_read(asked: dict[str, Any], images: np.ndarray) -> None:
    """Whatever the target, cells of one shape keep the same components."""
    name, target = next(iter(asked.items()))
    model = CellPCA(cell_shape=16, shared=True, max_components=60, random_state=0, **asked).fit(images)
    assert model.target_reached_ >= target
    for box in ((slice(2), slice(2)), (slice(2), 2), (2, slice(2))):
        assert len(np.unique(model.ranks_[box])) == 1
    if name == "target_psnr":
        left_out = images[model.validation_samples_]
        psnr = -10 * np.log10(error_of(model, left_out) / 255**2)
        assert psnr == pytest.approx(model.target_reached_, abs=1e-3)


def test_what_is_shared_is_counted_in_whole_steps() -> None:
    variances = np.array([[9.0, 5, 1], [8, 6, 0], [9, 5, 1], [9, 5, 1]])
    # In order: 9 in three cells, 8, 6, 5 in three cells, 1 in three cells.
    np.testing.assert_array_equal(whole_counts(variances, True), [0, 3, 4, 5, 8, 11])
    np.testing.assert_array_equal(whole_counts(variances, False), np.arange(12))
    np.testing.assert_array_equal(whole_counts(np.zeros((2, 3)), True), [0])
    np.testing.assert_array_equal(whole_counts(np.ones((2, 1)), True), [0, 2])


def test_noise_is_judged_by_the_samples_of_all_places() -> None:
    """Two patterns in noise are not significant in 60 samples of one cell, but they are in those of 64 cells."""
    rng = np.random.default_rng(0)
    patterns = np.linalg.qr(rng.normal(size=(64, 2)))[0].T
    cells = rng.normal(size=(60, 64, 64)) + (rng.normal(size=(60, 64, 2)) * [1.5, 1.2]) @ patterns
    x = cells.reshape(60, 8, 8, 8, 8).transpose(0, 1, 3, 2, 4).reshape(60, 64, 64)
    shared = CellPCA("marchenko-pastur", cell_shape=8, shared=True).fit(x)
    assert set(shared.ranks_.flat) <= {2, 3}
    own = CellPCA("marchenko-pastur", cell_shape=8).fit(x)
    assert own.ranks_.mean() < 2
    # The degrees of freedom are those of white noise, so the rank is 0 or nearly 0.
    noise = np.linalg.eigvalsh(np.mean([np.cov(rng.normal(size=(60, 40)), rowvar=False) for _ in range(50)], 0))[::-1]
    assert ranks_by_noise(noise[None], np.array([40]), 60, np.array([50]))[0] <= 1


def test_more_components_than_samples() -> None:
    """Two samples of 12 cells are 12 directions: one cell alone would have one."""
    x = np.random.default_rng(0).integers(0, 256, (2, 12, 16), dtype=np.uint8)
    model = CellPCA(12, cell_shape=4, shared=True).fit(x)
    assert np.abs(model.inverse_transform(model.transform(x)) - x).max() < 1e-3
    with pytest.raises(DataError, match=r"\b2.samples"):
        CellPCA(12, cell_shape=4).fit(x)
    with pytest.raises(DataError, match="16"):
        CellPCA(17, cell_shape=4, shared=True).fit(x)


# -- stores


@pytest.fixture
def stored(fitted: CellPCA, tmp_path: Path) -> Path:
    fitted.save(tmp_path / "model.zarr")
    return tmp_path / "model.zarr"


def test_a_store_holds_shared_components_once(images: np.ndarray, fitted: CellPCA, stored: Path) -> None:
    group = zarr.open_group(str(stored), mode="r")
    assert sorted(group.array_keys()) == [
        *(f"components_{i}" for i in range(4)),
        "explained_variance",
        "mean",
        "total_variance",
    ]
    assert group["components_0"].shape == (5, 16, 16, 3)
    assert group["components_3"].metadata.dimension_names == ("component", "y_3", "x_3", "channel")
    again = CellPCA.load(stored)
    assert again.shared is True
    for name in LEARNED:
        np.testing.assert_array_equal(getattr(again, name), getattr(fitted, name))
    np.testing.assert_array_equal(again.transform(images), fitted.transform(images))
    np.testing.assert_array_equal(again.fit(images).components_, fitted.components_)
    # Saved twice it is the same store; a model that does not share is another.
    CellPCA.load(stored).save(stored)
    with pytest.raises(StoreError, match="overwrite"):
        CellPCA(5, cell_shape=16).fit(images).save(stored)


def test_an_overlap_beside_is_exact_and_stored_too(images: np.ndarray, tmp_path: Path) -> None:
    model = CellPCA(5, cell_shape=16, overlap=4, shared=True).fit(images)
    assert model.expected_mse((0, 1)) == pytest.approx(error_of(model, images), rel=1e-5)
    filtered = model.grid_.prefilter.apply(model.components_.copy(), (0, 0, 0))
    np.testing.assert_allclose(filtered[:, :16, :16], filtered[:, 16:32, 16:32], atol=1e-6)
    model.save(tmp_path / "lapped.zarr")
    again = CellPCA.load(tmp_path / "lapped.zarr")
    assert (again.shared, again.overlap) == (True, 4)
    np.testing.assert_array_equal(again.transform(images), model.transform(images))
    again.save(tmp_path / "lapped.zarr")  # the same, and recognized


def _state(stored: Path, **facts: Any) -> None:
    edit_facts(stored, lambda stated: stated.update(facts))


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: shutil.rmtree(stored / "components_2"),
        lambda stored: _state(stored, shared=False),
        lambda stored: _state(stored, shared="yes"),
        lambda stored: _state(stored, cell_shape=[8, 8]),
    ],
    ids=["a shape is gone", "not shared", "a word", "other cells"],
)
def test_a_damaged_store_is_refused(damage: Callable[[Path], None], stored: Path) -> None:
    damage(stored)
    with pytest.raises(StoreError, match="damaged") as refusal:
        CellPCA.load(stored)
    assert "\n" not in str(refusal.value)
