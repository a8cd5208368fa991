"""Bokeh widgets in the style of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bokeh.models import BasicTicker, ColumnDataSource, Range1d
from bokeh.models.widgets import Div, Select, Widget
from bokeh.plotting import figure

# Colors of the curve, and of the mark on it.
_LINE, _INK = "#4f8fc0", "#e07a3f"
# Bokeh draws each widget in a shadow root, and the page's style sheet does not apply there.
_STYLES = Path(__file__).with_name("static").joinpath("widgets.css").read_text()
_BUSY = "busy"


def styled(kind: Callable[..., Widget], name: str, *, classes: tuple[str, ...] = (), **options: Any) -> Any:
    """Return a widget in the page's style. `page.css` places it by its name."""
    return kind(name=name, stylesheets=[_STYLES], css_classes=[*classes, f"at-{name}"], **options)


def choice(name: str, title: str, options: Mapping[str, str], **more: Any) -> Any:
    """Return a selection of one of several options, name to label; the first one is the default."""
    return styled(Select, name, title=title, options=list(options.items()), value=next(iter(options)), **more)


def variance_chart(curve: ColumnDataSource, mark: ColumnDataSource) -> Any:
    """Return the chart of the explained variance, with a mark on it."""
    chart = figure(
        height=240,
        sizing_mode="stretch_width",
        toolbar_location=None,
        name="variance",
        css_classes=["at-variance"],
        tools="",
        x_axis_label="components",
        y_axis_label="explained variance",
        y_range=Range1d(start=0, end=1.02),
        visible=False,
        html_attributes={"role": "img", "aria-label": "share of the variance that the leading components explain"},
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
    )
    chart.line("k", "share", source=curve, color=_LINE, line_width=2)
    chart.scatter("k", "share", source=mark, color=_INK, size=9)
    chart.grid.grid_line_color = "#88888833"
    chart.xaxis.ticker = BasicTicker(min_interval=1)
    for axis in chart.axis:  # `page.js` sets the other colors, for light or dark pages
        axis.update(minor_tick_line_color=None)
    return chart


def say(where: Div, text: str) -> None:
    """Show a message, or hide an empty one."""
    if where.text != text:
        where.update(text=text, visible=bool(text))


def set_busy(widget: Any, busy: bool = True) -> None:
    """Show whether the content of a widget is being computed."""
    classes = [name for name in widget.css_classes if name != _BUSY] + [_BUSY] * busy
    if widget.css_classes != classes:
        widget.css_classes = classes


def whole(value: float | None) -> int:
    """Return a widget's value as a natural number; 0 for NaN, infinity or None, which a visitor may send."""
    return max(0, int(value)) if value is not None and math.isfinite(value) else 0
