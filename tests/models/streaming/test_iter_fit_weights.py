"""`StreamingPCA.iter_fit` with weights of samples: repeated samples, and sums by numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.base import clone

from dpca import StreamingPCA, TrajectoryPCA
from dpca.storage import DataError
from tests.helpers.weighted import SHAPE, K, N, samples

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

COVARIANCE = StreamingPCA(K, method="covariance", batch_size=20, keep_state=True)
SVD = StreamingPCA(K, method="incremental-svd", batch_size=40, keep_state=True)
NAMES = ("components_", "mean_", "explained_variance_", "total_variance_")


def last(model: Any, x: Any, **how: Any) -> Any:
    *_, found = model.iter_fit(x, **how)
    assert found.finished
    assert found.model is model
    return model


def assert_equal(a: Any, b: Any) -> None:
    assert a.n_samples_seen_ == b.n_samples_seen_
    for name in NAMES:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
@pytest.mark.parametrize("model", [COVARIANCE, SVD, StreamingPCA(K, method="oja", random_state=0)], ids=str)
def test_whole_weights_are_repeated_samples(model: Any, dtype: Any) -> None:
    x, counts = samples(dtype)[0], np.random.default_rng(1).integers(0, 4, N)
    expected = last(clone(model), x.repeat(counts, axis=0))
    for stack in (x, da.from_array(x, chunks=(7, 4, 6)), zarr.create_array({}, data=x, chunks=(9, 4, 6))):
        seen = list((found := clone(model)).iter_fit(stack, sample_weight=counts))
        assert [one.n_samples_seen for one in seen] == [16, 64, counts.sum()]
        assert seen[-1].n_samples == counts.sum()
        assert_equal(found, expected)
    twice = last(clone(model), x, sample_weight=np.full(N, 2.0))
    assert_equal(twice, last(clone(model), x.repeat(2, axis=0)))


def test_whole_weights_resume_and_a_sample_of_weight_0_may_be_broken() -> None:
    x, counts = samples()[0], np.arange(N) % 3
    x[counts == 0] = np.nan
    part = last(clone(SVD), x, sample_weight=counts, max_samples=33)
    assert part.n_samples_seen_ == 33
    assert_equal(last(part, x, sample_weight=counts), last(clone(SVD), x, sample_weight=counts))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
@pytest.mark.parametrize("model", [COVARIANCE, SVD], ids=str)
def test_other_weights_are_those_of_numpys_covariance(model: Any, dtype: Any) -> None:
    x, weights = samples(dtype)
    rows, total = x.reshape(N, -1).astype(float), weights.sum()
    values, vectors = np.linalg.eigh(np.cov(rows, rowvar=False, aweights=weights, ddof=0) * (total / (total - 1)))
    used = x.astype(float)
    used[weights == 0] = np.nan
    for stack in (x, da.from_array(x, chunks=(7, 4, 6)), zarr.create_array({}, data=x, chunks=(9, 4, 3)), used):
        found = last(clone(model), stack, sample_weight=weights)
        np.testing.assert_allclose(found.mean_, np.average(rows, axis=0, weights=weights), rtol=1e-6)
        np.testing.assert_allclose(found.explained_variance_, values[::-1][:K], rtol=1e-6)
        np.testing.assert_allclose(np.abs((found.components_ @ vectors[:, ::-1][:, :K]).diagonal()), 1, rtol=1e-6)
        np.testing.assert_allclose(found.n_samples_seen_, total)
        np.testing.assert_allclose(found.total_variance_, values.sum(), rtol=1e-6)


@pytest.mark.parametrize("model", [COVARIANCE, SVD], ids=str)
def test_other_weights_resume_to_the_same_bytes(model: Any, tmp_path: Path) -> None:
    x, weights = samples()
    whole = clone(model)
    seen = [one.n_samples_seen for one in whole.iter_fit(x, sample_weight=weights, every=1e-9)]
    used = weights[weights > 0]
    sums = np.cumsum(used)[[*range(model.batch_size - 1, len(used), model.batch_size), -1]]
    assert seen[0] == int(sums[0])
    assert seen[-1] == int(sums[-1])
    part = last(clone(model), x, sample_weight=weights, max_samples=2)
    np.testing.assert_allclose(part.n_samples_seen_, sums[0])  # a whole batch
    part.save(tmp_path / "m")
    again = StreamingPCA.load(tmp_path / "m")
    assert_equal(last(again, x, sample_weight=weights), whole)
    assert_equal(last(again, x, sample_weight=weights), whole)  # no samples remain
    for other in (weights[::-1], weights + 0.01):
        with pytest.raises(DataError, match="weights"):
            next(StreamingPCA.load(tmp_path / "m").iter_fit(x, sample_weight=other))
    assert last(clone(model), x, sample_weight=weights, max_seconds=1e-9).n_samples_seen_ == part.n_samples_seen_


def test_weights_of_attributes_and_several_variables() -> None:
    x, weights = samples()
    rows, factors = x.reshape(N, -1), 1 + np.arange(24.0)
    total = weights.sum()
    weighted = np.cov(rows * factors, rowvar=False, aweights=weights, ddof=0) * (total / (total - 1))
    expected = np.linalg.eigvalsh(weighted)[::-1][:K]
    own = clone(COVARIANCE).set_params(weights=factors.reshape(SHAPE))
    np.testing.assert_allclose(last(own, x, sample_weight=weights).explained_variance_, expected, rtol=1e-6)
    own = clone(COVARIANCE).set_params(weights=[factors[:10], factors[10:]])
    found = last(own, [rows[:, :10], rows[:, 10:]], sample_weight=weights)
    np.testing.assert_allclose(found.explained_variance_, expected, rtol=1e-6)


@pytest.mark.parametrize("reference", ["first", "mean"])
def test_frames_of_a_trajectory(reference: str) -> None:
    rng = np.random.default_rng(0)
    frames, weights = rng.normal(size=(1, 7, 3)) + 0.1 * rng.normal(size=(40, 7, 3)), np.arange(40) % 3
    model = TrajectoryPCA(2, method="covariance", reference=reference)
    expected = last(clone(model), frames.repeat(weights, axis=0))
    for found in (last(clone(model), frames, sample_weight=weights), clone(model).fit(frames, sample_weight=weights)):
        np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-9)
    # Weights of a twentieth have the scatter of twenty times as many frames, up to the factor.
    parts = rng.integers(1, 60, 40)
    many = clone(model).fit(frames.repeat(parts, axis=0))
    total = parts.sum()
    variance = many.explained_variance_ * (total - 1) / total
    weights = parts / 20
    for found in (last(clone(model), frames, sample_weight=weights), clone(model).fit(frames, sample_weight=weights)):
        spread = found.explained_variance_ * (weights.sum() - 1) / weights.sum()
        np.testing.assert_allclose(spread, variance, rtol=1e-6)
        np.testing.assert_allclose(found.reference_, many.reference_, atol=1e-6)


def test_rejected_weights() -> None:
    x, weights = samples()
    for wrong in (weights[1:], -weights, np.zeros(N), np.full(N, np.nan), ["a"] * N):
        with pytest.raises(DataError, match="sample_weight"):
            clone(SVD).iter_fit(x, sample_weight=wrong)
    with pytest.raises(DataError, match="whole"):
        clone(SVD).set_params(shuffle=True).iter_fit(x, sample_weight=weights)
    for given in ({"method": "oja"}, {"gaps": "iterate"}, {"method": "incremental-svd", "forgetting": 0.9}):
        with pytest.raises(DataError, match="whole"):
            next(StreamingPCA(K, random_state=0, **given).iter_fit(x, sample_weight=weights))
    known = clone(SVD).partial_fit(x, sample_weight=weights)
    with pytest.raises(DataError, match="partial_fit"):
        next(known.iter_fit(x))
    fresh = clone(SVD)
    with pytest.raises(DataError):
        fresh.iter_fit(x, sample_weight=-weights)
    assert not hasattr(fresh, "n_features_in_")
    known = last(clone(SVD), x, sample_weight=weights)
    with pytest.raises(DataError, match="same"):
        known.iter_fit(x[:, :3], sample_weight=weights)
    assert known.n_features_in_ == 24
