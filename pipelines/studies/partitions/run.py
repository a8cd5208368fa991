"""The whole job: a stack in; every strategy fitted and measured; tables, checks and figures out."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from dpca.jobs.base.stages import StageCost
from dpca.jobs.scores.transform import stated_range
from dpca.pipelines.studies.partitions.analogy import Analogy, angles_between
from dpca.pipelines.studies.partitions.checks import Check, all_checks
from dpca.pipelines.studies.partitions.contents import Findings, all_tables, conditions
from dpca.pipelines.studies.partitions.pictures import CAPTIONS, all_figures
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
from dpca.pipelines.studies.runner import StackReport, write_array
from dpca.report.page import DataTable
from dpca.report.record import write_report
from dpca.storage.arrays.arrays import write_strings
from dpca.storage.readers import Reader
from dpca.storage.remote.objects import Place
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.workspace import Workspace

KIND, VERSION = "partition-report", 1


def report_partitions(
    given: Stack | Reader,
    output: str | os.PathLike[str],
    settings: PartitionSettings,
    *,
    reading: ReadOptions | None = None,
    run: Run = Run(),
) -> dict[str, Any]:
    """Fit every way of splitting attributes to a stack, measure it, and write store, tables and figures.

    Parameters
    ----------
    given : Stack or Reader
        A reader is ingested, into the output.
    output : path-like
        Store to make: ``mse``, ``pixel_mse`` and ``ssim`` (strategy, sample) of the samples that were measured, in
        ``training`` and ``held_out``, with their ``number`` in the stack; ``explained_variance`` (strategy,
        component); ``strategy``; and the ingested ``stack``. The report goes to ``<output stem>.report``.
    settings : PartitionSettings
    reading : ReadOptions, optional
        How the samples of a reader are read.
    run : Run
        How fits run. Threads of this process measure reconstructions in any case: their number is bounded.

    Returns
    -------
    dict
        Content of ``report.json``.

    Raises
    ------
    DataError, PlanError, StoreError
        One sentence each; what was finished serves the next run.

    Notes
    -----
    A pass or two over the stack for each of about twenty strategies; a stopped run goes on inside the fit that it was
    at. Until the end, the measured samples lie on disk a second time.
    """
    job = StackReport(KIND, VERSION, given, output, settings, reading, run.overwrite)

    def write(work: Workspace, stack: Stack, ingest: StageCost) -> None:
        stated_range(stack)
        plan = design(settings, stack.n_samples, stack.sample_shape, stack.axes[1:])
        samples = gather(stack, settings, plan, Path(work.scratch) / "samples")
        if not work.is_done("design"):
            training = training_of(samples, run, work.scratch / "fits")
            # Kept, because a resumed run may have other memory.
            work.mark_done("design", record={"holistic": fitting(plan, settings, training).holistic})
        plan = replace(plan, holistic=work.record("design")["holistic"])
        records = _records(settings, plan, samples, work, run)
        run.say("bands at random beside whole samples")
        found = Findings(settings, plan, samples, records, _analogy(records, samples, work, run))
        _write_store(job.create_root(work), found)
        tables, checks = all_tables(found), all_checks(found)
        _write_report(job.folder, found, tables, checks)
        run.say(in_text(tables))
        run.say("\n".join(claim.sentence() for claim in checks))

    return job.make(write, run)[0]


def known_report(
    given: Stack | Reader,
    output: str | os.PathLike[str],
    settings: PartitionSettings,
    *,
    reading: ReadOptions | None = None,
    overwrite: bool = False,
) -> dict[str, Any] | None:
    """Return the report of an earlier run of this very job, None if there is something to do; needs no cluster.

    Raises
    ------
    DataError, StoreError
        For invalid settings, and what stands in the way of the output.
    """
    check(settings)
    if isinstance(given, Stack):
        stated_range(given)
        design(settings, given.n_samples, given.sample_shape, given.axes[1:])
    return StackReport(KIND, VERSION, given, output, settings, reading, overwrite).known()


def _records(
    settings: PartitionSettings,
    plan: Design,
    samples: ReportSamples,
    work: Workspace,
    run: Run,
) -> dict[str, Record]:
    found = {}
    todo = strategies(settings, plan)
    cells = {"eigencells": todo[plan.middle].name, "fewer": todo[len(plan.cells) - 1].name}
    for place, strategy in enumerate(todo):
        run.say(f"{strategy.name} ...")
        found[strategy.name] = record_of(
            strategy,
            samples,
            work,
            run=run,
            shared=any(other.work == strategy.work for other in todo[place + 1 :]),
            eigencells=strategy.name == cells["eigencells"],
            fewer=strategy.name == cells["fewer"],
        )
        for note in found[strategy.name].facts.notes:
            run.say(f"note: {note}")
    return found


def _analogy(records: Mapping[str, Record], samples: ReportSamples, work: Workspace, run: Run) -> Analogy:
    """Compare bands at random with whole samples; one pass measures what their combined vectors capture."""
    whole, random = records[HOLISTIC].arrays, records[RANDOM].arrays
    if not work.is_done("analogy"):
        training = training_of(samples, run, work.scratch / "fits" / "analogy")
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
    curves = np.full((len(records), max(len(record.arrays["curve"]) for record in records)), np.inf)
    for row, record in zip(curves, records, strict=True):
        row[: len(record.arrays["curve"])] = record.arrays["curve"]
    # Infinite where a strategy has no more components.
    write_array(group, "explained_variance", curves, ("strategy", "component"))
    write_strings(group, "strategy", [record.facts.name for record in records], "strategy")
    samples = found.samples
    for name, measured in (("training", samples.training), ("held-out", samples.held_out)):
        if measured is None:
            continue
        part = group.require_group(name.replace("-", "_"))
        write_array(part, "number", measured.numbers.astype(np.int64), ("sample",))
        for measure in ("mse", "pixel_mse", "ssim"):
            if f"{name}.{measure}" in records[0].arrays:
                values = np.stack([record.arrays[f"{name}.{measure}"] for record in records])
                write_array(part, measure, values, ("strategy", "sample"))


def _overview(found: Findings, checks: list[Check]) -> DataTable:
    """Say what all numbers are of, and what becomes of the claims."""
    sentences = (*conditions(found), *(claim.sentence() for claim in checks))
    return DataTable("What was measured, and what the thesis claims", (), (), sentences)


def _write_report(folder: Place, found: Findings, tables: list[PartitionTable], checks: list[Check]) -> None:
    stack, plan = found.samples.stack, found.plan
    report = {
        "samples": stack.n_samples,
        "sample_shape": stack.sample_shape,
        "attributes": math.prod(stack.sample_shape),
        "rejected": stack.rejected,
        "settings": asdict(found.settings),
        "design": asdict(plan),
        "measured": {
            "training": len(found.samples.training.values),
            "held_out": 0 if found.samples.held_out is None else len(found.samples.held_out.values),
        },
        "conditions": conditions(found),
        "tables": {table.name: table.as_dict() for table in tables},
        "checks": [claim.as_dict() for claim in checks],
        "analogy": found.analogy.as_dict(),
        "strategies": [
            {
                **asdict(record.facts),
                "explained_variance": record.arrays["curve"],
                **{
                    f"{name}_of_measured".replace("-", "_").replace(".", "_"): record.mean(name)
                    for name in record.arrays
                    if name.partition(".")[0] in ("training", "held-out")
                },
            }
            for record in found.records.values()
        ],
        "source": stack.source,
    }
    write_report(
        folder,
        report,
        all_figures(found),
        title=f"Partitions of {stack.source.get('name') or 'a stack'}",
        captions=CAPTIONS,
        tables=[_overview(found, checks), *(table.on_page() for table in tables)],
    )
