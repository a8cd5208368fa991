"""Figures as PNG files. matplotlib is not imported here."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Replaces matplotlib's default, which contains its version and would change the bytes.
_SOFTWARE = "dpca"
_LEVEL = 3
_BEGIN, _TEXT = b"\x89PNG\r\n\x1a\n", f"tEXtSoftware\0{_SOFTWARE}".encode()


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file, the same for the same figure.

    A figure is opaque. Without transparency, and compressed less, files are as small as those that matplotlib writes,
    and take a third of the time (measured).
    """
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    drawn, buffer, facts = io.BytesIO(), io.BytesIO(), PngInfo()
    figure.savefig(drawn, format="rgba", dpi=figure.dpi)
    facts.add_text("Software", _SOFTWARE)
    width, height = (int(size) for size in figure.bbox.size)
    image = Image.frombytes("RGBA", (width, height), drawn.getvalue()).convert("RGB")
    image.save(buffer, "png", compress_level=_LEVEL, pnginfo=facts, dpi=(figure.dpi, figure.dpi))
    return buffer.getvalue()


def is_dpca_png(content: bytes) -> bool:
    """Return whether `png` created a file."""
    return content.startswith(_BEGIN) and _TEXT in content[:256]
