"""What a fitted linear model is, whatever it makes components of: two maps between samples and scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpca.engine.boundary import guarded
from dpca.engine.source import check_finite
from storage.errors import DataError
from storage.workspace import fingerprint_of

Array = NDArray[Any]

#: Under this name a store of scores states the fingerprint of the basis that they were made with.
MODEL_FACT = "model"
# Squared length of a row that is zero but for rounding.
_ZERO_ROW = 1e-6


class Basis(Protocol):
    """A mean and components, of cells, bands or whole samples."""

    #: What a store of these scores calls itself.
    scores_kind: ClassVar[str]

    @property
    def mean(self) -> Array:
        """Mean sample."""

    @property
    def components(self) -> Array:
        """Components, the first axis counts them."""

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""

    @property
    def cell_shape(self) -> tuple[int, ...] | None:
        """Cells that samples are cut into, None where components reach over whole samples."""

    @property
    def score_shape(self) -> tuple[int, ...]:
        """Shape of one sample's scores, components last."""

    @property
    def split(self) -> list[Any]:
        """What says how attributes are split, in values that JSON holds."""

    def score_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Name the axes of one sample's scores, given those of a sample."""

    def n_spatial(self, axes: Sequence[str]) -> int:
        """Return how many of a sample's axes, which have these names, are axes of space."""

    def leading(self, n_components: int) -> Basis:
        """Return the basis of the first ``n_components`` components."""

    def project(self, samples: Array) -> Array:
        """Return scores (n, *score_shape) of samples (n, *sample_shape)."""

    def reconstruct(self, scores: Array) -> Array:
        """Return the samples that scores stand for, neither rounded nor clipped."""

    def work_bytes(self, n_rows: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays of projecting or reconstructing ``n_rows`` samples, results included."""


def basis_fingerprint(basis: Basis) -> str:
    """Return the hash by which scores know what they were made with: of the mean, the components and their places.

    A model has the same one in memory and on disk. Costs one look at the arrays, about a second a gigabyte.
    """
    shapes = [list(basis.sample_shape), list(basis.score_shape)]
    return fingerprint_of(basis.scores_kind, shapes, basis.split, *map(array_digest, (basis.mean, basis.components)))


def array_digest(array: Array) -> list[Any]:
    """Return a hash of an array's values, its shape and its type, in values that JSON holds."""
    values = blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()
    return [values, list(array.shape), str(array.dtype)]


def projected(basis: Basis, samples: Array, name: str, first: int = 0) -> Array:
    """Return the scores of samples, refusing those that are not finite, on either side.

    Parameters
    ----------
    basis : Basis
    samples : array (n, *sample_shape)
    name : str
        What errors call them.
    first : int
        Number of the first one.

    Raises
    ------
    DataError
    """
    if samples.dtype.kind == "f":
        check_finite(samples, first, name)
    scores = guarded(basis.project, name)(samples)
    if samples.dtype.kind == "f":
        _check_range(scores, first, name, "scores")
    return scores


def rebuilt(basis: Basis, scores: Array, name: str, first: int = 0) -> Array:
    """Return the samples that scores stand for, refusing those that are not finite, on either side; see `projected`."""
    check_finite(scores, first, name)
    samples = guarded(basis.reconstruct, name)(scores)
    # Samples are sums of at most some thousand scores, and a mean that is finite: a look at all of them is seldom due.
    if scores.size and max(float(scores.max()), -float(scores.min())) > math.sqrt(np.finfo(samples.dtype).max):
        _check_range(samples, first, name, "samples")
    return samples


def _check_range(values: Array, first: int, name: str, what: str) -> None:
    finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if not finite.all():
        raise DataError(
            f"the {what} of sample {first + int(finite.argmin())} of {name} are beyond the range of {values.dtype}: "
            f"divide all values by a constant, or give them as float64"
        )


def kept_rows(rows: Array) -> int:
    """Return how many rows (k, d), of length 1 or 0 up to rounding, there are up to the last one of length 1."""
    used = np.flatnonzero(np.einsum("ij,ij->i", rows, rows) > _ZERO_ROW)
    return int(used[-1]) + 1 if used.size else 0


def checked_level(n_components: int | None, known: int) -> int:
    """Return how many of ``known`` components to use; None stands for all.

    Raises
    ------
    DataError
        If there are not so many, or it is no number of components.
    """
    if n_components is None:
        return known
    if isinstance(n_components, bool) or not isinstance(n_components, int | np.integer) or n_components < 1:
        raise DataError(f"n_components is {n_components!r}: give a positive integer, or None for all")
    if n_components > known:
        raise DataError(f"n_components is {n_components} but there are only {known}: ask for at most that many")
    return int(n_components)
