"""StreamingPCA against scikit-learn's exact PCA, over every kind of input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.decomposition import PCA

from dpca import StreamingPCA
from dpca.models import OrderWarning
from dpca.models.streaming.streaming_methods import default_method, rule_class
from dpca.parameters.streaming import RULE_CLASSES
from dpca.storage.errors import DataError
from dpca.storage.run import Run
from tests.conftest import smooth_images

SHAPE = (8, 9, 3)
# Twelve batches of 600 images, longer than what is stacked exactly, 2 (k + oversampling).
STREAMED = {"oversampling": 15, "batch_size": 50}


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    x = smooth_images(600, SHAPE)
    return x[np.random.default_rng(0).permutation(len(x))]


@pytest.fixture(scope="module")
def exact(images: np.ndarray) -> PCA:
    return PCA(5, svd_solver="full").fit(images.reshape(len(images), -1).astype(float))


def captured(model: Any, images: np.ndarray) -> float:
    x = images.reshape(len(images), -1).astype(float)
    x -= x.mean(0)
    return float(np.linalg.norm(x @ np.asarray(model.components_, float).T) ** 2 / (len(x) - 1))


def test_one_pass_is_close_to_exact(images: np.ndarray, exact: PCA) -> None:
    model = StreamingPCA(5, **STREAMED).fit(images)
    best = exact.explained_variance_.sum()
    assert 1 - 1e-6 < captured(model, images) / best <= 1 + 1e-6
    np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=1e-4)
    np.testing.assert_allclose(model.mean_, exact.mean_, rtol=1e-7)
    total = images.reshape(len(images), -1).astype(float).var(0, ddof=1).sum()
    assert model.total_variance_ == pytest.approx(total, rel=1e-6)
    np.testing.assert_allclose(model.explained_variance_ratio_, model.explained_variance_ / total, rtol=1e-6)
    np.testing.assert_allclose(model.singular_values_, exact.singular_values_, rtol=1e-4)
    assert model.captured_bound_ <= captured(model, images) / best + 1e-9
    assert model.captured_bound_ > 0.99
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(5), atol=1e-5)


@pytest.mark.parametrize("kind", ["dask", "zarr", "path"])
def test_every_kind_of_input_gives_the_same(images: np.ndarray, kind: str, tmp_path: Path, cluster: Any) -> None:
    stored = zarr.create_array(str(tmp_path / "x.zarr"), data=images, chunks=(64, *SHAPE))
    x = {"dask": da.from_array(images, chunks=(100, *SHAPE)), "zarr": stored, "path": str(tmp_path / "x.zarr")}[kind]
    model, reference = (
        StreamingPCA(5, **STREAMED).fit(given, run=Run(client=c)) for given, c in ((x, cluster), (images, None))
    )
    np.testing.assert_allclose(model.explained_variance_, reference.explained_variance_, rtol=1e-4)
    overlap = np.linalg.svd(model.components_ @ reference.components_.T, compute_uv=False)
    assert overlap.min() > 1 - 1e-5
    scores = model.transform(x)
    assert isinstance(scores, da.Array)
    assert scores.shape == (600, 5)
    np.testing.assert_allclose(scores.compute(), model.transform(images), rtol=1e-4, atol=1e-2)
    lazy = model.inverse_transform(scores)
    assert isinstance(lazy, da.Array)
    np.testing.assert_allclose(lazy[:7].compute(), model.inverse_transform(model.transform(images[:7])), atol=1e-2)


def test_the_same_seed_gives_the_same_bytes(images: np.ndarray, tmp_path: Path) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=images, chunks=(64, *SHAPE))
    models = [StreamingPCA(5, random_state=3, **STREAMED).fit(path) for _ in range(2)]
    assert models[0].components_.tobytes() == models[1].components_.tobytes()
    assert models[0].explained_variance_.tobytes() == models[1].explained_variance_.tobytes()


def test_a_second_pass_measures_and_improves(images: np.ndarray, exact: PCA) -> None:
    rough = StreamingPCA(5, oversampling=0, batch_size=10).fit(images)
    polished = StreamingPCA(5, oversampling=0, batch_size=10, n_passes=3).fit(images)
    assert captured(polished, images) > captured(rough, images)
    np.testing.assert_allclose(polished.explained_variance_, exact.explained_variance_, rtol=0.01)
    assert polished.residual_norms_.shape == (5,)
    best = exact.explained_variance_.sum()
    assert polished.explained_variance_.sum() <= best * (1 + 1e-6)
    assert 0.5 < polished.captured_bound_ <= captured(polished, images) / best + 1e-6


@pytest.mark.filterwarnings("ignore::dpca.models.ConvergenceWarning")
@pytest.mark.parametrize("method", [m for m in RULE_CLASSES if not rule_class(m).mergeable])
def test_sequential_rules_find_most_of_the_variance(images: np.ndarray, exact: PCA, method: str) -> None:
    # Steps of the gradient rules are made for variances below 1.
    best = exact.explained_variance_.sum()
    x = (images.reshape(len(images), -1) / np.sqrt(best)).astype(np.float32)
    model = StreamingPCA(5, method=method, random_state=0, batch_size=20).fit(np.tile(x, (3, 1)))
    share = captured(model, x)
    assert 0.5 < share <= 1 + 1e-5
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(5), atol=1e-4)
    assert np.all(np.diff(model.explained_variance_) <= 0)
    assert np.isnan(model.captured_bound_)
    again = StreamingPCA(5, method=method, random_state=0, batch_size=20).fit(np.tile(x, (3, 1)))
    assert model.components_.tobytes() == again.components_.tobytes()


def test_few_attributes_are_fitted_exactly(images: np.ndarray, exact: PCA, tmp_path: Path) -> None:
    """Whatever the batches, the order and the merges, and to the last bit for 8-bit images."""
    first = StreamingPCA(5).fit(images)
    backwards = StreamingPCA(5, batch_size=7).fit(images[::-1].copy())
    halves = [StreamingPCA(5).partial_fit(part) for part in (images[:311], images[311:])]
    merged = halves[0].merge(halves[1])
    for model in (first, backwards, merged):
        assert model.method_ == "covariance"
        assert 1 - 1e-10 < model.captured_bound_ <= 1
        assert model.components_.dtype == np.float32
        np.testing.assert_array_equal(model.components_, first.components_)
        np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=1e-9)
    other = StreamingPCA(5, oversampling=15).fit(images)
    assert other.method_ == "incremental-svd"
    for model in (first, other):
        model.save(tmp_path / model.method_)
        loaded = StreamingPCA.load(tmp_path / model.method_)
        assert (loaded.method, loaded.method_) == ("auto", model.method_)
        assert loaded.report_numbers()["method"] == model.method_


def test_the_estimate_beside_the_bound(images: np.ndarray, exact: PCA, tmp_path: Path) -> None:
    model = StreamingPCA(5, **STREAMED).fit(images)
    share = captured(model, images) / exact.explained_variance_.sum()
    assert abs(model.captured_estimate_ - share) <= 2 * model.captured_estimate_error_ + 1e-9
    assert model.captured_bound_ <= model.captured_estimate_ <= 1
    stated = {"captured_estimate": model.captured_estimate_, "captured_estimate_error": model.captured_estimate_error_}
    model.save(tmp_path / "m")
    for other in (model, StreamingPCA.load(tmp_path / "m")):
        assert stated.items() <= other.report_numbers().items()
    stream = StreamingPCA(5, **STREAMED).partial_fit(images[:200]).partial_fit(images[200:])
    assert model.captured_bound_ <= stream.captured_estimate_ <= 1
    few = StreamingPCA(5).fit(images)
    assert (few.captured_estimate_, few.captured_estimate_error_) == (1, 0)
    for unknown in ({"n_passes": 2, **STREAMED}, {"forgetting": 0.99}, {"method": "ccipca"}):
        model = StreamingPCA(5, **unknown).fit(images)
        assert np.isnan([model.captured_estimate_, model.captured_estimate_error_]).all()
        assert "captured_estimate" not in model.report_numbers()


def test_the_method_that_is_chosen() -> None:
    none = {"oversampling": None, "forgetting": None}
    assert default_method(5, 920, none) == "covariance"
    assert default_method(5, 921, none) == "incremental-svd"
    assert default_method(1000, 4096, none) == "covariance"
    assert default_method(1000, 4097, none) == "incremental-svd"
    for name, value in (("oversampling", 0), ("forgetting", 1.0)):
        assert default_method(5, 10, {**none, name: value}) == "incremental-svd"


def test_batches_of_any_size_and_merging(images: np.ndarray, exact: PCA) -> None:
    halves = [StreamingPCA(5, **STREAMED) for _ in range(2)]
    for model, part in zip(halves, (images[:300], images[300:]), strict=True):
        for start in (0, 1, 3, 120):
            stop = {0: 1, 1: 3, 3: 120, 120: 300}[start]
            model.partial_fit(part[start:stop])
    before = halves[1].components_.copy()
    merged = halves[0].merge(halves[1])
    assert merged.n_samples_seen_ == 600
    assert captured(merged, images) > (1 - 1e-5) * exact.explained_variance_.sum()
    np.testing.assert_array_equal(halves[1].components_, before)
    merged.partial_fit(images[:10])
    assert merged.n_samples_seen_ == 610


@pytest.mark.filterwarnings("ignore::dpca.models.ConvergenceWarning")
def test_stores_of_unknown_order_are_warned_about(images: np.ndarray, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=images, chunks=(64, *SHAPE))
    with pytest.warns(OrderWarning, match="random"):
        StreamingPCA(2, method="oja").fit(str(tmp_path / "x.zarr"))


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"n_components": 0}, "positive integer"),
        ({"n_components": 2.5}, "positive integer"),
        ({"n_components": 217}, "only 216 attributes"),
        ({"n_components": 2, "method": "ojas"}, "method is"),
        ({"n_components": 2, "batch_size": 0}, "positive integer"),
        ({"n_components": 2, "batch_size": 2.5}, "positive integer"),
        ({"n_components": 2, "n_passes": 0}, "positive integer"),
        ({"n_components": 2, "oversampling": -1}, "oversampling"),
        ({"n_components": 2, "oversampling": 5, "method": "oja"}, "does not support oversampling"),
    ],
)
def test_wrong_parameters_are_one_sentence(images: np.ndarray, parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        StreamingPCA(**parameters).fit(images)


def test_wrong_data_is_one_sentence(images: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"\b4.samples"):
        StreamingPCA(5).fit(images[:4])
    model = StreamingPCA(2).fit(images)
    with pytest.raises(ValueError, match="fitted|features"):
        model.transform(images[:, :5])
    with pytest.raises(DataError, match="n_samples"):
        model.inverse_transform(np.zeros((3, 4)))
    with pytest.raises(DataError, match="partial_fit"):
        model.merge(model)
    spoiled = images.astype(np.float32)
    spoiled[7, 0, 0, 0] = np.nan
    with pytest.raises(DataError, match="finite"):
        model.transform(da.from_array(spoiled, chunks=(100, *SHAPE))).compute(scheduler="synchronous")
    stream = StreamingPCA(2).partial_fit(images)
    with pytest.raises(DataError, match="differ"):
        stream.merge(StreamingPCA(3).partial_fit(images))
    with pytest.raises(DataError, match="batches"):
        stream.partial_fit(images.astype(float))
