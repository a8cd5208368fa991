"""Spectral clustering of data of any size with landmarks."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state

from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.held_out import repeated
from dpca.engine.sources.source import batches
from dpca.kernels.algebra.types import Array
from dpca.models.base.docs import documented
from dpca.models.base.parameters import check_parameters
from dpca.models.base.passes import Passes, run_of_fit
from dpca.models.base.samples import counts_and_fractions, varied_source
from dpca.models.kernel.kernel_methods import by_degrees
from dpca.models.kernel.kernel_pca import KernelPCA
from dpca.parameters.kernel import ClusteringParameters
from dpca.rules.covariance.covariance import BLOCK_ROWS
from dpca.storage.errors import DataError
from dpca.storage.remote.memory import usable_bytes
from dpca.storage.run import Run


@documented()
class SpectralClustering(ClusteringParameters, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Spectral clustering (Ng, Jordan & Weiss 2002) in three passes, with landmarks of a kernel.

    The leading eigenvectors of D^(-1/2) K D^(-1/2), without centering, are computed as in `KernelPCA`. The degrees D
    follow from the kernels with landmarks (Fowlkes, Belongie, Chung & Malik 2004). The rows of the eigenvectors, scaled
    to length 1, are clustered by k-means.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    labels_ : array (n_samples,), int32
    embedding_ : array (n_samples, n_clusters), float32
        Rows of length 1.
    eigenvalues_ : array (n_clusters,), float64
        Descending, at most about 1.
    """

    def fit(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Self:
        """Cluster samples.

        Parameters
        ----------
        X : array (n_samples, *sample_shape), Stack, path or Source
            As in `KernelPCA.fit`.
        y : ignored
        sample_weight : array_like (n_samples,), optional
            How often each sample counts, as in `KernelPCA.fit`. The clusters are those of repeated samples. ``labels_``
            and ``embedding_`` have an entry for each given sample, also for those of weight 0, which belong to the
            nearest cluster.

        Raises
        ------
        DataError
            If a value is not finite, there are fewer samples than clusters, or the weights are invalid.
        PlanError
            If the fit does not fit into memory.
        """
        check_parameters(self)
        shared = ("gamma", "n_landmarks", "landmarks", "random_state", "memory_budget")
        model = KernelPCA(self.n_clusters, **{name: getattr(self, name) for name in shared})
        source = varied_source(self, X)
        n, shape = source.shape[0], tuple(source.shape[1:])
        counts, fractions = None, None
        if sample_weight is not None:
            counts, fractions = counts_and_fractions(sample_weight, n, any_weights=True)
        read = source if counts is None else repeated(source, counts)
        if fractions is not None:
            read = copy.copy(read)
            read.weights = fractions
        if self.n_clusters > read.shape[0]:
            raise DataError(
                f"n_clusters is {self.n_clusters}, but there are only {read.shape[0]} samples: use at most "
                f"{read.shape[0]}"
            )
        self._check_memory(n if counts is None else n + read.shape[0])
        problem = replace(model._problem(read.shape[0], shape, read.dtype), center=False)
        passes = Passes(read, run_of_fit(Run(), self.memory_budget))
        found = by_degrees(problem, passes)
        values = found.results["eigenvalues"]
        coefficients = found.results["coefficients"] / np.sqrt(values)
        if coefficients.shape[1] < self.n_clusters:
            raise DataError(
                f"n_clusters is {self.n_clusters}, but the samples have only {coefficients.shape[1]} directions of "
                f"feature space: use at most {coefficients.shape[1]}"
            )
        self.eigenvalues_ = values
        self.embedding_ = np.empty((n, self.n_clusters), np.float32)
        for first, rows in batches(source, (0, n), tuple((0, length) for length in shape), BLOCK_ROWS):
            scores = found.to_landmarks(rows.reshape(len(rows), -1)) @ coefficients
            lengths = np.linalg.norm(scores, axis=1, keepdims=True)
            self.embedding_[first : first + len(rows)] = scores / np.where(lengths > 0, lengths, 1)
        from sklearn.cluster import KMeans  # slow to import

        seed = check_random_state(self.random_state).randint(2**31)
        rows = self.embedding_ if counts is None else self.embedding_.repeat(counts, axis=0)
        means = KMeans(self.n_clusters, n_init=self.n_init, random_state=seed)
        clusters = means.fit(rows, sample_weight=fractions)
        self.labels_: Array = clusters.labels_ if counts is None else clusters.predict(self.embedding_)
        return self

    def _check_memory(self, n: int) -> None:
        """Raise `PlanError` if the embedding and k-means do not fit into the memory of this process.

        k-means copies the embedding, and draws its starts from distances to a few candidates (measured: 8 n_clusters +
        35 bytes a sample).
        """
        need, room = n * (12 * self.n_clusters + 48), usable_bytes()
        if need > room:
            raise PlanError(
                f"{n:,} samples and {self.n_clusters} clusters need {need / 1e6:,.0f} MB for k-means, but this process "
                f"may use {room / 1e6:,.0f} MB: use fewer samples or clusters, or cluster the scores of KernelPCA in "
                f"batches"
            )
