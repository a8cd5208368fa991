"""Trials of rules on streams of samples, and their entries in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dpca.engine.sources.source import Source, as_source
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.convergence.courses import RulePass, run_rule
from dpca.pipelines.studies.convergence.reference import Reference
from dpca.pipelines.studies.reproduction.tables import Entry, Published
from dpca.rules.base.minibatch import InBatches
from dpca.storage.run import Run

BATCH = 100
#: Range of pixels, which rules see as 0..1.
PIXELS = (0.0, 255.0)
MEASURE = "Convergence, log10(1 - captured / best)"

Make = Callable[[int], Any]
"""Makes the rule of a trial, from its seed."""
Rules = Sequence[tuple[str, Make, str]]
"""Names, functions that make the rules, open points."""
Stream = tuple[Source, Reference]
Measure = Callable[[float, Reference], float]
"""From a convergence to the number in the table."""


def convergence_itself(value: float, reference: Reference) -> float:
    """Return the convergence."""
    return value


def in_batches(make: Make, size: int = BATCH) -> Make:
    """Return a function that makes the rule of a seed with mini-batches of one size."""
    return lambda seed: InBatches(make(seed), size)


def shuffled(x: Array, reference: Reference, trials: int) -> Iterator[Stream]:
    """Yield the samples in random orders, seeded 0, 1, ..., each with their reference."""
    for seed in range(trials):
        yield as_source(x[np.random.default_rng(seed).permutation(len(x))]), reference


def run_whole(rule: Any, source: Source, value_range: tuple[float, float] | None, run: Run = Run()) -> RulePass:
    """Run a rule over all samples of a source, and measure it at the end."""
    return run_rule(rule, source, [source.shape[0]], value_range=value_range, run=run)


def entry(
    rule: str,
    setting: str,
    make: Make,
    streams: Iterable[Stream],
    *,
    published: Published | None = None,
    value_range: tuple[float, float] | None = None,
    measure: Measure = convergence_itself,
    open_points: str = "",
) -> Entry:
    """Run a rule once on each of several streams, in one pass, and measure its components.

    Parameters
    ----------
    rule, setting, published, open_points
        As in `Entry`.
    make : callable
        Makes the rule of a trial, from its seed 0, 1, ...
    streams : iterable of (Source, Reference)
        One for each trial.
    value_range
        As for `dpca.pipelines.studies.convergence.courses.run_rule`.
    measure : callable
        From a convergence to the number in the table.
    """
    values: list[float] = []
    seconds: list[float] = []
    for seed, (source, reference) in enumerate(streams):
        run = run_whole(make(seed), source, value_range)
        if run.failure:
            return Entry(rule, setting, published, tuple(values), 0.0, run.failure, open_points)
        found = reference.convergence([run.found[-1]["components"]])[0]
        values.append(measure(found, reference))
        seconds.append(run.seconds[-1])
    return Entry(rule, setting, published, tuple(values), float(np.mean(seconds)), "", open_points)


def entries_of(
    rules: Rules,
    setting: str,
    streams: Callable[[], Iterable[Stream]],
    published: Iterable[Published | None],
    *,
    batch: int = BATCH,
    **how: Any,
) -> list[Entry]:
    """Return the entries of several rules on the same streams, in mini-batches, each with its published number.

    ``how`` are further arguments of `entry`.
    """
    return [
        entry(name, setting, in_batches(make, batch), streams(), published=known, open_points=open_points, **how)
        for (name, make, open_points), known in zip(rules, published, strict=True)
    ]
