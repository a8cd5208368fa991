"""Scores of samples with missing values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.folds.boundary import named_errors
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.gaps import BLOCK_ROWS, LowRank, completed_scores, filled_rows, is_present
from dpca.representation.base import array_digest
from dpca.representation.linear import LinearRepresentation, first_rows
from dpca.storage.errors import DataError
from dpca.storage.transaction.workspace import fingerprint_of


@dataclass(frozen=True, eq=False)
class GappyRepresentation(LinearRepresentation):
    """Scores by orthonormal components, in which missing values are filled with their expectation.

    Scores of samples without missing values are those of `LinearRepresentation`.

    Parameters
    ----------
    partition, mean, components
        As in `LinearRepresentation`. The mean is NaN at attributes that the model does not know.
    explained_variance : array (*grid_shape, n_components)
    total_variance : float or array (*grid_shape)
    missing : number, optional
        Marks a missing value, in addition to NaN.
    """

    explained_variance: Array
    total_variance: Any
    missing: Any = None

    @property
    def divides(self) -> bool:
        """Whether `box` is supported: a score depends on all values of a part."""
        return False

    def fingerprint(self) -> str:
        """Return the hash of the linear representation, the variances and the number that marks missing values."""
        variances = map(array_digest, (self.explained_variance, np.asarray(self.total_variance)))
        return fingerprint_of("gappy", super().fingerprint(), *variances, self.missing)

    def work_bytes(self, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        """Bytes of temporary arrays, as `Representation.work_bytes`, including the equations of samples with gaps."""
        k, d, size = len(self.components), self.partition.max_features, self.score_dtype(dtype).itemsize
        copies = n_rows * sum(map(self.partition.n_features, range(self.partition.n_parts))) * (size + 1)
        step = min(n_rows, BLOCK_ROWS)
        return super().work_bytes(n_rows, dtype, pixels=pixels) + 2 * copies + 48 * step * k**2 + (k**2 + step) * d * 16

    def models(self) -> Iterator[LowRank]:
        """Yield the model of each part, without components that are zero."""
        partition = self.partition
        shaped = np.ascontiguousarray(self.components).reshape(-1, *self.sample_shape)
        means = partition.all_parts(np.asarray(self.mean, np.float64).reshape(1, *self.sample_shape))
        explained = np.asarray(self.explained_variance).reshape(partition.n_parts, -1)
        totals = np.ravel(self.total_variance)
        for rows, mean, values, total in zip(partition.all_parts(shaped), means, explained, totals, strict=True):
            yield LowRank.of(rows, values, float(total), mean[0])

    def _check_samples(self, samples: Array, first: int, name: str) -> None:
        named_errors(is_present, name)(samples, self.missing)

    def _encode(self, samples: Array) -> Array:
        """Return the scores of each sample; 0 in a part without any value."""
        unknown = np.isnan(self.mean).reshape(self.sample_shape)
        complete = (is_present(samples, self.missing) | unknown).reshape(len(samples), -1).all(axis=1)
        if complete.all() and not unknown.any():
            return super()._encode(samples)
        scores = np.empty((len(samples), *self.score_shape), self.score_dtype(samples.dtype))
        if complete.any():
            # At attributes that the model does not know, components are 0, and values may be NaN.
            whole = np.where(unknown, samples.dtype.type(0), samples[complete])
            scores[complete] = LinearRepresentation._encode(replace(self, mean=np.nan_to_num(self.mean)), whole)
        if not complete.all():
            scores[~complete] = self._each(samples[~complete], completed_scores, "a chunk")[0]
        return scores

    def errors(self, samples: Array, name: str = "a chunk") -> Array:
        """Return the standard errors (n, *score_shape) of the scores of samples, 0 of those without gaps."""
        return self._each(samples, completed_scores, name)[1]

    def _each(self, samples: Array, function: Any, name: str) -> list[Array]:
        """Return the scores and their errors (n, *score_shape), float, of all parts."""
        dtype = self.score_dtype(samples.dtype)
        both = [np.zeros((len(samples), self.partition.n_parts, len(self.components)), dtype) for _ in range(2)]
        for i, (model, rows) in enumerate(zip(self.models(), self.partition.all_parts(samples), strict=True)):
            found = named_errors(function, name)(model, rows, self.missing, dtype)
            for values, own in zip(both, found, strict=True):
                values[:, i, : own.shape[1]] = own
        return [values.reshape(len(samples), *self.score_shape) for values in both]

    def filled(self, samples: Array, name: str = "a chunk") -> tuple[Array, Array]:
        """Return samples with missing values replaced by their expectation, and standard errors of them, float32.

        Values that are there do not change, and have an error of 0. At attributes that the model does not know nothing
        changes, and errors are NaN.
        """
        dtype, split = self.score_dtype(samples.dtype), self.partition.all_parts(samples)
        parts = [
            named_errors(filled_rows, name)(model, rows, self.missing, dtype)
            for model, rows in zip(self.models(), split, strict=True)
        ]
        joined = [np.zeros(samples.shape, kind) for kind in (samples.dtype, np.float32)]
        for number, out in enumerate(joined):
            self.partition.join(((i, part[number][None]) for i, part in enumerate(parts)), out)
        return joined[0], joined[1]

    def box(self, region: Region, n_components: int | None = None) -> Self:
        """Raise an error: see `divides`."""
        raise DataError("scores of samples with gaps require whole samples")

    def _leading(self, n_components: int) -> Self:
        # The noise of the leading components includes the variance of the others.
        explained = self.explained_variance[..., :n_components]
        return replace(self, components=first_rows(self.components, n_components), explained_variance=explained)


def score_errors(basis: GappyRepresentation, samples: Array, name: str = "a chunk") -> Array:
    """Return `GappyRepresentation.errors`, as a function of each sample."""
    return basis.errors(samples, name)


def filled_samples(basis: GappyRepresentation, samples: Array, name: str = "a chunk") -> Array:
    """Return the filled samples of `GappyRepresentation.filled`."""
    return basis.filled(samples, name)[0]


def fill_errors(basis: GappyRepresentation, samples: Array, name: str = "a chunk") -> Array:
    """Return the standard errors of `GappyRepresentation.filled`."""
    return basis.filled(samples, name)[1]
