"""Time functions beside their spectra, modes in signed colors, and modes in motion."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from dpca.plots import drawing
from dpca.plots.drawing import ACCENT, FONT, HAIRLINE, INK, MUTED, WIDTH
from dpca.plots.panels import panel, signed, spread_over, strongest, thinned

_ROW, _HEAD, _FOOT = 0.72, 0.34, 0.5
_PANEL_PIXELS, _GAP_PIXELS, _BAR_PIXELS = 240, 6, 4
_MOST_FRAMES, _SECONDS = 40, 5.0
# Places in the palette of an animation.
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
    """Each time series in a row, and the amplitude of its spectrum beside it (Alakkari 2020, figure 6.1).

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
        Of time.
    since : str
        Date that times count from.
    """
    t, y = np.asarray(times, np.float64), np.asarray(functions, np.float64)
    f, amplitude = np.asarray(frequencies, np.float64)[1:], np.sqrt(np.asarray(power, np.float64)[1:])
    k = y.shape[1]
    figure, top = drawing.page(_HEAD + _FOOT + _ROW * k)
    left, gap, right = 0.75, 0.45, 0.15
    wide = (WIDTH - left - gap - right) * np.array([0.62, 0.38])
    drawing.write(figure, left, top - 0.2, "time function", color=MUTED, size=8.5)
    drawing.write(figure, left + wide[0] + gap, top - 0.2, "amplitude", color=MUTED, size=8.5)
    # Beyond the frequency that holds nearly all of the strongest, there would be nothing to see.
    reach = np.cumsum(amplitude**2, axis=0) >= 0.995 * np.sum(amplitude**2, axis=0)
    last = min(len(f) - 1, 1 + max(int(np.argmax(column)) for column in reach.T))
    places = ((left, wide[0], t, y, t[-1]), (left + wide[0] + gap, wide[1], f, amplitude, f[last]))
    for row in range(k):
        bottom = top - _HEAD - _ROW * (row + 1)
        drawing.write(figure, 0.08, bottom + _ROW / 2 + 0.02, f"{row + 1}", color=INK)
        drawing.write(figure, 0.08, bottom + _ROW / 2 - 0.14, f"{np.asarray(shares)[row]:.1%}", color=MUTED, size=8)
        for start, width, x, values, end in places:
            axes = figure.add_axes((start / WIDTH, bottom / top, width / WIDTH, 0.86 * _ROW / top))
            axes.plot(x, values[:, row], color=ACCENT, linewidth=0.9)
            axes.set_xlim(x[0], end)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=7 if values is y else 5))
            axes.set_yticks([])
            if values is y:
                axes.axhline(0, color=HAIRLINE, linewidth=0.6, zorder=0)
            else:
                axes.set_ylim(0, 1.08 * amplitude[:, row].max() or 1)
            axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=8, labelfontfamily=FONT, length=2.5, width=0.6)
            for side, spine in axes.spines.items():
                spine.set_visible(side == "bottom")
                spine.set(color=HAIRLINE, linewidth=0.6)
            if row < k - 1:
                axes.set_xticklabels([])
            else:
                told = f"{unit}s since {since}" if unit and since else f"time ({unit or 'samples'})"
                per = f"cycles per {unit or 'sample'}" if values is amplitude else told
                axes.set_xlabel(per, color=MUTED, fontsize=8.5, fontfamily=FONT, labelpad=4)
    return figure


def in_motion(modes: ArrayLike, functions: ArrayLike, *, axes: Sequence[str] | None = None) -> bytes:
    """Modes that swing as their time series say, and last their sum, as an animation (APNG) in signed colors.

    Parameters
    ----------
    modes : array_like (k, y, x) or (k, z, y, x)
        Of volumes the projections that `dpca.plots.panels.strongest` makes.
    functions : array_like (n, k)
        Of at most 40 times, equally far apart, frames are made.
    axes : sequence of str, optional
        Names of a mode's axes, see `dpca.plots.panels.panel`.

    Returns
    -------
    bytes
        Of a PNG file, which viewers that know no animation show as its first frame.
    """
    patterns = np.stack([thinned(_flat(mode, axes), _PANEL_PIXELS) for mode in np.asarray(modes)])
    scores = np.asarray(functions, np.float64)
    scores = scores[spread_over(len(scores), _MOST_FRAMES)]
    moving = [patterns[j] * scores[:, j, None, None] for j in range(len(patterns))]
    moving.append(np.tensordot(scores, patterns, 1))
    zoom = max(1, _PANEL_PIXELS // max(patterns.shape[1:]))
    extents = [float(np.percentile(np.abs(one), 99.5)) or 1.0 for one in moving]
    frames = []
    for number in range(len(scores)):
        row = np.full((zoom * patterns.shape[1], 0), _WHITE, np.uint8)
        for one, extent in zip(moving, extents, strict=True):
            levels = _WHITE + np.rint(_WHITE * np.clip(one[number] / extent, -1, 1))
            shown = np.kron(levels, np.ones((zoom, zoom))).astype(np.uint8)
            between = np.full((len(row), _GAP_PIXELS), _WHITE, np.uint8)
            row = np.concatenate([row, between[:, : _GAP_PIXELS * bool(row.size)], shown], axis=1)
        bar = np.full((_BAR_PIXELS, row.shape[1]), _WHITE, np.uint8)
        bar[1:, : round(row.shape[1] * (number + 1) / len(scores))] = _GRAY
        frame = Image.fromarray(np.concatenate([row, bar]), "P")
        frame.putpalette(_palette())
        frames.append(frame)
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
