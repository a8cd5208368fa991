"""Drawing primitives on matplotlib: a page in inches, one typeface, five colors."""

from __future__ import annotations

import functools
import pathlib
from typing import Any, Literal, TypeAlias

import numpy as np
from matplotlib import get_data_path
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.image import BboxImage
from matplotlib.ticker import Locator
from matplotlib.transforms import Bbox, TransformedBbox
from numpy.typing import NDArray

from dpca.plots.panels import levels
from dpca.plots.png import PicturePart, png
from dpca.storage.errors import DataError, one_line

WIDTH, DPI = 9.6, 150
INK, MUTED, HAIRLINE = "#1d2530", "#697586", "#d4dae2"
ACCENT, ALERT = "#2b6591", "#b3502a"
FEW_TO_MANY = LinearSegmentedColormap.from_list("few to many", ["#eaf0f5", ACCENT, INK])
FONT = "DejaVu Sans"
"""Ships with matplotlib, so that figures are the same on every machine."""

Side: TypeAlias = Literal["left", "center", "right"]

_CURVE_ASPECT = 0.62
_CHART_HEIGHT = 3.9
# Pixels per inch in a browser.
_SCREEN = 96


class NotebookFigure(Figure):
    """A figure that notebooks display without pyplot and its backend."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pieces: list[PicturePart] = []

    # Not `_repr_png_`, because pyplot's backend replaces that for all figures and shows nothing for those without axes.
    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"image/png": png(self)}, {"image/png": {"width": round(self.get_figwidth() * _SCREEN)}}

    def add_piece(self, left: float, top: float, width: float, height: float, label: str) -> None:
        """State that this rectangle, in inches from the upper left corner, can be shown by itself."""
        x, y, wide, high = (round(DPI * inches) for inches in (left, top, width, height))
        self.pieces.append(PicturePart(x, y, wide, high, label))


def page(height: float) -> tuple[NotebookFigure, float]:
    """Make an empty page of the given height in inches; return it and the position of its upper edge."""
    figure = NotebookFigure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    return figure, height


def along_axis(times: Any) -> NDArray[Any]:
    """Return times that matplotlib can draw: numbers and dates unchanged, cftime dates of any calendar as years.

    Raises
    ------
    DataError
        If they are neither numbers nor dates.
    """
    values = np.asarray(getattr(times, "values", times))
    if values.dtype.kind in "buifMm":
        return values
    try:
        if not all(hasattr(time, "calendar") for time in values.flat):
            return values.astype("M8[us]")
        # The length of a year depends on the calendar; some have 360 days.
        return np.array([_in_years(time) for time in values], np.float64)
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(f"times have dtype {values.dtype} ({one_line(error)}): give numbers or dates") from error


def _in_years(time: Any) -> float:
    first = time.replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    return float(time.year + (time - first) / (first.replace(year=time.year + 1) - first))


def aspect_of(picture: NDArray[np.float64]) -> float:
    """Return the height of a panel divided by its width."""
    if picture.ndim == 1:
        return _CURVE_ASPECT
    # Narrower panels would be invisible, and are stretched instead.
    return float(np.clip(picture.shape[0] / picture.shape[1], 0.1, 6.0))


def show(figure: Figure, picture: NDArray[np.float64], place: tuple[float, float, float, float]) -> None:
    """Show a panel of values in 0..1 at ``(left, bottom, width, height)`` inches."""
    if picture.ndim == 1:
        axes = axes_at(figure, place)
        axes.plot(picture, color=ACCENT, linewidth=0.9)
        axes.axhline(0.5, color=HAIRLINE, linewidth=0.6, zorder=0)
        axes.set_xlim(0, max(len(picture) - 1, 1))
        axes.set_ylim(-0.04, 1.04)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set(color=HAIRLINE, linewidth=0.6)
        return
    # No axes, because invisible ticks take longer to make than a whole job on a small stack.
    box = TransformedBbox(_on(figure, place), figure.transFigure)
    image = BboxImage(box, cmap="gray", norm=Normalize(0, 255), interpolation="antialiased")
    image.set_data(levels(picture))
    figure.add_artist(image)


def show_colored(
    figure: Figure,
    values: NDArray[np.float64],
    place: tuple[float, float, float, float],
    colors: Colormap,
    *,
    bar: tuple[float, float],
    scale: Normalize | None = None,
    ticks: Locator | None = None,
) -> None:
    """Show values as colors at ``(left, bottom, width, height)`` inches, with a color bar on the right.

    ``bar`` is the distance of the color bar from the image and its width, in inches.
    """
    (left, bottom, width, height), (gap, bar_width) = place, bar
    axes = axes_at(figure, place)
    axes.set_axis_off()
    image = axes.imshow(values, cmap=colors, norm=scale, aspect="auto", interpolation="nearest")
    color_bar(figure, image, (left + width + gap, bottom, bar_width, height), ticks)


def color_bar(
    figure: Figure, image: ScalarMappable, place: tuple[float, float, float, float], ticks: Locator | None = None
) -> None:
    """Draw the color bar of an image at ``(left, bottom, width, height)`` inches."""
    beside = axes_at(figure, place)
    figure.colorbar(image, cax=beside, ticks=ticks).outline.set_visible(False)
    style_ticks(beside)


def write(figure: Figure, x: float, y: float, text: str, *, color: str, size: float = 9.0, ha: Side = "left") -> None:
    """Write one line of text with its baseline at ``(x, y)`` inches. Dollar signs have no special meaning."""
    x, y = x / WIDTH, y / figure.get_figheight()
    figure.text(x, y, text, color=color, fontsize=size, ha=ha, fontfamily=FONT, parse_math=False)


def chart(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """Make a page with one pair of axes: hairlines, no box."""
    figure, top = page(_CHART_HEIGHT)
    axes = axes_at(figure, (0.95, 0.62, WIDTH - 1.25, top - 0.82))
    axes.set_xlabel(x_label, color=MUTED, fontsize=9.5, fontfamily=FONT, labelpad=7)
    axes.set_ylabel(y_label, color=MUTED, fontsize=9.5, fontfamily=FONT, labelpad=9)
    style_axes(axes)
    axes.grid(axis="y", color=HAIRLINE, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def annotate(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], color: str, ha: Side) -> None:
    """Write next to a point of a chart, with an ``offset`` in typographic points."""
    style: dict[str, Any] = {"color": color, "fontsize": 9.5, "ha": ha, "fontfamily": FONT}
    axes.annotate(text, at, xytext=offset, textcoords="offset points", **style)


def legend(axes: Axes) -> None:
    """Add a legend of all labels in the lower right corner."""
    axes.legend(loc="lower right", frameon=False, labelcolor=INK, prop={"family": FONT, "size": 9})


def drawable(name: str, length: int) -> str:
    """Return a drawable file name: on one line, with glyphs of the typeface. A long one loses its folders first."""
    known = _glyphs()
    drawable = (c if ord(c) in known and c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    clean = "".join(drawable)
    if len(clean) > length:
        folders = clean.find("/", len(clean) - length - 1, -1)
        clean = clean[(clean.rfind("/", 0, -1) if folders < 0 else folders) + 1 :]
    if len(clean) <= length:
        return clean
    tail = max(length - 1, 2) // 2
    return clean[: max(length - 1 - tail, 1)] + "…" + clean[-tail:]


@functools.cache
def _glyphs() -> frozenset[int]:
    """Return the code points of the typeface. Others would cause a warning and an empty box."""
    font = pathlib.Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    return frozenset(FT2Font(str(font)).get_charmap())


def style_axes(axes: Axes) -> None:
    """Give axes the style of the page: a line at the bottom, and no box."""
    style_ticks(axes)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set(color=MUTED, linewidth=0.8)


def style_ticks(axes: Axes) -> None:
    """Give ticks the colors and the typeface of the page."""
    axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=9, labelfontfamily=FONT, length=3, width=0.6)


def axes_at(figure: Figure, place: tuple[float, float, float, float], **options: Any) -> Axes:
    """Add axes at ``(left, bottom, width, height)`` inches, with options of matplotlib."""
    return figure.add_axes(_on(figure, place).bounds, **options)


def _on(figure: Figure, place: tuple[float, float, float, float]) -> Bbox:
    """Convert ``(left, bottom, width, height)`` from inches to fractions of a page."""
    left, bottom, width, height = place
    tall = figure.get_figheight()
    return Bbox.from_bounds(left / WIDTH, bottom / tall, width / WIDTH, height / tall)
