"""Input of figures: samples, models and stores in any form. Only the samples in the figure are read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import zarr
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from dpca import metrics
from dpca.engine.sources.source import Source, as_source, check_numeric
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.pixels import Pixels
from dpca.models import EOF
from dpca.models.base.estimator import Estimator
from dpca.models.base.labelled import labelled_samples
from dpca.models.base.store import ESTIMATORS, load_any
from dpca.models.opening import kind_of, open_store
from dpca.models.scores import Scores
from dpca.plots.overviews import LARGE_BYTES, overview
from dpca.plots.panels import panels_of, shown_range, spread_over
from dpca.representation.base import Representation
from dpca.representation.compressed.compressed import Compressed
from dpca.representation.compressed.compressed_form import pixels_of
from dpca.representation.linear import in_boxes
from dpca.representation.reconstruction import decoded_box
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.arrays.layout import CHANNEL, axes_for
from dpca.storage.arrays.reading import array_in, open_group
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_whole, whole_number
from dpca.storage.ranges import checked_range, type_range
from dpca.storage.readers.opening import is_zarr
from dpca.storage.stack import Stack

_QUALITY = ("ssim", "mse")


@dataclass(frozen=True, eq=False)
class GivenSamples:
    """Samples to show.

    Attributes
    ----------
    shape : tuple of int
        Samples first.
    axes : tuple of str
        Names of a sample's axes.
    dtype : dtype
    data_range : tuple of 2 floats or None
        Lowest and highest value, if they are stated.
    flipped : tuple of int
        Axes of a sample with ascending latitudes.
    colors : list of str or None
        Colors of the channels, if they are stated.
    read : callable
        Returns the sample of an index.
    box : callable
        Returns a box of the sample of an index.
    named : callable
        Returns the names of the samples of some indices.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    dtype: np.dtype[Any]
    data_range: tuple[float, float] | None
    flipped: tuple[int, ...]
    colors: list[str] | None
    read: Callable[[int], Array]
    box: Callable[[int, Region], Array]
    named: Callable[[Sequence[int]], list[str]]

    def take(self, indices: Sequence[int]) -> Array:
        """Read samples (n, *sample_shape)."""
        return np.stack([self.read(index) for index in indices])

    def overview(self, index: int) -> Array:
        """Return what a page shows of a sample, see `dpca.plots.overviews.overview`."""
        if self._is_large:
            return overview(partial(self.box, index), self.shape[1:], self.dtype.itemsize, self.axes)
        return self.read(index)

    def slices(self, index: int, axis: int, places: Sequence[int]) -> list[Array]:
        """Return slices of a sample along one of its axes. Nothing else of a large sample is in memory."""
        if not self._is_large:
            sample = self.upright(self.read(index))
            return [np.take(sample, place, axis) for place in places]
        box, found = [(0, n) for n in self.shape[1:]], []
        for place in places:
            at = self.shape[1 + axis] - 1 - place if axis in self.flipped else place
            box[axis] = (at, at + 1)
            found.append(np.take(self.upright(self.box(index, tuple(box))), 0, axis))
        return found

    @property
    def _is_large(self) -> bool:
        return math.prod(self.shape[1:]) * self.dtype.itemsize > LARGE_BYTES

    def upright(self, sample: Array) -> Array:
        """Return an array of a sample's shape as it is drawn, with the north at the top."""
        return np.flip(sample, self.flipped) if self.flipped else sample

    def panels(
        self, groups: Sequence[Sequence[Array]], data_range: Any, axes: Sequence[str] | None = None
    ) -> tuple[list[list[Array]], tuple[float, float]]:
        """Return groups of samples as panels, and the values of black and white; ``axes`` are those of a slice."""
        return panels_of(groups, axes or self.axes, self.colors, lambda pictures: self.bounds(pictures, data_range))

    def bounds(self, pictures: Sequence[Array], data_range: Any) -> tuple[float, float]:
        """Return the range from black to white: ``data_range``, by default `dpca.plots.panels.shown_range`.

        Raises
        ------
        DataError
            If ``data_range`` is invalid.
        """
        return shown_range(pictures, self.dtype, self.data_range) if data_range is None else checked_range(data_range)

    def spread(self, indices: int | Iterable[int] | None, count: int) -> list[int]:
        """Return the indices of the samples to show; the default is ``count`` samples, spread over the stack.

        Raises
        ------
        DataError
            If an index is out of range.
        """
        n = self.shape[0]
        if indices is None:
            chosen = spread_over(n, whole_number(count, "the number of samples to show", 1))
        else:
            chosen = integers(indices, "the sample to show")
        for index in chosen:
            if not -n <= index < n:
                raise DataError(f"there is no sample {index!r}: give indices from 0 to {n - 1:,}")
        if not chosen:
            raise DataError("the list of samples to show is empty: give at least one, or leave it out")
        return [index % n for index in chosen]


def samples_given(x: Any, axes: Sequence[str] | None = None) -> GivenSamples:
    """Return the samples of an array, a stack, an opened store, or a path. Only metadata are read.

    Raises
    ------
    DataError
        If the samples are not real numbers, or the names of the axes do not fit.
    StoreError
        If a store cannot be read.
    """
    if isinstance(x, GivenSamples):
        return x
    x = opened_at(x)
    named: Callable[[Sequence[int]], list[str]] = _numbers_of
    data_range, along = None, None
    if isinstance(x, Compressed):
        stated, along, data_range = x.axes[1:], x.coordinates.of_one_sample(), pixels_of(x.facts).data_range
        named, shape, dtype = _names_in(x.stored("name")), x.shape, x.dtype
        read, box = _indexed(x), boxes_of(x)
    elif isinstance(x, Scores):
        group, lazy = open_group(x.path), x.stack()
        named = _names_in(array_in(group, "name")) if "name" in group else _numbers_of
        stated, data_range, shape, dtype = None, x.pixels.data_range, lazy.shape, lazy.dtype
        read, box = _indexed(lazy), decoded_boxes(x.model.basis_, x.array, x.n_components, x.pixels) or boxes_of(lazy)
    elif isinstance(x, Estimator | EOF):
        raise DataError(f"{type(x).__name__} is a model: give the samples to show, as an array, a stack or a path")
    else:
        if is_labelled(x):
            labelled, labels = labelled_samples(x, None)
            source = labelled.source(labels)
            along = labels.kept(source.shape[1:])
        else:
            source = as_source(x)
            whole = x.coordinates if isinstance(x, Stack) else source.coordinates
            along = whole and whole.of_one_sample()
        if isinstance(x, Stack):
            data_range, named = x.data_range, x.names_at
        stated, shape, dtype, box = source.axes, source.shape, source.dtype, _boxes_in(source)
        read = partial(_whole, box, tuple((0, length) for length in shape[1:]))
    check_numeric(shape, dtype, "the array to show")
    fits = along is not None and len(along.dims) == len(shape) - 1
    flipped, colors = (along.northward, along.channel_colors) if along is not None and fits else ((), None)
    names = tuple(axes or stated or axes_for(shape[1:]))
    if len(names) != len(shape) - 1:
        raise DataError(f"axes are {names}, and a sample has {len(shape) - 1} axes: give a name for each")
    dtype = np.dtype(dtype)
    colors = colors if colors and names[-1] == CHANNEL and len(colors) == shape[-1] else None
    bounds = data_range or type_range(dtype)
    return GivenSamples(tuple(shape), names, dtype, bounds, flipped, colors, read, box, named)


def opened_at(x: Any) -> Any:
    """Open a path to any kind of store. Other objects, and paths that only `as_source` can open, are returned."""
    if not isinstance(x, str | os.PathLike) or not is_zarr(os.fspath(x)):
        return x
    return load_any(x) if kind_of(x) in ESTIMATORS else open_store(x)


def integers(x: Any, name: str) -> list[int]:
    """Return one or several integers as a list.

    Raises
    ------
    DataError
        If a value is not an integer.
    """
    several = list(x) if isinstance(x, Iterable) and bool(getattr(x, "ndim", 1)) else [x]
    if not all(map(is_whole, several)):
        raise DataError(f"{name} is {x!r}: give an integer, or several")
    return [int(one) for one in several]


def shares_for(shares: ArrayLike | None, count: int) -> Array | None:
    """Return the shares of the variance of ``count`` components.

    Raises
    ------
    DataError
        If there are fewer shares.
    """
    if shares is None:
        return None
    found = np.asarray(shares, np.float64)
    if found.ndim != 1 or len(found) < count:
        raise DataError(f"shares of the variance have shape {found.shape} for {count} components: give one for each")
    return found


def model_given(x: Any) -> Any:
    """Return a fitted model, given by itself, by its path, or by its scores.

    Raises
    ------
    DataError
        If it is not a fitted model.
    """
    model = opened_at(x)
    if isinstance(model, Scores):
        model = model.model
    if isinstance(model, EOF):
        check_is_fitted(model, "model_")
        return model
    if not isinstance(model, Estimator):
        what = f"'{os.fspath(x)}'" if isinstance(x, str | os.PathLike) else f"an object of type {type(x).__name__}"
        raise DataError(f"{what} is not a model: give a fitted estimator, or the path of a saved one")
    check_is_fitted(model)
    return model


def is_model(x: Any) -> bool:
    """Return whether this is a model or a path. In functions for components, a path always means a model."""
    return isinstance(x, str | os.PathLike | Estimator | EOF | Scores)


def basis_given(model: Any) -> Representation:
    """Return the basis of a model.

    Raises
    ------
    DataError
        If it has none.
    """
    if isinstance(model, EOF):
        raise DataError("an EOF needs the times of its field: give the array that its reconstruct(n_modes=k) returns")
    basis: Representation = model.basis_
    return basis


def shares_of(model: Any) -> Array:
    """Return the share of the total variance that each component explains (k,), summed over all parts."""
    total = np.ravel(model.total_variance_)
    shares: Array = model.explained_variance_.reshape(total.size, -1).sum(0) / max(total.sum(), 1e-300)
    return shares


def curve_of(model: Any) -> Array:
    """Return the cumulative explained variance of each part (parts, k); NaN for constant parts.

    Raises
    ------
    DataError
        If the model has no variances.
    """
    model = model.model_ if isinstance(model, EOF) else model
    if not hasattr(model, "explained_variance_") or not hasattr(model, "total_variance_"):
        raise DataError(f"{type(model).__name__} has no explained variance of samples: give another model")
    total = np.ravel(model.total_variance_)
    explained = model.explained_variance_.reshape(total.size, -1)
    curve: Array = np.where(total[:, None] > 0, metrics.explained_variance_ratio(explained, total), np.nan)
    return curve


def quality_of(x: Any) -> dict[str, Array]:
    """Return the stored quality of every sample, ssim and mse, as far as available.

    Raises
    ------
    DataError
        If there is none.
    """
    found = getattr(opened_at(x), "quality", {})
    kept = {name: found[name] for name in _QUALITY if name in found}
    if not kept:
        raise DataError("there is no quality of samples to show: give the store of a job, or a compressed store")
    return kept


def worst_first(quality: Mapping[str, Array]) -> Array:
    """Return the indices of all samples, by ascending SSIM, or by descending MSE if there is no SSIM."""
    return np.argsort(quality["ssim"] if "ssim" in quality else -quality["mse"], kind="stable")


def _numbers_of(indices: Sequence[int]) -> list[str]:
    return [str(index) for index in indices]


def _indexed(values: Any) -> Callable[[int], Array]:
    return lambda index: np.asarray(values[index])


def boxes_of(values: Any) -> Callable[[int, Region], Array]:
    """Return a function that returns a box of a sample of an array, such as a compressed store."""
    return lambda index, region: np.asarray(values[(index, *(slice(a, b) for a, b in region))])


def _whole(box: Callable[[int, Region], Array], region: Region, index: int) -> Array:
    return box(index, region)


def _boxes_in(source: Source) -> Callable[[int, Region], Array]:
    reader = source.reader()

    def read(index: int, region: Region) -> Array:
        reader((index, index + 1), region, out := np.empty((1, *(b - a for a, b in region)), source.dtype))
        found: Array = out[0]
        return found

    return read


def decoded_boxes(
    basis: Representation, scores: zarr.Array[Any], n_components: int, pixels: Pixels
) -> Callable[[int, Region], Array] | None:
    """Return a function that decodes a box of a sample; None if the representation decodes whole samples."""
    divided = in_boxes(basis)
    if divided is None:
        return None
    levels = _Leading(scores, n_components)
    return lambda index, region: decoded_box(divided, levels, index, region, pixels)


class _Leading:
    """The scores of the first components. No others are read."""

    def __init__(self, scores: zarr.Array[Any], n_components: int) -> None:
        self._scores, self._level = scores, slice(n_components)

    def __getitem__(self, box: tuple[slice, ...]) -> Array:
        every = (slice(None),) * (self._scores.ndim - 1 - len(box))
        return np.asarray(self._scores[(*box, *every, self._level)])


def _names_in(stored: zarr.Array[Any]) -> Callable[[Sequence[int]], list[str]]:
    return lambda indices: [str(stored[index]) for index in indices]
