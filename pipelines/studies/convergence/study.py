"""The convergence report: how streaming rules converge on a stack, compared with the exact components."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import zarr

from dpca import plots
from dpca.engine.sources.source import as_source
from dpca.models.streaming.streaming_methods import make_rule
from dpca.parameters.streaming import RULE_CLASSES
from dpca.pipelines.studies.convergence.courses import ConvergenceCurve, marks_for, run_rule
from dpca.pipelines.studies.convergence.reference import Reference, exact_reference
from dpca.pipelines.studies.programs import option, seed_option
from dpca.pipelines.studies.runner import Picture, StudyJob, rows_of, stack_report, write_array
from dpca.report.page import DataTable
from dpca.storage.arrays.arrays import write_strings
from dpca.storage.errors import DataError
from dpca.storage.stack import Stack

_HEAD = ("rule", "convergence", "of the best variance", "CPU s", "CPU ms a sample", "remark")
_DEFAULT = "incremental-svd"
_CAPTION = (
    "Each unit down is a factor of ten in the variance that the best components capture and these miss. The best "
    "components are those of all samples: no rule can know them before the last sample. One line per rule, one pass, "
    "in the order of the stack."
)


@dataclass(frozen=True)
class ConvergenceSettings:
    """Everything that determines the report, beside the stack. `option` states each field and its option."""

    methods: tuple[str, ...] = option(
        tuple(RULE_CLASSES),
        f"rules to compare (default: all): {', '.join(RULE_CLASSES)}",
        "RULE",
        parse=str,
        nargs="+",
        choices=RULE_CLASSES,
    )
    n_components: int = option(10, "number of components", "K", flag="components")
    batch_size: int = option(100, "samples of one update", flag="batch")
    points: int = option(12, "number of measurements of each rule, equally far apart in the logarithm of samples")
    seed: int = seed_option("seed of random starts")


def _rules(settings: ConvergenceSettings, *_: object) -> dict[str, Any]:
    if settings.points < 1:
        raise DataError(f"points is {settings.points}: use at least 1 measurement of each rule")
    return {
        method: make_rule(
            method, settings.n_components, center=True, batch_size=settings.batch_size, seed=settings.seed
        )
        for method in settings.methods
    }


@stack_report("convergence", 1, _rules)
def report_convergence(job: StudyJob) -> None:
    """Run rules over a stack in its order, once each, and write store, numbers and figures.

    Most rules assume a random order (`dpca.storage.readers.permuted.Permuted`). The store has ``samples`` (point),
    ``convergence`` and ``seconds`` (rule, point), ``rule``, and the ingested ``stack``. If a rule diverges, its line
    ends, and the table states the reason.

    Notes
    -----
    Rules see pixels (integers with a data range) as 0..1. Costs one pass for each rule and, if there are fewer samples
    than attributes, another one to measure it, beside the exact reference (`exact_reference`). Rules run in this
    process, one after the other, so that their times compare. An interrupted run resumes after the last finished rule.
    """
    stack, settings, work, run = job.stack, job.settings, job.work, job.run.here()
    marks = marks_for(stack.n_samples, settings.points, settings.batch_size)
    run.say(f"exact reference of {stack.n_samples:,} samples with {math.prod(stack.sample_shape):,} attributes")
    reference = exact_reference(as_source(stack), settings.n_components, run=run)
    courses = []
    for method, rule in _rules(settings).items():
        if not work.is_done(f"rule {method}"):
            run.say(f"{method} ...")
            passed = run_rule(rule, reference.source, marks, value_range=_pixel_range(stack), run=run, stage=method)
            course = passed.course(method, reference, run=run)
            work.mark_done(f"rule {method}", record=asdict(course))
        courses.append(ConvergenceCurve(**work.record(f"rule {method}")))
    _write_store(job.create_root(), courses, marks)
    _write_report(job, reference, courses)


def convergence_table(report: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of the table of a report, the best rule first."""
    rows: list[tuple[str, ...]] = []
    for line in sorted(report["rules"], key=lambda line: math.inf if (c := _last(line)) is None else c):
        reached, time = ("-", "-"), ("-", "-")
        if (last := _last(line)) is not None:
            reached = f"{last:.2f}", f"{1 - 10.0**last:.7f}"
        if line["seconds"]:
            seconds = line["seconds"][-1]
            time = f"{seconds:.2f}", f"{seconds / line['samples'][-1] * 1e3:.3f}"
        rows.append((line["rule"], *reached, *time, line["failure"]))
    return _HEAD, rows


def _last(line: dict[str, Any]) -> float | None:
    """Return the convergence at the end. In JSON, null is minus infinity."""
    if line["failure"] or not line["convergence"]:
        return None
    last = line["convergence"][-1]
    return -math.inf if last is None else float(last)


def _pixel_range(stack: Stack) -> tuple[float, float] | None:
    return stack.data_range if stack.dtype.kind in "bui" else None


def _write_store(group: zarr.Group, courses: Sequence[ConvergenceCurve], marks: Sequence[int]) -> None:
    write_array(group, "samples", np.asarray(marks, np.int64), ("point",))
    for name in ("convergence", "seconds"):
        lines = [getattr(course, name) for course in courses]
        write_array(group, name, rows_of(lines, len(marks)), ("rule", "point"))
    write_strings(group, "rule", [course.rule for course in courses], "rule")


def _write_report(job: StudyJob, reference: Reference, courses: Sequence[ConvergenceCurve]) -> None:
    report = {
        "components": job.settings.n_components,
        "explained_variance_ratio": float(reference.explained_variance.sum() / reference.total_variance),
        "batch_size": job.settings.batch_size,
        "seed": job.settings.seed,
        "reference": reference.solver,
        "rules": [asdict(course) for course in courses],
    }
    pictures = {}
    for key, label, heading in (
        ("samples", "samples seen", "Convergence against samples"),
        ("seconds", "processor seconds of the updates", "Convergence against time"),
    ):
        lines = [(course.rule, getattr(course, key), course.convergence) for course in courses]
        figure = plots.convergence(lines, label, emphasized=_DEFAULT)
        pictures[f"convergence_{key}"] = Picture(figure, heading, _CAPTION)
    table = DataTable("Rules, after the last sample", *convergence_table(report))
    job.write_report("Convergence on {}", report, pictures, [table])
