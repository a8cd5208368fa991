"""Reconstructions side by side, and what components of several kinds explain. Drawn as `dpca.report.plots` draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike, NDArray

from dpca.pipelines.studies.lines import leave_room, legend_beside, line_styles
from dpca.report import drawing
from dpca.report.drawing import INK, MUTED, WIDTH

_MARGIN, _GAP, _HEADING, _LABEL = 0.08, 0.06, 0.48, 0.26
_TALLEST = 2.9
# Inches of one, on average, at the size of headings.
_LETTER = 0.072
_LEGEND_INCHES = 3.3

Line = tuple[str, ArrayLike]
"""Name, and the explained variance of the first 1, 2, ... components."""


def gallery(
    rows: Sequence[Sequence[NDArray[np.float64]]],
    heads: Sequence[str],
    notes: Sequence[str],
    names: Sequence[str],
    captions: Sequence[Sequence[str]] | None = None,
) -> Figure:
    """Panels in rows and columns.

    Parameters
    ----------
    rows : sequence of sequences of panels
        Values in 0..1, see `dpca.report.panels`; all rows of one length.
    heads, notes : sequence of str, one a column
        What a column is, and a line below that.
    names : sequence of str, one a row
        Written under the first panel.
    captions : sequence of sequences of str, optional
        Written under each panel but the first.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If there is no panel, or the numbers do not fit.
    """
    columns = len(heads)
    if not rows or not columns or any(len(row) != columns for row in rows):
        raise ValueError(f"{len(rows)} rows do not fill {columns} columns: give one panel for each heading")
    if len(notes) != columns or len(names) != len(rows):
        raise ValueError(f"{len(notes)} notes and {len(names)} names: give one for each of {columns} and {len(rows)}")
    aspect = drawing.aspect_of(rows[0][0])
    place = (WIDTH - 2 * _MARGIN) / columns
    width = min(place - _GAP, _TALLEST / aspect)
    height = width * aspect
    line = height + _LABEL
    figure, top = drawing.page(_HEADING + line * len(rows) + 0.02)
    letters = int(place / _LETTER)
    for column in range(columns):
        x = _MARGIN + column * place
        drawing.write(figure, x, top - 0.2, drawing.drawable(heads[column], letters), color=INK, size=8.5)
        drawing.write(figure, x, top - 0.38, drawing.drawable(notes[column], letters), color=MUTED, size=8)
        for number, row in enumerate(rows):
            y = top - _HEADING - number * line - height
            drawing.show(figure, row[column], (x, y, width, height))
            told = names[number] if column == 0 else "" if captions is None else captions[number][column]
            drawing.write(figure, x, y - 0.15, drawing.drawable(told, letters), color=MUTED, size=8)
    return figure


def variance_curves(lines: Sequence[Line], *, emphasized: str = "") -> Figure:
    """Explained variance against the number of components, one line a strategy (Alakkari 2020, figure 4.9).

    Parameters
    ----------
    lines : sequence of (name, explained variance)
        Shares in 0..1 of the first 1, 2, ... components; the lines may have different lengths.
    emphasized : str
        Name of the line that the others are compared with.

    Returns
    -------
    matplotlib.figure.Figure
        The legend lists the lines as they end, the highest first.

    Raises
    ------
    ValueError
        If there is no line with a point.
    """
    drawn = [(name, np.asarray(share, np.float64)) for name, share in lines if np.size(share)]
    if not drawn:
        raise ValueError("there is no explained variance to show: give at least one line with a point")
    figure, axes = drawing.chart("components of every partition", "explained variance")
    leave_room(axes, _LEGEND_INCHES)
    styles = line_styles([name for name, _ in drawn], emphasized)
    for name, share in sorted(drawn, key=lambda line: -line[1][-1]):
        color, dash = styles[name]
        strong = name == emphasized
        axes.plot(
            np.arange(1, len(share) + 1),
            share,
            color=color,
            linestyle=dash,
            linewidth=2.2 if strong else 1.4,
            marker="o",
            markersize=4 if strong else 2.6,
            label=f"{name}  {share[-1]:.1%}",
            zorder=3 if strong else 2,
            clip_on=False,
        )
    lowest = min(float(share[0]) for _, share in drawn)
    axes.set_ylim(np.floor(max(lowest - 0.02, 0) * 10) / 10, 1.004)
    axes.set_xlim(0.5, max(len(share) for _, share in drawn) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    legend_beside(axes)
    return figure
