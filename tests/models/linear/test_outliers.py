"""Least components and outlier scores against closed forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca import PCA, StreamingPCA
from dpca.storage.errors import DataError


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    rng = np.random.default_rng(0)
    return 10 + rng.normal(size=(200, 8)) * [5, 4, 3, 2, 1, 0.5, 0.2, 0.1] @ np.linalg.qr(rng.normal(size=(8, 8)))[0]


def test_least_components_are_the_smallest_eigenpairs(samples: np.ndarray) -> None:
    model = PCA(3, n_least=2).fit(samples)
    values, vectors = np.linalg.eigh(np.cov(samples, rowvar=False))
    np.testing.assert_allclose(model.least_variance_, values[:2], rtol=1e-9)
    np.testing.assert_allclose(np.abs(np.sum(model.least_components_ * vectors[:, :2].T, axis=1)), 1, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_, values[::-1][:3], rtol=1e-12)
    model.n_least = 0
    assert not hasattr(model.fit(samples), "least_components_")


def test_with_all_components_it_is_the_mahalanobis_distance(samples: np.ndarray) -> None:
    model = PCA(1, n_least=8).fit(samples)
    centered = samples - samples.mean(0)
    inverse = np.linalg.inv(np.cov(samples, rowvar=False))
    expected = -np.einsum("ij,jk,ik->i", centered, inverse, centered)
    np.testing.assert_allclose(model.score_samples(samples, "least-components"), expected, rtol=1e-8)
    assert model.score_samples(samples, kind="least-components").mean() == pytest.approx(-8 * 199 / 200)


@pytest.mark.parametrize("make", [PCA, StreamingPCA])
def test_the_residual_is_the_squared_reconstruction_error(samples: np.ndarray, make: Any) -> None:
    model = make(3, random_state=0).fit(samples)
    error = samples - model.inverse_transform(model.transform(samples))
    np.testing.assert_allclose(model.score_samples(samples), -(error**2).sum(1), rtol=1e-9)
    everything = make(8).fit(samples)
    np.testing.assert_allclose(everything.score_samples(samples), 0, atol=1e-20)


def test_planted_outliers_rank_first_and_lazily(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    # Images that are mixtures of three patterns; two are noise of the same size.
    patterns = rng.normal(size=(3, 6, 7))
    images = np.tensordot(rng.normal(size=(300, 3)), patterns, 1) + 0.05 * rng.normal(size=(300, 6, 7))
    images[[17, 200]] = rng.normal(size=(2, 6, 7)) * images.std()
    images = images.astype(np.float32)
    path = str(tmp_path / "x.zarr")
    stored = zarr.create_array(path, data=images, chunks=(64, 6, 7))
    # Outliers in the fit have directions of their own among the leading ones, so the least ones are blind to them.
    clean = np.delete(images, [17, 200], axis=0)
    for kind, options, given in (("residual", {}, images), ("least-components", {"n_least": 20}, clean)):
        model = PCA(3, **options).fit(given)
        scores = model.score_samples(images, kind=kind)
        assert scores.dtype == np.float64
        assert set(np.argsort(scores)[:2]) == {17, 200}
        for x in (path, stored, da.from_array(images, chunks=(100, 6, 7))):
            lazy = model.score_samples(x, kind=kind)
            assert isinstance(lazy, da.Array)
            assert lazy.dtype == np.float64
            np.testing.assert_allclose(lazy.compute(scheduler="synchronous"), scores, rtol=1e-4)
    assert set(np.argsort(StreamingPCA(3).fit(images).score_samples(path).compute())[:2]) == {17, 200}


def test_a_constant_attribute_is_no_reason_to_overflow(samples: np.ndarray) -> None:
    x = np.concatenate([samples, np.ones((200, 1))], axis=1)
    model = PCA(2, n_least=1).fit(x)
    x[0, -1] = 2
    scores = model.score_samples(x, "least-components")
    assert np.isfinite(scores).all()
    assert scores.argmin() == 0
    assert (scores[1:] > -1e-6).all()
    flat = PCA(1, n_least=1).fit(np.ones((5, 3)))
    assert np.isfinite(flat.score_samples(np.zeros((2, 3)), "least-components")).all()


def test_wrong_requests_are_one_sentence(samples: np.ndarray) -> None:
    model = PCA(2).fit(samples)
    with pytest.raises(DataError, match="n_least"):
        model.score_samples(samples, "least-components")
    with pytest.raises(DataError, match="kind"):
        model.score_samples(samples, "mahalanobis")
    spoiled = samples.copy()
    spoiled[3, 0] = np.nan
    with pytest.raises(DataError, match="finite"):
        model.score_samples(da.from_array(spoiled)).compute(scheduler="synchronous")
