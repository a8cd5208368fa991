"""Pictures that no test looks at: to draw them takes most of the time of a job on a small stack."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from PIL import Image


def empty_picture(figure: Any) -> bytes:
    """Return a PNG file of the size of a figure, with nothing in it."""
    width, height = figure.get_size_inches() * figure.dpi
    Image.new("L", (int(width), int(height))).save(buffer := io.BytesIO(), "PNG")
    return buffer.getvalue()


def leave_pictures_empty(change: Callable[[Any, str, Any], None] = setattr) -> None:
    """Make all pictures of this process small and empty; ``change`` sets an attribute."""
    from dpca.plots import drawing
    from dpca.report import record

    change(drawing, "DPI", 20)
    change(record, "png", empty_picture)
