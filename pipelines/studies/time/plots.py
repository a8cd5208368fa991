"""Time series beside their spectra, and modes in motion."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from dpca.plots import drawing
from dpca.plots.drawing import FONT, INK, MUTED, WIDTH
from dpca.plots.maps import draw_series
from dpca.plots.overviews import thinned
from dpca.plots.panels import panel, signed, spread_over, strongest

_ROW, _HEAD, _FOOT = 0.72, 0.34, 0.5
_LEFT, _GAP, _RIGHT = 0.75, 0.45, 0.15
_PANEL_PIXELS, _GAP_PIXELS, _BAR_PIXELS = 240, 6, 4
_MOST_FRAMES, _SECONDS = 40, 5.0
# Indices in the palette of an animation.
_WHITE, _GRAY = 127, 255


def functions_and_spectra(
    times: ArrayLike,
    functions: ArrayLike,
    frequencies: ArrayLike,
    power: ArrayLike,
    *,
    shares: ArrayLike,
    unit: str = "",
    since: str = "",
) -> Figure:
    """Draw each time series in a row, and the amplitude of its spectrum beside it (Alakkari 2020, figure 6.1).

    Parameters
    ----------
    times : array_like (n,)
    functions : array_like (n, k)
    frequencies : array_like (m,)
        From 0, which is left out.
    power : array_like (m, k)
    shares : array_like (k,)
        Share of the variance of each.
    unit : str
        Unit of time.
    since : str
        Date from which times count.
    """
    t, y = np.asarray(times, np.float64), np.asarray(functions, np.float64)
    f, amplitude = np.asarray(frequencies, np.float64)[1:], np.sqrt(np.asarray(power, np.float64)[1:])
    k = y.shape[1]
    figure, top = drawing.page(_HEAD + _FOOT + _ROW * k)
    wide = (WIDTH - _LEFT - _GAP - _RIGHT) * np.array([0.62, 0.38])
    # Higher frequencies, which have almost nothing of the strongest spectra, are not drawn.
    reach = np.cumsum(amplitude**2, axis=0) >= 0.995 * np.sum(amplitude**2, axis=0)
    last = min(len(f) - 1, 1 + max(int(np.argmax(column)) for column in reach.T))
    when = f"{unit}s since {since}" if unit and since else f"time ({unit or 'samples'})"
    for heading, x_label, start, width, bins, x, values, end in (
        ("time series", when, _LEFT, wide[0], 7, t, y, t[-1]),
        ("amplitude", f"cycles per {unit or 'sample'}", _LEFT + wide[0] + _GAP, wide[1], 5, f, amplitude, f[last]),
    ):
        drawing.write(figure, start, top - 0.2, heading, color=MUTED, size=8.5)
        for row in range(k):
            bottom = top - _HEAD - _ROW * (row + 1)
            axes = draw_series(figure, x, values[:, row], (start, bottom, width, 0.86 * _ROW))
            axes.set_xlim(x[0], end)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=bins))
            axes.set_yticks([])
            if values is amplitude:
                axes.set_ylim(0, 1.08 * amplitude[:, row].max() or 1)
            if row < k - 1:
                axes.set_xticklabels([])
        axes.set_xlabel(x_label, color=MUTED, fontsize=8.5, fontfamily=FONT, labelpad=4)
    for row, share in enumerate(np.asarray(shares)[:k]):
        middle = top - _HEAD - _ROW * (row + 0.5)
        drawing.write(figure, 0.08, middle + 0.02, f"{row + 1}", color=INK)
        drawing.write(figure, 0.08, middle - 0.14, f"{share:.1%}", color=MUTED, size=8)
    return figure


def in_motion(modes: ArrayLike, functions: ArrayLike, *, axes: Sequence[str] | None = None) -> bytes:
    """Animate modes by their time series, and last their sum, as an APNG in signed colors.

    Parameters
    ----------
    modes : array_like (k, y, x) or (k, z, y, x)
        Volumes are shown as projections, see `dpca.plots.panels.strongest`.
    functions : array_like (n, k)
        The animation has at most 40 frames, equally far apart.
    axes : sequence of str, optional
        Names of a mode's axes, see `dpca.plots.panels.panel`.

    Returns
    -------
    bytes
        Content of a PNG file. Viewers without support of animations show its first frame.
    """
    patterns = np.stack([thinned(_flat(mode, axes), _PANEL_PIXELS) for mode in np.asarray(modes)])
    scores = np.asarray(functions, np.float64)
    scores = scores[spread_over(len(scores), _MOST_FRAMES)]
    panels = [scores[:, j, None, None] * pattern for j, pattern in enumerate(patterns)]
    panels.append(np.tensordot(scores, patterns, 1))
    zoom, n = max(1, _PANEL_PIXELS // max(patterns.shape[1:])), len(scores)
    rows = []
    for values in panels:
        extent = float(np.percentile(np.abs(values), 99.5)) or 1.0
        levels = _WHITE + np.rint(_WHITE * np.clip(values / extent, -1, 1))
        shown = levels.astype(np.uint8).repeat(zoom, axis=1).repeat(zoom, axis=2)
        rows.append(np.pad(shown, ((0, 0), (0, 0), (_GAP_PIXELS, 0)), constant_values=_WHITE))
    row = np.concatenate(rows, axis=2)[..., _GAP_PIXELS:]
    bar = np.full((n, _BAR_PIXELS, row.shape[2]), _WHITE, np.uint8)
    for number, line in enumerate(bar, 1):
        line[1:, : round(row.shape[2] * number / n)] = _GRAY
    frames = [Image.fromarray(pixels, "P") for pixels in np.concatenate([row, bar], axis=1)]
    for frame in frames:
        frame.putpalette(_palette())
    buffer = io.BytesIO()
    duration = 1000 * _SECONDS / len(frames)
    frames[0].save(buffer, "PNG", save_all=True, append_images=frames[1:], duration=duration, loop=0)
    return buffer.getvalue()


def _palette() -> bytes:
    """Return 255 signed colors from the most negative to the most positive, and gray."""
    colors = signed(np.linspace(-1, 1, 255), 1.0)
    return bytes(np.rint(255 * np.concatenate([colors, [[0.45] * 3]])).astype(np.uint8))


def _flat(mode: ArrayLike, axes: Sequence[str] | None) -> NDArray[np.float64]:
    values = np.asarray(mode, np.float64)
    channels = axes is not None and axes[-1] == "channel"
    return panel(values, axes) if channels or values.ndim < 3 else strongest(values)
