"""CellPCA as an estimator: scikit-learn's conventions, and its numbers cell by cell."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.decomposition import PCA

from dpca import CellPCA
from dpca.storage import DataError
from tests.conftest import smooth_images


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return smooth_images(120)


@pytest.fixture(scope="module")
def fitted(images: np.ndarray) -> CellPCA:
    return CellPCA(5, cell_shape=10).fit(images)


def test_every_cell_is_the_pca_of_its_pixels(images: np.ndarray, fitted: CellPCA) -> None:
    scores = fitted.transform(images)
    assert scores.shape == (120, 4, 4, 5)
    for place in np.ndindex(4, 4):
        box = tuple(slice(10 * p, 10 * p + 10) for p in place)
        pixels = images[(slice(None), *box)].reshape(120, -1).astype(float)
        reference = PCA(5, svd_solver="full").fit(pixels)
        np.testing.assert_allclose(fitted.explained_variance_[place], reference.explained_variance_, rtol=1e-9)
        ratio = fitted.explained_variance_ratio_[place]
        np.testing.assert_allclose(ratio, reference.explained_variance_ratio_, rtol=1e-9)
        np.testing.assert_allclose(fitted.singular_values_[place], reference.singular_values_, rtol=1e-9)
        np.testing.assert_allclose(fitted.mean_[box].ravel(), reference.mean_, rtol=1e-12)
        components = fitted.components_[(slice(None), *box)].reshape(5, -1)
        signs = np.sign((components * reference.components_).sum(1))
        np.testing.assert_allclose(components, signs[:, None] * reference.components_, atol=1e-5)
        np.testing.assert_allclose(scores[(slice(None), *place)], signs * reference.transform(pixels), atol=2e-3)
        np.testing.assert_allclose(
            scores[(slice(None), *place)].var(0, ddof=1), reference.explained_variance_, rtol=1e-4
        )


def test_the_eigenvalues_tell_the_error_before_anything_is_written(images: np.ndarray, fitted: CellPCA) -> None:
    rebuilt = fitted.inverse_transform(fitted.transform(images)).astype(float)
    measured = ((rebuilt - images) ** 2).mean() / 255**2
    assert fitted.expected_mse((0, 255)) == pytest.approx(measured, rel=1e-5)


@given(
    st.lists(st.integers(1, 11), min_size=1, max_size=3),
    st.sampled_from([(), (3,)]),
    st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
    st.data(),
)
@settings(deadline=None, max_examples=15)
def test_all_components_give_the_input_back(
    spatial: list[int], channels: tuple[int, ...], dtype: type, data: st.DataObject
) -> None:
    cell = tuple(data.draw(st.integers(1, s)) for s in spatial)
    x = np.random.default_rng(0).normal(100, 20, (9, *spatial, *channels)).astype(dtype)
    model = CellPCA(None, cell_shape=cell).fit(x)
    rebuilt = model.inverse_transform(model.transform(x))
    assert rebuilt.shape == x.shape
    assert np.abs(rebuilt - x).max() <= 1e-5 * 160


def test_numpy_dask_zarr_and_paths_agree_to_the_last_bit_and_partial_fit_up_to_rounding(
    images: np.ndarray, fitted: CellPCA, tmp_path: Path
) -> None:
    path = str(tmp_path / "x.zarr")
    stored = zarr.create_array(path, data=images, chunks=(50, 40, 36, 3), zarr_format=2)
    for x in (da.from_array(images, chunks=(37, 15, 36, 3)), stored, path, Path(path)):
        np.testing.assert_array_equal(CellPCA(5, cell_shape=10).fit(x).components_, fitted.components_)
    streamed = CellPCA(5, cell_shape=10)
    for start in (0, 1, 50, 51):
        streamed.partial_fit(images[start : {0: 1, 1: 50, 50: 51, 51: 120}[start]])
    assert streamed.n_samples_seen_ == 120
    # Of the same covariance, but by as many threads of BLAS as there are, and tasks have one.
    np.testing.assert_allclose(streamed.components_, fitted.components_, atol=1e-5)


def test_scikit_learns_conventions(images: np.ndarray, fitted: CellPCA) -> None:
    estimator = CellPCA(5, cell_shape=10)
    given = {name: value for name, value in clone(estimator).get_params().items() if value is not None}
    assert given == {
        "n_components": 5,
        "cell_shape": 10,
        "flatten": False,
        "keep_state": False,
        "overlap": 0,
        "shared": False,
        "gaps": "reject",
    }
    assert repr(estimator) == "CellPCA(cell_shape=10, n_components=5)"
    names = fitted.get_feature_names_out()
    assert len(names) == len(set(names)) == 4 * 4 * 5
    assert names[1] == "cell0_0_component1"
    assert fitted.n_features_in_ == math.prod((40, 36, 3))


def test_edge_cells_with_few_attributes_keep_them_all() -> None:
    x = np.random.default_rng(0).integers(0, 256, (60, 7, 9), dtype=np.uint8)
    model = CellPCA(12, cell_shape=4).fit(x)
    # The corner cell has 3 x 1 attributes: three components, and nothing beyond.
    corner = model.components_[:, 4:, 8:].reshape(12, 3)
    np.testing.assert_allclose(corner[:3] @ corner[:3].T, np.eye(3), atol=1e-5)
    assert (corner[3:] == 0).all()
    assert (model.transform(x)[:, 1, 2, 3:] == 0).all()


@pytest.mark.parametrize(
    ("k", "cell", "says"),
    [
        (0, 10, "positive integer"),
        (2.5, 10, "positive integer"),
        (True, 10, "positive integer"),
        (301, 10, "300 attributes"),
        (121, 10, "120 samples"),
        (2, (41, 10), "larger"),
        (2, (10, 10, 3, 1), "axes"),
        (2, 0, "empty"),
    ],
)
def test_settings_that_make_no_sense(k: Any, cell: Any, says: str, images: np.ndarray) -> None:
    with pytest.raises(DataError, match=says):
        CellPCA(k, cell_shape=cell).fit(images)
