"""The convergence report: what streaming rules make of a stack as they see more of it, against the exact answer."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import zarr

from dpca import plots
from dpca.engine.sources.source import as_source
from dpca.jobs.base.stages import StageCost
from dpca.models.streaming.streaming_methods import METHODS, make_rule
from dpca.pipelines.studies.convergence.courses import ConvergenceCurve, marks_for, run_rule
from dpca.pipelines.studies.convergence.reference import Reference, exact_reference
from dpca.pipelines.studies.runner import StackReport, write_array
from dpca.report.page import DataTable
from dpca.report.record import write_report
from dpca.storage.arrays.arrays import write_strings
from dpca.storage.errors import DataError
from dpca.storage.readers import Reader
from dpca.storage.remote.objects import Place
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.workspace import Workspace

KIND, VERSION = "convergence", 1
_HEAD = ("rule", "convergence", "of the best variance", "CPU s", "CPU ms a sample", "remark")
_DEFAULT = "incremental-svd"


@dataclass(frozen=True)
class ConvergenceSettings:
    """What determines the report, beside the stack.

    Parameters
    ----------
    methods : tuple of str
        Rules by their names in `dpca.StreamingPCA`.
    n_components : int
    batch_size : int
        Samples of one update.
    points : int
        How often each rule is measured: after whole batches, equally far apart in the logarithm of samples.
    seed : int
        Of the rules that begin with a random basis.
    """

    methods: tuple[str, ...] = tuple(METHODS)
    n_components: int = 10
    batch_size: int = 100
    points: int = 12
    seed: int = 0


def report_convergence(
    given: Stack | Reader,
    output: str | os.PathLike[str],
    settings: ConvergenceSettings,
    *,
    reading: ReadOptions | None = None,
    run: Run = Run(),
) -> tuple[dict[str, Any], bool]:
    """Run rules over a stack in its order, once each, and write store, numbers and figures.

    Parameters
    ----------
    given : Stack or Reader
        Samples in the order in which the rules get them; most rules assume a random one
        (`dpca.storage.readers.permuted.Permuted` makes one). A reader is ingested, into the output.
    output : path-like
        Store to make: ``samples`` (point), ``convergence`` and ``seconds`` (rule, point), ``rule``, and the ingested
        ``stack``. The report goes to ``<output stem>.report``.
    settings : ConvergenceSettings
    reading : ReadOptions, optional
        How the samples of a reader are read.
    run : Run
        Whether an output of other settings may be replaced, and what is reported. A cluster is not used.

    Returns
    -------
    report : dict
        Content of ``report.json``.
    already_done : bool
        Whether an earlier run had done it.

    Raises
    ------
    DataError, PlanError, StoreError
        One sentence each. A rule that diverges is no error: its line ends there, and the table says why.

    Notes
    -----
    Pixels (integers of a stated range) are shown to the rules as 0..1. Costs one pass a rule and, where samples are
    fewer than attributes, another one to measure it, beside the exact reference (`exact_reference`). Rules run in this
    process, one after the other, so that their times compare. A stopped run goes on after the last rule it finished.
    """
    rules = _rules(settings)
    job = StackReport(KIND, VERSION, given, output, settings, reading, run.overwrite)

    def write(work: Workspace, stack: Stack, ingest: StageCost) -> None:
        marks = marks_for(stack.n_samples, settings.points, settings.batch_size)
        run.say(f"exact reference of {stack.n_samples:,} samples with {math.prod(stack.sample_shape):,} attributes")
        reference = exact_reference(as_source(stack), settings.n_components, run=run)
        courses = []
        for method, rule in rules.items():
            if not work.is_done(f"rule {method}"):
                run.say(f"{method} ...")
                passed = run_rule(rule, reference.source, marks, value_range=_pixel_range(stack), run=run, stage=method)
                course = passed.course(method, reference, run=run)
                work.mark_done(f"rule {method}", record=_record(course))
            courses.append(_course(work.record(f"rule {method}")))
        _write_store(job.create_root(work), courses, marks)
        _write_report(job.folder, _numbers(stack, settings, reference, courses), courses)

    return job.make(write, run)


def _rules(settings: ConvergenceSettings) -> dict[str, Any]:
    if settings.points < 1:
        raise DataError(f"points is {settings.points}: measure each rule at least once, at the end")
    return {
        method: make_rule(
            method,
            settings.n_components,
            center=True,
            batch_size=settings.batch_size,
            seed=settings.seed,
        )
        for method in settings.methods
    }


def convergence_table(report: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of the table of a report, the best rule first."""
    rows: list[tuple[str, ...]] = []
    for line in sorted(report["rules"], key=lambda line: math.inf if (c := _last(line)) is None else c):
        last = _last(line)
        share = "-" if last is None else f"{1 - 10.0**last:.7f}"
        seconds = line["seconds"][-1] if line["seconds"] else None
        seen = line["samples"][-1] if line["samples"] else 0
        rows.append(
            (
                line["rule"],
                "-" if last is None else f"{last:.2f}",
                share,
                "-" if seconds is None else f"{seconds:.2f}",
                "-" if seconds is None else f"{seconds / seen * 1e3:.3f}",
                line["failure"],
            )
        )
    return _HEAD, rows


def _last(line: dict[str, Any]) -> float | None:
    """Convergence at the end; null in JSON is minus infinity."""
    if line["failure"] or not line["convergence"]:
        return None
    last = line["convergence"][-1]
    return -math.inf if last is None else float(last)


def _pixel_range(stack: Stack) -> tuple[float, float] | None:
    return stack.data_range if stack.dtype.kind in "bui" else None


def _record(course: ConvergenceCurve) -> dict[str, Any]:
    record = asdict(course)
    record["convergence"] = [value if math.isfinite(value) else None for value in course.convergence]
    return record


def _course(record: dict[str, Any]) -> ConvergenceCurve:
    values = tuple(-math.inf if value is None else value for value in record["convergence"])
    return ConvergenceCurve(
        record["rule"], tuple(record["samples"]), tuple(record["seconds"]), values, record["failure"]
    )


def _numbers(
    stack: Stack, settings: ConvergenceSettings, reference: Reference, courses: Sequence[ConvergenceCurve]
) -> dict[str, Any]:
    return {
        "samples": stack.n_samples,
        "sample_shape": stack.sample_shape,
        "components": settings.n_components,
        "explained_variance_ratio": float(reference.explained_variance.sum() / reference.total_variance),
        "batch_size": settings.batch_size,
        "seed": settings.seed,
        "reference": reference.solver,
        "rules": [_record(course) for course in courses],
        "source": stack.source,
    }


def _write_store(group: zarr.Group, courses: Sequence[ConvergenceCurve], marks: Sequence[int]) -> None:
    shape = (len(courses), len(marks))
    # Infinite after a rule failed.
    values, seconds = np.full(shape, np.inf), np.full(shape, np.inf)
    for row, course in enumerate(courses):
        values[row, : len(course.convergence)] = course.convergence
        seconds[row, : len(course.seconds)] = course.seconds
    write_array(group, "samples", np.asarray(marks, np.int64), ("point",))
    write_array(group, "convergence", values, ("rule", "point"))
    write_array(group, "seconds", seconds, ("rule", "point"))
    write_strings(group, "rule", [course.rule for course in courses], "rule")


def _write_report(folder: Place, report: dict[str, Any], courses: Sequence[ConvergenceCurve]) -> None:
    name = (report["source"] or {}).get("name") or "a stack"
    figures, captions = {}, {}
    for key, label, heading in (
        ("samples", "samples seen", "Convergence against samples"),
        ("seconds", "processor seconds of the updates", "Convergence against time"),
    ):
        lines = [(course.rule, getattr(course, key), course.convergence) for course in courses]
        figures[f"convergence_{key}"] = plots.convergence(lines, label, emphasized=_DEFAULT)
        captions[f"convergence_{key}"] = (
            heading,
            "Each unit down is a factor of ten in the variance that the components miss of what the best ones "
            "capture. These are the best for all samples: no rule can know them before it has seen the last. One line "
            "a rule, one pass, in the order of the stack.",
        )
    head, rows = convergence_table(report)
    write_report(
        folder,
        report,
        figures,
        title=f"Convergence on {name}",
        captions=captions,
        tables=[DataTable("Rules, after the last sample", head, rows)],
    )
