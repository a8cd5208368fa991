"""Figures as PNG files. matplotlib is not imported here."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Replaces matplotlib's default, which contains its version and would change the bytes.
_SOFTWARE = "dpca"
_BEGIN, _TEXT = b"\x89PNG\r\n\x1a\n", f"tEXtSoftware\0{_SOFTWARE}".encode()


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file, the same for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": _SOFTWARE})
    return buffer.getvalue()


def is_dpca_png(content: bytes) -> bool:
    """Return whether `png` created a file."""
    return content.startswith(_BEGIN) and _TEXT in content[:256]
