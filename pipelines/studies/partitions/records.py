"""The results of each strategy, fitted and measured. An interrupted report resumes after the last of them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.partitions.analogy import combined
from dpca.pipelines.studies.partitions.samples import ReportSamples, panels
from dpca.pipelines.studies.partitions.strategies import (
    CURVE,
    HOLISTIC,
    RANDOM,
    Facts,
    FittedStrategy,
    Strategy,
    Training,
    fit_noting,
    measured_exactly,
)
from dpca.pipelines.studies.runner import StudyJob
from dpca.storage.remote.clusters import cluster_errors
from dpca.storage.remote.objects import Place
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.workspace import fingerprint_of

#: Shares of the components of the largest cells in a picture (Alakkari 2020, figure 4.6), all of them last.
FEWER = (0.04, 0.2, 0.5, 1.0)


@dataclass(frozen=True, eq=False)
class Record:
    """The numbers of a strategy, and arrays.

    Attributes
    ----------
    facts : Facts
    arrays : dict of array
        ``curve`` as in `FittedStrategy`; ``training.mse`` and ``held_out.mse``, and the other measures of
        `ReportSamples.quality`; ``pictures``, panels of a few samples; and arrays of single strategies.
    """

    facts: Facts
    arrays: dict[str, Array]

    def mean(self, measure: str) -> float | None:
        """Return the mean of a measure over samples, None if it is not defined."""
        return float(self.arrays[measure].mean()) if measure in self.arrays else None


def record_of(
    job: StudyJob, strategy: Strategy, samples: ReportSamples, *, shared: bool, eigencells: bool, fewer: bool
) -> Record:
    """Fit and measure a strategy, or read the results of an interrupted run.

    Parameters
    ----------
    job : StudyJob
    strategy : Strategy
    samples : ReportSamples
    shared : bool
        Whether a later strategy uses the checkpoints of this fit.
    eigencells, fewer : bool
        Whether pictures of its components, or of fewer of them, are required.
    """
    work = job.work
    if work.is_done(unit := f"strategy {strategy.name}"):
        known = work.record(unit)
        return Record(Facts(**{**known, "notes": tuple(known["notes"])}), work.arrays(unit))
    folder = work.scratch / "fits" / fingerprint_of(strategy.work)
    training, resumes = training_of(job, samples, folder), folder.exists()
    (fitted, notes), seconds, complete = timed(lambda: fit_noting(strategy, training), job.run.client)
    if strategy.name == HOLISTIC:
        fitted = measured_exactly(fitted, training)
    whole = complete and not resumes
    facts = replace(fitted.facts, name=strategy.name, seconds=seconds, whole=whole, notes=notes)
    record = Record(facts, _measured(strategy, fitted, samples, eigencells, fewer))
    work.mark_done(unit, record=asdict(facts), arrays=record.arrays)
    if not shared:
        shutil.rmtree(folder, ignore_errors=True)
    return record


def timed(task: Callable[[], Any], client: Any) -> tuple[Any, float, bool]:
    """Run a task; return its result, its processor seconds on all workers, and whether no worker was lost."""
    before = _processor_seconds(client)
    result = task()
    after = _processor_seconds(client)
    spent = sum(seconds - before.get(process, 0.0) for process, seconds in after.items())
    return result, spent, before.keys() <= after.keys()


def _processor_seconds(client: Any) -> dict[str, float]:
    """Return the processor time of this process and of every worker since its start."""
    with cluster_errors(client):
        workers = {} if client is None else client.run(time.process_time, on_error="ignore")
    return {"this process": time.process_time(), **workers}


def training_of(job: StudyJob, samples: ReportSamples, folder: Place) -> Training:
    """Return the input of a fit to the training samples."""
    fitted, (low, high) = samples.fitted, samples.data_range
    n, d = fitted.shape[0], int(np.prod(fitted.shape[1:]))
    return Training(fitted, n, d, high - low, replace(job.run, checkpoints=Checkpoints(str(folder))))


def _measured(
    strategy: Strategy, fitted: FittedStrategy, samples: ReportSamples, eigencells: bool, fewer: bool
) -> dict[str, Array]:
    basis = fitted.basis
    found = {"curve": fitted.curve, "pictures": samples.pictures(basis)}
    for name, measured in samples.measured.items():
        found |= {f"{name}.{measure}": values for measure, values in samples.quality(basis, measured).items()}
    if eigencells:
        found["eigencells"] = panels(basis.components[:CURVE], samples.axes)
    if fewer:
        counts = fewer_of(fitted.facts.n_components)
        found["fewer"] = np.stack([samples.pictures(basis, count) for count in counts])
    if strategy.name == HOLISTIC:
        found |= {"rows": basis.components[:CURVE], "mean": basis.mean}
    if strategy.name == RANDOM:
        found["rows"] = combined(basis, samples.measured["training"].values, CURVE)
    return found


def fewer_of(components: int) -> list[int]:
    """Return the numbers of components of the largest cells in the picture of fewer components."""
    return sorted({max(1, round(share * components)) for share in FEWER})
