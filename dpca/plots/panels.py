"""Samples and eigenvectors as panels to look at: images in 0..1, or curves. Nothing is drawn here.

A panel is one of

* ``(H, W)``: grey,
* ``(H, W, 3)``: color,
* ``(L,)``: a curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpca.storage.errors import DataError
from dpca.storage.layout import CHANNEL, axes_for
from dpca.storage.ranges import found_range, type_range

NEUTRAL = 0.5
"""The grey that stands for zero in differences and eigenvectors."""
NO_DATA = (0.91, 0.85, 0.65)
"""The sand that stands for values that are missing: no gray is free in a photograph."""
NOTHING = 0.73
"""The gray that stands for values that are missing where colors tell signs."""
# Of the values of a picture, those shown as black and as white; found among so many of them.
_PERCENTILES, _LOOKED_AT = (0.5, 99.5), 2**18
# The share of a range below which it is hardly used.
_USED = 0.1
_POSITIVE, _NEGATIVE = (0.66, 0.20, 0.10), (0.10, 0.32, 0.55)


def panel(sample: ArrayLike, axes: Sequence[str] | None = None) -> NDArray[np.float64]:
    """Take from a sample what can be shown on a page; values are kept as they are.

    Parameters
    ----------
    sample : array_like
        One sample of any numeric dtype: ``(L,)``, ``(y, x)``, ``(y, x, channel)``, ``(z, y, x)``,
        ``(z, y, x, channel)``, or with further leading axes.
    axes : sequence of str, optional
        Names of the axes, without the sample axis. Only the last is looked at: it holds channels if it is
        called ``"channel"``; default as `dpca.storage.layout.axes_for` names them.

    Returns
    -------
    ndarray of float64
        ``(L,)``, ``(H, W)`` or ``(H, W, 3)``: the middle slice of a volume; the first three channels, or the
        mean of fewer.
    """
    values = np.asarray(sample)
    if axes is not None and len(axes) != values.ndim:
        raise DataError(f"axes {tuple(axes)} name {len(axes)} axes, and a sample has {values.ndim}: name each one")
    has_channels = (axes or axes_for(values.shape))[-1] == CHANNEL
    if has_channels:
        values = values[..., :3] if values.shape[-1] >= 3 else values.mean(axis=-1)
    flat_axes = 3 if has_channels and values.shape[-1:] == (3,) else 2
    while values.ndim > flat_axes:
        values = values[len(values) // 2]
    return values.astype(np.float64)


def thinned(picture: NDArray[np.float64], longest: int = 1600) -> NDArray[np.float64]:
    """Leave out rows and columns of an image that no page could show; curves stay as they are."""
    if picture.ndim == 1:
        return picture
    step = -(-max(picture.shape[:2]) // longest)
    return picture[::step, ::step].copy() if step > 1 else picture


def bounds_of(data_range: ArrayLike) -> tuple[float, float]:
    """Return the lowest and the highest value.

    Raises
    ------
    DataError
        If these are not two finite numbers in this order.
    """
    values = np.asarray(data_range, np.float64)
    if values.shape != (2,) or not -np.inf < values[0] < values[1] < np.inf:
        raise DataError(f"data_range is {data_range!r}: give the lowest and the highest value, in this order")
    return float(values[0]), float(values[1])


def range_of(values: Sequence[NDArray[Any]], stated: tuple[float, float] | None) -> tuple[float, float]:
    """Return the range that errors refer to: what is stated, else what these values span."""
    if stated is not None:
        return stated
    finite = [part[np.isfinite(part)] for part in values]
    finite = [part for part in finite if part.size]
    if not finite:
        return 0.0, 1.0
    return found_range(float(min(part.min() for part in finite)), float(max(part.max() for part in finite)))


def hardly_used(spanned: tuple[float, float], data_range: tuple[float, float]) -> bool:
    """Say whether values that span this use under a tenth of a range."""
    return spanned[1] - spanned[0] < _USED * (data_range[1] - data_range[0])


def shown_range(
    values: Sequence[NDArray[Any]], dtype: np.dtype[Any], stated: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Return the values that are shown as black and as white.

    Of 8-bit and truth values these are what is stated, or the range of the type, unless the values use under a tenth of
    it. Others come from instruments whose range they seldom fill: the 0.5th and 99.5th percentile are shown of them.
    Curves are shown whole.
    """
    spanned = range_of(values, None)
    whole = type_range(np.dtype(dtype))
    if whole is not None and not hardly_used(spanned, whole := stated or whole):
        return whole
    finite = np.concatenate([part[np.isfinite(part)] for part in values if part.ndim > 1] or [np.empty(0)])
    if not finite.size:
        return spanned
    low, high = np.percentile(finite[:: -(-finite.size // _LOOKED_AT) | 1].astype(np.float64), _PERCENTILES).tolist()
    return (low, high) if low < high else spanned


def intensity(values: NDArray[np.float64], data_range: tuple[float, float]) -> NDArray[np.float64]:
    """Map ``data_range`` to 0..1 and cut what lies outside."""
    low, high = bounds_of(data_range)
    return np.clip((values - low) / (high - low), 0.0, 1.0)


def difference(
    original: NDArray[np.float64],
    reconstruction: NDArray[np.float64],
    data_range: tuple[float, float],
    gain: float,
) -> NDArray[np.float64]:
    """Amplified difference around :data:`NEUTRAL`: brighter where the reconstruction is too bright."""
    low, high = bounds_of(data_range)
    return np.clip(NEUTRAL + gain * (reconstruction - original) / (high - low), 0.0, 1.0)


def marked(picture: NDArray[np.float64]) -> NDArray[np.float64]:
    """Show missing values (NaN) of an image in 0..1 as `NO_DATA`; curves stay as they are."""
    missing = np.isnan(picture)
    if picture.ndim == 1 or not missing.any():
        return picture
    colored = picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, axis=-1)
    return np.where(missing.reshape(*picture.shape[:2], -1).any(axis=-1, keepdims=True), NO_DATA, colored)


def readable_gain(differences: Sequence[NDArray[np.float64]], data_range: tuple[float, float]) -> int:
    """Find the largest of 1, 2, 5, 10, 20 ... 1000 that leaves 99 % of the differences uncut.

    One gain serves a whole picture, so that a paler panel is a smaller error.
    """
    low, high = bounds_of(data_range)
    finite = [values[np.isfinite(values)] for values in differences]
    extent = max((float(np.percentile(np.abs(values), 99)) for values in finite if values.size), default=0.0)
    if extent == 0:
        return 1
    wanted = NEUTRAL * (high - low) / extent
    return max((step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if step <= wanted), default=1)


def extent_of(pictures: Sequence[NDArray[np.float64]]) -> float:
    """Return the magnitude that is shown in full contrast: the 99.5th percentile of all, 1 where all is zero."""
    magnitudes = [np.abs(values[np.isfinite(values)]) for values in pictures]
    together = np.concatenate([part.ravel() for part in magnitudes]) if magnitudes else np.empty(0)
    if not together.size:
        return 1.0
    return float(np.percentile(together, 99.5)) or float(together.max()) or 1.0


def centered(values: NDArray[np.float64], extent: float | None = None) -> NDArray[np.float64]:
    """Scale an eigenvector for display: zero and NaN to grey, ``extent`` to full contrast, see `extent_of`."""
    extent = extent_of([values]) if extent is None else extent
    return np.clip(NEUTRAL + NEUTRAL * np.nan_to_num(values, nan=0.0) / extent, 0.0, 1.0)


def signed(values: NDArray[np.float64], extent: float | None = None) -> NDArray[np.float64]:
    """Color an image (H, W) by sign, (H, W, 3) in 0..1: zero is white, positive red, negative blue, NaN gray.

    Full color is for ``extent``, by default that of `extent_of`.
    """
    extent = extent_of([values]) if extent is None else extent
    missing, clean = np.isnan(values), np.nan_to_num(values, nan=0.0)
    strength = np.clip(np.abs(clean) / extent, 0.0, 1.0)[..., None]
    colored: NDArray[np.float64] = 1 - strength * (1 - np.where(clean[..., None] < 0, _NEGATIVE, _POSITIVE))
    colored[missing] = NOTHING
    return colored


def strongest(volume: ArrayLike, axis: int = 0) -> NDArray[np.float64]:
    """Project a volume along an axis, and along the first one until two are left.

    Of each line the value farthest from 0 is taken, with its sign; NaN where all are NaN.
    """
    values, along = np.asarray(volume, np.float64), axis
    while values.ndim > 2:
        places = np.where(np.isnan(values), -1.0, np.abs(values)).argmax(axis=along)
        values = np.take_along_axis(values, np.expand_dims(places, along), axis=along).squeeze(along)
        along = 0
    return values


def align_signs(values: NDArray[np.float64], cell_shape: tuple[int, int]) -> NDArray[np.float64]:
    """Choose the free sign of every cell's eigenvector so that neighbors agree along their common border.

    An eigenvector is as good with either sign, and cells are fitted independently: laid out as they come
    they make a checkerboard. The signs follow from a tree over the grid of cells that spans the strongest
    agreements. ``values`` (H, W) or (H, W, 3) hold one component, every cell's eigenvector in its place; the
    sum of the result is not negative.
    """
    from scipy.sparse import coo_array  # takes as long to import as all the rest here
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    image = np.nan_to_num(values, nan=0.0)
    if image.ndim == 2:
        image = image[..., None]
    height, width = cell_shape
    starts_y, starts_x = np.arange(0, len(image), height), np.arange(0, image.shape[1], width)
    cells = np.arange(len(starts_y) * len(starts_x)).reshape(len(starts_y), len(starts_x))

    # Dot products of the facing border pixels: (rows, columns - 1) and (rows - 1, columns).
    across = (image[:, starts_x[1:] - 1] * image[:, starts_x[1:]]).sum(axis=-1)
    across = np.add.reduceat(across, starts_y, axis=0)
    down = (image[starts_y[1:] - 1] * image[starts_y[1:]]).sum(axis=-1)
    down = np.add.reduceat(down, starts_x, axis=1)

    first = np.concatenate([cells[:, :-1].ravel(), cells[:-1].ravel()])
    second = np.concatenate([cells[:, 1:].ravel(), cells[1:].ravel()])
    agreement = np.concatenate([across.ravel(), down.ravel()])
    # scipy's tree is the lightest: weights fall with agreement, and stay positive because zero would mean
    # no edge.
    weight = 1 + np.abs(agreement).max(initial=0.0) - np.abs(agreement)
    tree = minimum_spanning_tree(coo_array((weight, (first, second)), shape=(cells.size, cells.size)).tocsr())
    order, parents = breadth_first_order(tree, 0, directed=False)
    flips = {(a, b): value < 0 for a, b, value in zip(first, second, agreement, strict=True)}
    signs = np.ones(cells.size)
    for cell in order[1:]:
        pair = (min(cell, parents[cell]), max(cell, parents[cell]))
        signs[cell] = -signs[parents[cell]] if flips[pair] else signs[parents[cell]]

    spread = np.repeat(np.repeat(signs.reshape(cells.shape), height, axis=0), width, axis=1)
    spread = spread[: image.shape[0], : image.shape[1]]
    aligned = values * (spread if values.ndim == 2 else spread[..., None])
    return aligned if np.nansum(aligned) >= 0 else -aligned
