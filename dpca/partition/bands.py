"""Bands: attributes that go together by their values, wherever they lie in a sample (T 4.4).

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpca.kernels.namespace import beside, is_numpy, namespace

Array = NDArray[Any]
Region = tuple[tuple[int, int], ...]  #: (start, stop) along each axis of a sample

# Samples that are gathered together stay in a core's own cache.
_GATHER_BYTES = 2**20


@dataclass(frozen=True, eq=False)
class Bands:
    """A partition of the attributes of a sample into numbered bands.

    Parameters
    ----------
    labels : array (*sample_shape), integer
        Band of each attribute. Every number from 0 to the largest is there. Inside a band attributes keep the order
        that they have in the sample.

    Raises
    ------
    ValueError
        If there are no attributes, or a band has none.
    """

    labels: Array

    def __post_init__(self) -> None:
        if self.labels.size == 0:
            raise ValueError(f"labels of shape {self.labels.shape} hold no attribute: a sample needs at least one")
        # Gaps are looked for last: counting a number that is out of range would take as many bytes.
        if self.labels.min() < 0 or self.labels.max() >= self.labels.size or not self._sizes.all():
            raise ValueError("every band from 0 to the largest needs an attribute: number the bands without gaps")

    def __reduce__(self) -> tuple[type[Bands], tuple[Array]]:
        # Every task of a graph is sent its bands: what follows from the labels takes four times their bytes.
        return Bands, (self.labels,)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.labels.shape

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of bands; bands lie on a line."""
        return (self.n_partitions,)

    @property
    def n_partitions(self) -> int:
        """Number of bands."""
        return len(self._sizes)

    @cached_property
    def max_features(self) -> int:
        """Attributes of the largest band."""
        return int(self._sizes.max())

    @cached_property
    def order(self) -> Array:
        """Flat index of every attribute, band after band (n_features,)."""
        return np.argsort(self.labels, axis=None, kind="stable")

    @cached_property
    def offsets(self) -> list[int]:
        """Where each band begins in `order`, and where the last one ends."""
        return [0, *itertools.accumulate(self._sizes.tolist())]

    @cached_property
    def _sizes(self) -> Array:
        return np.bincount(self.labels.ravel())

    def attributes(self, index: int) -> Array:
        """Return the flat indices of the attributes of band ``index``, ascending."""
        return self.order[self.offsets[index] : self.offsets[index + 1]]

    def n_features(self, index: int) -> int:
        """Return the number of attributes of band ``index``."""
        return self.offsets[index + 1] - self.offsets[index]

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

    def tiles(self, chunk_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield all bands as one group: each of them may lie in every chunk."""
        yield tuple(range(self.n_partitions))

    def split_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Return the type of the values that `split` gives for samples of a type: the same."""
        return np.dtype(dtype)

    def split_bytes(self, region: Region, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of `split` to plan for: none, a few samples are within any task."""
        return 0

    def split(self, block: Array, parts: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Copy bands out of a block of samples that begins at ``origin``.

        All of them are gathered from a few samples at a time, which stay in cache, and moved from there to their places
        in runs: one band after the other, each would fetch every cache line of the block again. Arrays of other
        libraries, on an accelerator, are gathered whole.

        Parameters
        ----------
        block : array (n_samples, ...), C-ordered
            Samples, or a box of them that holds these bands.
        parts : sequence of int
        origin : tuple of int
            Where the block begins along each axis of a sample.
        buffer : array (at least n_samples times the attributes of all these bands,) of the block's dtype

        Returns
        -------
        list of array (n_samples, n_features)
            Views of ``buffer``, C-ordered, one for each band.
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
        """Copy the attributes ``where`` of samples (n, n_attributes) to the runs that they belong to."""
        step = max(1, _GATHER_BYTES // (len(where) * flat.itemsize))
        gathered = np.empty((min(step, len(flat)), len(where)), flat.dtype)
        for start in range(0, len(flat), step):
            some = flat[start : start + step]
            # Without a mode that cannot fail, numpy gathers to an array of its own first.
            taken = np.take(some, where, axis=1, out=gathered[: len(some)], mode="clip")
            for columns, out in runs:
                # Samples of a band are moved as one item each.
                item = np.dtype((np.void, out.shape[2] * out.itemsize))
                values = taken[:, columns].view(item)
                np.copyto(out[:, start : start + step].view(item)[..., 0], values.T)

    def take(self, block: Array, index: int, origin: tuple[int, ...], out: Array) -> Array:
        """Copy band ``index`` of a block of samples into ``out`` (n_samples, n_features)."""
        self.split(block, (index,), origin, namespace(out).reshape(out, (-1,)))
        return out

    def put(self, values: Array, index: int, origin: tuple[int, ...], block: Array) -> None:
        """Copy the values (n_samples, n_features) of band ``index`` into a block that begins at ``origin``."""
        where = self._places((index,), block.shape[1:], origin)
        _flat(block)[:, beside(where, block)] = values

    def to_samples(self, block: Array) -> Array:
        """Return the samples that all bands, put into a block of whole samples, stand for: the block."""
        return block

    def _places(self, parts: Sequence[int], box: tuple[int, ...], origin: tuple[int, ...]) -> Array:
        """Flat indices, in a box of a sample, of the attributes of some bands."""
        found = np.concatenate([self.attributes(i) for i in parts])
        if box == self.sample_shape:
            return found
        places = np.unravel_index(found, self.sample_shape)
        moved = tuple(axis - first for axis, first in zip(places, origin, strict=True))
        return np.ravel_multi_index(moved, box)

    def _runs(self, parts: Sequence[int], n: int, buffer: Array) -> Iterator[tuple[slice, Array]]:
        """Yield runs of bands of equal size: their columns together, and where they go (n_bands, n, n_features)."""
        end = 0
        for size, run in itertools.groupby(parts, self.n_features):
            start, count = end, len(list(run))
            end += count * size
            yield slice(start, end), namespace(buffer).reshape(buffer[n * start : n * end], (count, n, size))


def _flat(block: Array) -> Array:
    """View samples as rows; without a -1, which no samples at all would leave open."""
    rows: Array = namespace(block).reshape(block, (block.shape[0], math.prod(block.shape[1:])))
    return rows


def map_at_random(
    sample_shape: tuple[int, ...], band_size: int, rng: np.random.Generator, *, together: int = 1
) -> Bands:
    """Map attributes to bands at random (T 4.5.3); the last band takes the rest.

    Parameters
    ----------
    sample_shape : tuple of int
    band_size : int
        Most attributes of a band.
    rng : numpy.random.Generator
    together : int
        So many consecutive attributes, the channels of a pixel, are kept in one band.
    """
    units = math.prod(sample_shape) // together
    return _cut(rng.permutation(units), [units], sample_shape, band_size, together)


def map_in_raster_order(sample_shape: tuple[int, ...], band_size: int, *, together: int = 1) -> Bands:
    """Map consecutive attributes to a band, the baseline that knows neither values nor space.

    Parameters as `map_at_random`.
    """
    units = math.prod(sample_shape) // together
    return _cut(np.arange(units), [units], sample_shape, band_size, together)


def map_by_moments(
    mean: Array, variance: Array | None, band_size: int, n_intervals: int, *, together: int = 1
) -> Bands:
    """Map attributes of like mean, or of like mean and variance, to a band (T 4.2, 4.3).

    The range of the means is divided into ``n_intervals`` of equal width. Attributes of an interval are sorted, by
    their variance where it is given (T 4.4.2) and otherwise by their mean (T 4.4.1), and every ``band_size`` of them
    are one band; the last band of an interval takes the interval's rest, so that no band reaches across a border. Ties
    keep the order of the sample.

    Parameters
    ----------
    mean : array (*sample_shape)
    variance : array (*sample_shape) or None
    band_size : int
        Most attributes of a band.
    n_intervals : int
    together : int
        So many consecutive attributes, the channels of a pixel, are kept in one band. They are mapped by the average of
        their means and the average of their variances.
    """
    means = mean.reshape(-1, together).mean(axis=1)
    keys = means if variance is None else variance.reshape(-1, together).mean(axis=1)
    low, width = means.min(), np.ptp(means)
    share = (means - low) / width if width > 0 else np.zeros_like(means)
    interval = np.minimum((share * n_intervals).astype(np.int64), n_intervals - 1)
    counts = np.bincount(interval, minlength=n_intervals).tolist()
    return _cut(np.lexsort((keys, interval)), counts, mean.shape, band_size, together)


def _cut(units: Array, counts: Sequence[int], sample_shape: tuple[int, ...], band_size: int, together: int) -> Bands:
    """Cut runs of ``counts`` units, in the order given, into bands of at most ``band_size`` attributes."""
    if band_size < together:
        raise ValueError(
            f"band_size is {band_size} but a pixel has {together} channels, which are kept together: give at least "
            f"{together}, or keep_channels=False"
        )
    each = band_size // together
    labels = np.empty(len(units), np.int32)
    start, first = 0, 0
    for count in counts:
        labels[units[start : start + count]] = first + np.arange(count) // each
        start, first = start + count, first + -(-count // each)
    return Bands(np.repeat(labels, together).reshape(sample_shape))
