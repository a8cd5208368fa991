"""What an image model is, and how a box of its samples is made.

A sample is ``mean + sum_j z_j mode_j + noise``: few modes, each an image; weights z that follow from the number of the
sample; and as noise a stretch of one long sequence, from a place that follows from that number, too. So the mean and
the covariance are known::

    covariance = sum_j variance(z_j) mode_j mode_j^T + noise_variance identity        (`ImageModel.components`)

but for rounding, for values that are clipped, and for what the sequence of noise differs from white noise. The sequence
goes round in a circle of 2^20 values, or of as many as a larger sample has, up to the next power of two.

All numbers are integers times one power of two, and no sum of them has more than 24 bits: sums in float32 are exact in
whatever order a BLAS makes them, so that every machine makes the same bytes.
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
# Samples that follow each other and are alike, where samples are sorted: a person's photographs, one folder's.
_GROUP = 1024
# Shortest sequence of noise.
_SEQUENCE = 2**20
# Bits of an integer that float32 holds, one of them for its sign in sums.
_BITS = 23
# Values that are made at once, in the cache of a core; and of these, of one sample.
_VALUES, _OF_SAMPLE = 2**19, 2**14
# Most values of a sample: modes take 4 bytes a value each.
_MOST_VALUES, _MOST_AXES = 2**22, 6
_MOST_SAMPLES = 2**40
_MOST_BYTES = 2**30
# Most bytes a value of a sample that a `design` takes for a mode, mean and all.
_DESIGNING = 88


@dataclass(frozen=True, eq=False)
class Parts:
    """What samples of a model are added up from: float32, integers times a power of two.

    Attributes
    ----------
    basis : ndarray of float32, shape (1 + n_modes, *sample_shape)
        The mean, and the modes.
    noise : ndarray of float32, shape (n_places + n_values,)
        The sequence of which each sample takes a stretch, up to where it has gone round in a circle.
    most : float
        No value of any sample is farther from 0 before it is rounded and clipped.
    """

    basis: NDArray[np.float32]
    noise: NDArray[np.float32]
    most: float


@dataclass(frozen=True)
class ImageModel(ABC):
    """Samples that follow from a seed and their numbers, whose mean and covariance are known.

    Attributes
    ----------
    n_samples : int
    sample_shape : tuple of int
    seed : int
        From 0 to 2**64 - 1.
    order : {"random", "sorted"}
        Samples are independent of each other, or alike within groups of 1024 that follow each other, as in folders of
        persons: three quarters of the variance of their weights is that of groups.

    Raises
    ------
    DataError
        If a parameter makes no sense.
    """

    n_samples: int
    sample_shape: tuple[int, ...]
    seed: int = 0
    order: str = RANDOM

    #: Changes when the same parameters begin to give other samples.
    recipe: ClassVar[int] = 1
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)
    orders: ClassVar[tuple[str, ...]] = (RANDOM, SORTED)
    #: Variance of weights, and their largest absolute value.
    weight_variance: ClassVar[float] = BELL_VARIANCE
    weight_most: ClassVar[int] = BELL_MOST
    #: Arrays of the length of the noise, of 8 bytes a value, that `grain` holds at a time.
    grain_arrays: ClassVar[int] = 1

    def __post_init__(self) -> None:
        shape = self.sample_shape
        self._require(
            len(shape) <= _MOST_AXES, f"samples have {len(shape):,} axes: a synthetic stack has up to {_MOST_AXES}"
        )
        self._require(
            bool(shape) and min(shape) >= 1, f"samples of shape {shape} hold nothing: give lengths of at least 1"
        )
        values = math.prod(shape)
        self._require(
            values <= _MOST_VALUES,
            f"samples of shape {shape} have {values:,} values: a synthetic stack has up to {_MOST_VALUES:,} a sample",
        )
        self._require(
            self.nbytes <= _MOST_BYTES,
            f"a process would take {self.nbytes:,} bytes to make samples of shape {shape}, more than {_MOST_BYTES:,}: "
            "choose smaller samples",
        )
        n, orders = self.n_samples, " or ".join(map(repr, self.orders))
        self._require(1 <= n <= _MOST_SAMPLES, f"the number of samples is {n}: give 1 to {_MOST_SAMPLES:,}")
        self._require(0 <= self.seed < 2**64, f"the seed is {self.seed}: give a whole number from 0 to 2**64 - 1")
        self._require(self.order in self.orders, f"the order is {self.order!r}: choose {orders}")

    @staticmethod
    def _require(holds: bool, otherwise: str) -> None:
        if not holds:
            raise DataError(otherwise)

    # -- what a model is

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
        """Return the mean, and each mode times the standard deviation of its weight; exact arithmetic only."""

    def grain(self, sequence: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return noise of some correlation made of white noise, a sequence that goes round in a circle."""
        return sequence

    def weights(self, start: int, stop: int, drawn: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the weights of samples, shape (stop - start, n_modes): integers of mean 0.

        Parameters
        ----------
        start, stop : int
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
        """Return numbers between 0 and 1 from a sequence that follows from the seed, for a `design`."""
        first = start // 4
        found = words(self.seed, _DESIGN, first, -(-(start + n) // 4) - first).reshape(-1)[start - 4 * first :][:n]
        found >>= np.uint64(32)
        return found.astype(np.float64) / 2.0**32

    # -- what is known of it

    @property
    def _n_words(self) -> int:
        """Random words of a sample: four bytes a weight, and the last word for its place in the noise."""
        return -(-(4 * self.n_modes + 8) // 32) * 4

    @property
    def _n_places(self) -> int:
        """Length of the sequence of noise, a power of two: so a place is drawn without any preference."""
        return max(_SEQUENCE, 1 << (math.prod(self.sample_shape) - 1).bit_length())

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes of a sample."""
        return axes_for(self.sample_shape)

    @property
    def data_range(self) -> tuple[float, float]:
        """Lowest and highest value that a sample can hold."""
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
        """Most bytes that a process holds to make samples, in boxes of whatever number and size."""
        values, places = math.prod(self.sample_shape), self._n_places
        # sums of a piece as floating-point numbers and as integers, and its modes
        piece = min(max(_OF_SAMPLE, math.prod(self.sample_shape[1:])), values)
        making = 6 * max(_VALUES, piece) + 4 * (1 + self.n_modes) * piece
        # before that, the parts are put together in twice their precision
        beginning = 8 * places + max(8 * places, _DESIGNING * values)
        held = 4 * ((1 + self.n_modes) * values + places + values)
        return max(held + max(making, beginning), 8 * self.grain_arrays * places)

    @property
    def mean(self) -> Floats:
        """True mean of the samples, of `sample_shape`."""
        rounding = 0.5 if self.dtype.kind == "u" else 0.0
        parts = parts_of(self)
        noise = parts.noise[: self._n_places]  # once round its circle
        mean: Floats = parts.basis[0].astype(np.float64) + (float(np.mean(noise, dtype=np.float64)) - rounding)
        return mean

    @property
    def eigenvalues(self) -> Floats:
        """Eigenvalues of the true covariance that are not those of noise, shape (n_modes,), the largest first."""
        return self._spectrum[0] + self.noise**2

    def components(self, k: int | None = None) -> Floats:
        """Return the leading eigenvectors of the true covariance, orthonormal rows, shape (k, n_values).

        Parameters
        ----------
        k : int, optional
            By default all that are not those of noise.

        Raises
        ------
        DataError
            If the model has fewer.
        """
        most = len(self._spectrum[0])
        if k is not None and not 1 <= k <= most:
            raise DataError(f"k is {k} and the model has {most} components beside noise: give 1 to {most}")
        return self._spectrum[1][:k]

    @cached_property
    def _spectrum(self) -> tuple[Floats, Floats]:
        modes = parts_of(self).basis[1:].reshape(self.n_modes, -1).astype(np.float64) * math.sqrt(self.weight_variance)
        found, rotation = np.linalg.eigh(modes @ modes.T)
        kept = np.argsort(found)[::-1]
        kept = kept[found[kept] > 1e-9 * found.max()]
        return found[kept], (rotation[:, kept] / np.sqrt(found[kept])).T @ modes

    def fingerprint(self) -> str:
        """Return a hash of all that the samples follow from."""
        return digest_of(json.dumps([type(self).__name__, self.recipe, self.stated()], sort_keys=True).encode())

    def stated(self) -> dict[str, Any]:
        """Return the parameters, as JSON can hold them."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        return {**values, "sample_shape": list(self.sample_shape)}

    def probe(self) -> str:
        """Return a digest of the first, the middle and the last sample, which every machine makes the same."""
        made = np.empty((1, *self.sample_shape), self.dtype.newbyteorder("<"))
        content = b""
        for number in (0, self.n_samples // 2, self.n_samples - 1):
            self.make(number, number + 1, [(0, n) for n in self.sample_shape], made)
            content += made.tobytes()
        return digest_of(content)

    # -- making samples

    def make(self, start: int, stop: int, region: Region, out: NDArray[Any]) -> None:
        """Fill ``out`` (stop - start, *lengths of the region) with a box of samples.

        Costs about 2 (n_modes + 1) operations a value; of a small region little more than its part, of a single
        sample the reading of all modes. Holds `nbytes`, and some MB.
        """
        parts, drawn = parts_of(self), words(self.seed, _WEIGHTS, start, stop - start, self._n_words)
        weights = np.empty((stop - start, 1 + self.n_modes), np.float32)
        weights[:, 0], weights[:, 1:] = 1, self.weights(start, stop, octets(drawn))
        places = (drawn[:, -1] & np.uint64(self._n_places - 1)).tolist()
        strides = [math.prod(self.sample_shape[i + 1 :]) for i in range(len(self.sample_shape))]
        # memory that a processor has at hand: what is new costs more than what is done with it
        most = max(math.prod(b - a for a, b in piece) for piece in _pieces(region))
        n_sums = min(max(_VALUES, most), (stop - start) * most)
        sums, whole = np.empty(n_sums, np.float32), np.empty(n_sums if self.dtype.kind == "u" else 0, np.int16)
        for piece in _pieces(region):
            shape = tuple(b - a for a, b in piece)
            first = sum(a * stride for (a, _), stride in zip(piece, strides, strict=True))
            # all stretches of noise; that of a box is cut from that of its sample
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
    """Cut a region along its first axis into pieces of few values."""
    (start, stop), *rest = region
    rows = max(1, _OF_SAMPLE // math.prod(b - a for a, b in rest))
    for a in range(start, stop, rows):
        yield [(a, min(a + rows, stop)), *rest]


_BUILDING = Lock()


def parts_of(model: ImageModel) -> Parts:
    """Return what samples of a model are added up from, which is made once a process and held for two models."""
    with _BUILDING:  # once a process, by whichever thread needs it first
        return built(model)


@lru_cache(maxsize=2)
def built(model: ImageModel) -> Parts:
    """Return the same, made again unless it is cached."""
    mean, scaled = model.design()
    sequence = bells(octets(words(model.seed, _NOISE, 0, model._n_places // 8)).reshape(-1)).astype(np.int64)
    grain = model.grain(sequence)
    del sequence
    # a sum of integers, which is exact
    step = model.noise / math.sqrt(int(np.dot(grain, grain)) / len(grain))
    bound = np.abs(mean) + (step * int(np.abs(grain).max()) + 1)
    basis = np.empty((1 + model.n_modes, *model.sample_shape), np.float32)
    basis[0] = mean + 0.5 if model.dtype.kind == "u" else mean  # values are cut to integers
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
