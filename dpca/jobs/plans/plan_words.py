"""The plan of a job as a table for the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpca.jobs.plans.plan import JobPlan
from dpca.plots.numbers import counted, duration
from dpca.report.record import aligned
from dpca.storage.disk import readable_size


def in_words(plans: Sequence[JobPlan]) -> list[str]:
    """Return the lines of a table with a column for each number of workers."""
    first = plans[0]
    head = ["", *(counted(plan.workers, "worker") for plan in plans)]
    rows = [[name, *(duration(plan.stages[name].seconds) for plan in plans)] for name in first.stages]
    if len(rows) > 1:
        rows.append(["all stages", *(duration(plan.seconds) for plan in plans)])
    rows.append(["memory of each worker", *(readable_size(plan.worker_memory) for plan in plans)])
    rows.append(["memory in total", *(readable_size(plan.memory) for plan in plans)])
    rows.append(["highest read speed, decoded", *(f"{readable_size(plan.bytes_a_second)}/s" for plan in plans)])
    shape = " x ".join(map(str, first.sample_shape))
    return [
        f"{first.samples:,} samples of {shape} {first.dtype}: decoded size {readable_size(first.bytes_decoded)}, "
        f"output size {readable_size(first.bytes_written)}",
        "",
        *aligned(head, rows).splitlines(),
    ]


def as_facts(plan: JobPlan) -> dict[str, Any]:
    """Return a plan as JSON values."""
    stages = plan.stages
    return {
        "workers": plan.workers,
        "samples": plan.samples,
        "sample_shape": list(plan.sample_shape),
        "dtype": plan.dtype,
        "bytes_decoded": plan.bytes_decoded,
        "bytes_written": plan.bytes_written,
        "seconds": {name: round(stage.seconds, 2) for name, stage in stages.items()},
        "memory": plan.worker_memory,
        "memory_allowed": plan.memory_allowed,
    }
