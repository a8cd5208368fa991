"""Tables of published numbers beside ours, and the Markdown report of several tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpca.storage.transaction.outputs import OutputFile


@dataclass(frozen=True)
class Published:
    """A published number.

    Attributes
    ----------
    value : float
    spread : float
        Standard deviation over the trials of the publication, 0 if it states none.
    at_most : bool
        Whether it is a required upper bound, rather than a result.
    rounding : float
        Half a unit of its last digit, if it has fewer digits than the table.
    """

    value: float
    spread: float = 0.0
    at_most: bool = False
    rounding: float = 0.0


@dataclass(frozen=True)
class Entry:
    """One line of a table.

    Attributes
    ----------
    rule, setting : str
    published : Published or None
    values : tuple of float
        Our results, one for each trial.
    seconds : float
        Processor time of the updates of a trial, mean over trials.
    failure : str
        Error message of a rule that diverged.
    open_points : str
        What the publication does not state, and the choice made here. It is reported if the numbers differ.
    """

    rule: str
    setting: str
    published: Published | None
    values: tuple[float, ...]
    seconds: float = 0.0
    failure: str = ""
    open_points: str = ""

    @property
    def mean(self) -> float:
        """Mean over trials; nan if there is none."""
        return float(np.mean(self.values)) if self.values else float("nan")

    @property
    def spread(self) -> float:
        """Standard deviation over trials; 0 for a single one, or if one is infinite."""
        several = len(self.values) > 1 and bool(np.isfinite(self.values).all())
        return float(np.std(self.values, ddof=1)) if several else 0.0

    @property
    def difference(self) -> float | None:
        """Our mean minus the published value."""
        return None if self.published is None or not self.values else self.mean - self.published.value

    def verdict(self, places: int) -> str:
        """Compare both numbers in a phrase. Lower is better for every measure."""
        if self.failure:
            return f"failed: {self.failure}"
        difference = self.difference
        if self.published is None or difference is None:
            return ""
        if self.published.at_most:
            return "met" if difference <= 0 else f"missed by {difference:.{places}f}"
        rounding = max(0.5 * 10.0**-places, self.published.rounding)
        allowed = max(self.published.spread, self.spread, rounding)
        if abs(difference) <= allowed * (1 + 1e-9):
            return "agrees" if allowed == rounding else "agrees within the spread"
        better = "better" if difference < 0 else "worse"
        share = f"{abs(difference) / allowed:.1f} times the larger spread"
        if allowed == rounding:
            share = "neither states a spread" if len(self.values) < 2 else "the spread is below the last digit"
        return f"{better} by {abs(difference):.{places}f} ({share}). {self.open_points}".removesuffix(". ")

    def as_dict(self, places: int) -> dict[str, Any]:
        """Return the entry for JSON."""
        published = self.published
        return {
            "rule": self.rule,
            "setting": self.setting,
            "published": None if published is None else published.value,
            "published_spread": None if published is None else published.spread,
            "at_most": published is not None and published.at_most,
            "mean": _finite(self.mean),
            "spread": _finite(self.spread),
            "values": [_finite(value) for value in self.values],
            "difference": None if self.difference is None else _finite(self.difference),
            "cpu_seconds": self.seconds,
            "verdict": self.verdict(places),
        }

    def cells(self, places: int) -> tuple[str, ...]:
        """Return the cells of a line of `markdown`."""
        published = self.published
        theirs = "" if published is None else _number(published.value, published.spread, places)
        return (
            self.rule,
            self.setting,
            f"at most {theirs}" if published is not None and published.at_most else theirs,
            _number(self.mean, self.spread, places) if self.values else "none",
            "" if self.difference is None else f"{self.difference:+.{places}f}",
            f"{self.seconds:.2f}",
            self.verdict(places),
        )


@dataclass(frozen=True)
class ReproductionTable:
    """A table of published numbers beside ours.

    Attributes
    ----------
    name : str
        Name on the command line.
    title : str
    measure : str
        Meaning of the numbers.
    conditions : str
        Data, order, batches, trials.
    entries : sequence of Entry
    places : int
        Decimals of the numbers.
    remarks : sequence of str
        Sentences that follow from the numbers of several entries.
    """

    name: str
    title: str
    measure: str
    conditions: str
    entries: Sequence[Entry]
    places: int = 2
    remarks: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the table for JSON."""
        return {
            "title": self.title,
            "measure": self.measure,
            "conditions": self.conditions,
            "remarks": list(self.remarks),
            "entries": [entry.as_dict(self.places) for entry in self.entries],
        }


#: First line of the result of `markdown`.
HEADING = "# Published numbers of streaming PCA, and ours"


def markdown(tables: Sequence[ReproductionTable], missing: Mapping[str, str]) -> str:
    """Return the tables as a Markdown document; ``missing`` has the missing data of the others."""
    lines = [
        HEADING,
        "",
        "Lower is better everywhere. Ours: mean +- standard deviation over trials; CPU: seconds of the updates of one "
        "trial, one BLAS thread, without reading and measuring. The last column follows from the numbers: two results "
        "agree if they differ by no more than the larger standard deviation, or by rounding.",
        "",
    ]
    for table in tables:
        lines += [f"## {table.title}", "", f"{table.measure}. {table.conditions}", ""]
        lines += ["| rule | setting | theirs | ours | difference | CPU s | |", "|---|---|---|---|---|---|---|"]
        lines += [f"| {' | '.join(entry.cells(table.places))} |" for entry in table.entries]
        lines += ["", *_bullets(table.remarks)]
    if missing:
        lines += ["## Left out", "", *_bullets([f"{name}: {what}" for name, what in missing.items()])]
    return "\n".join(lines)


class MarkdownReport:
    """A Markdown file of tables, and a JSON file of their numbers beside it.

    Parameters
    ----------
    output : Path
    *inputs
        Paths that the output may not overlap.
    """

    def __init__(self, output: Path, *inputs: Any) -> None:
        self.output, self.numbers = output, output.with_suffix(".json")
        self._files = (
            OutputFile(output, "report", lambda content: content.startswith(HEADING.encode()), *inputs),
            OutputFile(self.numbers, "report", _holds_numbers, *inputs, others=output),
        )

    def write(self, tables: Sequence[ReproductionTable], missing: Mapping[str, str]) -> None:
        """Write both files."""
        numbers = {"tables": {table.name: table.as_dict() for table in tables}, "skipped": missing}
        report, beside = self._files
        report.write(markdown(tables, missing).encode())
        beside.write(f"{json.dumps(numbers, indent=2, allow_nan=False)}\n".encode())


def _holds_numbers(content: bytes) -> bool:
    try:
        return set(json.loads(content)) == {"tables", "skipped"}
    except (ValueError, TypeError, RecursionError):
        return False


def _bullets(sentences: Sequence[str]) -> list[str]:
    return [*(f"* {sentence}" for sentence in sentences), *([""] if sentences else [])]


def _number(value: float, spread: float, places: int) -> str:
    return f"{value:.{places}f}" + (f" +- {spread:.{places}f}" if spread else "")


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
