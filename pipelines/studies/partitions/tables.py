"""Tables of a report: lines of numbers under named columns, for the page, the terminal and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpca.report.page import DataTable
from dpca.report.record import aligned


@dataclass(frozen=True)
class Bound:
    """A number with a known bound."""

    value: float
    side: Literal["at most", "at least"]


Value = float | int | str | Bound | None


@dataclass(frozen=True)
class Column:
    """A column: its key in JSON, what stands over it, and how a number is written."""

    key: str
    heading: str
    write: Callable[[Any], str]


def _ratio(value: float) -> str:
    return f"{value:.1f}:1" if value < 100 else f"{value:,.0f}:1"


def _small(value: float) -> str:
    return f"{value:.3g}" if value < 1e-3 else f"{value:.5f}"


def _seconds(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _count(value: int) -> str:
    return f"{value:,}"


#: Every column there is, in the order in which a table has its own.
COLUMNS = {
    column.key: column
    for column in (
        Column("partitions", "partitions", _count),
        Column("components", "k", _count),
        Column("scalars_ratio", "scalars", _ratio),
        Column("bytes_ratio", "bytes", _ratio),
        Column("mse", "MSE", _small),
        Column("pixel_mse", "MSE, pixels", _small),
        Column("ssim", "SSIM", "{:.4f}".format),
        Column("held_out_mse", "MSE, held out", _small),
        Column("held_out_ssim", "SSIM, held out", "{:.4f}".format),
        Column("cell_seconds", "CPU s a cell", _seconds),
        Column("seconds", "CPU s in all", _seconds),
        Column("theirs_ratio", "theirs: scalars", _ratio),
        Column("theirs_mse", "theirs: MSE", _small),
        Column("theirs_ssim", "theirs: SSIM", "{:.4f}".format),
        Column("theirs_cpu", "theirs: CPU s a cell", _seconds),
        Column("theirs_gpu", "theirs: GPU s a cell", _seconds),
        Column("explained_holistic", "whole samples", "{:.2%}".format),
        Column("explained_random", "bands at random", "{:.2%}".format),
        Column("points", "points apart", "{:+.2f}".format),
        Column("explained_apart", "channels apart", "{:.2%}".format),
        Column("points_apart", "points apart", "{:+.2f}".format),
        Column("explained_combined", "combined", "{:.2%}".format),
        Column("angle_least", "angle, least", "{:.1f}°".format),
        Column("angle_middle", "middle", "{:.1f}°".format),
        Column("angle_largest", "largest", "{:.1f}°".format),
    )
}


@dataclass(frozen=True)
class PartitionTable:
    """Lines that belong together.

    Attributes
    ----------
    name : str
        Key in JSON; the number of the published table where there is one.
    title : str
    conditions : str
        What was measured on what, in a sentence or two.
    head : str
        What stands over the names of the lines.
    lines : tuple of (name, mapping of column to value)
        Columns without any value are left out on the page.
    remarks : tuple of str
        Sentences that follow from the numbers.
    """

    name: str
    title: str
    conditions: str
    head: str
    lines: tuple[tuple[str, Mapping[str, Value]], ...]
    remarks: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON has it; a bound is marked by a key of its own."""
        return {
            "title": self.title,
            "conditions": self.conditions,
            "lines": [{"name": name, **_plain(values)} for name, values in self.lines],
            "remarks": list(self.remarks),
        }

    def on_page(self) -> DataTable:
        """Return it as a page sets it."""
        head, rows = self._text()
        return DataTable(self.title, head, rows, (self.conditions, *self.remarks))

    def as_text(self) -> str:
        """Set it as plain text."""
        return "\n".join([self.title, aligned(*self._text()), *(f"* {remark}" for remark in self.remarks)])

    def _text(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        used = [key for key in COLUMNS if any(values.get(key) is not None for _, values in self.lines)]
        head = (self.head, *(COLUMNS[key].heading for key in used))
        return head, [(name, *(_written(key, values.get(key)) for key in used)) for name, values in self.lines]


def _written(key: str, value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, Bound):
        return f"{value.side} {COLUMNS[key].write(value.value)}"
    return value if isinstance(value, str) else COLUMNS[key].write(value)


def _plain(values: Mapping[str, Value]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Bound):
            plain |= {key: value.value, f"{key}_is": value.side}
        elif value is not None:
            plain[key] = value
    return plain


def in_text(tables: Sequence[PartitionTable]) -> str:
    """Set tables as plain text, one under the other."""
    return "\n\n".join(table.as_text() for table in tables)
