"""Charts: explained variance, convergence, and the quality of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter
from numpy.typing import ArrayLike, NDArray

from dpca.plots import drawing
from dpca.plots.drawing import ACCENT, ALERT, INK, MUTED
from dpca.plots.given import curve_of, is_model, model_given, quality_of
from dpca.plots.lines import draw_lines
from dpca.plots.numbers import rounded_down
from dpca.storage.errors import DataError

# Side of a square and the room beside and below it, in inches.
_SQUARE, _BESIDE, _BELOW = 2.9, 0.5, 0.5
# float64 does not resolve smaller values.
_FLOOR = -15.0

Line: TypeAlias = tuple[str, ArrayLike, ArrayLike]
"""Name, abscissae, convergences."""


def explained_variance(models: Any, *, parts: str | None = None, emphasized: str = "") -> Figure:
    """Draw the cumulative share of the variance that the first 1, 2, ... components explain.

    Parameters
    ----------
    models : fitted estimator, path, array (k,) or (n_parts, k), or mapping of names to any of these
        An array has cumulative shares in 0..1, with one row per cell or band; rows with NaN (without variance) are left
        out. For several parts, their mean and spread are drawn; for a mapping, a line for each name (Alakkari 2020,
        figure 4.9).
    parts : str, optional
        Name of the parts; the default is that of the model, and "cells" for an array.
    emphasized : str
        Name of the reference line.

    Returns
    -------
    matplotlib.figure.Figure
        The legend lists several lines by their last value, the highest first.

    Raises
    ------
    DataError
        If a model has no variances, or there is no line with a point.
    """
    if isinstance(models, Mapping):
        return _several({str(name): _curve(one) for name, one in models.items()}, emphasized)
    if parts is None and is_model(models):
        models = model_given(models)
        parts = f"{getattr(models, 'part_name', 'cell')}s"
    return _mean_and_spread(_curve(models), parts or "cells")


def convergence(
    lines: Mapping[str, tuple[ArrayLike, ArrayLike]] | Sequence[Line],
    x_label: str = "samples seen",
    *,
    emphasized: str = "",
    y_label: str = "convergence, log10(1 - captured / best)",
) -> Figure:
    """Draw convergence against samples seen or seconds, one line per rule (Alakkari 2020, figure 3.2).

    Parameters
    ----------
    lines : mapping of names to (x, convergence), or sequence of (name, x, convergence)
        ``x`` is positive and ascending. `dpca.metrics.convergence` measures convergence. Minus infinity is drawn at
        -15, the resolution of float64. Points with NaN or infinity are left out, and so are rules without any point.
    x_label : str
    emphasized : str
        Name of the reference line.
    y_label : str
        Label, for another logarithm of an excess.

    Returns
    -------
    matplotlib.figure.Figure
        The legend lists the lines by their last value, the best last.

    Raises
    ------
    DataError
        If there is no line with a point, or x and y of a line have different lengths.
    """
    given = [(name, *line) for name, line in lines.items()] if isinstance(lines, Mapping) else lines
    points = [(name, *_points(name, x, values)) for name, x, values in given]
    drawn = [line for line in points if len(line[1])]
    if not drawn:
        raise DataError("there is no convergence to show: give at least one line with a point")
    figure, axes = drawing.chart(x_label, y_label)
    draw_lines(axes, drawn, emphasized, ".2f", legend_width=2.75, line_width=1.3, most_markers=30)
    _scale(axes)
    return figure


def ssim_histogram(ssim: Any) -> Figure:
    """Draw a histogram of the SSIM of every sample, with the mean and the worst marked.

    Parameters
    ----------
    ssim : array_like (n,), path, or an opened store of scores or codes
        NaN is left out. `worst_cases` shows the samples at the left end.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    DataError
        If there is no value to show.
    """
    if is_model(ssim) or hasattr(ssim, "quality"):
        ssim = quality_of(ssim).get("ssim", ())
    values = np.asarray(ssim, dtype=np.float64).ravel()
    values = values[~np.isnan(values)]
    if values.size == 0:
        raise DataError("there is no SSIM to show: leave out this figure if SSIM is not defined")
    low, mean = float(values.min()), float(values.mean())
    figure, axes = drawing.chart("SSIM", "images")
    high = float(values.max())
    edge = max(0.04 * (high - low), 1e-3)
    limits = (low - edge, min(high + edge, 1.0) if high <= 1 else high + edge)
    bins = int(np.clip(2 * values.size ** (1 / 3), 12, 80))  # Rice's rule
    axes.hist(values, bins=bins, range=limits, color=ACCENT, alpha=0.6, edgecolor="white", linewidth=0.6)
    top = axes.get_ylim()[1] * 1.14
    axes.set_ylim(0, top)
    axes.set_xlim(*limits)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    for text, at, height, color in (("mean", mean, top, INK), ("worst", low, 0.35 * top, ALERT)):
        axes.plot([at, at], [0, height], color=color, linewidth=1.2)
        near_edge = at > limits[0] + 0.8 * (limits[1] - limits[0])
        offset = (-6, -12) if near_edge else (6, -12)
        side: drawing.Side = "right" if near_edge else "left"
        drawing.annotate(axes, f"{text} {at:.3f}", (at, height), offset, color, side)
    return figure


def residual_chart(power: ArrayLike, correlations: Mapping[str, ArrayLike]) -> Figure:
    """Draw the power spectrum of a residual, and its correlation with its neighbors. Those of noise are flat.

    Parameters
    ----------
    power : array_like (ny, nx) or (n,)
        Power by spatial frequency, 0 in the middle, of mean 1.
    correlations : mapping of str to array_like (lags,)
        Correlation at distances of 1, 2, ... along each axis.

    Raises
    ------
    DataError
        If the power has no axis or more than two.
    """
    values = np.asarray(power, np.float64)
    if values.ndim not in (1, 2):
        raise DataError(f"power has shape {values.shape}: give (ny, nx) or (n,)")
    figure, top = drawing.page(_SQUARE + 2 * _BELOW)
    place = (_BESIDE, _BELOW, _SQUARE, _SQUARE)
    drawing.write(figure, _BESIDE, top - 0.35, "power by spatial frequency, 0 in the middle (noise: 1)", color=INK)
    if values.ndim == 2:
        scale = Normalize(0.0, 2.0)
        drawing.show_colored(figure, values, place, drawing.FEW_TO_MANY, bar=(0.12, 0.14), scale=scale)
    else:
        spectrum = drawing.axes_at(figure, place)
        spectrum.plot(np.fft.fftshift(np.fft.fftfreq(len(values))), values, color=ACCENT, linewidth=0.9)
        spectrum.set_ylim(0, max(2.0, float(values.max())))
        drawing.style_axes(spectrum)
    left = _BESIDE + _SQUARE + 1.6
    drawing.write(figure, left, top - 0.35, "correlation by distance (noise: 0)", color=INK)
    axes = drawing.axes_at(figure, (left, _BELOW, drawing.WIDTH - left - 0.3, _SQUARE))
    drawing.style_axes(axes)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    lines = [
        (name, np.arange(1, 1 + len(np.asarray(along))), np.asarray(along)) for name, along in correlations.items()
    ]
    if lines:
        draw_lines(axes, lines, "", ".3f", legend_width=1.6, line_width=1.4)
        extent = max(0.2, *(float(np.abs(along).max()) for _, _, along in lines))
        axes.set_ylim(-1.05 * extent, 1.05 * extent)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
    return figure


def _curve(x: Any) -> NDArray[np.float64]:
    return np.asarray(curve_of(model_given(x)) if is_model(x) else x, np.float64)


def _mean_and_spread(curve: NDArray[np.float64], parts: str) -> Figure:
    cells = np.atleast_2d(curve)
    if cells.ndim != 2:
        raise DataError(f"explained variance has shape {curve.shape}: give (k,) or (n_parts, k)")
    cells = _varying(cells)
    figure, axes = drawing.chart("components kept", "explained variance")
    if cells.size == 0:
        drawing.annotate(axes, f"all {parts} are constant", (0.5, 0.5), (0, 0), MUTED, "center")
        return figure
    number = np.arange(1, cells.shape[1] + 1)
    mean = cells.mean(axis=0)
    lowest = mean[0]
    if len(cells) > 1:
        bands = np.percentile(cells, [5, 25, 75, 95], axis=0)
        lowest = bands[0, 0]
        for low, high, alpha, share in ((0, 3, 0.13, f"90% of {parts}"), (1, 2, 0.22, f"half of the {parts}")):
            axes.fill_between(number, bands[low], bands[high], color=ACCENT, alpha=alpha, linewidth=0, label=share)
    label = f"mean of {len(cells):,} {parts}" if len(cells) > 1 else "explained variance"
    marker = "o" if len(number) <= 50 else ""
    axes.plot(number, mean, color=ACCENT, linewidth=1.8, marker=marker, markersize=3.5, label=label)
    drawing.annotate(axes, rounded_down(mean[-1]), (number[-1], mean[-1]), (0, -16), ACCENT, "right")
    axes.set_xlim(number[0] - 0.5, number[-1] + 0.5)
    _scale_shares(axes, lowest)
    if len(cells) > 1:
        drawing.legend(axes)
    return figure


def _several(curves: Mapping[str, NDArray[np.float64]], emphasized: str) -> Figure:
    rows = {name: curve[None] if curve.ndim == 1 else _varying(curve) for name, curve in curves.items()}
    drawn = [(name, np.arange(1, row.shape[1] + 1), row.mean(axis=0)) for name, row in rows.items() if row.size]
    if not drawn:
        raise DataError("there is no explained variance to show: give at least one line with a point")
    figure, axes = drawing.chart("components kept", "explained variance")
    draw_lines(axes, drawn, emphasized, ".1%", legend_width=3.3, line_width=1.4)
    axes.set_xlim(0.5, max(len(share) for _, _, share in drawn) + 0.5)
    _scale_shares(axes, min(float(share[0]) for _, _, share in drawn))
    return figure


def _varying(curves: NDArray[np.float64]) -> NDArray[np.float64]:
    """Leave out the curves of constant parts, which contain NaN."""
    return curves[~np.isnan(curves).any(axis=1)]


def _scale_shares(axes: Axes, lowest: float) -> None:
    axes.set_ylim(np.floor(max(lowest - 0.02, 0) * 10) / 10, 1.004)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))


def _points(name: str, x: ArrayLike, values: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    where, heights = np.asarray(x, np.float64), np.asarray(values, np.float64)
    if where.ndim != 1 or where.shape != heights.shape:
        raise DataError(f"the line {name!r} has x of shape {where.shape} and y of {heights.shape}: give (n,) for both")
    shown = ~np.isnan(heights) & (heights < np.inf) & (where > 0)
    return where[shown], np.maximum(heights[shown], _FLOOR)


def _scale(axes: Axes) -> None:
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if high < 2000 * low else (1.0,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)
    bottom, top = axes.get_ylim()
    axes.set_ylim(min(bottom, -1.0), max(top, 0.0))
    axes.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
