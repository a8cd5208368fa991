"""The base class of representations: maps from samples to scores and back."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.finite import check_finite
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, blocks
from dpca.kernels.pixels import Pixels, to_pixels
from dpca.representation.on_disk import ArrayOnDisk
from dpca.storage.arrays.layout import count_spatial
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number

#: A store of scores states the fingerprint of its representation under this name.
MODEL_FACT = "model"
# Bytes of an array that are hashed at a time.
_HASHED_BYTES = 2**24


class Representation(ABC):
    """Encodes samples as scores and decodes scores as samples.

    The defaults suit floating-point scores of whole samples. A subclass has a ``sample_shape`` and implements `_encode`
    and `_decode`. These may raise ValueError or ArithmeticError. `encode` and `decode` check the values before and
    after.
    """

    #: Kind of a store of these scores; it ends in "scores".
    scores_kind: str = "scores"

    #: Whether scores are in the units of the samples.
    keeps_units: ClassVar[bool] = True

    #: Whether scores can be decoded. If so, stores of scores state the quality.
    decodes: ClassVar[bool] = True

    if TYPE_CHECKING:  # at run time, a dataclass would use this property as the default of its field

        @property
        def sample_shape(self) -> tuple[int, ...]:
            """Shape of one sample."""

    @property
    @abstractmethod
    def score_shape(self) -> tuple[int, ...]:
        """Shape of one sample's scores, components last."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of the components."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all arrays."""

    def score_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Return the type of the scores of samples with a given type."""
        return np.result_type(working_dtype(dtype), self.dtype)

    def score_bytes(self, dtype: np.dtype[Any]) -> int:
        """Return the bytes of the scores of one sample, given the dtype of samples."""
        return math.prod(self.score_shape) * self.score_dtype(dtype).itemsize

    def decoded_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Return the floating-point type of samples decoded from scores with a given type."""
        return np.result_type(dtype, self.dtype)

    @property
    def cell_shape(self) -> tuple[int, ...] | None:
        """Length of a cell along each spatial axis, None if samples are not divided into cells."""
        return None

    def score_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the axes of one sample's scores, given those of a sample."""
        return ("component",)

    def score_centers(self, axis: int, values: Array) -> Array | None:
        """Return the centers of cells along an axis of a sample, from the positions of its entries, or None."""
        return None

    def n_spatial(self, axes: Sequence[str]) -> int:
        """Return the number of spatial axes of a sample with these names of axes."""
        return count_spatial(axes)

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the hash that identifies this representation in stores of its scores.

        A model has the same fingerprint in memory and on disk. All arrays are hashed, about a second a gigabyte.
        """

    @abstractmethod
    def work_bytes(self, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        """Bytes of temporary arrays, results included, for encoding or decoding ``n_rows`` samples of a type.

        ``pixels`` states that samples are decoded to pixels of this type, and not to floating point.
        """

    @abstractmethod
    def _leading(self, n_components: int) -> Self:
        """Return the representation with the first ``n_components`` components."""

    @abstractmethod
    def _encode(self, samples: Array) -> Array:
        """Return scores (n, *score_shape) of samples (n, *sample_shape)."""

    @abstractmethod
    def _decode(self, scores: Array, pixels: Pixels | None) -> Array:
        """Return decoded samples (n, *sample_shape), rounded and clipped to pixels if that is faster here."""

    def leading(self, n_components: int | None) -> Self:
        """Return the representation with the first ``n_components`` components; None means all.

        Raises
        ------
        DataError
            If there are fewer components, or this is not a positive integer.
        """
        level = self.level(n_components)
        return self if n_components is None else self._leading(level)

    def level(self, n_components: int | None) -> int:
        """Return the number of the first ``n_components`` components, or raise as `leading`; nothing is read."""
        known = self.score_shape[-1]
        if n_components is None:
            return known
        wanted = whole_number(n_components, "n_components", 1, ", or None for all")
        if wanted > known:
            raise DataError(f"n_components is {wanted} but there are only {known}: give at most that many")
        return wanted

    def encode(self, samples: Array, name: str = "a chunk", first: int = 0) -> Array:
        """Return the scores (n, *score_shape) of samples.

        Parameters
        ----------
        samples : array (n, *sample_shape), any real dtype
        name : str
            Name of the samples in errors.
        first : int
            Index of the first sample, for errors.

        Raises
        ------
        DataError
            If samples or scores are not finite.
        """
        self._check_samples(samples, first, name)
        scores = named_errors(self._encode, name)(samples)
        if samples.dtype.kind == "f":
            check_finite(scores, first, name, _beyond("scores", scores))
        return scores

    def _check_samples(self, samples: Array, first: int, name: str) -> None:
        """Reject samples with values that this representation does not support; see `encode`."""
        check_finite(samples, first, name)

    def decode(self, scores: Array, name: str = "the scores", first: int = 0, *, pixels: Pixels | None = None) -> Array:
        """Return the samples (n, *sample_shape) decoded from scores.

        Parameters
        ----------
        scores : array (n, *score_shape), of a `score_dtype`
        name, first
            As for `encode`.
        pixels : Pixels, optional
            Type and range of a stack; samples are rounded and clipped to them. Default: neither, in floating point.

        Raises
        ------
        DataError
            If scores or samples are not finite.
        """
        check_finite(scores, first, name)
        # A sample is a sum of at most some thousand scores times finite numbers. It overflows only if these are large.
        most = math.sqrt(np.finfo(self.decoded_dtype(scores.dtype)).max)
        large = scores.size and max(float(scores.max()), -float(scores.min())) > most
        samples = named_errors(self._decode, name)(scores, None if large else pixels)
        if large:
            check_finite(samples, first, name, _beyond("values", samples))
        return samples if pixels is None or samples.dtype == pixels.dtype else to_pixels(samples, *pixels)


def array_digest(array: Array | ArrayOnDisk) -> list[Any]:
    """Return a hash of an array's values, with its shape and type, as JSON values. It reads slices, one at a time.

    Of an array on disk, the hash is that of its stored checksums, so that the array is not read.
    """
    state = blake2b(digest_size=16)
    checksums = array.checksums() if isinstance(array, ArrayOnDisk) else None
    state.update((checksums or "").encode())
    for part in _slices(array) if checksums is None else ():
        state.update(np.ascontiguousarray(array[part]).tobytes())
    return [state.hexdigest(), list(array.shape), str(array.dtype)]


def _slices(array: Array | ArrayOnDisk) -> Iterator[tuple[slice, ...]]:
    """Yield slices of at most 16 MiB that cover an array in C order."""
    most = max(1, _HASHED_BYTES // array.dtype.itemsize)
    ahead = [math.prod(array.shape[axis + 1 :]) for axis in range(len(array.shape))]
    axis = next((i for i, size in enumerate(ahead) if size <= most), 0)
    for first in itertools.product(*map(range, array.shape[:axis])):
        before = tuple(slice(i, i + 1) for i in first)
        if not array.shape:
            yield ()
        else:
            yield from ((*before, rows) for rows in blocks(array.shape[axis], max(1, most // max(1, ahead[axis]))))


def _beyond(what: str, values: Array) -> str:
    return f"has {what} beyond the range of {values.dtype}: divide all values by a constant, or give them as float64"
