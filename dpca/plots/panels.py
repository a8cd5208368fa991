"""Samples and eigenvectors as panels: images in 0..1, or curves. Nothing is drawn here.

A panel is one of

* ``(H, W)``: gray,
* ``(H, W, 3)``: color,
* ``(L,)``: a curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpca.plots.overviews import thinned
from dpca.storage.arrays.layout import CHANNEL, axes_for
from dpca.storage.errors import DataError
from dpca.storage.ranges import checked_range, found_range, type_range

NEUTRAL = 0.5
"""The gray of zero in differences and eigenvectors."""
NO_DATA = (0.91, 0.85, 0.65)
"""The sand color of missing values in photographs, which may contain any gray."""
NOTHING = 0.73
"""The gray of missing values in signed colors."""
# Percentiles of a picture that become black and white, and the number of values to estimate them from.
_PERCENTILES, _MOST_VALUES = (0.2, 99.8), 2**18
# Values that span a smaller share of a data range hardly use it.
_USED = 0.1
_POSITIVE, _NEGATIVE = (0.66, 0.20, 0.10), (0.10, 0.32, 0.55)


def panel(sample: ArrayLike, axes: Sequence[str] | None = None, *, every_channel: bool = False) -> NDArray[np.float64]:
    """Return the part of a sample that a page can show. Values are not changed.

    Parameters
    ----------
    sample : array_like
        One sample of any numeric dtype: ``(L,)``, ``(y, x)``, ``(y, x, channel)``, ``(z, y, x)``,
        ``(z, y, x, channel)``, or with further leading axes.
    axes : sequence of str, optional
        Names of the axes, without the sample axis. The last axis has channels if its name is ``"channel"``. The
        default is `dpca.storage.arrays.layout.axes_for`.
    every_channel : bool
        Whether all channels of an image are returned, for `Blend`.

    Returns
    -------
    ndarray of float64
        ``(L,)``, ``(H, W)`` or ``(H, W, 3)``: the middle slice of a volume; the first three channels, or the
        mean of fewer.
    """
    values = np.asarray(sample)
    if axes is not None and len(axes) != values.ndim:
        raise DataError(f"axes are {tuple(axes)}, and a sample has {values.ndim} axes: give a name for each")
    has_channels = (axes or axes_for(values.shape))[-1] == CHANNEL
    if has_channels and not every_channel:
        values = values[..., :3] if values.shape[-1] >= 3 else values.mean(axis=-1)
    flat_axes = 3 if has_channels and (every_channel or values.shape[-1:] == (3,)) else 2
    while values.ndim > flat_axes:
        values = values[len(values) // 2]
    return values.astype(np.float64)


def spread_over(n: int, count: int) -> list[int]:
    """Return the indices of up to ``count`` of n things, evenly spaced from the first to the last."""
    found: list[int] = np.linspace(0, n - 1, min(count, n)).round().astype(int).tolist()
    return found


def range_of(values: Sequence[NDArray[Any]], stated: tuple[float, float] | None) -> tuple[float, float]:
    """Return the data range for errors: the stated range, by default the span of these values."""
    if stated is not None:
        return stated
    finite = [part[np.isfinite(part)] for part in values]
    finite = [part for part in finite if part.size]
    if not finite:
        return 0.0, 1.0
    return found_range(float(min(part.min() for part in finite)), float(max(part.max() for part in finite)))


def hardly_used(spanned: tuple[float, float], data_range: tuple[float, float]) -> bool:
    """Return whether the span of values is less than a tenth of the data range."""
    return spanned[1] - spanned[0] < _USED * (data_range[1] - data_range[0])


def shown_range(
    values: Sequence[NDArray[Any]], dtype: np.dtype[Any], stated: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Return the values of black and white.

    For 8-bit and boolean values, they are the stated range or the range of the dtype, unless the values use less than a
    tenth of it. Other dtypes come from instruments and seldom fill their range, so the 0.2th and 99.8th percentiles are
    used. If these are equal, as on a constant background, those of the other values are included. A constant is gray.
    Curves are never clipped.
    """
    finite = np.concatenate([part[np.isfinite(part)] for part in values] or [np.empty(0)])
    whole = type_range(np.dtype(dtype))
    if not finite.size:
        return whole or (0.0, 1.0)
    spanned = float(finite.min()), float(finite.max())
    if whole is not None:
        whole = stated or whole
        if spanned[0] == spanned[1] or not hardly_used(spanned, whole):
            return whole
    if spanned[0] == spanned[1]:
        half = abs(spanned[0]) / 2 or 0.5
        return spanned[0] - half, spanned[1] + half
    if all(part.ndim == 1 for part in values):
        return spanned
    low, high = _percentiles(finite)
    if low == high:
        others = _percentiles(finite[finite != low])
        low, high = min(low, others[0]), max(high, others[1])
    return low, high


@dataclass(frozen=True, eq=False)
class Blend:
    """Channels in their colors, as viewers of microscopy do: a pixel is the sum of the colors of its channels."""

    colors: NDArray[np.float64]
    """Red, green and blue (channels, 3) in 0..1."""
    bounds: NDArray[np.float64]
    """The values (channels, 2) of each channel that are black, and its color."""

    @classmethod
    def of(cls, colors: Sequence[str], bounds: Callable[[int], tuple[float, float]] = lambda _: (0.0, 1.0)) -> Blend:
        """Return the blend of colors such as ``"#00ff00"``; ``bounds`` returns those of a channel from its number."""
        parts = [[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in colors]
        return cls(np.array(parts), np.array([bounds(channel) for channel in range(len(colors))], np.float64))

    def __call__(self, samples: ArrayLike) -> NDArray[np.float64]:
        """Return the red, green and blue (..., 3) of samples (..., channels). Nothing is clipped: it is linear."""
        low, high = self.bounds.T
        blended: NDArray[np.float64] = (np.asarray(samples, np.float64) - low) / (high - low) @ self.colors
        return blended


def panels_of(
    groups: Sequence[Sequence[ArrayLike]],
    axes: Sequence[str] | None,
    colors: Sequence[str] | None,
    bounds: Callable[[Sequence[NDArray[Any]]], tuple[float, float]],
) -> tuple[list[list[NDArray[np.float64]]], tuple[float, float]]:
    """Return groups of samples as panels, and the values of black and white.

    ``bounds`` returns these of some pictures, and is given those of the first group. With ``colors``, it is given each
    channel by itself, and panels are a `Blend`.
    """
    every = colors is not None
    found = [[thinned(panel(one, axes, every_channel=every)) for one in group] for group in groups]
    if colors is None:
        return found, bounds(found[0])
    blend = Blend.of(colors, lambda channel: bounds([one[..., channel] for one in found[0]]))
    return [[blend(one) for one in group] for group in found], (0.0, 1.0)


def _percentiles(values: NDArray[Any]) -> tuple[float, float]:
    some = values[:: -(-values.size // _MOST_VALUES) | 1].astype(np.float64)
    low, high = np.percentile(some, _PERCENTILES).tolist()
    return low, high


def intensity(values: NDArray[np.float64], data_range: tuple[float, float]) -> NDArray[np.float64]:
    """Map ``data_range`` to 0..1 and clip values outside of it."""
    low, high = checked_range(data_range)
    return np.clip((values - low) / (high - low), 0.0, 1.0)


def difference(
    original: NDArray[np.float64],
    reconstruction: NDArray[np.float64],
    data_range: tuple[float, float],
    gain: float,
) -> NDArray[np.float64]:
    """Return the amplified difference around :data:`NEUTRAL`; it is brighter where the reconstruction is too bright."""
    low, high = checked_range(data_range)
    return np.clip(NEUTRAL + gain * (reconstruction - original) / (high - low), 0.0, 1.0)


def levels(picture: NDArray[np.float64], colors: NDArray[np.float64] | None = None) -> NDArray[np.uint8]:
    """Return an image in 0..1 as levels from 0 to 255. Missing values (NaN) become `NO_DATA`, in color.

    ``colors`` (256, 3) in 0..1 are those of a gray image from black to white; the default is gray.
    """
    missing = np.isnan(picture)
    if colors is not None and picture.ndim == 2:
        picture = colors[np.rint(np.nan_to_num(picture) * 255).astype(np.uint8)]
    if missing.any():
        colored = picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, axis=-1)
        picture = np.where(missing.reshape(*picture.shape[:2], -1).any(axis=-1, keepdims=True), NO_DATA, colored)
    return np.rint(picture * 255).astype(np.uint8)


def readable_gain(differences: Sequence[NDArray[np.float64]], data_range: tuple[float, float]) -> int:
    """Return the largest gain of 1, 2, 5, 10, 20 ... 1000 with at least 99 % of the differences unclipped.

    A figure has a single gain, so that a paler panel means a smaller error.
    """
    low, high = checked_range(data_range)
    finite = [values[np.isfinite(values)] for values in differences]
    extent = max((float(np.percentile(np.abs(values), 99)) for values in finite if values.size), default=0.0)
    if extent == 0:
        return 1
    wanted = NEUTRAL * (high - low) / extent
    return max((step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if step <= wanted), default=1)


def differences(
    pairs: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], data_range: tuple[float, float]
) -> tuple[list[NDArray[np.float64]], int]:
    """Return `difference` of each pair of original and reconstruction, and the gain, which is the same for all."""
    with np.errstate(invalid="ignore"):  # the difference of infinities is a missing value
        gain = readable_gain([b - a for a, b in pairs], data_range)
        return [difference(a, b, data_range, gain) for a, b in pairs], gain


def difference_words(gain: int) -> str:
    """Return the heading of a difference, with its gain."""
    return "difference" if gain == 1 else f"difference \N{MULTIPLICATION SIGN} {gain}"


def extent_of(pictures: Sequence[NDArray[np.float64]]) -> float:
    """Return the magnitude of full contrast: the 99.5th percentile of all magnitudes, 1 if all values are zero."""
    magnitudes = [np.abs(values[np.isfinite(values)]) for values in pictures]
    together = np.concatenate([part.ravel() for part in magnitudes]) if magnitudes else np.empty(0)
    if not together.size:
        return 1.0
    return float(np.percentile(together, 99.5)) or float(together.max()) or 1.0


def centered(values: NDArray[np.float64], extent: float | None = None) -> NDArray[np.float64]:
    """Scale an eigenvector for display: zero and NaN become gray, ``extent`` full contrast, see `extent_of`."""
    extent = extent_of([values]) if extent is None else extent
    return np.clip(NEUTRAL + NEUTRAL * np.nan_to_num(values, nan=0.0) / extent, 0.0, 1.0)


def signed(values: NDArray[np.float64], extent: float | None = None) -> NDArray[np.float64]:
    """Color an image (H, W) by sign, (H, W, 3) in 0..1: zero is white, positive red, negative blue, NaN gray.

    ``extent`` is the magnitude of full color; the default is `extent_of`.
    """
    extent = extent_of([values]) if extent is None else extent
    missing, clean = np.isnan(values), np.nan_to_num(values, nan=0.0)
    strength = np.clip(np.abs(clean) / extent, 0.0, 1.0)[..., None]
    colored: NDArray[np.float64] = 1 - strength * (1 - np.where(clean[..., None] < 0, _NEGATIVE, _POSITIVE))
    colored[missing] = NOTHING
    return colored


def strongest(volume: ArrayLike, axis: int = 0, n_left: int = 2) -> NDArray[np.float64]:
    """Project a volume along an axis, and then along the first axis until ``n_left`` are left.

    The result has the value of the largest magnitude along each line, with its sign; NaN if all values are NaN.
    """
    values, along = np.asarray(volume, np.float64), axis
    while values.ndim > n_left:
        places = np.where(np.isnan(values), -1.0, np.abs(values)).argmax(axis=along)
        values = np.take_along_axis(values, np.expand_dims(places, along), axis=along).squeeze(along)
        along = 0
    return values


def by_sign(values: NDArray[np.float64], extent: float | None = None) -> NDArray[np.float64]:
    """Return an eigenvector for display: `signed` for images of one channel, `centered` for colors and curves."""
    return (signed if values.ndim == 2 else centered)(values, extent)


def align_signs(values: NDArray[np.float64], cell_shape: Sequence[int] | None) -> NDArray[np.float64]:
    """Choose the sign of every cell's eigenvector so that neighbors agree along their common border.

    Curves, and images without cells of two axes or more, are not changed.

    The sign of an eigenvector is arbitrary, and cells are fitted independently, so their eigenvectors would look like a
    checkerboard. The signs follow from a spanning tree of the grid of cells with the strongest agreements. ``values``
    (H, W) or (H, W, 3) are one component with every cell's eigenvector in place. The sum of the result is not negative.
    """
    if cell_shape is None or len(cell_shape) < 2 or values.ndim == 1:
        return values
    from scipy.sparse import coo_array  # imported here, because it takes as long as all other imports of this module
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    image = np.nan_to_num(values, nan=0.0)
    if image.ndim == 2:
        image = image[..., None]
    height, width = cell_shape[-2:]
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
    # scipy returns the minimum spanning tree, so weights decrease with agreement. They are positive, because zero would
    # mean no edge.
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
