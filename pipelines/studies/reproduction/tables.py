"""A table of published numbers beside ours, and what follows from comparing the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Published:
    """A number as its source prints it.

    Attributes
    ----------
    value : float
    spread : float
        Standard deviation over the source's trials, 0 where it states none.
    at_most : bool
        Whether it is a required upper bound, rather than a result.
    rounding : float
        Half a unit of its last digit, where that is coarser than the table's.
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
        What was run.
    published : Published or None
    values : tuple of float
        Ours, one a trial.
    seconds : float
        Processor time of one trial's updates, the mean over trials.
    failure : str
        What the rule said if it gave up.
    open_points : str
        What the source does not say, and how it was read here: reported if the numbers differ.
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
        """Standard deviation over trials; 0 for a single one, or where one is infinite."""
        several = len(self.values) > 1 and bool(np.isfinite(self.values).all())
        return float(np.std(self.values, ddof=1)) if several else 0.0

    @property
    def difference(self) -> float | None:
        """Ours less theirs."""
        return None if self.published is None or not self.values else self.mean - self.published.value

    def verdict(self, places: int) -> str:
        """Say in a phrase how the two compare, by the numbers alone; every measure here is better the lower it is."""
        if self.failure:
            return f"gave up: {self.failure}"
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
        told = f"{better} by {abs(difference):.{places}f} ({share})"
        return f"{told}. {self.open_points}" if self.open_points else told


@dataclass(frozen=True)
class ReproductionTable:
    """Entries that belong together.

    Attributes
    ----------
    name : str
        As it is asked for.
    title : str
    measure : str
        What the numbers are.
    conditions : str
        Data, order, batches, trials, in a sentence.
    entries : tuple of Entry
    places : int
        Decimals of the numbers.
    remarks : tuple of str
        Sentences that follow from the numbers of several entries.
    """

    name: str
    title: str
    measure: str
    conditions: str
    entries: tuple[Entry, ...]
    places: int = 2
    remarks: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {
            "title": self.title,
            "measure": self.measure,
            "conditions": self.conditions,
            "remarks": list(self.remarks),
            "entries": [
                {
                    "rule": entry.rule,
                    "setting": entry.setting,
                    "published": None if entry.published is None else entry.published.value,
                    "published_spread": None if entry.published is None else entry.published.spread,
                    "at_most": entry.published is not None and entry.published.at_most,
                    "mean": _finite(entry.mean),
                    "spread": _finite(entry.spread),
                    "values": [_finite(value) for value in entry.values],
                    "difference": None if entry.difference is None else _finite(entry.difference),
                    "cpu_seconds": entry.seconds,
                    "verdict": entry.verdict(self.places),
                }
                for entry in self.entries
            ],
        }


#: First line of what `markdown` returns.
HEADING = "# Published numbers of streaming PCA, and ours"


def markdown(tables: Sequence[ReproductionTable], skipped: Mapping[str, str]) -> str:
    """Set the tables as a Markdown document; ``skipped`` names what is missing, and why."""
    lines = [HEADING, ""]
    lines += [
        "Lower is better everywhere. Ours: mean +- standard deviation over trials; CPU: seconds of the updates of one "
        "trial, one BLAS thread, reading and measuring left out. What the last column says is computed from the "
        "numbers: two results agree if they differ by no more than the larger standard deviation, or by rounding.",
        "",
    ]
    for table in tables:
        lines += _section(table)
    if skipped:
        lines += ["## Left out", "", *(f"* {name}: {reason}" for name, reason in skipped.items()), ""]
    return "\n".join(lines)


def _section(table: ReproductionTable) -> list[str]:
    places = table.places
    lines = [f"## {table.title}", "", f"{table.measure}. {table.conditions}", ""]
    lines += ["| rule | setting | theirs | ours | difference | CPU s | |", "|---|---|---|---|---|---|---|"]
    for entry in table.entries:
        published = entry.published
        theirs = "" if published is None else _number(published.value, published.spread, places)
        theirs = f"at most {theirs}" if published is not None and published.at_most else theirs
        ours = _number(entry.mean, entry.spread, places) if entry.values else "none"
        difference = "" if entry.difference is None else f"{entry.difference:+.{places}f}"
        cells = (entry.rule, entry.setting, theirs, ours, difference, f"{entry.seconds:.2f}", entry.verdict(places))
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", *(f"* {remark}" for remark in table.remarks), *([""] if table.remarks else [])]


def _number(value: float, spread: float, places: int) -> str:
    return f"{value:.{places}f}" + (f" +- {spread:.{places}f}" if spread else "")


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
