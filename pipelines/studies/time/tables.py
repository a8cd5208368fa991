"""Tables 6.1, 6.2 and 6.4 of Alakkari (2020), on data that stand for theirs, in the order of time and shuffled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dpca.engine.sources.source import as_source
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.convergence.reference import Reference, exact_reference
from dpca.pipelines.studies.reproduction.digits import in_batches, shuffled, thesis_rules
from dpca.pipelines.studies.reproduction.tables import Entry, Published
from dpca.pipelines.studies.reproduction.trials import convergence_itself, entry
from dpca.report.page import DataTable
from dpca.rules import IncrementalSVD

DEFAULT = "incremental SVD, the default"
#: What the thesis prints of each rule, in the order of `thesis_rules`.
Theirs = Sequence[tuple[float, float]]

#: Table 6.4: ocean and vortex.
OCEAN: Theirs = (
    (-0.6379, 0), (-2.4521, 0.021), (-2.7, 0.18), (-2.47, 0.011), (-1.73, 0.059), (-1.5, 0.2),
    (-1.52, 0.0259), (-1.46, 0.046), (-1.58, 0.09), (-1.49, 0.12),
)  # fmt: skip
VORTEX: Theirs = (
    (-0.096403, 0), (-1.1773, 0), (-1.01, 0.22), (-1.0, 0), (-0.45, 0.13), (-0.79, 0.1),
    (-0.75, 0.06), (-0.4, 0.067), (-0.77, 0.11), (-0.42, 0.05),
)  # fmt: skip
#: Table 6.2.
WEATHER: Mapping[str, Theirs] = {
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
MOLECULE: Theirs = tuple(
    (share, 0.0) for share in (0.221, 0.744, 0.747, 0.7489, 0.7491, 0.7488, 0.69, 0.688, 0.6882, 0.69)
)


def both_orders(
    x: Array,
    k: int,
    batch: int,
    trials: int,
    theirs: Theirs,
    *,
    value_range: tuple[float, float] | None = None,
    measure: Callable[[float, Reference], float] = convergence_itself,
) -> list[tuple[Entry, Entry]]:
    """Run the thesis's rules and the default over samples (n, d), in the order of time and in random orders.

    Each trial has a start and an order of its own. One pass, in mini-batches; online rules take the samples of a batch
    one by one.
    """
    reference = exact_reference(as_source(x), k)
    rules = [(DEFAULT, lambda seed: IncrementalSVD(k), ""), *thesis_rules(k)]
    published = [None, *(Published(*pair) for pair in theirs)]
    found = []
    for (name, make, open_points), known in zip(rules, published, strict=True):
        streams = {"in time": [(reference.source, reference)] * trials, "shuffled": shuffled(x, reference, trials)}
        pair = [
            entry(
                name,
                order,
                in_batches(make, batch),
                stream,
                published=known,
                value_range=value_range,
                measure=measure,
                open_points=open_points,
            )
            for order, stream in streams.items()
        ]
        found.append((pair[0], pair[1]))
    return found


def on_page(
    heading: str, columns: Mapping[str, list[tuple[Entry, Entry]]], notes: Sequence[str], write: Callable[[float], str]
) -> DataTable:
    """Set the results of some data sets side by side: theirs, ours in the order of time, ours shuffled."""

    def told(one: Entry) -> str:
        if one.failure:
            return "gave up"
        return write(one.mean) + (f" ± {one.spread:.2f}" if one.spread >= 0.005 else "")

    head = ["rule", *(f"{name}: {what}" for name in columns for what in ("thesis", "in time", "shuffled"))]
    rows = []
    for several in zip(*columns.values(), strict=True):
        row = [several[0][0].rule]
        for pair in several:
            known = pair[0].published
            row += ["-" if known is None else write(known.value), *map(told, pair)]
        rows.append(row)
    return DataTable(heading, head, rows, notes)


def numbers_of(columns: Mapping[str, list[tuple[Entry, Entry]]]) -> dict[str, Any]:
    """Return the results as JSON has them."""
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


def ranking(name: str, pairs: list[tuple[Entry, Entry]]) -> str:
    """Say which rules come next to the default in the order of time, and what shuffling changes."""
    (default, _), *others = pairs
    best = sorted((one for one, _ in others if one.values), key=lambda one: one.mean)[:3]
    gain = {one.rule: other.mean - one.mean for one, other in others if one.values and other.values}
    most = min(gain, key=lambda rule: gain[rule])
    return (
        f"{name}, in the order of time: the default {default.mean:.2f}, next "
        + ", ".join(f"{one.rule} {one.mean:.2f}" for one in best)
        + f". Shuffling changes {most} most, by {gain[most]:+.2f}."
    )


def explained(convergence: float, reference: Reference) -> float:
    """Return the share of the variance that is explained, from a convergence."""
    best = float(reference.explained_variance.sum()) / reference.total_variance
    return float(best * (1 - 10.0**convergence))


def value_range(x: Array) -> tuple[float, float]:
    """Return the least and the largest value: the step sizes of the literature are meant for values in 0..1."""
    return float(np.min(x)), float(np.max(x))
