"""Charts of many lines with a legend next to them, in the style of `dpca.plots.drawing`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from matplotlib.axes import Axes

from dpca.plots.drawing import ACCENT, FONT, INK, WIDTH

Dash: TypeAlias = str | tuple[int, tuple[float, ...]]

# Hues that are distinct for all kinds of color vision (Okabe & Ito 2008). When they repeat, the dashes change.
_HUES = ("#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DASHES: tuple[Dash, ...] = ("solid", (0, (5, 1.6)), (0, (1.2, 1.4)))


def leave_room(axes: Axes, inches: float) -> None:
    """Make a chart narrower by ``inches``, for a legend next to it."""
    left, bottom, width, height = axes.get_position().bounds
    axes.set_position((left, bottom, width - inches / WIDTH, height))


def legend_beside(axes: Axes) -> None:
    """Add a legend of all labels to the right of the chart."""
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


def line_styles(names: Sequence[str], emphasized: str) -> dict[str, tuple[str, Dash]]:
    """Return color and dash of each line. The reference line has its own color."""
    others = [name for name in names if name != emphasized]
    styles = {name: (_HUES[i % len(_HUES)], _DASHES[i // len(_HUES) % len(_DASHES)]) for i, name in enumerate(others)}
    return {**styles, emphasized: (ACCENT, "solid")}
