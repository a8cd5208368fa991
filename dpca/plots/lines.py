"""Charts of many lines with a legend next to them, in the style of `dpca.plots.drawing`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from numpy.typing import NDArray

from dpca.plots.drawing import ACCENT, FONT, INK, WIDTH

Dash: TypeAlias = str | tuple[int, tuple[float, ...]]

# Hues that are distinct for all kinds of color vision (Okabe & Ito 2008). When they repeat, the dashes change.
_HUES = ("#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DASHES: tuple[Dash, ...] = ("solid", (0, (5, 1.6)), (0, (1.2, 1.4)))


def draw_lines(
    axes: Axes,
    lines: Sequence[tuple[str, NDArray[Any], NDArray[Any]]],
    emphasized: str,
    value: str,
    *,
    legend_width: float,
    line_width: float,
    most_markers: float = math.inf,
) -> None:
    """Draw lines, and next to them a legend that lists them by their last value, the highest first.

    Parameters
    ----------
    axes : Axes
        Becomes narrower by the legend.
    lines : sequence of (name, x, y)
    emphasized : str
        Name of the reference line, which has its own color and is wider.
    value : str
        Format of the last value in the legend.
    legend_width : float
        In inches.
    line_width : float
        In typographic points.
    most_markers : float
        Points of lines with more points have no markers.
    """
    left, bottom, width, height = axes.get_position().bounds
    axes.set_position((left, bottom, width - legend_width / WIDTH, height))
    styles = _styles([name for name, _, _ in lines], emphasized)
    for name, x, y in sorted(lines, key=lambda line: -line[2][-1]):
        color, dash = styles[name]
        strong = name == emphasized
        axes.plot(
            x,
            y,
            color=color,
            linestyle=dash,
            linewidth=2.2 if strong else line_width,
            marker="o" if len(x) <= most_markers else "",
            markersize=4 if strong else 2.6,
            label=f"{name}  {y[-1]:{value}}",
            zorder=3 if strong else 2,
            clip_on=False,
        )
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.015, 1.03),
        frameon=False,
        labelcolor=INK,
        prop={"family": FONT, "size": 8.5},
        handlelength=2.6,
        borderaxespad=0,
        labelspacing=0.45,
    )


def _styles(names: Sequence[str], emphasized: str) -> dict[str, tuple[str, Dash]]:
    """Return color and dash of each line. The reference line has its own color."""
    others = [name for name in names if name != emphasized]
    styles = {name: (_HUES[i % len(_HUES)], _DASHES[i // len(_HUES) % len(_DASHES)]) for i, name in enumerate(others)}
    return {**styles, emphasized: (ACCENT, "solid")}
