"""Tables 6.1, 6.2 and 6.4 of Alakkari (2020) on synthetic data, in the order of time and in random orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dpca.engine.sources.source import as_source
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.convergence.reference import Reference, exact_reference
from dpca.pipelines.studies.reproduction.tables import Entry, Published
from dpca.pipelines.studies.reproduction.thesis import Numbers, thesis_rules
from dpca.pipelines.studies.reproduction.trials import Measure, convergence_itself, entries_of, shuffled
from dpca.report.page import DataTable
from dpca.rules import IncrementalSVD

DEFAULT = "incremental SVD, the default"
Columns = Mapping[str, list[tuple[Entry, Entry]]]
"""Name of the data -> for each rule, its entries in the order of time and shuffled."""

#: Table 6.4: ocean and vortex.
OCEAN: Numbers = (
    (-0.6379, 0), (-2.4521, 0.021), (-2.7, 0.18), (-2.47, 0.011), (-1.73, 0.059), (-1.5, 0.2),
    (-1.52, 0.0259), (-1.46, 0.046), (-1.58, 0.09), (-1.49, 0.12),
)  # fmt: skip
VORTEX: Numbers = (
    (-0.096403, 0), (-1.1773, 0), (-1.01, 0.22), (-1.0, 0), (-0.45, 0.13), (-0.79, 0.1),
    (-0.75, 0.06), (-0.4, 0.067), (-0.77, 0.11), (-0.42, 0.05),
)  # fmt: skip
#: Table 6.2.
WEATHER: Mapping[str, Numbers] = {
    "temperature": (
        (-1.4, 0.01), (-3.24, 0.07), (-3.4, 0.1), (-3.37, 0), (-1.85, 0.3), (-2.48, 0.39),
        (-2.87, 0.08), (-2.53, 0.02), (-2.85, 0.09), (-2.53, 0.02),
    ),
    "wind": (
        (-0.346, 0.006), (-1.75, 0.05), (-1.9, 0.09), (-1.79, 0), (-1.87, 0.11), (-1.8, 0.15),
        (-1.67, 0.06), (-1.26, 0.02), (-1.67, 0.04), (-1.26, 0.03),
    ),
    "pressure": (
        (-0.93, 0.01), (-2.3, 0.13), (-2.5, 0.2), (-2.36, 0), (-1.96, 0.4), (-2.4, 0.28),
        (-2.3, 0.22), (-2.1, 0.02), (-2.37, 0.2), (-2.07, 0.06),
    ),
}  # fmt: skip
#: Table 6.1: share of the variance that 30 components explain.
MOLECULE: Numbers = tuple(
    (share, 0.0) for share in (0.221, 0.744, 0.747, 0.7489, 0.7491, 0.7488, 0.69, 0.688, 0.6882, 0.69)
)


def both_orders(
    x: Array,
    k: int,
    batch: int,
    trials: int,
    theirs: Numbers,
    *,
    value_range: tuple[float, float] | None = None,
    measure: Measure = convergence_itself,
) -> list[tuple[Entry, Entry]]:
    """Run the rules of the thesis and the default over samples (n, d), in the order of time and in random orders.

    Each trial has its own start and its own order. One pass, in mini-batches; online rules see the samples of a batch
    one by one.
    """
    reference = exact_reference(as_source(x), k)
    rules = [(DEFAULT, lambda seed: IncrementalSVD(k), ""), *thesis_rules(k)]
    published = [None, *(Published(*pair) for pair in theirs)]
    streams = {
        "in time": lambda: [(reference.source, reference)] * trials,
        "shuffled": lambda: shuffled(x, reference, trials),
    }
    how: dict[str, Any] = {"batch": batch, "value_range": value_range, "measure": measure}
    in_time, at_random = (entries_of(rules, order, stream, published, **how) for order, stream in streams.items())
    return list(zip(in_time, at_random, strict=True))


def on_page(heading: str, columns: Columns, notes: Sequence[str], write: Callable[[float], str]) -> DataTable:
    """Return a table of several data sets side by side: theirs, ours in the order of time, ours shuffled."""

    def written(one: Entry) -> str:
        if one.failure:
            return "failed"
        return write(one.mean) + (f" ± {one.spread:.2f}" if one.spread >= 0.005 else "")

    head = ["rule", *(f"{name}: {what}" for name in columns for what in ("thesis", "in time", "shuffled"))]
    rows = []
    for several in zip(*columns.values(), strict=True):
        row = [several[0][0].rule]
        for pair in several:
            known = pair[0].published
            row += ["-" if known is None else write(known.value), *map(written, pair)]
        rows.append(row)
    return DataTable(heading, head, rows, notes)


def numbers_of(columns: Columns) -> dict[str, Any]:
    """Return the results for JSON."""
    return {
        name: [
            {
                "rule": one.rule,
                "thesis": None if one.published is None else one.published.value,
                "in_time": [*one.values],
                "shuffled": [*other.values],
            }
            for one, other in pairs
        ]
        for name, pairs in columns.items()
    }


def rankings(columns: Columns) -> list[str]:
    """Return, for each data set, the rules next to the default in the order of time, and the effect of shuffling."""
    sentences = []
    for name, ((default, _), *others) in columns.items():
        best = sorted((one for one, _ in others if one.values), key=lambda one: one.mean)[:3]
        gain = {one.rule: other.mean - one.mean for one, other in others if one.values and other.values}
        most = min(gain, key=lambda rule: gain[rule])
        sentences.append(
            f"{name}, in the order of time: the default {default.mean:.2f}, next "
            + ", ".join(f"{one.rule} {one.mean:.2f}" for one in best)
            + f". Shuffling changes {most} most, by {gain[most]:+.2f}."
        )
    return sentences


def explained(convergence: float, reference: Reference) -> float:
    """Return the share of the explained variance, from a convergence."""
    best = float(reference.explained_variance.sum()) / reference.total_variance
    return float(best * (1 - 10.0**convergence))


def value_range(x: Array) -> tuple[float, float]:
    """Return the least and the largest value. Step sizes of the literature assume values in 0..1."""
    return float(np.min(x)), float(np.max(x))
