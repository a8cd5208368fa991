"""Parts of the page of a report. ``templates/page.html`` lays them out, without scripts; it loads no other file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from dpca.plots.png import PicturePart


class PieceGrid(NamedTuple):
    """Pieces of a picture with equal width. A narrow screen has fewer columns."""

    columns: int
    pieces: Sequence[tuple[PicturePart, bytes]]
    """What each shows and where it is, and its PNG file."""


class ReportPicture(NamedTuple):
    """A picture of the page."""

    file: str
    """Name of the same picture in the report's folder."""
    heading: str
    caption: str
    png: bytes
    grids: Sequence[PieceGrid]


class DataTable(NamedTuple):
    """A table of the page. The first cell of a row is its name, the others are numbers."""

    heading: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    """Sentences below the table."""


def grids_of(pieces: Iterable[tuple[PicturePart, bytes]]) -> Iterator[PieceGrid]:
    """Yield the pieces of a picture in the columns that they have there."""
    for _, group in groupby(pieces, lambda one: one[0].width):
        found = list(group)
        yield PieceGrid(sum(piece.top == found[0][0].top for piece, _ in found), found)
