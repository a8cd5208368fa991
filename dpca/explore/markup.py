"""Panels, numbers and names as HTML. The macros in ``templates/views.html`` escape all text."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from dpca.explore.explorer import ComponentView, SampleView
from dpca.explore.pictures import palette
from dpca.kernels.algebra.types import Array
from dpca.plots.html import template
from dpca.plots.panels import difference_words, levels
from dpca.storage.errors import printable

# Most letters of a name in a caption, and below a thumbnail.
_NAME, _SHORT = 300, 24
_BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Size of the drawing of a curve.
_WIDTH, _HEIGHT = 300, 180
#: Ways to compare original and reconstruction, name to label.
COMPARISONS = {"beside": "side by side", "split": "split", "flicker": "flicker"}
_QUALITY = {"ssim": "SSIM", "psnr": "PSNR", "mse": "MSE"}
_VIEWS: Any = template(__file__, "views.html").module


def picture(values: Array, alt: str, colors: str = "gray") -> Markup:
    """Return a panel as an image, or a curve as a drawing; ``alt`` is its description, ``colors`` those of gray."""
    if values.ndim == 1:
        x = np.linspace(0, _WIDTH, len(values)) if len(values) > 1 else np.array([0, _WIDTH])
        y = _HEIGHT * (1 - np.resize(values, len(x)))
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if not math.isnan(b))
        return Markup(_VIEWS.curve(points, _WIDTH, _HEIGHT, alt))
    pixels = levels(values, palette(colors))
    Image.fromarray(pixels).save(png := io.BytesIO(), "PNG", compress_level=1)
    return Markup(_VIEWS.image(png.getvalue(), pixels.shape[1], pixels.shape[0], alt))


def no_picture() -> Markup:
    """Return what a broken sample has instead of a picture."""
    return Markup(_VIEWS.nothing())


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


def triplet(view: SampleView, colors: str = "gray", compare: str = "beside", *, actual: bool = False) -> Markup:
    """Return original, reconstruction and difference. ``actual`` shows one pixel of the screen for each of theirs."""
    difference = difference_words(view.gain)
    of = "" if view.k is None else f", k = {view.k}"
    name = shortened(view.name)
    panels = [
        ("original", view.original, f"original of {name}", colors),
        (f"reconstruction{of}", view.reconstruction, f"reconstruction of {name}{of}", colors),
        (difference, view.difference, f"{difference}, gray is zero", "gray"),
    ]
    shape = next(values.shape for _, values, _, _ in panels if values is not None)
    ratio = shape[1] / shape[0] if len(shape) > 1 else None
    compare = "beside" if view.difference is None else compare
    return Markup(_VIEWS.triplet(_pictures(panels), compare, actual, ratio))


def sizes(view: SampleView, sample_bytes: int) -> Markup:
    """Return the size of a reconstruction, the quality that its store states, and the values of black and white."""
    known = [f"{word} {_number(name, view.stored[name])}" for name, word in _QUALITY.items() if name in view.stored]
    rows = [("kept", f"{view.size} of {sample_bytes:,}") if view.size else ("takes", f"{sample_bytes:,} bytes")]
    rows += [("stated by the store", ", ".join(known))] if known else []
    rows += [("black to white", " to ".join(bounds_text(view.bounds)))]
    return Markup(_VIEWS.numbers(rows))


def bounds_text(bounds: tuple[float, float]) -> tuple[str, str]:
    """Return two different numbers as texts that differ, with as few digits as that takes, at least 5."""
    texts = ((f"{bounds[0]:.{digits}g}", f"{bounds[1]:.{digits}g}") for digits in range(5, 18))
    return next((pair for pair in texts if pair[0] != pair[1]), (str(bounds[0]), str(bounds[1])))


def quality(numbers: Mapping[str, float | None], found_range: tuple[tuple[float, float], int] | None = None) -> Markup:
    """Return the quality of a reconstruction; None is a number that is being computed.

    ``found_range`` is the data range of the numbers and the number of samples that it was found in, if none is stated.
    """
    rows = [(word, _number(name, numbers[name])) for name, word in _QUALITY.items() if name in numbers]
    if found_range is not None:
        bounds, count = found_range
        rows.append(("data range", f"{' to '.join(bounds_text(bounds))}, of {count:,} samples"))
    return Markup(_VIEWS.numbers(rows))


def gallery(thumbnails: Iterable[tuple[int, str, Markup | None]], *, busy: bool = False) -> Markup:
    """Return buttons of samples: index, name and picture; those without a picture are empty, and shown as ``busy``."""
    samples = [
        (index, shortened(name), shortened(name.rsplit("/", 1)[-1], _SHORT), made) for index, name, made in thumbnails
    ]
    return Markup(_VIEWS.thumbnails(samples, busy))


def eigenimages(shown: ComponentView) -> Markup:
    """Return the eigenimages, each with its share of the variance; before the first one, the mean."""
    panels = [("mean", shown.mean, "mean of the samples", "gray")] if shown.first == 0 else []
    for number, values in enumerate(shown.images, shown.first + 1):
        share = f" \N{MIDDLE DOT} {shown.shares[number - 1]:.1%}" if number <= len(shown.shares) else ""
        panels.append((f"{number}{share}", values, f"eigenimage {number}", "gray"))
    return Markup(_VIEWS.figures(_pictures(panels)))


def alert(text: str) -> Markup:
    """Return a message about an error."""
    return Markup(_VIEWS.alert(text))


def _pictures(panels: Sequence[tuple[str, Array | None, str, str]]) -> list[tuple[str, Markup]]:
    """Return caption and picture of each panel that there is."""
    return [(caption, picture(values, alt, colors)) for caption, values, alt, colors in panels if values is not None]


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "\N{HORIZONTAL ELLIPSIS}"
    if math.isnan(value):
        return "unknown, values are missing"
    if name == "psnr":
        return "exact" if math.isinf(value) else f"{value:.2f} dB"
    return f"{value:.4f}" if name == "ssim" else f"{value:.3g}"
