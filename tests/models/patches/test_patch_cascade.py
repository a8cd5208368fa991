"""PatchCascade against a cascade written with numpy alone; what is stored, planned and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.base import clone
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpca import PatchCascade, Progress
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import as_source
from dpca.jobs import fit_store, transform_store
from dpca.models.base.store import load_any
from dpca.storage import DataError, StoreError, open_stack
from dpca.storage.run import Run
from tests.conftest import smooth_images
from tests.helpers.resealing import edit_facts
from tests.models.patches.test_patch_pca import all_patches


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return smooth_images(30, (19, 17, 3))


@pytest.fixture(scope="module")
def fitted(images: np.ndarray) -> PatchCascade:
    return PatchCascade((3, 5), patch_shape=3).fit(images)


def test_it_is_watched_in_the_end(images: np.ndarray) -> None:
    told: list[Progress] = []
    model = PatchCascade((3, 5), patch_shape=3).fit(images, callback=told.append, max_samples=2)
    (one,) = told
    assert (one.model, one.n_samples_seen, one.finished) == (model, len(images), True)
    assert np.isnan(one.captured_variance)


def by_numpy(model: PatchCascade, x: np.ndarray) -> np.ndarray:
    """The features of images, of all patches at once; layers are found here, but for the signs of filters."""
    x = x.astype(np.float64)
    for filters, share in zip(model.filters_, (0.01, 0.01), strict=True):
        rows, (n, h, w, _) = all_patches(x, (3, 3), 1), x.shape
        values, vectors = np.linalg.eigh(np.cov(rows, rowvar=False))
        scaled = vectors[:, ::-1][:, : len(filters)] / np.sqrt(values[::-1][: len(filters)] + share * values[-1])
        scaled *= np.sign((scaled * filters.reshape(len(filters), -1).T).sum(axis=0))
        maps = ((rows - rows.mean(axis=0)) @ scaled).reshape(n, h - 2, w - 2, len(filters))
        maps = np.concatenate([np.maximum(maps, 0), np.maximum(-maps, 0)], axis=-1)
        even = maps[:, : (h - 2) // 2 * 2, : (w - 2) // 2 * 2]
        x = (even[:, ::2, ::2] + even[:, 1::2, ::2] + even[:, ::2, 1::2] + even[:, 1::2, 1::2]) / 4
    return x


def test_features_are_those_of_numpy(images: np.ndarray, fitted: PatchCascade) -> None:
    features = fitted.transform(images)
    assert (features.shape, features.dtype) == ((30, 3, 2, 10), np.float32)
    np.testing.assert_allclose(features, by_numpy(fitted, images), atol=2e-3)
    lazy = fitted.transform(da.from_array(images, chunks=(11, 19, 17, 3)))
    np.testing.assert_allclose(lazy.compute(scheduler="sync"), features, atol=1e-5)
    assert len(set(fitted.get_feature_names_out())) == features[0].size
    with pytest.raises(DataError, match="decoded"):
        fitted.inverse_transform(features)


def test_without_rectification_features_are_linear(images: np.ndarray) -> None:
    x = images.astype(np.float64)
    model = PatchCascade((3, 4), patch_shape=3, rectify=False, whitening=None).fit(x)
    features = model.transform(x[:2])
    middle = model.transform(x[:2].mean(axis=0, keepdims=True))
    np.testing.assert_allclose(features.mean(axis=0, keepdims=True), middle, atol=1e-9)
    assert features.shape[-1] == 4


def test_random_filters_are_orthonormal_and_those_of_the_seed(images: np.ndarray) -> None:
    drawn = [PatchCascade((3, 5), patch_shape=3, filters="random", random_state=s).fit(images) for s in (0, 0, 1)]
    for one in drawn[0].filters_:
        rows = one.reshape(len(one), -1)
        np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-6)
    np.testing.assert_array_equal(drawn[0].filters_[1], drawn[1].filters_[1])
    assert np.abs(drawn[0].filters_[0] - drawn[2].filters_[0]).max() > 0.1
    assert np.isnan(drawn[0].explained_variance_[0]).all()


def test_features_are_computed_and_not_stored(images: np.ndarray, fitted: PatchCascade, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "stack.zarr"), data=images, chunks=(7, 19, 17, 3))
    stack, path = open_stack(tmp_path / "stack.zarr"), tmp_path / "model.zarr"
    kept = fit_store(stack, path, PatchCascade((3, 5), patch_shape=(3, 3))).model
    with pytest.raises(DataError, match="stores"):
        transform_store(stack, path, tmp_path / "scores.zarr")
    assert not (tmp_path / "scores.zarr").exists()
    features = kept.transform(images)
    np.testing.assert_allclose(kept.transform(stack).compute(), features, atol=1e-5)
    np.testing.assert_allclose(features, fitted.transform(images), atol=1e-3)
    again = load_any(path)
    assert isinstance(again, PatchCascade)
    np.testing.assert_array_equal(again.transform(images), features)
    np.testing.assert_array_equal(clone(again).fit(stack).transform(images), features)
    assert again.basis_.leading(3).encode(images[:2]).shape == (2, 3, 2, 3)
    np.testing.assert_allclose(again.basis_.leading(3).encode(images[:2]), features[:2, ..., :3], atol=1e-5)
    for fact, value in (("layers", [3, 4]), ("patch_shape", [9, 9]), ("filters", "any"), ("pool", 9)):
        again.save(tmp_path / fact)

        def change(facts: dict[str, Any], name: str = fact, value: Any = value) -> None:
            (facts if name in facts else facts["parameters"])[name] = value

        edit_facts(tmp_path / fact, change)
        with pytest.raises(StoreError, match="damaged"):
            load_any(tmp_path / fact)


def test_a_plan_knows_all_layers(images: np.ndarray) -> None:
    model, axes = PatchCascade((3, 5), patch_shape=3), ("y", "x", "channel")
    basis, known = model.plan_fit(as_source(images), axes, Run())
    assert known
    assert basis.score_shape == (3, 2, 10)
    assert basis.work_bytes(30, np.uint8) > 30 * 60 * 4
    with pytest.raises(PlanError):
        model.set_params(memory_budget=1).plan_fit(as_source(images), axes, Run())


def test_in_a_pipeline_it_finds_what_no_linear_map_of_pixels_does() -> None:
    """Stripes, down or across, at any place and of either sign: all means of all classes are the same."""
    random = np.random.default_rng(0)
    labels, phase = np.arange(240) % 2, random.uniform(0, 2 * np.pi, 240)
    waves = np.sin(np.arange(16) * 1.5 + phase[:, None])[:, None, :] + random.normal(0, 0.3, (240, 16, 16))
    x = np.where(labels[:, None, None] == 1, waves, waves.swapaxes(1, 2))

    rows = x.reshape(240, -1)

    def found(*steps: Any) -> float:
        model = make_pipeline(*steps, StandardScaler(), RidgeClassifier(10.0)).fit(rows[:160], labels[:160])
        return float(model.score(rows[160:], labels[160:]))

    class Squares(PatchCascade):
        """Takes images as rows."""

        def fit_transform(self, X: Any, y: Any = None) -> Any:
            return self.fit(X.reshape(-1, 16, 16)).transform(X)

        def transform(self, X: Any) -> Any:
            return super().transform(X.reshape(-1, 16, 16))

    assert found(Squares((4,), flatten=True)) > 0.95
    assert found() < 0.7


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_components": 8}, "sequence"),
        ({"n_components": ()}, "sequence"),
        ({"n_components": (8, 0)}, "positive integer"),
        ({"n_components": (76,)}, "layer 1 is 76: use at most 75"),
        ({"n_components": (4, 4, 4)}, r"layer 3 has maps of \(1, 1, 8\).*fewer layers"),
        ({"n_components": (4,), "pool": 16}, r"pool is 16, but the maps of layer 1 are \(15, 13\)"),
        ({"pool": 0}, "pool is 0: give a positive integer"),
        ({"whitening": 0}, "whitening is 0"),
        ({"filters": "dct"}, "filters is"),
    ],
)
def test_parameters_that_fit_no_samples(images: np.ndarray, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        PatchCascade(**parameters).fit(images)
