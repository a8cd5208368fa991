"""BandPCA as an estimator: scikit-learn's conventions, and its numbers band by band."""

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

from dpca import BandPCA, CellPCA
from dpca.engine.folds.plan import PlanError
from dpca.models.cells import band_pca
from dpca.partition import map_by_moments
from dpca.storage import DataError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.conftest import smooth_images

MAPPINGS = ("mean-variance", "mean", "random", "raster")


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return smooth_images(120)


@pytest.fixture(scope="module")
def fitted(images: np.ndarray) -> BandPCA:
    return BandPCA(5, band_size=300, n_intervals=6).fit(images)


def test_every_band_is_the_pca_of_its_attributes(images: np.ndarray, fitted: BandPCA) -> None:
    scores = fitted.transform(images)
    n_bands = fitted.bands_.n_parts
    assert scores.shape == (120, n_bands, 5)
    assert n_bands > 15
    for i in range(n_bands):
        mine = fitted.bands_.labels == i
        values = images[:, mine].astype(float)
        assert values.shape[1] <= 300
        k = min(5, values.shape[1])
        reference = PCA(k, svd_solver="full").fit(values)
        np.testing.assert_allclose(fitted.explained_variance_[i, :k], reference.explained_variance_, rtol=1e-9)
        np.testing.assert_allclose(
            fitted.explained_variance_ratio_[i, :k], reference.explained_variance_ratio_, rtol=1e-9
        )
        np.testing.assert_allclose(fitted.singular_values_[i, :k], reference.singular_values_, rtol=1e-9)
        np.testing.assert_allclose(fitted.mean_[mine], reference.mean_, rtol=1e-12)
        components = fitted.components_[:k, mine]
        signs = np.sign((components * reference.components_).sum(1))
        np.testing.assert_allclose(components, signs[:, None] * reference.components_, atol=1e-5)
        np.testing.assert_allclose(scores[:, i, :k], signs * reference.transform(values), atol=2e-3)


def test_the_bands_are_those_of_the_images_own_moments(images: np.ndarray, fitted: BandPCA) -> None:
    x = images.astype(float)
    expected = map_by_moments(x.mean(0), x.var(0, ddof=1), 300, 6, together=3)
    np.testing.assert_array_equal(fitted.bands_.labels, expected.labels)
    # All channels of a pixel are in one band unless keep_channels is False.
    assert (fitted.bands_.labels == fitted.bands_.labels[..., :1]).all()
    apart = BandPCA(5, band_size=300, n_intervals=6, keep_channels=False).fit(images)
    np.testing.assert_array_equal(apart.bands_.labels, map_by_moments(x.mean(0), x.var(0, ddof=1), 300, 6).labels)


def test_raster_bands_of_whole_rows_are_cells_of_whole_rows() -> None:
    x = smooth_images(60, (12, 10, 3))
    bands = BandPCA(4, band_size=2 * 10 * 3, mapping="raster").fit(x)
    cells = CellPCA(4, cell_shape=(2, 10)).fit(x)
    np.testing.assert_array_equal(bands.components_, cells.components_)
    np.testing.assert_array_equal(bands.explained_variance_, cells.explained_variance_.reshape(6, 4))
    np.testing.assert_allclose(bands.transform(x), cells.transform(x).reshape(60, 6, 4), atol=1e-3)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_the_eigenvalues_tell_the_error_before_anything_is_written(images: np.ndarray, mapping: str) -> None:
    model = BandPCA(5, band_size=300, n_intervals=6, mapping=mapping, random_state=0).fit(images)
    rebuilt = model.inverse_transform(model.transform(images)).astype(float)
    measured = ((rebuilt - images) ** 2).mean() / 255**2
    assert model.expected_mse((0, 255)) == pytest.approx(measured, rel=1e-5)


@given(
    st.lists(st.integers(1, 11), min_size=1, max_size=3),
    st.sampled_from([(), (3,)]),
    st.sampled_from([np.uint8, np.int16, np.float32, np.float64, ">f4"]),
    st.sampled_from(MAPPINGS),
    st.booleans(),
    st.integers(4, 400),
    st.integers(1, 60),
)
@settings(deadline=None, max_examples=25)
def test_all_components_give_the_input_back(
    spatial: list[int],
    channels: tuple[int, ...],
    dtype: Any,
    mapping: str,
    keep_channels: bool,
    band_size: int,
    n_intervals: int,
) -> None:
    x = np.random.default_rng(0).normal(100, 20, (9, *spatial, *channels)).astype(dtype)
    model = BandPCA(
        None,
        band_size=band_size,
        mapping=mapping,
        keep_channels=keep_channels,
        n_intervals=n_intervals,
        random_state=0,
    ).fit(x)
    rebuilt = model.inverse_transform(model.transform(x))
    assert rebuilt.shape == x.shape
    assert np.abs(rebuilt - x).max() <= 1e-5 * 160


def test_random_bands_explain_what_the_holistic_analysis_explains() -> None:
    """Alakkari 2020, section 4.5.4: random bands cover the whole image; their components resemble holistic ones."""
    x = smooth_images(400, (30, 32))
    rows = x.reshape(400, -1).astype(float)
    holistic = PCA(6).fit(rows)
    model = BandPCA(6, band_size=120, mapping="random", random_state=0).fit(x)
    shares = np.cumsum(model.explained_variance_.sum(0)) / model.total_variance_.sum()
    np.testing.assert_allclose(shares, np.cumsum(holistic.explained_variance_ratio_), atol=0.02)
    # Bands of an image do not agree on the sign of a component: the first one of each is compared up to that.
    first = (
        model.components_[0]
        * np.sign(
            [
                (model.components_[0] * holistic.components_[0].reshape(30, 32))[model.bands_.labels == i].sum()
                for i in range(8)
            ]
        )[model.bands_.labels]
    )
    cosine = (first.ravel() @ holistic.components_[0]) / np.linalg.norm(first)
    assert cosine > 0.95
    # Bands of consecutive rows do not cover the whole image.
    raster = BandPCA(6, band_size=120, mapping="raster").fit(x)
    assert raster.explained_variance_[:, :2].sum() > 1.05 * model.explained_variance_[:, :2].sum()


def test_one_attribute_a_band_and_one_band_for_all() -> None:
    x = np.random.default_rng(0).normal(size=(30, 7))
    single = BandPCA(1, band_size=1, mapping="raster").fit(x)
    np.testing.assert_allclose(single.explained_variance_[:, 0], x.var(0, ddof=1))
    np.testing.assert_array_equal(np.abs(single.components_), 1)
    whole = BandPCA(7, band_size=1000, mapping="random", random_state=0).fit(x)
    np.testing.assert_allclose(whole.explained_variance_[0], PCA(7).fit(x).explained_variance_)


def test_numpy_dask_zarr_paths_and_segments_agree_to_the_last_bit(
    images: np.ndarray, fitted: BandPCA, tmp_path: Path, cluster: Any
) -> None:
    path = str(tmp_path / "x.zarr")
    stored = zarr.create_array(path, data=images, chunks=(50, 20, 36, 3), zarr_format=2)
    for x in (da.from_array(images, chunks=(37, 15, 36, 3)), stored, path, Path(path)):
        again = BandPCA(5, band_size=300, n_intervals=6).fit(x)
        np.testing.assert_array_equal(again.bands_.labels, fitted.bands_.labels)
        np.testing.assert_array_equal(again.components_, fitted.components_)
    scores = fitted.transform(path)
    assert isinstance(scores, da.Array)
    np.testing.assert_allclose(scores.compute(scheduler="sync"), fitted.transform(images), atol=1e-3)
    rebuilt = fitted.inverse_transform(scores)
    assert isinstance(rebuilt, da.Array)
    assert rebuilt.shape == images.shape
    expected = fitted.inverse_transform(fitted.transform(images))[3]
    np.testing.assert_allclose(rebuilt[3].compute(scheduler="sync"), expected, atol=1e-2)


def test_partial_fit_maps_by_its_first_batch(images: np.ndarray) -> None:
    streamed = BandPCA(5, band_size=300, n_intervals=6)
    for start, stop in ((0, 40), (40, 41), (41, 120)):
        streamed.partial_fit(images[start:stop])
    assert streamed.n_samples_seen_ == 120
    x = images[:40].astype(float)
    expected = map_by_moments(x.mean(0), x.var(0, ddof=1), 300, 6, together=3)
    np.testing.assert_array_equal(streamed.bands_.labels, expected.labels)
    first = images[:, streamed.bands_.labels == 0].astype(float)
    k = min(5, first.shape[1])
    np.testing.assert_allclose(streamed.explained_variance_[0, :k], PCA(k).fit(first).explained_variance_)
    with pytest.raises(DataError, match="batch"):
        BandPCA(5, band_size=300).partial_fit(images[:1])
    with pytest.raises(DataError, match="batches"):
        streamed.partial_fit(images[:, :20])


def test_an_estimating_subset_is_spread_over_the_stack_and_seeded(images: np.ndarray) -> None:
    def labels(**options: Any) -> np.ndarray:
        return BandPCA(5, band_size=300, n_intervals=6, **options).fit(images).bands_.labels

    few = labels(n_estimating=30, random_state=1)
    np.testing.assert_array_equal(few, labels(n_estimating=30, random_state=1))
    assert (few != labels(n_estimating=30, random_state=2)).any()
    np.testing.assert_array_equal(labels(n_estimating=120), labels())


def test_all_components_of_a_band_need_no_more_than_its_budget_allows() -> None:
    x = np.random.default_rng(0).integers(0, 256, (300, 40, 40), dtype=np.uint8)
    settings = {"band_size": 400, "mapping": "random", "random_state": 0}
    free = BandPCA(6, **settings).fit(x)
    assert free.fit_report_.note == ""
    tight = BandPCA(6, memory_budget=31 * 2**20, **settings).fit(x)
    assert len(tight.fit_report_.plan.groups) > 1
    assert "groups of bands in turn" in tight.fit_report_.note
    np.testing.assert_array_equal(tight.components_, free.components_)
    with pytest.raises(PlanError, match="bands"):
        BandPCA(None, memory_budget=27 * 2**20, **settings).fit(x)


def test_places_of_bands_that_exceed_the_memory_are_refused(
    images: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(band_pca, "usable_bytes", lambda: 10 * images[0].size)
    with pytest.raises(PlanError, match="CellPCA"):
        BandPCA(2, band_size=50, mapping="raster").fit(images)


def test_bands_too_large_for_their_covariances_stream() -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(400, 8)) @ rng.normal(size=(8, 3000)) * 3 + rng.normal(size=(400, 3000))).astype(np.float32)
    settings = {"band_size": 1500, "mapping": "random", "random_state": 0}
    exact = BandPCA(5, **settings).fit(x)
    streamed = BandPCA(5, memory_budget=38 * 2**20, **settings).fit(x)
    assert "incremental SVD" in streamed.fit_report_.note
    np.testing.assert_array_equal(streamed.bands_.labels, exact.bands_.labels)
    np.testing.assert_allclose(streamed.explained_variance_, exact.explained_variance_, rtol=1e-3)
    np.testing.assert_allclose(streamed.total_variance_, exact.total_variance_, rtol=1e-5)
    np.testing.assert_allclose(streamed.mean_, exact.mean_, atol=1e-5)


def test_a_fit_that_was_stopped_goes_on(images: np.ndarray, fitted: BandPCA, tmp_path: Path) -> None:
    kept = Checkpoints(str(tmp_path / "fold"))
    BandPCA(5, band_size=300, n_intervals=6).fit(images, run=Run(checkpoints=kept))
    assert list((tmp_path / "fold").rglob("statistics/**/*.npz"))
    again = BandPCA(5, band_size=300, n_intervals=6).fit(images, run=Run(checkpoints=kept))
    np.testing.assert_array_equal(again.components_, fitted.components_)


def test_scikit_learns_conventions(images: np.ndarray, fitted: BandPCA) -> None:
    estimator = BandPCA(5, band_size=300, n_intervals=6)
    given = {name: value for name, value in clone(estimator).get_params().items() if value is not None}
    assert given == {
        "n_components": 5,
        "flatten": False,
        "gaps": "reject",
        "keep_state": False,
        "band_size": 300,
        "mapping": "mean-variance",
        "n_intervals": 6,
        "keep_channels": True,
    }
    names = fitted.get_feature_names_out()
    assert len(names) == len(set(names)) == fitted.bands_.n_parts * 5
    assert names[6] == "band1_component1"
    assert fitted.n_features_in_ == math.prod((40, 36, 3))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"n_components": 0}, "positive integer"),
        ({"n_components": True}, "positive integer"),
        ({"n_components": 31}, "30 attributes"),
        ({"n_components": 11, "band_size": 90}, "10 samples"),
        ({"band_size": 0}, "band_size is 0"),
        ({"band_size": 2.5}, "band_size is 2.5"),
        ({"band_size": 2, "n_components": 1}, "keep_channels=False"),
        ({"n_intervals": 0}, "n_intervals is 0"),
        ({"n_estimating": 1}, "n_estimating is 1"),
        ({"mapping": "median"}, "mapping is 'median'"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], says: str) -> None:
    x = np.random.default_rng(0).integers(0, 256, (10, 6, 5, 3), dtype=np.uint8)
    with pytest.raises(DataError, match=says):
        BandPCA(**{"n_components": 2, "band_size": 30, **options}).fit(x)


def test_values_that_make_no_sense() -> None:
    bad = np.zeros((5, 4, 4), np.float32)
    bad[3, 2, 1] = np.nan
    for options in ({}, {"n_estimating": 4}, {"mapping": "random"}):
        with pytest.raises(DataError, match="sample.3"):
            BandPCA(1, band_size=4, **options).fit(bad)
    with pytest.raises(DataError, match=r"\b2\b"):
        BandPCA(1, band_size=4).fit(bad[:1])
