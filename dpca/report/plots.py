"""Pictures of what a model did, as matplotlib figures from plain arrays.

Nothing here touches pyplot or the global style: every function builds and returns its own
:class:`matplotlib.figure.Figure`, safe in threads and without a display. Figures are 9.6 inches wide, a
page's width, and drawn for white paper.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike, NDArray

from dpca.report import drawing
from dpca.report.drawing import ACCENT, ALERT, HAIRLINE, INK, MUTED, WIDTH
from dpca.report.panels import align_signs, centered, difference, intensity, panel, readable_gain, signed, thinned

_MARGIN, _GAP, _GUTTER = 0.08, 0.05, 0.3
_HEADING, _TALLEST, _NARROWEST = 0.3, 2.9, 1.0
_SCALE, _HIGHEST_MAP = 0.9, 4.2
_FEW_TO_MANY = LinearSegmentedColormap.from_list("few to many", ["#eaf0f5", ACCENT, INK])
_EARLY_TO_LATE = LinearSegmentedColormap.from_list("early to late", [INK, ACCENT, "#e8a54b"])


def comparison(
    originals: ArrayLike,
    reconstructions: ArrayLike,
    names: Sequence[str],
    ssim: ArrayLike | None,
    data_range: tuple[float, float],
    *,
    axes: Sequence[str] | None = None,
) -> Figure:
    """Originals beside reconstructions beside their difference.

    Parameters
    ----------
    originals, reconstructions : array_like of shape (n, ...)
        The same few samples, in the same units, of any dtype. Of volumes the middle slice is shown;
        samples of one axis are drawn as curves.
    names : sequence of n str
    ssim : array_like of shape (n,), or None
        Written under each sample; left out where it is None or NaN.
    data_range : tuple of 2 floats
        The values shown as black and as white.
    axes : sequence of str, optional
        Names of the sample's axes, as in :func:`dpca.report.panels.panel`.

    Raises
    ------
    ValueError
        If the shapes, the number of names or the data range do not fit.

    Notes
    -----
    Differences are centered on grey and amplified by one round factor for all samples, which the heading states.
    """
    shown, rebuilt = np.asarray(originals), np.asarray(reconstructions)
    if shown.shape != rebuilt.shape or len(shown) == 0:
        raise ValueError(f"originals are {shown.shape} and reconstructions {rebuilt.shape}: give as many of both")
    scores = np.full(len(shown), np.nan) if ssim is None else np.asarray(ssim, dtype=np.float64)
    if len(names) != len(shown) or scores.shape != (len(shown),):
        raise ValueError(
            f"{len(names)} names and {scores.size} SSIM values for {len(shown)} samples: give one for each"
        )
    triplets = [(thinned(panel(a, axes)), thinned(panel(b, axes))) for a, b in zip(shown, rebuilt, strict=True)]
    gain = readable_gain([b - a for a, b in triplets], data_range)
    rows = [
        (intensity(a, data_range), intensity(b, data_range), difference(a, b, data_range, gain)) for a, b in triplets
    ]
    captions = ["" if np.isnan(score) else f"SSIM {score:.3f}" for score in scores]
    amplified = "" if gain == 1 else f" \N{MULTIPLICATION SIGN} {gain}"
    return _triplets(rows, ("original", "reconstruction", f"difference{amplified}"), names, captions)


def eigenfaces(
    components: ArrayLike,
    *,
    axes: Sequence[str] | None = None,
    cell_shape: Sequence[int] | None = None,
    explained_variance_ratio: ArrayLike | None = None,
    by_sign: bool = False,
) -> Figure:
    """First eigenvectors, those of every cell laid out in their places.

    Parameters
    ----------
    components : array_like of shape (k, H, W), (k, H, W, C), (k, z, y, x[, C]) or (k, L)
        Each scaled for display on its own, with zero as grey. NaN, where a cell has no such eigenvector,
        is zero.
    axes : sequence of str, optional
        Names of the axes after the first, as in :func:`dpca.report.panels.panel`.
    cell_shape : sequence of int, optional
        Spatial shape of a cell. With it the free sign of each cell's eigenvector is chosen to agree with its
        neighbors (:func:`dpca.report.panels.align_signs`).
    explained_variance_ratio : array_like of shape (k,), optional
        Share of the variance of each, written beside its number.
    by_sign : bool
        Show images without channels in color: zero white, positive blue, negative red.
    """
    pictures = []
    for vector in np.asarray(components):
        values = panel(vector, axes)
        if cell_shape is not None and values.ndim > 1:
            values = align_signs(values, (cell_shape[-2], cell_shape[-1]))
        colored = by_sign and values.ndim == 2
        pictures.append(signed(thinned(values)) if colored else centered(thinned(values)))
    if not pictures:
        raise ValueError("there are no components to show: give an array of at least one")
    aspect = drawing.aspect_of(pictures[0])
    columns = _columns(len(pictures), aspect)
    place = (WIDTH - 2 * _MARGIN) / columns
    width = min(place - 2 * _GAP, _TALLEST / aspect)
    line = width * aspect + 0.30
    figure, top = drawing.page(_MARGIN + line * -(-len(pictures) // columns))
    for index, picture in enumerate(pictures):
        x = _MARGIN + (index % columns + 0.5) * place - width / 2
        y = top - _MARGIN - (index // columns) * line - width * aspect
        drawing.show(figure, picture, (x, y, width, width * aspect))
        drawing.write(figure, x, y - 0.15, f"{index + 1}", color=INK)
        if explained_variance_ratio is not None:
            share = float(np.asarray(explained_variance_ratio)[index])
            drawing.write(figure, x + width, y - 0.15, f"{share:.1%}", color=MUTED, ha="right")
    return figure


def explained_variance_curve(ratio: ArrayLike, *, parts: str = "cells") -> Figure:
    """Explained variance against the number of components, mean and spread over cells or bands.

    Parameters
    ----------
    ratio : array_like of shape (n_cells, k) or (k,)
        Cumulative explained variance ratio, 0..1. Cells with NaN (without variance) are left out.
    parts : str
        What several of them are called.
    """
    cells = np.atleast_2d(np.asarray(ratio, dtype=np.float64))
    cells = cells[~np.isnan(cells).any(axis=1)]
    figure, axes = drawing.chart("components kept", "explained variance")
    if cells.size == 0:
        drawing.annotate(axes, f"none of the {parts} varies", (0.5, 0.5), (0, 0), MUTED, "center")
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
    # Never above what it is: 99.97% must not read as 100%.
    kept = np.floor(mean[-1] * 1000) / 1000
    drawing.annotate(axes, f"{kept:.1%}", (number[-1], mean[-1]), (0, -16), ACCENT, "right")
    axes.set_xlim(number[0] - 0.5, number[-1] + 0.5)
    axes.set_ylim(np.floor(max(lowest - 0.02, 0) * 10) / 10, 1.004)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    if len(cells) > 1:
        drawing.legend(axes)
    return figure


def rank_map(ranks: ArrayLike, *, axes: Sequence[str] | None = None) -> Figure:
    """How many components are kept where: the darker, the more.

    Parameters
    ----------
    ranks : array_like of the shape of a sample, integers
        Components of the cell or band that each attribute belongs to. Of volumes the middle slice is shown; samples of
        one axis are drawn as a line.
    axes : sequence of str, optional
        Names of the sample's axes, as in :func:`dpca.report.panels.panel`.
    """
    values = panel(ranks, axes)
    if values.ndim == 1:
        figure, chart = drawing.chart("attribute", "components kept")
        chart.plot(values, color=ACCENT, linewidth=1.2, drawstyle="steps-mid")
        chart.set_ylim(0, max(values.max(), 1) * 1.05)
        chart.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
        return figure
    # Channels differ where bands take them apart.
    values = thinned(values if values.ndim == 2 else values.mean(axis=-1))
    aspect = drawing.aspect_of(values)
    width = min(WIDTH - 2 * _MARGIN - _SCALE, _HIGHEST_MAP / aspect)
    figure, _ = drawing.page(width * aspect + 2 * _MARGIN)
    drawing.show_counts(figure, values, ((WIDTH - _SCALE - width) / 2, _MARGIN, width, width * aspect), _FEW_TO_MANY)
    return figure


def ssim_histogram(ssim: ArrayLike) -> Figure:
    """Histogram of the SSIM of every sample, with the mean and the worst marked.

    Parameters
    ----------
    ssim : array_like of shape (n,)
        NaN is left out.

    Raises
    ------
    ValueError
        If there is no value to show.
    """
    values = np.asarray(ssim, dtype=np.float64).ravel()
    values = values[~np.isnan(values)]
    if values.size == 0:
        raise ValueError("there is no SSIM to show: leave this picture out where SSIM is not defined")
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


def score_scatter(scores: ArrayLike, place: ArrayLike, explained_variance_ratio: ArrayLike | None = None) -> Figure:
    """First score of samples against their second; against their place in the stack where there is no second.

    Parameters
    ----------
    scores : array_like of shape (n, k), k >= 1
    place : array_like of shape (n,)
        Where in the stack each sample is, 0..1: from dark to light.
    explained_variance_ratio : array_like of shape (k,), optional
        Share of the variance of each component, written beside its name.

    Raises
    ------
    ValueError
        If the shapes do not fit.
    """
    values, where = np.asarray(scores, dtype=np.float64), np.asarray(place, dtype=np.float64)
    if values.ndim != 2 or 0 in values.shape or where.shape != values.shape[:1]:
        raise ValueError(f"scores are {values.shape} and places {where.shape}: give (n, k) of at least one, and (n,)")
    shares = None if explained_variance_ratio is None else np.asarray(explained_variance_ratio, dtype=np.float64)
    labels = [
        f"score {i + 1}" + ("" if shares is None else f" ({shares[i]:.1%} of the variance)")
        for i in range(min(values.shape[1], 2))
    ]
    across, up = (values[:, 0], values[:, 1]) if len(labels) == 2 else (where, values[:, 0])
    figure, axes = drawing.chart(labels[0] if len(labels) == 2 else "place in the stack", labels[-1])
    size = float(np.clip(2e4 / len(values), 3, 25))
    axes.scatter(across, up, c=where, cmap=_EARLY_TO_LATE, vmin=0, vmax=1, s=size, alpha=0.7, linewidths=0)
    for draw in (axes.axhline, axes.axvline)[: len(labels)]:
        draw(0, color=HAIRLINE, linewidth=0.8, zorder=0)
    return figure


def _triplets(
    rows: Sequence[tuple[NDArray[np.float64], ...]],
    heads: Sequence[str],
    names: Sequence[str],
    captions: Sequence[str],
) -> Figure:
    """Lay out rows of three panels: two rows side by side on a line where the panels are narrow enough."""
    aspect = drawing.aspect_of(rows[0][0])
    beside = 2 if aspect >= 0.7 and len(rows) > 1 else 1
    block = (WIDTH - 2 * _MARGIN - _GUTTER * (beside - 1)) / beside
    # No narrower than the headings, whatever the height of that.
    width = max(min((block - 2 * _GAP) / 3, _TALLEST / aspect), _NARROWEST)
    height = width * aspect
    line = height + 0.42
    figure, top = drawing.page(_HEADING + line * -(-len(rows) // beside) - 0.08)
    for index, row in enumerate(rows):
        x = _MARGIN + (index % beside) * (block + _GUTTER) + (block - 3 * width - 2 * _GAP) / 2
        y = top - _HEADING - (index // beside) * line - height
        for position, picture in enumerate(row):
            left = x + position * (width + _GAP)
            drawing.show(figure, picture, (left, y, width, height))
            if index < beside:
                drawing.write(figure, left, top - _HEADING + 0.07, heads[position], color=MUTED, size=8.5)
        right = x + 3 * width + 2 * _GAP
        room = int((right - x) / 0.085) - len(captions[index]) - 2
        drawing.write(figure, x, y - 0.15, drawing.drawable(names[index], room), color=INK)
        drawing.write(figure, right, y - 0.15, captions[index], color=MUTED, ha="right")
    return figure


def _columns(count: int, aspect: float) -> int:
    """Panels on a line: those that leave the fewest places empty on the last, then the most."""
    choices = range(4, 8) if aspect > 0.5 else range(2, 4)
    if count <= choices[-1]:
        return max(count, choices[0])
    return min(choices, key=lambda columns: (-count % columns, -columns))
