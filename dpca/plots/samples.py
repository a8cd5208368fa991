"""Samples as images: in a grid, next to their reconstructions, and with increasing numbers of components."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from dpca import metrics
from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import Pixels
from dpca.kernels.quality import has_ssim
from dpca.models.scores import Scores
from dpca.plots.given import (
    GivenSamples,
    basis_given,
    integers,
    model_given,
    opened_at,
    quality_of,
    samples_given,
    worst_first,
)
from dpca.plots.layouts import gallery, tiles, triplets
from dpca.plots.panels import (
    difference_words,
    differences,
    intensity,
    panels_of,
    range_of,
    shown_range,
    spread_over,
)
from dpca.representation.compressed.compressed import Compressed, open_compressed
from dpca.representation.reconstruction import samples_of
from dpca.storage.arrays.layout import count_spatial
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import require_one_array
from dpca.storage.ranges import range_words

_LEVELS, _MOST_LEVELS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000), 6


def image_grid(
    samples: Any,
    indices: int | Iterable[int] | None = None,
    *,
    n: int = 12,
    data_range: tuple[float, float] | None = None,
    axes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> Figure:
    """Draw some samples of a stack.

    Parameters
    ----------
    samples : array (n_samples, ...), Stack, opened store, or path
        Of a volume the middle slice is shown. Samples with one axis are drawn as curves. NaN is drawn in sand.
    indices : int or iterable of int, optional
        Indices of the samples; the default is `n` samples, spread over the stack.
    n : int
        Number of samples, if `indices` is not given.
    data_range : tuple of 2 floats, optional
        The values of black and white. Default: the 0.2th and 99.8th percentiles of the shown samples; for 8-bit and
        boolean values the stack's range or that of the dtype, unless less than a tenth of it is used.
    axes : sequence of str, optional
        Names of a sample's axes, as in `dpca.storage.open_stack`; by default a last axis of length 4 or less has
        channels. Channels with colors, such as those of OME-Zarr, are shown in these, each with its own contrast. Of
        others the first three are shown, or the mean of fewer.
    names : sequence of str, optional
        Captions; the default is the names in the stack.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    DataError
        If an index is out of range, or values are not real numbers.
    """
    given = samples_given(samples, axes)
    chosen = given.spread(indices, n)
    taken = [given.upright(given.overview(index)) for index in chosen]
    captions = given.named(chosen) if names is None else [str(name) for name in names]
    if len(captions) != len(chosen):
        raise DataError(f"there are {len(captions)} names for {len(chosen)} samples: give one for each")
    (pictures,), bounds = given.panels([taken], data_range)
    return tiles([intensity(picture, bounds) for picture in pictures], captions)


def comparison(
    originals: ArrayLike,
    reconstructions: ArrayLike,
    names: Sequence[str],
    ssim: ArrayLike | None,
    data_range: tuple[float, float],
    *,
    axes: Sequence[str] | None = None,
    colors: Sequence[str] | None = None,
) -> Figure:
    """Draw originals, reconstructions and differences next to each other.

    Parameters
    ----------
    originals, reconstructions : array_like of shape (n, ...)
        The same few samples, in the same units, of any dtype. Of a volume the middle slice is shown. Samples with one
        axis are drawn as curves.
    names : sequence of n str
    ssim : array_like of shape (n,), or None
        Written under each sample, unless it is None or NaN.
    data_range : tuple of 2 floats
        The values of black and white.
    axes : sequence of str, optional
        Names of the sample's axes, as in `image_grid`.
    colors : sequence of str, optional
        Colors of the channels, such as ``"#00ff00"``. Each channel has its own black and white instead of
        `data_range`, those of `image_grid`.

    Returns
    -------
    matplotlib.figure.Figure
        Differences are centered on gray and amplified by one round factor for all samples. The heading states it.

    Raises
    ------
    DataError
        If the shapes, the number of names or the data range do not fit.
    """
    require_one_array(originals, "originals")
    require_one_array(reconstructions, "reconstructions")
    shown, rebuilt = np.asarray(originals), np.asarray(reconstructions)
    if shown.shape != rebuilt.shape or len(shown) == 0:
        raise DataError(f"originals have shape {shown.shape} and reconstructions {rebuilt.shape}: give equal shapes")
    scores = np.full(len(shown), np.nan) if ssim is None else np.asarray(ssim, dtype=np.float64)
    if len(names) != len(shown) or scores.shape != (len(shown),):
        raise DataError(
            f"{len(names)} names, {scores.size} SSIM values and {len(shown)} samples: give one for each sample"
        )

    def contrast(pictures: Sequence[Array]) -> tuple[float, float]:
        return data_range if colors is None else shown_range(pictures, shown.dtype)

    both, bounds = panels_of([list(shown), list(rebuilt)], axes, colors, contrast)
    pairs = list(zip(*both, strict=True))
    errors, gain = differences(pairs, bounds)
    rows = [(intensity(a, bounds), intensity(b, bounds), error) for (a, b), error in zip(pairs, errors, strict=True)]
    captions = ["" if np.isnan(score) else f"SSIM {score:.3f}" for score in scores]
    return triplets(rows, ("original", "reconstruction", difference_words(gain)), names, captions)


def worst_cases(store: Any, samples: Any, n: int = 6, *, axes: Sequence[str] | None = None) -> Figure:
    """Draw the samples with the lowest quality in a store, next to their reconstructions and differences.

    Parameters
    ----------
    store : path, or an opened store of scores or codes
        A store with the quality of every sample: a job's output, or a compressed store.
    samples : as in `image_grid`
        The originals, in the same order.
    n : int
        Number of samples, those with the lowest SSIM first; without SSIM, those with the largest error.
    axes : sequence of str, optional
        Names of a sample's axes, as in `image_grid`.

    Returns
    -------
    matplotlib.figure.Figure
        See `comparison`. The quality of all samples is read, but only the shown samples.

    Raises
    ------
    DataError
        If the store has no quality, or other samples.
    """
    store = opened_at(store)
    quality, given = quality_of(store), samples_given(samples, axes)
    rebuilt = _reconstructions(store, given)
    count = len(given.spread(None, n))
    worst = [int(index) for index in worst_first(quality)[:count]]
    before, after = (np.stack([given.upright(of.overview(index)) for index in worst]) for of in (given, rebuilt))
    values = None if "ssim" not in quality else quality["ssim"][worst]
    bounds = shown_range(list(before), given.dtype, given.data_range or rebuilt.data_range)
    return comparison(before, after, given.named(worst), values, bounds, axes=given.axes, colors=given.colors)


def reconstruction_ladder(
    model: Any,
    samples: Any = None,
    indices: int | Iterable[int] = 0,
    *,
    levels: int | Iterable[int] | None = None,
    data_range: tuple[float, float] | None = None,
    axes: Sequence[str] | None = None,
) -> Figure:
    """Draw reconstructions from 1, 2, 5, ... components, next to the original and the difference.

    Parameters
    ----------
    model : fitted estimator, opened store of scores or codes, or path of one of these
    samples : as in `image_grid`, optional
        The originals. They are optional with a store.
    indices : int or iterable of int
        Indices of the samples.
    levels : int or iterable of int, optional
        Numbers of components; the default is up to six of 1, 2, 5, 10, 20, ..., and all components as the last.
    data_range, axes
        As in `image_grid`.

    Returns
    -------
    matplotlib.figure.Figure
        One row per sample. The caption of each reconstruction is its SSIM, or its PSNR if images are too small for
        SSIM. The caption of the original is the data range of these. The difference is that of the last reconstruction.

    Raises
    ------
    DataError
        If there are fewer components than a level, or the samples are not those of the model.
    """
    store = opened_at(model)
    of_store = isinstance(store, Scores | Compressed)
    if samples is None and not of_store:
        raise DataError("a model alone has no samples: give some, reconstruction_ladder(model, samples)")
    given = samples_given(store if samples is None else samples, axes)
    chosen = given.spread(indices, 1)
    if of_store:
        most = store.n_components
        _reconstructions(store, given)
    else:
        store = model_given(store)
        most = basis_given(store).score_shape[-1]
        if tuple(store.sample_shape_) != given.shape[1:]:
            raise DataError(
                f"the model has samples of {store.sample_shape_} and the given ones {given.shape[1:]}: give samples "
                f"of the model's shape"
            )
    steps = _levels(levels, most)
    originals = None if samples is None else given.take(chosen)
    rebuilt = [_at_level(store, given, chosen, originals, level) for level in steps]
    every = ([] if originals is None else [originals]) + rebuilt
    panels, bounds = given.panels([[given.upright(one) for one in column] for column in every], data_range)
    columns = [[intensity(picture, bounds) for picture in column] for column in panels]
    heads = ([] if originals is None else ["original"]) + [f"k = {level:,}" for level in steps]
    captions = [[""] * len(chosen) for _ in columns]
    if originals is not None:
        measured = range_of([originals], given.data_range)
        qualities = [_quality_captions(originals, one, measured, given.axes) for one in rebuilt]
        captions = [[range_words(measured)] * len(chosen), *qualities, [""] * len(chosen)]
        errors, gain = differences(list(zip(panels[0], panels[-1], strict=True)), bounds)
        columns.append(errors)
        heads.append(difference_words(gain))
    by_row = [list(row) for row in zip(*columns, strict=True)]
    under = [list(row) for row in zip(*captions, strict=True)]
    return gallery(by_row, heads, [""] * len(heads), given.named(chosen), under)


def _reconstructions(store: Any, given: GivenSamples) -> GivenSamples:
    """Return the samples of a store, which must have the shape of the originals."""
    rebuilt = samples_given(store, given.axes)
    if rebuilt.shape != given.shape:
        raise DataError(
            f"the store has samples of {rebuilt.shape} and the originals {given.shape}: give the store's originals"
        )
    return rebuilt


def _levels(levels: int | Iterable[int] | None, most: int) -> list[int]:
    if levels is None:
        found = [*(level for level in _LEVELS if level < most), most]
        return [found[place] for place in spread_over(len(found), _MOST_LEVELS)]
    asked = integers(levels, "the level to show")
    for level in asked:
        if not 1 <= level <= most:
            raise DataError(f"a level is {level}: give numbers of components from 1 to {most}")
    if not asked:
        raise DataError("the list of levels is empty: give at least one number of components, or leave it out")
    return asked


def _at_level(store: Any, given: GivenSamples, chosen: Sequence[int], originals: Array | None, level: int) -> Array:
    """Return the reconstructions of some samples from the first ``level`` components."""
    if isinstance(store, Scores):
        lazy = store.stack(level)
        return np.stack([np.asarray(lazy[index].compute()) for index in chosen])
    if isinstance(store, Compressed):
        return np.asarray(open_compressed(store.path, level=level)[list(chosen)])
    assert originals is not None  # they are optional for stores only
    basis, pixels = basis_given(store), None
    if originals.dtype.kind in "bui":
        pixels = Pixels(originals.dtype, range_of([originals], given.data_range))
    return np.asarray(samples_of(basis, basis.encode(originals, "the samples"), level, pixels))


def _quality_captions(originals: Array, rebuilt: Array, bounds: tuple[float, float], axes: Sequence[str]) -> list[str]:
    """Return the SSIM or the PSNR of each reconstruction as text."""
    n_spatial, width = count_spatial(axes), bounds[1] - bounds[0]
    if has_ssim(originals.shape[1:], n_spatial):
        found = metrics.ssim(originals, rebuilt, data_range=width, n_spatial=n_spatial)
        return [f"SSIM {value:.3f}" for value in found]
    return [f"{value:.1f} dB" for value in metrics.psnr(originals, rebuilt, data_range=width)]
