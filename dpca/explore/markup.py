"""Panels, numbers and names as HTML. All text from a store is escaped."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
from PIL import Image

from dpca.explore.explorer import ComponentView, SampleView
from dpca.kernels.algebra.types import Array
from dpca.storage.errors import printable

# Most letters of a name in a caption, and below a thumbnail.
_NAME, _SHORT = 300, 24
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Size of the drawing of a curve.
_WIDE, _HIGH = 300, 180


def picture(values: Array, alt: str) -> str:
    """Return a panel as an image, or a curve as a drawing; ``alt`` is its description."""
    if values.ndim == 1:
        return _curve(values, alt)
    pixels = np.rint(values * 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    data = base64.b64encode(buffer.getvalue()).decode()
    height, width = pixels.shape[:2]
    return f'<img src="data:image/png;base64,{data}" width="{width}" height="{height}" alt="{escape(alt)}">'


def shortened(name: str, most: int = _NAME) -> str:
    """Return a name for display: control characters are escaped, and the middle of a long name is left out."""
    text = printable(name[: 4 * most] + name[-most:] if len(name) > 5 * most else name)
    # Bidirectional marks would reverse the text after the name, too (Unicode, annex 9).
    text = "".join(c.encode("unicode_escape").decode() if c in _TURNING else c for c in text)
    if len(text) > most:
        text = f"{text[: most // 2]}\N{HORIZONTAL ELLIPSIS}{text[-(most - most // 2 - 1) :]}"
    return text


def name_of(name: str, most: int = _NAME) -> str:
    """Return the name of a sample as HTML, see `shortened`."""
    return escape(shortened(name, most))


def title(look: SampleView) -> str:
    """Return index and name of a sample."""
    return f'<h2 class="name"><span>#{look.index:,}</span> <bdi>{name_of(look.name)}</bdi></h2>'


def triplet(look: SampleView) -> str:
    """Return original, reconstruction and difference next to each other."""
    times = f" \N{MULTIPLICATION SIGN} {look.gain}" if look.gain > 1 else ""
    of = "" if look.k is None else f", k = {look.k}"
    name = shortened(look.name)
    panels = [
        ("original", look.original, f"original of {name}"),
        (f"reconstruction{of}", look.reconstruction, f"reconstruction of {name}{of}"),
        (f"difference{times}", look.difference, f"difference{times}, grey is zero"),
    ]
    figures = "".join(
        f"<figure>{picture(values, alt)}<figcaption>{caption}</figcaption></figure>"
        for caption, values, alt in panels
        if values is not None
    )
    return f'<div class="panels">{figures}</div>'


def numbers(look: SampleView, sample_bytes: int, *, measurable: bool = True) -> str:
    """Return quality and size of a reconstruction, with a hint if the quality is not ``measurable``."""
    rows = [(word, _number(name, look.numbers[name])) for name, word in _WORDS if name in look.numbers]
    known = [f"{word} {_number(name, look.stored[name])}" for name, word in _WORDS if name in look.stored]
    if look.difference is not None and not measurable:
        rows += [("quality", "requires the data range: give --data-range LOW,HIGH")]
    rows += [("kept", f"{look.size} of {sample_bytes:,}") if look.size else ("takes", f"{sample_bytes:,} bytes")]
    rows += [("stated by the store", ", ".join(known))] if known else []
    return "<dl>" + "".join(f"<div><dt>{escape(a)}</dt><dd>{escape(b)}</dd></div>" for a, b in rows) + "</dl>"


def gallery(thumbnails: Iterable[tuple[int, str, Array]]) -> str:
    """Return buttons of samples: index, name and picture."""
    return "".join(
        f'<button type="button" data-sample="{index}" title="{name_of(name)}" aria-label="sample {index}, '
        f'{name_of(name)}">{picture(values, "")}<span><bdi>'
        f"{name_of(name.rsplit('/', 1)[-1], _SHORT)}</bdi></span></button>"
        for index, name, values in thumbnails
    )


def eigenimages(shown: ComponentView) -> str:
    """Return the mean and the eigenimages, each with its share of the variance."""
    figures = [] if shown.mean is None else [("mean", shown.mean, "mean of the samples")]
    for number, values in enumerate(shown.images, 1):
        share = f" \N{MIDDLE DOT} {shown.shares[number - 1]:.1%}" if number <= len(shown.shares) else ""
        figures.append((f"{number}{share}", values, f"eigenimage {number}"))
    return "".join(
        f"<figure>{picture(v, alt)}<figcaption>{caption}</figcaption></figure>" for caption, v, alt in figures
    )


_WORDS: Sequence[tuple[str, str]] = (("ssim", "SSIM"), ("psnr", "PSNR"), ("mse", "MSE"))


def _number(name: str, value: float) -> str:
    if math.isnan(value):
        return "unknown, values are missing"
    if name == "psnr":
        return "exact" if math.isinf(value) else f"{value:.2f} dB"
    return f"{value:.4f}" if name == "ssim" else f"{value:.3g}"


def _curve(values: Array, alt: str) -> str:
    places = np.linspace(0, _WIDE, len(values)) if len(values) > 1 else np.array([0, _WIDE])
    heights = _HIGH * (1 - np.resize(values, len(places)))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(places, heights, strict=True) if not math.isnan(y))
    return (
        f'<svg viewBox="-2 -4 {_WIDE + 4} {_HIGH + 8}" role="img" aria-label="{escape(alt)}">'
        f'<polyline points="{points}"/></svg>'
    )
