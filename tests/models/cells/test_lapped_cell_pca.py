"""CellPCA with an overlap: a PCA of the cells of the filtered samples, exact in all its numbers, without edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from dpca import CellPCA
from dpca.kernels.pixels import to_pixels
from dpca.kernels.quality import ssim_per_sample
from dpca.partition import CellGrid, LappedGrid
from dpca.representation.linear import LinearRepresentation
from dpca.storage import DataError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.conftest import smooth_images
from tests.partition.dense_prefilter import dense_prefilter


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return smooth_images(120)


@pytest.fixture(scope="module")
def fitted(images: np.ndarray) -> CellPCA:
    return CellPCA(5, cell_shape=10, overlap=4).fit(images)


def test_every_cell_is_the_pca_of_the_filtered_cell() -> None:
    x = smooth_images(80, (14, 19, 3)).astype(np.float64)
    model = CellPCA(4, cell_shape=8, overlap=3).fit(x)
    p = dense_prefilter((14, 19, 3), (8, 8), 3)
    filtered = (x.reshape(80, -1) @ p.T).reshape(x.shape)
    scores = model.transform(x)
    for place in np.ndindex(2, 3):
        box = tuple(slice(8 * a, 8 * a + 8) for a in place)
        pixels = filtered[(slice(None), *box)].reshape(80, -1)
        reference = PCA(4, svd_solver="full").fit(pixels)
        np.testing.assert_allclose(model.explained_variance_[place], reference.explained_variance_, rtol=1e-9)
        assert model.total_variance_[place] == pytest.approx(pixels.var(axis=0, ddof=1).sum(), rel=1e-10)
        # One cell's component as a sample: P^T c.
        one = np.zeros((4, *x.shape[1:]))
        one[(slice(None), *box)] = reference.components_.reshape(one[(slice(None), *box)].shape)
        images = one.reshape(4, -1) @ p
        signs = np.sign((images * model.components_.reshape(4, -1)).sum(axis=1))
        expected = (x - x.mean(axis=0)).reshape(80, -1) @ images.T * signs
        np.testing.assert_allclose(scores[(slice(None), *place)], expected, atol=1e-7)
    np.testing.assert_allclose(model.mean_, x.mean(axis=0), rtol=1e-12)


def test_components_are_what_scores_of_one_add_to_the_mean(fitted: CellPCA) -> None:
    scores = np.zeros((5, 4, 4, 5), np.float32)
    for j in range(5):
        scores[j, ..., j] = 1
    # Pixels near 128 are float32, to 8e-6.
    np.testing.assert_allclose(fitted.inverse_transform(scores) - fitted.mean_, fitted.components_, atol=6e-5)
    filtered = fitted.grid_.prefilter.apply(fitted.components_.copy(), (0, 0, 0))
    for i in range(16):
        cell = filtered[(slice(None), *(slice(a, b) for a, b in fitted.grid_.box(i)))].reshape(5, -1)
        np.testing.assert_allclose(cell @ cell.T, np.eye(5), atol=2e-6)
        assert (cell[np.arange(5), np.abs(cell).argmax(axis=1)] > 0).all()


def test_the_eigenvalues_tell_the_error(images: np.ndarray, fitted: CellPCA) -> None:
    rebuilt = fitted.inverse_transform(fitted.transform(images)).astype(float)
    measured = ((rebuilt - images) ** 2).mean() / 255**2
    assert fitted.expected_mse((0, 255)) == pytest.approx(measured, rel=1e-5)
    assert fitted.total_variance_.sum() == pytest.approx(images.var(axis=0, ddof=1, dtype=float).sum(), rel=1e-6)


def test_a_target_is_met_exactly(images: np.ndarray) -> None:
    model = CellPCA(cell_shape=10, overlap=3, target_mse=2e-4, max_components=40).fit(images)
    rebuilt = model.inverse_transform(model.transform(images)).astype(float)
    measured = ((rebuilt - images) ** 2).mean() / 255**2
    assert measured == pytest.approx(model.expected_mse((0, 255)), rel=1e-5)
    assert 1.9e-4 < measured <= 2e-4
    # Each cell has its own number of components, although components of neighbors overlap it.
    kept = model.ranks_
    np.testing.assert_array_equal(kept, (model.explained_variance_ > 0).sum(axis=-1))
    assert kept.min() < kept.max() == model.n_components_
    assert (model.transform(images)[..., -1][:, kept < kept.max()] == 0).all()


def test_targets_on_samples_that_are_read(images: np.ndarray) -> None:
    model = CellPCA(cell_shape=10, overlap=4, target_ssim=0.9, max_components=40, random_state=0).fit(images)
    rebuilt = to_pixels(model.inverse_transform(model.transform(images)), np.uint8, (0, 255))
    found = ssim_per_sample(images, rebuilt, data_range=255, n_spatial=2).mean()
    assert found == pytest.approx(model.target_reached_, abs=1e-4)
    assert 0.9 <= model.target_reached_ < 0.91
    target = {"target_mse": 3e-4, "validation_fraction": 0.25}
    model = CellPCA(cell_shape=10, overlap=4, **target, max_components=40, random_state=0).fit(images)
    x = images[model.validation_samples_]
    rebuilt = model.inverse_transform(model.transform(x)).astype(float)
    assert ((rebuilt - x) ** 2).mean() / 255**2 == pytest.approx(model.target_reached_, rel=1e-4)
    assert model.target_reached_ <= 3e-4


@given(
    st.lists(st.sampled_from([4, 5, 7, 8, 11, 13]), min_size=1, max_size=3),
    st.sampled_from([(), (3,)]),
    st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
    st.data(),
)
@settings(deadline=None, max_examples=15)
def test_all_components_give_the_input_back(
    spatial: list[int], channels: tuple[int, ...], dtype: type, data: st.DataObject
) -> None:
    most = 8 if len(spatial) < 3 else 4
    cell = (
        data.draw(st.integers(4, min(most, spatial[0]))),
        *(data.draw(st.integers(1, min(most, s))) for s in spatial[1:]),
    )
    overlap = data.draw(st.integers(2, max(cell) // 2))
    x = np.random.default_rng(0).normal(100, 20, (9, *spatial, *channels)).astype(dtype)
    model = CellPCA(None, cell_shape=cell, overlap=overlap).fit(x)
    rebuilt = model.inverse_transform(model.transform(x))
    assert rebuilt.shape == x.shape
    assert np.abs(rebuilt - x).max() <= 1e-5 * 160


def test_numpy_dask_zarr_partial_fit_and_little_memory_agree(
    images: np.ndarray, fitted: CellPCA, tmp_path: Path
) -> None:
    """Up to rounding: filtered values are floating-point numbers."""
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=images, chunks=(50, 20, 12, 3))
    roomy = CellPCA(5, cell_shape=10, overlap=4)
    tight = CellPCA(5, cell_shape=10, overlap=4, memory_budget=41 * 2**20)
    found = [
        roomy.fit(da.from_array(images, chunks=(37, 15, 36, 3))),
        CellPCA(5, cell_shape=10, overlap=4).fit(path),
        tight.fit(path),
    ]
    assert len(tight.fit_report_.plan.groups) > 1
    assert tight.fit_report_.plan.read_bytes > images.nbytes  # zones are read twice
    streamed = CellPCA(5, cell_shape=10, overlap=4)
    for start, stop in ((0, 1), (1, 50), (50, 51), (51, 120)):
        streamed.partial_fit(images[start:stop])
    assert streamed.n_samples_seen_ == 120
    for model in (*found, streamed):
        np.testing.assert_allclose(model.explained_variance_, fitted.explained_variance_, rtol=1e-5)
        np.testing.assert_allclose(model.mean_, fitted.mean_, atol=1e-4)
        np.testing.assert_allclose(model.components_, fitted.components_, atol=1e-3)


def test_the_same_input_gives_the_same_bytes(images: np.ndarray, fitted: CellPCA) -> None:
    again = CellPCA(5, cell_shape=10, overlap=4).fit(images)
    np.testing.assert_array_equal(again.components_, fitted.components_)


def test_lazy_in_lazy_out(images: np.ndarray, fitted: CellPCA, tmp_path: Path, cluster: Any) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=images, chunks=(50, 40, 36, 3))
    expected = fitted.transform(images)
    for x in (da.from_array(images, chunks=(37, 15, 36, 3)), str(tmp_path / "x.zarr")):
        scores = fitted.transform(x)
        assert isinstance(scores, da.Array)
        np.testing.assert_allclose(scores.compute(), expected, atol=1e-3)
        np.testing.assert_allclose(
            fitted.inverse_transform(scores)[3].compute(), fitted.inverse_transform(expected)[3], atol=1e-2
        )
    on_workers = CellPCA(5, cell_shape=10, overlap=4).fit(str(tmp_path / "x.zarr"), run=Run(client=cluster))
    np.testing.assert_allclose(on_workers.explained_variance_, fitted.explained_variance_, rtol=1e-5)


def jumps(y: np.ndarray, cell: int) -> float:
    """Mean squared difference of the two pixels at each border of cells."""
    y = y.astype(float)
    rows = y[:, cell::cell] - y[:, cell - 1 : -1 : cell][:, : len(range(cell, y.shape[1], cell))]
    columns = y[:, :, cell::cell] - y[:, :, cell - 1 : -1 : cell][:, :, : len(range(cell, y.shape[2], cell))]
    return float((rows**2).mean() + (columns**2).mean()) / 2


@pytest.mark.parametrize("k", [1, 3])
def test_edges_of_cells_go_and_the_error_does_not_grow(images: np.ndarray, k: int) -> None:
    """Jumps beyond those of the originals fall by half with two pixels and by three quarters with four."""
    excess, error = {}, {}
    for overlap in (0, 2, 4):
        model = CellPCA(k, cell_shape=10, overlap=overlap).fit(images)
        rebuilt = model.inverse_transform(model.transform(images))
        excess[overlap] = jumps(rebuilt, 10) - jumps(images, 10)
        error[overlap] = ((rebuilt - images.astype(float)) ** 2).mean()
    assert 0 < excess[2] < 0.5 * excess[0]
    assert excess[4] < 0.25 * excess[0]
    assert error[4] < error[2] < error[0]


def test_a_large_offset_takes_nothing_from_the_variances() -> None:
    x = np.random.default_rng(0).normal(0, 1, (60, 16, 16))
    exact = CellPCA(3, cell_shape=8, overlap=3).fit(x)
    far = CellPCA(3, cell_shape=8, overlap=3).fit((x + 30_000).astype(np.float32))
    # float32 itself holds such values to 0.002, a variance of 3e-7 beside 1.
    np.testing.assert_allclose(far.explained_variance_, exact.explained_variance_, rtol=1e-3)


def test_checkpoints_of_other_overlaps_are_left_alone(images: np.ndarray, tmp_path: Path) -> None:
    kept = Checkpoints(str(tmp_path / "kept"))
    models = [CellPCA(2, cell_shape=10, overlap=o).fit(images, run=Run(checkpoints=kept)) for o in (0, 2, 3)]
    assert len(list((tmp_path / "kept").iterdir())) == 3
    for overlap, model in zip((0, 2, 3), models, strict=True):
        again = CellPCA(2, cell_shape=10, overlap=overlap).fit(images, run=Run(checkpoints=kept))
        np.testing.assert_array_equal(again.components_, model.components_)
    assert len(list((tmp_path / "kept").iterdir())) == 3


@pytest.mark.parametrize(
    ("overlap", "says"), [(2.0, "an integer"), (True, "an integer"), (1, "between 2 and 5"), (6, "between 2 and 5")]
)
def test_overlaps_that_make_no_sense(overlap: Any, says: str, images: np.ndarray) -> None:
    with pytest.raises(DataError, match=says):
        CellPCA(2, cell_shape=10, overlap=overlap).fit(images)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.uint16, np.int32, np.float16, ">f4", np.float64])
def test_a_basis_is_one_of_filtered_samples(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    components = rng.normal(size=(3, 10, 9, 2)).astype(np.float32)
    model = LinearRepresentation(LappedGrid((10, 9, 2), (4, 5), 2), rng.normal(100, 5, (10, 9, 2)), components)
    p = dense_prefilter((10, 9, 2), (4, 5), 2)
    x = np.random.default_rng(1).integers(0, 2 if dtype is bool else 120, (4, 10, 9, 2)).astype(dtype)
    filtered = (x.reshape(4, -1).astype(float) @ p.T).reshape(x.shape)
    mean, components = p @ model.mean.ravel(), model.components.reshape(3, -1).astype(float) @ p.T
    inner = LinearRepresentation(CellGrid((10, 9, 2), (4, 5)), mean.reshape(10, 9, 2), components.reshape(3, 10, 9, 2))
    scores = model.encode(x)
    assert scores.dtype == (np.float64 if dtype in (np.int32, np.float64) else np.float32)
    np.testing.assert_allclose(scores, inner.encode(filtered), rtol=1e-5, atol=3e-3)
    expected = inner.decode(scores.astype(float)).reshape(4, -1) @ p
    rebuilt = model.decode(scores)
    assert rebuilt.dtype == scores.dtype
    np.testing.assert_allclose(rebuilt.reshape(4, -1), expected, rtol=1e-5, atol=5e-3)
