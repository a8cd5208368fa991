"""Parts of the page of a report. ``templates/page.html`` lays them out, without scripts; it loads no other file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ReportPicture(NamedTuple):
    """A picture of the page."""

    file: str
    """Name of the same picture in the report's folder."""
    heading: str
    caption: str
    png: bytes


class DataTable(NamedTuple):
    """A table of the page. The first cell of a row is its name, the others are numbers."""

    heading: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    """Sentences below the table."""
