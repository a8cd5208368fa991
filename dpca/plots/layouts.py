"""Layouts of panels on a page: tiles, a gallery with headings, and triplets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpca.plots import drawing
from dpca.plots.drawing import INK, MUTED, WIDTH
from dpca.plots.panels import NEUTRAL, signed
from dpca.storage.errors import DataError

_MARGIN, _GAP, _GUTTER = 0.08, 0.05, 0.3
_HEADING, _TALLEST, _NARROWEST, _UNDER = 0.3, 2.9, 1.0, 0.30
# Spacing of galleries.
_WIDE_GAP, _TWO_LINES, _LABEL = 0.06, 0.48, 0.26
# Height and length of the color scale, and the height that is reserved for it.
_BAR, _BAR_LENGTH, _BAR_ROOM = 0.1, 2.0, 0.3
_LONGEST_LABEL = 200
# Average width of a letter in inches, in captions and in headings.
_LETTER, _SMALL_LETTER = 0.085, 0.072

Panel = NDArray[np.float64]


def tiles(
    pictures: Sequence[Panel],
    left: Sequence[str],
    right: Sequence[str] | None = None,
    *,
    scale: tuple[float, bool] | None = None,
) -> Figure:
    """Lay out panels in lines with the fewest empty places. Each panel has its own height.

    Parameters
    ----------
    pictures : sequence of panels
    left, right : sequence of str
        Captions under each panel, at its left and its right edge.
    scale : (float, bool), optional
        The magnitude of full contrast, and whether the scale has colors by sign (True) or grays.
    """
    aspects = [drawing.aspect_of(picture) for picture in pictures]
    aspect = max(aspects)
    columns = _columns(len(pictures), aspect)
    place = (WIDTH - 2 * _MARGIN) / columns
    width = min(place - 2 * _GAP, _TALLEST / aspect)
    line, below = width * aspect + _UNDER, 0.0 if scale is None else _BAR_ROOM
    figure, top = drawing.page(_MARGIN + line * -(-len(pictures) // columns) + below)
    for index, picture in enumerate(pictures):
        x = _MARGIN + (index % columns + 0.5) * place - width / 2
        y = top - _MARGIN - (index // columns) * line - width * aspect
        high = width * aspects[index]
        drawing.show(figure, picture, (x, y + width * aspect - high, width, high))
        caption = "" if right is None else right[index]
        room = int(width / _LETTER) - len(caption) - bool(caption)
        drawing.write(figure, x, y - 0.15, drawing.drawable(left[index], room), color=INK)
        drawing.write(figure, x + width, y - 0.15, caption, color=MUTED, ha="right")
        # As high as the line, so that the parts below each other have no gap.
        above = top - (y + width * aspect)
        figure.add_piece(x - _GAP, above - _GAP, width + 2 * _GAP, line, _label(left[index], caption))
    if scale is not None:
        _draw_scale(figure, *scale)
        figure.add_piece(0, top - _BAR_ROOM, WIDTH, _BAR_ROOM, "scale of the values")
    return figure


def gallery(
    rows: Sequence[Sequence[Panel]],
    heads: Sequence[str],
    notes: Sequence[str],
    names: Sequence[str],
    captions: Sequence[Sequence[str]] | None = None,
) -> Figure:
    """Lay out panels in rows and columns.

    Parameters
    ----------
    rows : sequence of sequences of panels
        Values in 0..1, see `dpca.plots.panels`; all rows of one length.
    heads, notes : sequence of str, one per column
        Heading of a column, and a note below it.
    names : sequence of str, one per row
        Caption of the first panel.
    captions : sequence of sequences of str, optional
        Captions of the other panels.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    DataError
        If there is no panel, or the lengths do not fit.
    """
    columns = len(heads)
    if not rows or not columns or any(len(row) != columns for row in rows):
        raise DataError(f"{len(rows)} rows do not fill {columns} columns: give one panel for each heading")
    if len(notes) != columns or len(names) != len(rows):
        raise DataError(f"{len(notes)} notes and {len(names)} names: give one for each of {columns} and {len(rows)}")
    aspect = drawing.aspect_of(rows[0][0])
    place = (WIDTH - 2 * _MARGIN) / columns
    width = min(place - _WIDE_GAP, _TALLEST / aspect)
    height = width * aspect
    line = height + _LABEL
    head = _TWO_LINES if any(notes) else _HEADING
    figure, top = drawing.page(head + line * len(rows) + 0.02)
    letters = int(place / _SMALL_LETTER)
    for column in range(columns):
        x = _MARGIN + column * place
        drawing.write(figure, x, top - 0.2, drawing.drawable(heads[column], letters), color=INK, size=8.5)
        drawing.write(figure, x, top - 0.38, drawing.drawable(notes[column], letters), color=MUTED, size=8)
        for number, row in enumerate(rows):
            y = top - head - number * line - height
            drawing.show(figure, row[column], (x, y, width, height))
            caption = names[number] if column == 0 else "" if captions is None else captions[number][column]
            drawing.write(figure, x, y - 0.15, drawing.drawable(caption, letters), color=MUTED, size=8)
    return figure


def triplets(
    rows: Sequence[tuple[Panel, ...]], heads: Sequence[str], names: Sequence[str], captions: Sequence[str]
) -> Figure:
    """Lay out rows of three panels. If panels are narrow enough, two rows share a line."""
    aspect = drawing.aspect_of(rows[0][0])
    beside = 2 if aspect >= 0.7 and len(rows) > 1 else 1
    block = (WIDTH - 2 * _MARGIN - _GUTTER * (beside - 1)) / beside
    # Panels are at least as wide as the headings, even if they become taller than usual.
    width = max(min((block - 2 * _GAP) / 3, _TALLEST / aspect), _NARROWEST)
    height = width * aspect
    line = _HEADING + height + _UNDER
    figure, top = drawing.page(line * -(-len(rows) // beside))
    for index, row in enumerate(rows):
        x = _MARGIN + (index % beside) * (block + _GUTTER) + (block - 3 * width - 2 * _GAP) / 2
        y = top - _HEADING - (index // beside) * line - height
        for position, picture in enumerate(row):
            left = x + position * (width + _GAP)
            drawing.show(figure, picture, (left, y, width, height))
            drawing.write(figure, left, y + height + 0.07, heads[position], color=MUTED, size=8.5)
        right = x + 3 * width + 2 * _GAP
        room = int((right - x) / _LETTER) - len(captions[index]) - 2
        drawing.write(figure, x, y - 0.15, drawing.drawable(names[index], room), color=INK)
        drawing.write(figure, right, y - 0.15, captions[index], color=MUTED, ha="right")
        above = top - (y + height) - _HEADING
        figure.add_piece(x - _MARGIN, above, right - x + 2 * _MARGIN, line, _label(names[index], captions[index]))
    return figure


def _label(name: str, caption: str) -> str:
    return drawing.drawable(", ".join(filter(None, (name, caption))), _LONGEST_LABEL)


def _draw_scale(figure: Figure, extent: float, by_sign: bool) -> None:
    """Draw the color scale at the foot of a page."""
    ramp = np.linspace(-1, 1, 255)[None]
    picture = signed(ramp, 1.0) if by_sign else NEUTRAL + NEUTRAL * ramp
    left, bottom = (WIDTH - _BAR_LENGTH) / 2, 0.1
    drawing.show(figure, picture, (left, bottom, _BAR_LENGTH, _BAR))
    drawing.write(figure, left - 0.08, bottom, f"\N{MINUS SIGN}{extent:.2g}", color=MUTED, size=8, ha="right")
    drawing.write(figure, left + _BAR_LENGTH + 0.08, bottom, f"{extent:.2g}", color=MUTED, size=8)


def _columns(count: int, aspect: float) -> int:
    """Return the number of panels on a line, with the fewest empty places on the last line, then the largest."""
    choices = range(4, 8) if aspect > 0.5 else range(2, 4)
    if count <= choices[-1]:
        return max(count, choices[0])
    return min(choices, key=lambda columns: (-count % columns, -columns))
