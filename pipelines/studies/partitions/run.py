"""The partition report: fits and measures every strategy, and writes tables, checks and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from dpca.jobs.scores.transform import stated_range
from dpca.pipelines.studies.partitions.analogy import Analogy, angles_between
from dpca.pipelines.studies.partitions.checks import Check, all_checks
from dpca.pipelines.studies.partitions.contents import Findings, all_tables, conditions
from dpca.pipelines.studies.partitions.pictures import all_pictures
from dpca.pipelines.studies.partitions.records import Record, record_of, training_of
from dpca.pipelines.studies.partitions.samples import ReportSamples, gather
from dpca.pipelines.studies.partitions.settings import Design, PartitionSettings, check, design
from dpca.pipelines.studies.partitions.strategies import (
    CURVE,
    HOLISTIC,
    RANDOM,
    captured_by_rows,
    fitting,
    shares,
    strategies,
)
from dpca.pipelines.studies.partitions.tables import PartitionTable, in_text
from dpca.pipelines.studies.runner import StudyJob, rows_of, stack_report, write_array
from dpca.report.page import DataTable
from dpca.storage.arrays.arrays import write_strings
from dpca.storage.readers import Reader
from dpca.storage.stack import Stack


def _check(settings: PartitionSettings, given: Stack | Reader) -> None:
    check(settings)
    if isinstance(given, Stack):
        stated_range(given)
        design(settings, given.n_samples, given.sample_shape, given.axes[1:])


@stack_report("partition-report", 1, _check)
def report_partitions(job: StudyJob) -> None:
    """Fit every way of splitting attributes to a stack, measure it, and write store, tables and figures.

    The store has ``mse``, ``pixel_mse`` and ``ssim`` (strategy, sample) of the measured samples in ``training`` and
    ``held_out``, with their ``number`` in the stack; ``explained_variance`` (strategy, component); ``strategy``; and
    the ingested ``stack``.

    Notes
    -----
    A pass or two over the stack for each of about twenty strategies. An interrupted run resumes within a fit. Until the
    end, a second copy of the measured samples is on disk. Reconstructions are always measured on threads of this
    process, because their number is bounded.
    """
    stack, settings, work = job.stack, job.settings, job.work
    stated_range(stack)
    plan = design(settings, stack.n_samples, stack.sample_shape, stack.axes[1:])
    samples = gather(stack, settings, plan, Path(work.scratch) / "samples")
    if not work.is_done("design"):
        training = training_of(job, samples, work.scratch / "fits")
        # Kept, because a resumed run may have other memory.
        work.mark_done("design", record={"holistic": fitting(plan, settings, training).holistic})
    plan = replace(plan, holistic=work.record("design")["holistic"])
    records = _records(job, plan, samples)
    job.run.say("bands at random beside whole samples")
    found = Findings(settings, plan, samples, records, _analogy(job, samples, records))
    _write_store(job.create_root(), found)
    tables, checks = all_tables(found), all_checks(found)
    _write_report(job, found, tables, checks)
    job.run.say(in_text(tables))
    job.run.say("\n".join(claim.sentence() for claim in checks))


def _records(job: StudyJob, plan: Design, samples: ReportSamples) -> dict[str, Record]:
    found = {}
    todo = strategies(job.settings, plan)
    for place, strategy in enumerate(todo):
        job.run.say(f"{strategy.name} ...")
        found[strategy.name] = record_of(
            job,
            strategy,
            samples,
            shared=any(other.work == strategy.work for other in todo[place + 1 :]),
            eigencells=place == plan.middle,
            fewer=place == len(plan.cells) - 1,
        )
        for note in found[strategy.name].facts.notes:
            job.run.say(f"note: {note}")
    return found


def _analogy(job: StudyJob, samples: ReportSamples, records: Mapping[str, Record]) -> Analogy:
    """Compare bands at random with whole samples. One pass measures the variance that combined vectors capture."""
    work, whole, random = job.work, records[HOLISTIC].arrays, records[RANDOM].arrays
    if not work.is_done("analogy"):
        training = training_of(job, samples, work.scratch / "fits" / "analogy")
        each, _, total = captured_by_rows(training, random["rows"], whole["mean"], "combined")
        combined = shares(np.cumsum(each), total).tolist()
        angles = angles_between(whole["rows"], random["rows"])
        work.mark_done("analogy", record={"combined": combined, "angles": [[k, *v] for k, v in angles.items()]})
    kept = work.record("analogy")
    return Analogy(
        tuple(whole["curve"][:CURVE].tolist()),
        {name: tuple(r.arrays["curve"][:CURVE].tolist()) for name, r in records.items() if name.startswith(RANDOM)},
        tuple(kept["combined"]),
        {int(k): (least, middle, largest) for k, least, middle, largest in kept["angles"]},
    )


def _write_store(group: zarr.Group, found: Findings) -> None:
    records = list(found.records.values())
    curves = [record.arrays["curve"] for record in records]
    write_array(group, "explained_variance", rows_of(curves, max(map(len, curves))), ("strategy", "component"))
    write_strings(group, "strategy", [record.facts.name for record in records], "strategy")
    for name, measured in found.samples.measured.items():
        part = group.require_group(name)
        write_array(part, "number", measured.numbers.astype(np.int64), ("sample",))
        for measure in ("mse", "pixel_mse", "ssim"):
            if f"{name}.{measure}" in records[0].arrays:
                values = np.stack([record.arrays[f"{name}.{measure}"] for record in records])
                write_array(part, measure, values, ("strategy", "sample"))


def _write_report(job: StudyJob, found: Findings, tables: list[PartitionTable], checks: list[Check]) -> None:
    described, measured = conditions(found), found.samples.measured
    numbers = {
        "attributes": math.prod(job.stack.sample_shape),
        "rejected": job.stack.rejected,
        "settings": asdict(found.settings),
        "design": asdict(found.plan),
        "measured": {"training": 0, "held_out": 0} | {name: len(one.values) for name, one in measured.items()},
        "conditions": described,
        "tables": {table.name: table.as_dict() for table in tables},
        "checks": [claim._asdict() for claim in checks],
        "analogy": found.analogy.as_dict(),
        "strategies": [_numbers_of(record) for record in found.records.values()],
    }
    sentences = (*described, *(claim.sentence() for claim in checks))
    overview = DataTable("What was measured, and the claims of the thesis", (), (), sentences)
    pages = [overview, *(table.on_page() for table in tables)]
    job.write_report("Partitions of {}", numbers, all_pictures(found), pages)


def _numbers_of(record: Record) -> dict[str, Any]:
    measures = [name for name in record.arrays if "." in name]
    means = {f"{name.replace('.', '_')}_of_measured": record.mean(name) for name in measures}
    return {**asdict(record.facts), "explained_variance": record.arrays["curve"], **means}
