"""Colors of the page, and the style sheet of Bokeh's widgets."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).with_name("static")
#: Colors of the curve, and of the mark on it.
LINE, INK = "#4f8fc0", "#e07a3f"
#: Bokeh draws each widget in a shadow root, and the page's style sheet does not apply there.
WIDGETS = (STATIC / "widgets.css").read_text()
