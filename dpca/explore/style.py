"""Colors of the page, and the style of what Bokeh keeps apart from the page's own."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).with_name("static")
#: Of the curve, and of the mark on it.
LINE, INK = "#4f8fc0", "#e07a3f"
#: Bokeh draws each widget in a shadow root, which the style of the page does not reach.
WIDGETS = (STATIC / "widgets.css").read_text()
