"""Scores of samples with missing values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.folds.boundary import named_errors
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.gaps import (
    BLOCK_ROWS,
    LowRank,
    completed_scores,
    counts_of,
    filled_rows,
    is_present,
    summed_scores,
    sums_of_box,
)
from dpca.partition.cells import CellGrid
from dpca.partition.whole import Whole
from dpca.representation.base import array_digest
from dpca.representation.linear import LinearRepresentation, first_rows
from dpca.storage.transaction.workspace import fingerprint_of


@dataclass(frozen=True, eq=False)
class GappyRepresentation(LinearRepresentation):
    """Scores by orthonormal components, in which missing values are filled with their expectation.

    Scores of samples without missing values are those of `LinearRepresentation`.

    Boxes of whole cells are independent of each other. If components are those of whole samples, the scores of a sample
    depend on all its values, but only by sums over attributes: its products with the components, and the products of
    the components at the values that are there. A pass over boxes adds up these `summands`. With the `expected` scores
    from them, a second pass fills boxes.

    Parameters
    ----------
    partition, mean, components
        As in `LinearRepresentation`. The mean is NaN at attributes that the model does not know.
    explained_variance : array (*grid_shape, n_components)
    total_variance : float or array (*grid_shape)
    missing : number, optional
        Marks a missing value, in addition to NaN.
    counts : (int, int), optional
        Of a box of whole samples: `dpca.kernels.gaps.counts_of` of these.
    """

    explained_variance: Array
    total_variance: Any
    missing: Any = None
    counts: tuple[int, int] | None = None

    @property
    def divides(self) -> bool:
        """Whether `box` is supported."""
        return type(self.partition) in (Whole, CellGrid)

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

    def box_features(self, n_bytes: int, itemsize: int) -> int:
        """Return about the number of attributes of a box, as `LinearRepresentation.box_features`.

        The products of all pairs of components take the most memory.
        """
        k = len(self.components)
        return n_bytes // (n_bytes // max(1, super().box_features(n_bytes, itemsize)) + itemsize * k * (k + 3) // 2)

    def models(self) -> Iterator[LowRank]:
        """Yield the model of each part, without components that are zero."""
        partition = self.partition
        shaped = np.ascontiguousarray(self.components).reshape(-1, *self.sample_shape)
        means = partition.all_parts(np.asarray(self.mean, np.float64).reshape(1, *self.sample_shape))
        explained = np.asarray(self.explained_variance).reshape(partition.n_parts, -1)
        totals = np.ravel(self.total_variance)
        for rows, mean, values, total in zip(partition.all_parts(shaped), means, explained, totals, strict=True):
            yield LowRank.of(rows, values, float(total), mean[0], self.counts)

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

    @property
    def summand_shape(self) -> tuple[int, ...]:
        """Shape of the `summands` of a sample."""
        if not self.adds_boxes:
            return self.score_shape
        return (self.expected_length + 1,)

    def summands(self, samples: Array, name: str = "a chunk", first: int = 0) -> Array:
        """Return what is summed over boxes: see `sums_of_box`; of cells, these are scores."""
        if not self.adds_boxes:
            return self.encode(samples, name, first)
        self._check_samples(samples, first, name)
        (model,) = self.models()
        rows = samples.reshape(len(samples), -1)
        found: Array = named_errors(sums_of_box, name)(model, rows, self.missing, self.score_dtype(samples.dtype))
        return found

    def scores_of_sums(self, sums: Array, dtype: DTypeLike) -> Array:
        """Return the scores (n, *score_shape) of samples of a type, given the sums of their `summands`."""
        return super().scores_of_sums(self._of_sums(sums, dtype)[0] if self.adds_boxes else sums, dtype)

    def errors_of_sums(self, sums: Array, dtype: DTypeLike) -> Array:
        """Return the `errors` of samples of a type, given the sums of their `summands`, of whole samples."""
        return super().scores_of_sums(self._of_sums(sums, dtype)[1], dtype)

    def expected_of_sums(self, sums: Array, dtype: DTypeLike) -> Array:
        """Return what `filled` requires of samples, given the sums of their `summands`, of whole samples."""
        return self._of_sums(sums, dtype)[2]

    def _of_sums(self, sums: Array, dtype: DTypeLike) -> tuple[Array, Array, Array]:
        """Return the results of `summed_scores`, with scores of 0 for components that are 0."""
        scores, errors, expected = summed_scores(self._whole, sums, self.score_dtype(dtype))
        more = ((0, 0), (0, len(self.components) - scores.shape[1]))
        return np.pad(scores, more), np.pad(errors, more), expected

    @property
    def expected_length(self) -> int:
        """Number of entries of `expected_of_sums` of a sample."""
        k = len(self._whole.variances)
        return k + k * (k + 1) // 2

    @property
    def _whole(self) -> LowRank:
        """The model of whole samples, without attributes."""
        none, rows = np.empty(0), np.empty((len(self.components), 0), self.dtype)
        return LowRank.of(rows, np.asarray(self.explained_variance), float(self.total_variance), none, self._counts)

    def _each(self, samples: Array, function: Any, name: str) -> list[Array]:
        """Return the scores and their errors (n, *score_shape), float, of all parts."""
        dtype = self.score_dtype(samples.dtype)
        both = [np.zeros((len(samples), self.partition.n_parts, len(self.components)), dtype) for _ in range(2)]
        for i, (model, rows) in enumerate(zip(self.models(), self.partition.all_parts(samples), strict=True)):
            found = named_errors(function, name)(model, rows, self.missing, dtype)
            for values, own in zip(both, found, strict=True):
                values[:, i, : own.shape[1]] = own
        return [values.reshape(len(samples), *self.score_shape) for values in both]

    def filled(self, samples: Array, name: str = "a chunk", expected: Array | None = None) -> tuple[Array, Array]:
        """Return samples with missing values replaced by their expectation, and standard errors of them, float32.

        Values that are there do not change, and have an error of 0. At attributes that the model does not know nothing
        changes, and errors are NaN. A box of whole samples requires what is ``expected``, see `expected_of_sums`.
        """
        dtype, split = self.score_dtype(samples.dtype), self.partition.all_parts(samples)
        parts = [
            named_errors(filled_rows, name)(model, rows, self.missing, dtype, expected)
            for model, rows in zip(self.models(), split, strict=True)
        ]
        joined = [np.zeros(samples.shape, kind) for kind in (samples.dtype, np.float32)]
        for number, out in enumerate(joined):
            self.partition.join(((i, part[number][None]) for i, part in enumerate(parts)), out)
        return joined[0], joined[1]

    def box(self, region: Region, n_components: int | None = None) -> Self:
        """Return the representation of a box of samples, as `LinearRepresentation.box`."""
        places, counts = self.score_places(region), self._counts if self.adds_boxes else None
        explained, total = np.asarray(self.explained_variance)[places], np.asarray(self.total_variance)[places]
        found = replace(super().box(region), explained_variance=explained, total_variance=total, counts=counts)
        return found if n_components is None else found._leading(n_components)

    @cached_property
    def _counts(self) -> tuple[int, int]:
        rows = np.ascontiguousarray(self.components).reshape(len(self.components), -1)
        return self.counts or counts_of(rows, np.asarray(self.mean))

    def _leading(self, n_components: int) -> Self:
        # The noise of the leading components includes the variance of the others.
        explained = self.explained_variance[..., :n_components]
        counts = None if self.counts is None else (min(self.counts[0], n_components), self.counts[1])
        rows = first_rows(self.components, n_components)
        return replace(self, components=rows, explained_variance=explained, counts=counts)


def score_errors(basis: GappyRepresentation, samples: Array, name: str = "a chunk") -> Array:
    """Return `GappyRepresentation.errors`, as a function of each sample."""
    return basis.errors(samples, name)


def filled_samples(basis: GappyRepresentation, samples: Array, name: str = "a chunk") -> Array:
    """Return the filled samples of `GappyRepresentation.filled`."""
    return basis.filled(samples, name)[0]


def fill_errors(basis: GappyRepresentation, samples: Array, name: str = "a chunk") -> Array:
    """Return the standard errors of `GappyRepresentation.filled`."""
    return basis.filled(samples, name)[1]
