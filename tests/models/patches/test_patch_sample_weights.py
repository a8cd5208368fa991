"""Weights of samples of PatchPCA that are not whole numbers: the weighted covariance of all patches."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.lib.stride_tricks import sliding_window_view

from dpca import PatchPCA
from dpca.engine.folds.plan import PlanError
from dpca.storage import DataError
from dpca.storage.run import Run

N, SHAPE = 30, (12, 9)
RNG = np.random.default_rng(0)
WEIGHTS = RNG.uniform(0, 3, N)
WEIGHTS[::7] = 0


def made(channels: tuple[int, ...], dtype: Any) -> np.ndarray:
    smooth = np.cumsum(np.cumsum(RNG.normal(size=(N, *SHAPE, *channels)), axis=1), axis=2)
    smooth += 40 * np.linspace(0, 1, SHAPE[0]).reshape(-1, 1, *(1,) * len(channels))
    smooth += 10 * RNG.normal(size=(N, *(1,) * (2 + len(channels))))  # samples with other means
    smooth += 60 * np.arange(1, 1 + int(np.prod(channels, dtype=int))).reshape(channels)
    return np.clip(smooth, 0, 255).astype(dtype)


def truth(x: np.ndarray, weights: np.ndarray, stride: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean patch, and variances and components of all patches."""
    every = np.moveaxis(sliding_window_view(x.astype(float), (3, 3), axis=(1, 2)), (-2, -1), (3, 4))
    every = every[:, ::stride, ::stride]
    rows = every.reshape(-1, int(np.prod(every.shape[3:])))
    each = weights.repeat(len(rows) // len(x))
    mean = np.average(rows, axis=0, weights=each)
    covariance = np.cov(rows, rowvar=False, aweights=each, ddof=0) * each.sum() / (each.sum() - 1)
    values, vectors = np.linalg.eigh(covariance)
    return mean, values[::-1], vectors.T[::-1]


def assert_is(model: PatchPCA, mean: np.ndarray, values: np.ndarray, rows: np.ndarray) -> None:
    k = model.n_components_
    np.testing.assert_allclose(model.mean_.ravel(), mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.explained_variance_, values[:k], rtol=1e-6, atol=1e-7 * values[0])
    np.testing.assert_allclose(model.total_variance_, values.sum(), rtol=1e-6)
    np.testing.assert_allclose(np.abs((model.components_.reshape(k, -1) * rows[:k]).sum(axis=1)), 1, atol=1e-6)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [(), (2,)])
def test_they_are_those_of_numpys_covariance(channels: tuple[int, ...], stride: int, dtype: str) -> None:
    x = made(channels, dtype)
    for given in (x, da.from_array(x, chunks=(7, 5, 9, *channels)), zarr.create_array({}, data=x, chunks=x.shape)):
        model = PatchPCA(3, patch_shape=(3, 3), stride=stride).fit(given, sample_weight=WEIGHTS)
        assert_is(model, *truth(x, WEIGHTS, stride))
        assert model.n_samples_seen_ == (WEIGHTS > 0).sum()


def test_whole_numbers_are_the_limit_of_others() -> None:
    x, counts = made((), "float64"), RNG.integers(0, 4, N).astype(float)
    close = counts + 1e-9 * (np.arange(N) == 5)
    one, other = (PatchPCA(3, patch_shape=(3, 3)).fit(x, sample_weight=w) for w in (counts, close))
    np.testing.assert_allclose(other.explained_variance_, one.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(other.mean_, one.mean_, rtol=1e-6)


def test_with_weights_of_attributes() -> None:
    x, attributes = made((), "float64"), RNG.uniform(0.2, 3, SHAPE)
    model = PatchPCA(3, patch_shape=(3, 3), weights=attributes).fit(x, sample_weight=WEIGHTS)
    mean = np.average(x, axis=0, weights=WEIGHTS)
    np.testing.assert_allclose(model.sample_mean_, mean)
    assert_is(model, *truth((x - mean) * attributes, WEIGHTS))


def test_slabs_of_large_samples_have_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.cumsum(RNG.normal(size=(6, 400, 300)), axis=1)
    expected = PatchPCA(3, patch_shape=(3, 3)).fit(x, sample_weight=WEIGHTS[1:7])
    whole = PatchPCA._slabs

    def refused(self: PatchPCA, rule: Any, passes: Any) -> Any:
        plan, seen = passes.plan, []

        def once(*arguments: Any) -> Any:
            seen.append(arguments)
            if len(seen) == 1:
                raise PlanError("too large")
            return plan(*arguments)

        monkeypatch.setattr(passes, "plan", once)
        return whole(self, rule, passes)

    monkeypatch.setattr(PatchPCA, "_slabs", refused)
    found = PatchPCA(3, patch_shape=(3, 3)).fit(x, sample_weight=WEIGHTS[1:7], run=Run())
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-9)


def test_a_small_sum_is_an_error() -> None:
    with pytest.raises(DataError, match="sum"):
        PatchPCA(3, patch_shape=(3, 3)).fit(made((), "float64"), sample_weight=WEIGHTS / 1e3)
