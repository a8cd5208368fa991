"""Several runs of a rule, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from dpca.engine.sources.source import Source
from dpca.pipelines.studies.convergence.courses import run_rule
from dpca.pipelines.studies.convergence.reference import Reference
from dpca.pipelines.studies.reproduction.tables import Entry, Published

Measure = Callable[[float, Reference], float]
"""From a convergence to what the table holds."""


def convergence_itself(value: float, reference: Reference) -> float:
    """Return the convergence."""
    return value


def entry(
    rule: str,
    setting: str,
    make: Callable[[int], Any],
    streams: Iterable[tuple[Source, Reference]],
    *,
    published: Published | None = None,
    value_range: tuple[float, float] | None = None,
    measure: Measure = convergence_itself,
    open_points: str = "",
) -> Entry:
    """Run a rule once on each of several streams, in one pass, and measure what it found.

    Parameters
    ----------
    rule, setting, published, open_points
        As in `Entry`.
    make : callable
        Seed of a trial (0, 1, ...) -> rule.
    streams : iterable of (Source, Reference)
        One a trial.
    value_range
        As for `dpca.pipelines.studies.convergence.courses.run_rule`.
    measure : callable
        From convergence to the number of the table.
    """
    values: list[float] = []
    seconds: list[float] = []
    for seed, (source, reference) in enumerate(streams):
        run = run_rule(make(seed), source, [source.shape[0]], value_range=value_range)
        if run.failure:
            return Entry(rule, setting, published, tuple(values), 0.0, run.failure, open_points)
        found = reference.convergence([run.found[-1]["components"]])[0]
        values.append(measure(found, reference))
        seconds.append(run.seconds[-1])
    return Entry(rule, setting, published, tuple(values), float(np.mean(seconds)), "", open_points)
