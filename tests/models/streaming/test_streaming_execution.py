"""StreamingPCA in rounds: what each method allows, and that it finds what one stream finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.base import clone

from dpca import StreamingPCA
from dpca.models.streaming.streaming_methods import rule_class
from dpca.parameters.streaming import RULE_CLASSES
from dpca.storage.errors import DataError
from dpca.storage.run import Run
from tests.conftest import smooth_images

SHAPE = (8, 9, 3)
AVERAGED = {method for method in RULE_CLASSES if rule_class(method)().averageable}
SUMMED = {method for method in RULE_CLASSES if rule_class(method)().summable}
# Stores in the order in which the test made them, which is random.
pytestmark = pytest.mark.filterwarnings("ignore::dpca.models.OrderWarning")


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Of total variance 1 or so, as the gradient rules need."""
    x = smooth_images(1200, SHAPE)[np.random.default_rng(0).permutation(1200)].astype(np.float32)
    return x / np.sqrt(x.reshape(len(x), -1).var(0).sum())


def captured(model: Any, images: np.ndarray) -> float:
    x = images.reshape(len(images), -1).astype(float)
    return float(np.var(x @ np.asarray(model.components_, float).T, axis=0).sum())


def test_known_methods_have_their_executions() -> None:
    assert {"oja", "oja-subspace", "krasulina", "sanger", "implicit-krasulina", "accelerated-oja"} <= AVERAGED
    assert {"oja", "block-power", "accelerated-block-power", "accelerated-oja"} <= SUMMED
    assert not (AVERAGED | SUMMED) & {"incremental-svd", "covariance", "ccipca", "ipca", "similarity-matching"}
    assert not AVERAGED & {"block-power", "accelerated-block-power"}
    assert not SUMMED & {"oja-subspace", "krasulina", "sanger", "implicit-krasulina"}


@pytest.mark.cases(4)
@pytest.mark.parametrize("method", RULE_CLASSES)
def test_each_method_does_what_it_allows(images: np.ndarray, method: str) -> None:
    chain = StreamingPCA(4, method=method, batch_size=20, random_state=0, execution="chain")
    alone = clone(chain).fit(images) if method in AVERAGED | SUMMED else None
    for execution, allowed in (("averaged", AVERAGED), ("data-parallel", SUMMED)):
        model = clone(chain).set_params(execution=execution, n_streams=3)
        if method not in allowed:
            with pytest.raises(DataError, match="execution='auto'"):
                model.fit(images)
            continue
        model.fit(images)
        assert alone is not None
        assert model.n_samples_seen_ == len(images)
        np.testing.assert_allclose(model.mean_, alone.mean_, rtol=1e-6)
        assert model.total_variance_ == pytest.approx(alone.total_variance_, rel=1e-5)
        if execution == "data-parallel":
            assert np.linalg.svd(model.components_ @ alone.components_.T, compute_uv=False).min() > 1 - 1e-5
        else:
            # Updates one after the other are those of a third of the samples.
            model.set_params(round_size=100).fit(images)
            assert captured(model, images) > 0.95 * captured(clone(chain).fit(images[:400]), images)


def test_the_result_depends_on_streams_not_on_workers(images: np.ndarray, tmp_path: Path, cluster: Any) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=images, chunks=(64, *SHAPE))
    model = StreamingPCA(
        4, method="implicit-krasulina", batch_size=10, execution="averaged", n_streams=4, random_state=0
    )
    model.set_params(round_size=50)
    reference = clone(model).fit(images)
    for x, client in ((path, None), (path, cluster), (da.from_array(images, chunks=(100, *SHAPE)), cluster)):
        found = clone(model).fit(x, run=Run(client=client))
        np.testing.assert_array_equal(found.components_, reference.components_)
        np.testing.assert_array_equal(found.explained_variance_, reference.explained_variance_)
    other = clone(model).set_params(n_streams=5).fit(images)
    assert not np.array_equal(other.components_, reference.components_)


def test_one_stream_is_the_chain(images: np.ndarray) -> None:
    chain = StreamingPCA(4, method="oja", batch_size=20, random_state=0).fit(images)
    one = StreamingPCA(4, method="oja", batch_size=20, random_state=0, execution="averaged", n_streams=1).fit(images)
    np.testing.assert_array_equal(one.components_, chain.components_)
    np.testing.assert_array_equal(one.explained_variance_, chain.explained_variance_)


def test_a_rule_that_merges_runs_as_a_chain_too(images: np.ndarray, tmp_path: Path, cluster: Any) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=images, chunks=(64, *SHAPE))
    # Longer batches than what is stacked exactly, 2 (k + oversampling).
    streamed = StreamingPCA(4, oversampling=16, batch_size=50)
    tree, chain = clone(streamed).fit(path, run=Run(client=cluster)), clone(streamed).set_params(execution="chain")
    chain.fit(path, run=Run(client=cluster))
    assert len(tree.fit_report_.plan.segments) == 2
    assert len(chain.fit_report_.plan.segments) == 1
    np.testing.assert_array_equal(chain.components_, clone(chain).fit(images).components_)
    np.testing.assert_allclose(chain.explained_variance_, tree.explained_variance_, rtol=1e-3)


def test_a_pass_in_rounds_is_polished_like_any_other(images: np.ndarray) -> None:
    model = StreamingPCA(
        4, method="implicit-krasulina", execution="averaged", n_streams=2, n_passes=5, random_state=0
    ).fit(images)
    assert model.residual_norms_.shape == (4,)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"execution": "parallel"}, "execution is 'parallel'"),
        ({"execution": "averaged", "n_streams": 0}, "n_streams is 0"),
        ({"execution": "averaged", "n_streams": 2.5}, "n_streams is 2.5"),
        ({"execution": "averaged", "round_size": True}, "round_size is True"),
        ({"execution": "averaged", "round_size": 250}, "not a whole number of batches of 100 samples: give 300"),
        ({"execution": "data-parallel", "round_size": 100}, "round_size is 100"),
        ({"n_streams": 3}, "n_streams is 3"),
    ],
)
def test_wrong_parameters_are_one_sentence(images: np.ndarray, parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        StreamingPCA(2, method="oja", **parameters).fit(images)
