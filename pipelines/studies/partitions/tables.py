"""Tables of a report: lines of numbers under named columns, for the page, the terminal and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dpca.report.page import DataTable
from dpca.report.record import aligned


class Bound(NamedTuple):
    """A bound of a number that is not known exactly."""

    value: float
    side: Literal["at most", "at least"]


Value = float | int | str | Bound | None


def _ratio(value: float) -> str:
    return f"{value:.1f}:1" if value < 100 else f"{value:,.0f}:1"


def _small(value: float) -> str:
    return f"{value:.3g}" if value < 1e-3 else f"{value:.5f}"


def _seconds(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


_count, _four, _percent = "{:,}".format, "{:.4f}".format, "{:.2%}".format
_points, _degrees = "{:+.2f}".format, "{:.1f}°".format

#: Key in JSON -> heading, and how a number is written. Every table has its columns in this order.
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "partitions": ("partitions", _count),
    "components": ("k", _count),
    "scalars_ratio": ("scalars", _ratio),
    "bytes_ratio": ("bytes", _ratio),
    "mse": ("MSE", _small),
    "pixel_mse": ("MSE, pixels", _small),
    "ssim": ("SSIM", _four),
    "held_out_mse": ("MSE, held out", _small),
    "held_out_ssim": ("SSIM, held out", _four),
    "cell_seconds": ("CPU s a cell", _seconds),
    "seconds": ("CPU s in all", _seconds),
    "theirs_ratio": ("theirs: scalars", _ratio),
    "theirs_mse": ("theirs: MSE", _small),
    "theirs_ssim": ("theirs: SSIM", _four),
    "theirs_cpu": ("theirs: CPU s a cell", _seconds),
    "theirs_gpu": ("theirs: GPU s a cell", _seconds),
    "explained_holistic": ("whole samples", _percent),
    "explained_random": ("bands at random", _percent),
    "points": ("points apart", _points),
    "explained_apart": ("channels apart", _percent),
    "points_apart": ("points apart", _points),
    "explained_combined": ("combined", _percent),
    "angle_least": ("angle, least", _degrees),
    "angle_middle": ("middle", _degrees),
    "angle_largest": ("largest", _degrees),
}


@dataclass(frozen=True)
class PartitionTable:
    """A table of a report.

    Attributes
    ----------
    name : str
        Key in JSON: the number of the published table, if there is one.
    title : str
    conditions : str
        What was measured, and on which samples.
    head : str
        Heading of the column of names.
    lines : sequence of (name, mapping of column to value)
        The page leaves out columns without any value.
    remarks : tuple of str
        Sentences that follow from the numbers.
    """

    name: str
    title: str
    conditions: str
    head: str
    lines: Sequence[tuple[str, Mapping[str, Value]]]
    remarks: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the table for JSON. A key of its own marks a bound."""
        return {
            "title": self.title,
            "conditions": self.conditions,
            "lines": [{"name": name, **_plain(values)} for name, values in self.lines],
            "remarks": list(self.remarks),
        }

    def on_page(self) -> DataTable:
        """Return the table for the page."""
        used = [key for key in COLUMNS if any(values.get(key) is not None for _, values in self.lines)]
        head = (self.head, *(COLUMNS[key][0] for key in used))
        rows = [(name, *(_written(key, values.get(key)) for key in used)) for name, values in self.lines]
        return DataTable(self.title, head, rows, (self.conditions, *self.remarks))

    def as_text(self) -> str:
        """Return the table as plain text."""
        page = self.on_page()
        return "\n".join([self.title, aligned(page.head, page.rows), *(f"* {remark}" for remark in self.remarks)])


def _written(key: str, value: Value) -> str:
    if value is None:
        return "-"
    write = COLUMNS[key][1]
    if isinstance(value, Bound):
        return f"{value.side} {write(value.value)}"
    return value if isinstance(value, str) else write(value)


def _plain(values: Mapping[str, Value]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Bound):
            plain |= {key: value.value, f"{key}_is": value.side}
        elif value is not None:
            plain[key] = value
    return plain


def in_text(tables: Sequence[PartitionTable]) -> str:
    """Return tables as plain text, one after the other."""
    return "\n\n".join(table.as_text() for table in tables)
