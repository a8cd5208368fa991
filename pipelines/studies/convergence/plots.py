"""How rules converge, as matplotlib figures (Alakkari 2020, figure 3.2). Drawn as `dpca.report.plots` draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import ArrayLike

from dpca.pipelines.studies.lines import leave_room, legend_beside, line_styles
from dpca.report import drawing
from dpca.report.drawing import MUTED

_LEGEND_INCHES = 2.75
# Below this float64 tells nothing apart.
_FLOOR = -15.0

Line = tuple[str, ArrayLike, ArrayLike]
"""Name, abscissae, convergences."""


def convergence_curves(
    lines: Sequence[Line],
    x_label: str,
    *,
    emphasized: str = "",
    y_label: str = "convergence, log10(1 - captured / best)",
) -> Figure:
    """Convergence against samples seen or seconds, one line a rule.

    Parameters
    ----------
    lines : sequence of (name, x, convergence)
        ``x`` positive and ascending; values that are not finite are drawn at the floor of float64, -15. Rules without a
        single point are left out.
    x_label : str
    emphasized : str
        Name of the line that the others are compared with.
    y_label : str
        What is drawn, where it is another logarithm of an excess.

    Returns
    -------
    matplotlib.figure.Figure
        The legend lists the lines as they end, the best last.

    Raises
    ------
    ValueError
        If there is no line with a point.
    """
    drawn = [(name, *_points(x, values)) for name, x, values in lines if np.size(values)]
    if not drawn:
        raise ValueError("there is no convergence to show: give at least one line with a point")
    figure, axes = drawing.chart(x_label, y_label)
    leave_room(axes, _LEGEND_INCHES)
    styles = line_styles([name for name, _, _ in drawn], emphasized)
    for name, x, values in sorted(drawn, key=lambda line: -line[2][-1]):
        color, dash = styles[name]
        strong = name == emphasized
        axes.plot(
            x,
            values,
            color=color,
            linestyle=dash,
            linewidth=2.2 if strong else 1.3,
            marker="o" if len(x) <= 30 else "",
            markersize=4 if strong else 2.6,
            label=f"{name}  {values[-1]:.2f}",
            zorder=3 if strong else 2,
            clip_on=False,
        )
    _scale(axes)
    legend_beside(axes)
    return figure


def _points(x: ArrayLike, values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    where, heights = np.asarray(x, np.float64), np.asarray(values, np.float64)
    return where, np.where(np.isfinite(heights), np.maximum(heights, _FLOOR), _FLOOR)


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
