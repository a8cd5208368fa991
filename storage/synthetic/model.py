"""The base class of image models, which computes boxes of samples.

A sample is ``mean + sum_j z_j mode_j + noise``. There are a few modes, each an image. The weights z depend on the
number of the sample. The noise is a segment of one long sequence, which begins at a place that depends on this number,
too. Therefore the mean and the covariance are known::

    covariance = sum_j variance(z_j) mode_j mode_j^T + noise_variance identity        (`ImageModel.components`)

This is exact except for rounding, clipped values, and the difference between the sequence and white noise. The sequence
is periodic with 2^20 values, or the number of values of a larger sample, rounded up to a power of two.

All numbers are integers times one power of two, and no sum has more than 24 bits. Sums in float32 are therefore exact
in any order of summation, and every machine computes the same bytes.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from dpca.storage.arrays.layout import axes_for, choose_layout
from dpca.storage.errors import DataError
from dpca.storage.integrity.manifest import digest_of
from dpca.storage.synthetic.exact import BELL_MOST, BELL_VARIANCE, Floats, bells, octets, words

Region = Sequence[tuple[int, int]]

RANDOM, SORTED = "random", "sorted"

# Streams of random words of one seed.
_WEIGHTS, _GROUPS, _NOISE, _DESIGN = range(4)
# Samples of a group, which are similar if samples are sorted, like the photographs of one person in a folder.
_GROUP = 1024
# Shortest sequence of noise in values.
_SEQUENCE = 2**20
# Bits of integers in float32. One more bit is for their sums.
_BITS = 23
# Values that are computed at once, in the cache of a core, and the number of these that belong to one sample.
_VALUES, _OF_SAMPLE = 2**19, 2**14
# Most values of a sample. Each mode requires 4 bytes per value.
_MOST_VALUES, _MOST_AXES = 2**22, 6
_MOST_SAMPLES = 2**40
_MOST_BYTES = 2**30
# Most bytes per value of a sample that `design` requires for a mode, including the mean.
_DESIGNING = 88


@dataclass(frozen=True, eq=False)
class Parts:
    """The summands of samples: float32, integers times a power of two.

    Attributes
    ----------
    basis : ndarray of float32, shape (1 + n_modes, *sample_shape)
        The mean, and the modes.
    noise : ndarray of float32, shape (n_places + n_values,)
        The sequence, extended by its beginning, so that each sample uses a contiguous segment.
    most : float
        Largest possible absolute value before rounding and clipping.
    """

    basis: NDArray[np.float32]
    noise: NDArray[np.float32]
    most: float


@dataclass(frozen=True)
class ImageModel(ABC):
    """Samples that a seed and their numbers determine, with known mean and covariance.

    Attributes
    ----------
    n_samples : int
        Number of samples.
    sample_shape : tuple of int
        Shape of a sample.
    seed : int
        From 0 to 2**64 - 1.
    order : {"random", "sorted"}
        With "random", samples are independent. With "sorted", samples are similar within groups of 1024 consecutive
        ones, as in a folder for each person: groups have three quarters of the variance of the weights.

    Raises
    ------
    DataError
        If a parameter is invalid.
    """

    n_samples: int
    sample_shape: tuple[int, ...]
    seed: int = 0
    order: str = RANDOM

    #: Version of the model. It changes if the same parameters result in other samples.
    recipe: ClassVar[int] = 1
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)
    orders: ClassVar[tuple[str, ...]] = (RANDOM, SORTED)
    #: Variance of weights, and their largest absolute value.
    weight_variance: ClassVar[float] = BELL_VARIANCE
    weight_most: ClassVar[int] = BELL_MOST
    #: Number of arrays with the length of the noise, 8 bytes per value, that `grain` has in memory at once.
    grain_arrays: ClassVar[int] = 1

    def __post_init__(self) -> None:
        shape, values = self.sample_shape, math.prod(self.sample_shape)
        self._require(len(shape) <= _MOST_AXES, f"samples have {len(shape):,} axes: give at most {_MOST_AXES}")
        self._require(min(shape, default=0) >= 1, f"samples of shape {shape} are empty: give lengths of at least 1")
        self._require(
            values <= _MOST_VALUES,
            f"samples of shape {shape} have {values:,} values: give at most {_MOST_VALUES:,} per sample",
        )
        self._require(
            self.nbytes <= _MOST_BYTES,
            f"samples of shape {shape} require {self.nbytes:,} bytes of a process, above the limit of "
            f"{_MOST_BYTES:,}: choose smaller samples",
        )
        n, orders = self.n_samples, " or ".join(map(repr, self.orders))
        self._require(1 <= n <= _MOST_SAMPLES, f"the number of samples is {n}: give 1 to {_MOST_SAMPLES:,}")
        self._require(0 <= self.seed < 2**64, f"the seed is {self.seed}: give a whole number from 0 to 2**64 - 1")
        self._require(self.order in self.orders, f"the order is {self.order!r}: choose {orders}")

    @staticmethod
    def _require(holds: bool, otherwise: str) -> None:
        if not holds:
            raise DataError(otherwise)

    # -- the definition of a model

    @property
    @abstractmethod
    def n_modes(self) -> int:
        """Number of modes."""

    @property
    @abstractmethod
    def noise(self) -> float:
        """Standard deviation of the noise."""

    @abstractmethod
    def design(self) -> tuple[Floats, Iterable[Floats]]:
        """Return the mean, and each mode times the standard deviation of its weight, by exact arithmetic only."""

    def grain(self, sequence: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the noise, which may be correlated, from a periodic sequence of white noise."""
        return sequence

    def weights(self, start: int, stop: int, drawn: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the weights of samples, shape (stop - start, n_modes): integers of mean 0.

        Parameters
        ----------
        start, stop : int
            The first sample, and the sample after the last one.
        drawn : ndarray of uint8, shape (stop - start, 4 n_modes or more)
            Random bytes of each sample.
        """
        own = drawn[:, : 4 * self.n_modes]
        if self.order == SORTED:
            first, last = start // _GROUP, (stop - 1) // _GROUP
            of_groups = octets(words(self.seed, _GROUPS, first, last - first + 1, self._n_words))
            alike = of_groups[np.arange(start, stop) // _GROUP - first, : own.shape[1]]
            alike[:, ::4] = own[:, ::4]
            own = alike
        return bells(own)

    def random(self, n: int, start: int = 0) -> Floats:
        """Return numbers between 0 and 1 from a sequence that the seed determines, for `design`."""
        first = start // 4
        found = words(self.seed, _DESIGN, first, -(-(start + n) // 4) - first).reshape(-1)[start - 4 * first :][:n]
        found >>= np.uint64(32)
        return found.astype(np.float64) / 2.0**32

    # -- known properties

    @property
    def _n_words(self) -> int:
        """Random words per sample: four bytes for each weight, and the last word for its place in the noise."""
        return -(-(4 * self.n_modes + 8) // 32) * 4

    @property
    def _n_places(self) -> int:
        """Length of the sequence of noise, a power of two, so that all places have the same probability."""
        return max(_SEQUENCE, 1 << (math.prod(self.sample_shape) - 1).bit_length())

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes of a sample."""
        return axes_for(self.sample_shape)

    @property
    def data_range(self) -> tuple[float, float]:
        """Lowest and highest possible value of a sample."""
        if self.dtype.kind == "u":
            return 0.0, float(np.iinfo(self.dtype).max)
        most = parts_of(self).most
        return -most, most

    @property
    def chunks(self) -> tuple[int, ...]:
        """Chunks of a stack store of such samples."""
        shape = (self.n_samples, *self.sample_shape)
        return choose_layout(shape, self.dtype.itemsize, ("sample", *self.axes)).chunks

    @property
    def nbytes(self) -> int:
        """Most bytes of memory of a process that computes samples, in boxes of any number and size."""
        values, places = math.prod(self.sample_shape), self._n_places
        # The sums of a piece as floating-point numbers and as integers, and its modes.
        piece = min(max(_OF_SAMPLE, math.prod(self.sample_shape[1:])), values)
        making = 6 * max(_VALUES, piece) + 4 * (1 + self.n_modes) * piece
        # Before that, the parts are computed in double precision.
        beginning = 8 * places + max(8 * places, _DESIGNING * values)
        held = 4 * ((1 + self.n_modes) * values + places + values)
        return max(held + max(making, beginning), 8 * self.grain_arrays * places)

    @property
    def mean(self) -> Floats:
        """True mean of the samples, of `sample_shape`."""
        rounding = 0.5 if self.dtype.kind == "u" else 0.0
        parts = parts_of(self)
        noise = parts.noise[: self._n_places]  # one period
        mean: Floats = parts.basis[0].astype(np.float64) + (float(np.mean(noise, dtype=np.float64)) - rounding)
        return mean

    @property
    def eigenvalues(self) -> Floats:
        """Eigenvalues of the true covariance above those of the noise, shape (n_modes,), the largest first."""
        return self._spectrum[0] + self.noise**2

    def components(self, k: int | None = None) -> Floats:
        """Return the leading eigenvectors of the true covariance, orthonormal rows, shape (k, n_values).

        Parameters
        ----------
        k : int, optional
            Number of eigenvectors. The default is all except those of the noise.

        Raises
        ------
        DataError
            If the model has fewer components.
        """
        most = len(self._spectrum[0])
        if k is not None and not 1 <= k <= most:
            raise DataError(f"k is {k}, but the model has {most} components besides noise: give 1 to {most}")
        return self._spectrum[1][:k]

    @cached_property
    def _spectrum(self) -> tuple[Floats, Floats]:
        modes = parts_of(self).basis[1:].reshape(self.n_modes, -1).astype(np.float64) * math.sqrt(self.weight_variance)
        found, rotation = np.linalg.eigh(modes @ modes.T)
        kept = np.argsort(found)[::-1]
        kept = kept[found[kept] > 1e-9 * found.max()]
        return found[kept], (rotation[:, kept] / np.sqrt(found[kept])).T @ modes

    def fingerprint(self) -> str:
        """Return a hash of everything that determines the samples."""
        return digest_of(json.dumps([type(self).__name__, self.recipe, self.stated()], sort_keys=True).encode())

    def stated(self) -> dict[str, Any]:
        """Return the parameters as JSON values."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        return {**values, "sample_shape": list(self.sample_shape)}

    def probe(self) -> str:
        """Return a digest of the first, the middle and the last sample, which is the same on every machine."""
        made = np.empty((1, *self.sample_shape), self.dtype.newbyteorder("<"))
        content = b""
        for number in (0, self.n_samples // 2, self.n_samples - 1):
            self.make(number, number + 1, [(0, n) for n in self.sample_shape], made)
            content += made.tobytes()
        return digest_of(content)

    # -- computing samples

    def make(self, start: int, stop: int, region: Region, out: NDArray[Any]) -> None:
        """Fill ``out`` (stop - start, *lengths of the region) with a box of samples.

        The cost is about 2 (n_modes + 1) operations per value, and one pass over the modes of the region. Memory:
        `nbytes`, and a few MB.
        """
        parts, drawn = parts_of(self), words(self.seed, _WEIGHTS, start, stop - start, self._n_words)
        weights = np.empty((stop - start, 1 + self.n_modes), np.float32)
        weights[:, 0], weights[:, 1:] = 1, self.weights(start, stop, octets(drawn))
        places = (drawn[:, -1] & np.uint64(self._n_places - 1)).tolist()
        strides = [math.prod(self.sample_shape[i + 1 :]) for i in range(len(self.sample_shape))]
        # These buffers stay in the cache. Allocating memory would take longer than the arithmetic.
        most = max(math.prod(b - a for a, b in piece) for piece in _pieces(region))
        n_sums = min(max(_VALUES, most), (stop - start) * most)
        sums, whole = np.empty(n_sums, np.float32), np.empty(n_sums if self.dtype.kind == "u" else 0, np.int16)
        for piece in _pieces(region):
            shape = tuple(b - a for a, b in piece)
            first = sum(a * stride for (a, _), stride in zip(piece, strides, strict=True))
            # A view of all segments of noise. The noise of a box is a part of the noise of its sample.
            noise = as_strided(parts.noise[first:], (self._n_places, *shape), [4, *(4 * s for s in strides)])
            basis = parts.basis[(slice(None), *(slice(a, b) for a, b in piece))].reshape(len(parts.basis), -1)
            target = out[(slice(None), *(slice(a - c, b - c) for (a, b), (c, _) in zip(piece, region, strict=True)))]
            rows = max(1, _VALUES // basis.shape[1])
            for at in range(0, stop - start, rows):
                some = weights[at : at + rows]
                n = len(some) * basis.shape[1]
                images = np.matmul(some, basis, out=sums[:n].reshape(len(some), -1)).reshape(len(some), *shape)
                for image, place in zip(images, places[at : at + rows], strict=True):
                    np.add(image, noise[place], out=image)
                if self.dtype.kind == "u":
                    integers = whole[:n].reshape(images.shape)
                    np.copyto(integers, images, casting="unsafe")
                    np.copyto(target[at : at + rows], np.clip(integers, 0, 255, out=integers), casting="unsafe")
                else:
                    np.copyto(target[at : at + rows], images)


def _pieces(region: Region) -> Iterator[Region]:
    """Divide a region along its first axis into small pieces."""
    (start, stop), *rest = region
    rows = max(1, _OF_SAMPLE // math.prod(b - a for a, b in rest))
    for a in range(start, stop, rows):
        yield [(a, min(a + rows, stop)), *rest]


_BUILDING = Lock()


def parts_of(model: ImageModel) -> Parts:
    """Return the summands of the samples of a model, which are computed once per process and kept for two models."""
    with _BUILDING:  # another thread waits for the first one
        return built(model)


@lru_cache(maxsize=2)
def built(model: ImageModel) -> Parts:
    """Compute the summands of the samples of a model; cached for two models."""
    mean, scaled = model.design()
    sequence = bells(octets(words(model.seed, _NOISE, 0, model._n_places // 8)).reshape(-1)).astype(np.int64)
    grain = model.grain(sequence)
    del sequence
    # The sum of integers is exact.
    step = model.noise / math.sqrt(int(np.dot(grain, grain)) / len(grain))
    bound = np.abs(mean) + (step * int(np.abs(grain).max()) + 1)
    basis = np.empty((1 + model.n_modes, *model.sample_shape), np.float32)
    basis[0] = mean + 0.5 if model.dtype.kind == "u" else mean  # conversion to integers truncates
    for row, mode in zip(basis[1:], scaled, strict=True):
        np.divide(mode, math.sqrt(model.weight_variance), out=row, casting="same_kind")
        bound += model.weight_most * np.abs(row)
    most = float(bound.max())
    unit = math.ldexp(1.0, math.frexp(most)[1] - _BITS)
    for row in basis:
        np.multiply(np.rint(row / np.float32(unit)), np.float32(unit), out=row)
    noise = np.empty(model._n_places + math.prod(model.sample_shape), np.float32)
    exact = grain * (step / unit)
    np.multiply(np.rint(exact, out=exact), unit, out=noise[: len(grain)], casting="same_kind")
    noise[len(grain) :] = noise[: len(noise) - len(grain)]
    return Parts(basis, noise, most)
