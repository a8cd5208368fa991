"""Panels, numbers and names as HTML. The macros in ``templates/views.html`` escape all text."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from dpca.explore.explorer import ComponentView, SampleView
from dpca.kernels.algebra.types import Array
from dpca.plots.html import template
from dpca.plots.panels import difference_words, levels
from dpca.storage.errors import printable

# Most letters of a name in a caption, and below a thumbnail.
_NAME, _SHORT = 300, 24
_BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Size of the drawing of a curve.
_WIDTH, _HEIGHT = 300, 180
_QUALITY = {"ssim": "SSIM", "psnr": "PSNR", "mse": "MSE"}
_VIEWS: Any = template(__file__, "views.html").module


def picture(values: Array, alt: str) -> Markup:
    """Return a panel as an image, or a curve as a drawing; ``alt`` is its description."""
    if values.ndim == 1:
        x = np.linspace(0, _WIDTH, len(values)) if len(values) > 1 else np.array([0, _WIDTH])
        y = _HEIGHT * (1 - np.resize(values, len(x)))
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if not math.isnan(b))
        return Markup(_VIEWS.curve(points, _WIDTH, _HEIGHT, alt))
    pixels = levels(values)
    Image.fromarray(pixels).save(png := io.BytesIO(), "PNG", compress_level=1)
    return Markup(_VIEWS.image(png.getvalue(), pixels.shape[1], pixels.shape[0], alt))


def shortened(name: str, most: int = _NAME) -> str:
    """Return a name for display: control characters are escaped, and the middle of a long name is left out."""
    text = printable(name[: 4 * most] + name[-most:] if len(name) > 5 * most else name)
    # Bidirectional marks would reverse the text after the name, too (Unicode, annex 9).
    text = "".join(c.encode("unicode_escape").decode() if c in _BIDIRECTIONAL else c for c in text)
    if len(text) > most:
        text = f"{text[: most // 2]}\N{HORIZONTAL ELLIPSIS}{text[-(most - most // 2 - 1) :]}"
    return text


def title(view: SampleView) -> Markup:
    """Return index and name of a sample."""
    return Markup(_VIEWS.title(f"{view.index:,}", shortened(view.name)))


def triplet(view: SampleView) -> Markup:
    """Return original, reconstruction and difference next to each other."""
    difference = difference_words(view.gain)
    of = "" if view.k is None else f", k = {view.k}"
    name = shortened(view.name)
    panels = [
        ("original", view.original, f"original of {name}"),
        (f"reconstruction{of}", view.reconstruction, f"reconstruction of {name}{of}"),
        (difference, view.difference, f"{difference}, gray is zero"),
    ]
    return Markup(_VIEWS.triplet(_pictures(panels)))


def numbers(view: SampleView, sample_bytes: int, *, measurable: bool = True) -> Markup:
    """Return quality and size of a reconstruction, with a hint if the quality is not ``measurable``."""
    rows = [(word, _number(name, view.numbers[name])) for name, word in _QUALITY.items() if name in view.numbers]
    known = [f"{word} {_number(name, view.stored[name])}" for name, word in _QUALITY.items() if name in view.stored]
    if view.difference is not None and not measurable:
        rows += [("quality", "requires the data range: give --data-range LOW,HIGH")]
    rows += [("kept", f"{view.size} of {sample_bytes:,}") if view.size else ("takes", f"{sample_bytes:,} bytes")]
    rows += [("stated by the store", ", ".join(known))] if known else []
    return Markup(_VIEWS.numbers(rows))


def gallery(thumbnails: Iterable[tuple[int, str, Array | None]], *, busy: bool = False) -> Markup:
    """Return buttons of samples: index, name and picture; those without a picture are empty, and shown as ``busy``."""
    samples = [
        (index, shortened(name), shortened(name.rsplit("/", 1)[-1], _SHORT), None if p is None else picture(p, ""))
        for index, name, p in thumbnails
    ]
    return Markup(_VIEWS.thumbnails(samples, busy))


def eigenimages(shown: ComponentView) -> Markup:
    """Return the mean and the eigenimages, each with its share of the variance."""
    panels = [("mean", shown.mean, "mean of the samples")]
    for number, values in enumerate(shown.images, 1):
        share = f" \N{MIDDLE DOT} {shown.shares[number - 1]:.1%}" if number <= len(shown.shares) else ""
        panels.append((f"{number}{share}", values, f"eigenimage {number}"))
    return Markup(_VIEWS.figures(_pictures(panels)))


def alert(text: str) -> Markup:
    """Return a message about an error."""
    return Markup(_VIEWS.alert(text))


def _pictures(panels: Sequence[tuple[str, Array | None, str]]) -> list[tuple[str, Markup]]:
    """Return caption and picture of each panel that there is."""
    return [(caption, picture(values, alt)) for caption, values, alt in panels if values is not None]


def _number(name: str, value: float) -> str:
    if math.isnan(value):
        return "unknown, values are missing"
    if name == "psnr":
        return "exact" if math.isinf(value) else f"{value:.2f} dB"
    return f"{value:.4f}" if name == "ssim" else f"{value:.3g}"
