"""Bands: groups of attributes with similar statistics, at any position in a sample (Alakkari 2020, section 4.4).

::

    sample (4, 6), bands of 8            attributes, band after band
    +-------------+
    | 0 2 1 1 0 0 |                      band 0: attributes  0  4  5  7 ...
    | 2 0 0 1 2 1 |   the band of        band 1: attributes  2  3  9 11 ...
    | 1 1 2 2 0 1 |   each attribute     band 2: attributes  1  6 10 14 ...
    | 0 2 1 2 2 0 |
    +-------------+
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.namespace import beside, is_numpy, namespace
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.partition.base import Partition

# Bytes of samples that are gathered together: they stay in the cache of one core.
_GATHER_BYTES = 2**21
# Attributes of which the bands are counted in one call.
_COUNTED = 2**22


@dataclass(frozen=True, eq=False)
class Bands(Partition):
    """A partition of the attributes of a sample into numbered bands.

    Parameters
    ----------
    labels : array (*sample_shape), integer
        Band of each attribute. Bands are numbered from 0 without gaps. Attributes of a band keep their order in the
        sample.

    Raises
    ------
    ValueError
        If there are no attributes, or if a band has no attribute.
    """

    labels: Array

    scores_kind: ClassVar[str] = "band-scores"

    def __post_init__(self) -> None:
        if self.labels.size == 0:
            raise ValueError(f"labels of shape {self.labels.shape} have no attribute: give at least one")
        # Check for gaps last, because counting a label that is out of range allocates as many bytes.
        if self.labels.min() < 0 or self.labels.max() >= self.labels.size or not self._sizes.all():
            raise ValueError("labels are not consecutive numbers from 0: number the bands without gaps")

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.labels.shape

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of bands, as a grid with one axis."""
        return (len(self._sizes),)

    def grid_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Name the axis of the bands."""
        return ("band",)

    @property
    def identity(self) -> Array:
        """The band of each attribute."""
        return self.labels

    @cached_property
    def order(self) -> Array:
        """Flat index of every attribute, band after band (n_features,)."""
        return np.argsort(self.labels, axis=None, kind="stable")

    @cached_property
    def offsets(self) -> list[int]:
        """Start of each band in `order`, and the end of the last one."""
        return [0, *itertools.accumulate(self._sizes.tolist())]

    @cached_property
    def _sizes(self) -> Array:
        return _counts(self.labels.reshape(-1), int(self.labels.max()) + 1)

    @property
    def held_bytes(self) -> int:
        """Bytes of the labels, and of `order`."""
        return self.labels.nbytes + 8 * self.labels.size

    def attributes(self, index: int) -> Array:
        """Return the flat indices of the attributes of band ``index``, ascending."""
        return self.order[self.offsets[index] : self.offsets[index + 1]]

    def n_features(self, index: int) -> int:
        """Return the number of attributes of band ``index``."""
        return self.offsets[index + 1] - self.offsets[index]

    @property
    def max_features(self) -> int:
        """Number of attributes of the largest band."""
        return int(self._sizes.max())

    def region(self, index: int) -> Region:
        """Return the smallest box of a sample that holds band ``index``."""
        return self._regions[index]

    @cached_property
    def _regions(self) -> list[Region]:
        places = np.unravel_index(self.order, self.sample_shape)
        starts = self.offsets[:-1]
        low = [np.minimum.reduceat(axis, starts).tolist() for axis in places]
        high = [(np.maximum.reduceat(axis, starts) + 1).tolist() for axis in places]
        return [
            tuple(zip(*box, strict=True)) for box in zip(zip(*low, strict=True), zip(*high, strict=True), strict=True)
        ]

    def split_bytes(self, region: Region, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of `split`, which gathers a few samples at a time."""
        return max(_GATHER_BYTES, math.prod(self.sample_shape) * np.dtype(dtype).itemsize)

    def split(self, block: Array, parts: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Copy bands out of a block of samples, see `Partition.split`.

        All bands are gathered from a few samples at a time, which stay in the cache. Copying band after band would
        fetch every cache line of the block for each band. Arrays on an accelerator are gathered at once.
        """
        n, where = block.shape[0], self._places(parts, block.shape[1:], origin)
        flat = _flat(block)
        runs = list(self._runs(parts, n, buffer))
        if is_numpy(block):
            self._gather(flat, where, runs)
        else:
            xp = namespace(block)
            taken = xp.take(flat, beside(where, block), axis=1)
            for columns, out in runs:
                count, _, size = out.shape
                out[...] = xp.permute_dims(xp.reshape(taken[:, columns], (n, count, size)), (1, 0, 2))
        return [out[i, ...] for _, out in runs for i in range(out.shape[0])]

    def _gather(self, flat: Array, where: Array, runs: list[tuple[slice, Array]]) -> None:
        """Copy the attributes ``where`` of samples (n, n_attributes) to their runs."""
        step = max(1, _GATHER_BYTES // (len(where) * flat.itemsize))
        gathered = np.empty((min(step, len(flat)), len(where)), flat.dtype)
        for few in blocks(len(flat), step):
            some = flat[few]
            # With the default mode, numpy gathers into a temporary array first, because an index might be invalid.
            taken = np.take(some, where, axis=1, out=gathered[: len(some)], mode="clip")
            for columns, out in runs:
                # The attributes of a band and sample are copied as one item.
                item = np.dtype((np.void, out.shape[2] * out.itemsize))
                values = taken[:, columns].view(item)
                np.copyto(out[:, few].view(item)[..., 0], values.T)

    def join(self, parts: Iterable[tuple[int, Array]], samples: Array) -> Array:
        """Copy bands into samples, see `Partition.join`. First band after band, then each sample is reordered."""
        rows = _flat(samples)
        for first, values in parts:
            count, n, size = values.shape
            here = rows[:n, self.offsets[first] : self.offsets[first + count]]
            here.reshape(n, count, size)[...] = values.swapaxes(0, 1)
        ordered = np.empty(rows.shape[1:], rows.dtype)
        for row in rows:
            # Scattered reads from the cache cost half as much as scattered writes. The mode "clip" saves a copy.
            ordered[...] = row
            np.take(ordered, self._inverse, out=row, mode="clip")
        return samples

    @cached_property
    def _inverse(self) -> Array:
        """Position of each attribute of a sample in `order`."""
        inverse = np.empty_like(self.order)
        inverse[self.order] = np.arange(len(inverse))
        return inverse

    def _places(self, parts: Sequence[int], box: tuple[int, ...], origin: tuple[int, ...]) -> Array:
        """Return the flat indices of the attributes of some bands in a box of a sample."""
        found = np.concatenate([self.attributes(i) for i in parts])
        if box == self.sample_shape:
            return found
        places = np.unravel_index(found, self.sample_shape)
        moved = tuple(axis - first for axis, first in zip(places, origin, strict=True))
        return np.ravel_multi_index(moved, box)

    def _runs(self, parts: Sequence[int], n: int, buffer: Array) -> Iterator[tuple[slice, Array]]:
        """Yield runs of bands of equal size: their columns, and views (n_bands, n, n_features) of the buffer."""
        end = 0
        for size, run in itertools.groupby(parts, self.n_features):
            start, count = end, len(list(run))
            end += count * size
            yield slice(start, end), namespace(buffer).reshape(buffer[n * start : n * end], (count, n, size))


def _flat(block: Array) -> Array:
    """View samples as rows. A length of -1 would fail if there are no samples."""
    return namespace(block).reshape(block, (block.shape[0], math.prod(block.shape[1:])))


def map_at_random(
    sample_shape: tuple[int, ...], band_size: int, rng: np.random.Generator, *, together: int = 1
) -> Bands:
    """Map attributes to bands at random (Alakkari 2020, section 4.5.3). The last band may be smaller.

    Parameters
    ----------
    sample_shape : tuple of int
    band_size : int
        Largest number of attributes of a band.
    rng : numpy.random.Generator
    together : int
        Number of consecutive attributes that stay in one band, such as the channels of a pixel.
    """
    units = math.prod(sample_shape) // together
    return _cut(rng.permutation(_numbers(units)), [units], sample_shape, band_size, together)


def map_in_raster_order(sample_shape: tuple[int, ...], band_size: int, *, together: int = 1) -> Bands:
    """Map consecutive attributes to a band: a baseline that uses neither values nor positions.

    Parameters are those of `map_at_random`.
    """
    units = math.prod(sample_shape) // together
    return _cut(_numbers(units), [units], sample_shape, band_size, together)


def map_by_moments(
    mean: Array, variance: Array | None, band_size: int, n_intervals: int, *, together: int = 1
) -> Bands:
    """Map attributes of similar mean, or of similar mean and variance, to a band (Alakkari 2020, 4.2 and 4.3).

    The range of the means is divided into ``n_intervals`` of equal width. Attributes of an interval are sorted by their
    variance if it is given (section 4.4.2), else by their mean (section 4.4.1). Every ``band_size`` of them form a
    band. The last band of an interval may be smaller, so that no band crosses a border of intervals. Ties keep the
    order of the sample.

    Parameters
    ----------
    mean : array (*sample_shape)
    variance : array (*sample_shape) or None
    band_size : int
        Largest number of attributes of a band.
    n_intervals : int
    together : int
        Number of consecutive attributes that stay in one band, such as the channels of a pixel. They are mapped by the
        average of their means and the average of their variances.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        means = mean.reshape(-1, together).mean(axis=1)
        low, width = means.min(), np.ptp(means)
    if not np.isfinite(width):
        raise ValueError("the means of the attributes exceed the range of float64: divide the samples by a constant")
    keys = means if variance is None else variance.reshape(-1, together).mean(axis=1)
    share = means - low
    if width > 0:
        share /= width
    share *= n_intervals
    interval = np.minimum(share, n_intervals - 1, out=share).astype(np.min_scalar_type(n_intervals))
    del share
    counts = _counts(interval, n_intervals).tolist()
    return _cut(np.lexsort((keys, interval)), counts, mean.shape, band_size, together)


def _cut(units: Array, counts: Sequence[int], sample_shape: tuple[int, ...], band_size: int, together: int) -> Bands:
    """Cut runs of ``counts`` units, in the given order, into bands of at most ``band_size`` attributes."""
    if band_size < together:
        raise ValueError(
            f"band_size is {band_size}, but a pixel has {together} channels, which stay together: give at least "
            f"{together}, or keep_channels=False"
        )
    each = band_size // together
    labels = np.empty(len(units), np.int32)
    start, first = 0, 0
    for count in counts:
        for some in blocks(count, _COUNTED // each * each or each):
            labels[units[start + some.start : start + some.stop]] = first + np.arange(some.start, some.stop) // each
        start, first = start + count, first + -(-count // each)
    whole = labels if together == 1 else np.repeat(labels, together)
    return Bands(whole.reshape(sample_shape))


def _counts(numbers: Array, n: int) -> Array:
    """Return how often each number below n occurs."""
    # numpy converts all numbers that it counts in one call.
    return np.sum([np.bincount(numbers[some], minlength=n) for some in blocks(len(numbers), _COUNTED)], axis=0)


def _numbers(count: int) -> Array:
    """Return the numbers from 0 in the smallest type that holds them all."""
    return np.arange(count, dtype=np.int32 if count < 2**31 else np.int64)
