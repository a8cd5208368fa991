"""Weights of samples in `SpectralClustering`: clusters of repeated samples."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

from dpca import SpectralClustering
from dpca.metrics import variation_of_information
from dpca.storage import DataError

TRUTH = np.arange(60) % 3
X = np.array([[0, 0], [6, 0], [0, 6]])[TRUTH] + np.random.default_rng(0).normal(size=(60, 2))
MODEL = {"gamma": 0.2, "n_landmarks": 20, "random_state": 0}


def test_clusters_are_those_of_repeated_samples() -> None:
    weights = np.random.default_rng(1).integers(0, 4, 60)
    known = SpectralClustering(3, **MODEL).fit(X.repeat(weights, axis=0))
    for x in (X, da.from_array(X, chunks=(17, 2))):
        found = SpectralClustering(3, **MODEL).fit(x, sample_weight=weights)
        np.testing.assert_allclose(found.eigenvalues_, known.eigenvalues_, rtol=1e-6)
        np.testing.assert_allclose(found.embedding_.repeat(weights, axis=0), known.embedding_, atol=1e-5)
        np.testing.assert_array_equal(found.labels_.repeat(weights), known.labels_)
        # Samples of weight 0 have labels, too.
        assert variation_of_information(found.labels_, TRUTH) < 0.3


def test_clusters_without_weights_and_of_weights_1_are_equal() -> None:
    found, known = (
        SpectralClustering(3, **MODEL).fit(X, sample_weight=np.ones(60)),
        SpectralClustering(3, **MODEL).fit(X),
    )
    np.testing.assert_array_equal(found.labels_, known.labels_)
    np.testing.assert_array_equal(found.embedding_, known.embedding_)


@pytest.mark.parametrize(
    ("weights", "word"), [(np.full(60, 0.01), "sum"), (np.ones(59), "60"), (np.arange(60) < 2, "n_clusters")]
)
def test_weights_that_are_rejected(weights: np.ndarray, word: str) -> None:
    with pytest.raises(DataError, match=word):
        SpectralClustering(3, **MODEL).fit(X, sample_weight=weights)
