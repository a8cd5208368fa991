"""What is kept of each strategy once it was fitted and measured: the unit from which an interrupted report resumes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
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
    FittedStrategy,
    Strategy,
    Training,
    exactly,
    fit_noting,
)
from dpca.storage.remote.clusters import cluster_errors
from dpca.storage.remote.objects import Place
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.workspace import Workspace, fingerprint_of

#: Shares of the components of the largest cells that a picture shows (Alakkari 2020, figure 4.6), all of them last.
FEWER = (0.04, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class Facts:
    """The numbers of a strategy.

    Attributes
    ----------
    name : str
    n_partitions, n_components, kept, model_bytes : int
        As in `FittedStrategy`.
    seconds : float
        Processor time of the fit: reading, arithmetic and eigenproblems, on all workers.
    whole : bool
        Whether ``seconds`` is all of it; a run before this one may have done a part.
    total, left : float
        As in `FittedStrategy`, of values scaled so that the data range has length 1: ``left`` is the MSE of all
        training
        samples.
    exact : bool
        Whether ``left`` is that, or at most that.
    notes : tuple of str
        What the fit warned of.
    """

    name: str
    n_partitions: int
    n_components: int
    kept: int
    model_bytes: int
    seconds: float
    whole: bool
    total: float
    left: float
    exact: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Record:
    """The numbers of a strategy, and arrays.

    Attributes
    ----------
    facts : Facts
    arrays : dict of array
        ``curve`` as in `FittedStrategy`; what `Samples.quality` measures, as ``training.mse`` and so on, and
        ``held-out.mse``
        and so on; ``pictures``, panels of a few samples; and what only some strategies have.
    """

    facts: Facts
    arrays: dict[str, Array]

    def mean(self, measure: str) -> float | None:
        """Return the mean of a measure over samples, None where it is not defined."""
        return float(self.arrays[measure].mean()) if measure in self.arrays else None


def record_of(
    strategy: Strategy,
    samples: ReportSamples,
    work: Workspace,
    *,
    run: Run,
    shared: bool,
    eigencells: bool,
    fewer: bool,
) -> Record:
    """Fit and measure a strategy, or read what an earlier run found.

    Parameters
    ----------
    strategy : Strategy
    samples : Samples
    work : Workspace
    run : Run
    shared : bool
        Whether a later strategy takes results of this fit.
    eigencells, fewer : bool
        Whether pictures of its components, or of fewer of them, are wanted.
    """
    if work.is_done(unit := f"strategy {strategy.name}"):
        known = work.record(unit)
        return Record(Facts(**{**known, "notes": tuple(known["notes"])}), work.arrays(unit))
    folder = work.scratch / "fits" / fingerprint_of(strategy.work)
    training = training_of(samples, run, folder)
    resume_from = folder.exists()
    (fitted, notes), seconds, alive = timed(lambda: fit_noting(strategy, training), run.client)
    if strategy.name == HOLISTIC:
        fitted = exactly(fitted, training)
    facts = _facts(strategy, fitted, samples, seconds, alive and not resume_from, notes)
    record = Record(facts, _measured(strategy, fitted, samples, eigencells, fewer))
    work.mark_done(unit, record=asdict(facts), arrays=record.arrays)
    if not shared:
        shutil.rmtree(folder, ignore_errors=True)
    return record


def timed(job: Callable[[], Any], client: Any) -> tuple[Any, float, bool]:
    """Run a job; return its result, its processor seconds on all workers, and whether all of them lived to tell."""
    before = _processor_seconds(client)
    result = job()
    after = _processor_seconds(client)
    spent = sum(seconds - before.get(process, 0.0) for process, seconds in after.items())
    return result, spent, before.keys() <= after.keys()


def _processor_seconds(client: Any) -> dict[str, float]:
    """Processor time of this process and of every worker since it began."""
    with cluster_errors(client):
        workers = {} if client is None else client.run(time.process_time, on_error="ignore")
    return {"this process": time.process_time(), **workers}


def training_of(samples: ReportSamples, run: Run, folder: Place) -> Training:
    """Return what a fit to the training samples is given."""
    fitted = samples.fitted
    n, d = fitted.shape[0], int(np.prod(fitted.shape[1:]))
    return Training(fitted, n, d, replace(run, checkpoints=Checkpoints(str(folder))))


def _facts(
    strategy: Strategy,
    fitted: FittedStrategy,
    samples: ReportSamples,
    seconds: float,
    whole: bool,
    notes: Sequence[str],
) -> Facts:
    # In units of the data range, as all that is measured.
    width = samples.data_range[1] - samples.data_range[0]
    return Facts(
        strategy.name,
        fitted.n_partitions,
        fitted.n_components,
        fitted.kept,
        fitted.model_bytes,
        seconds,
        whole,
        fitted.total / width / width,
        fitted.left / width / width,
        fitted.exact,
        tuple(notes),
    )


def _measured(
    strategy: Strategy, fitted: FittedStrategy, samples: ReportSamples, eigencells: bool, fewer: bool
) -> dict[str, Array]:
    basis = fitted.basis
    found = {"curve": fitted.curve, "pictures": samples.pictures(basis)}
    sets = {"training": samples.training, "held-out": samples.held_out}
    for name, measured in sets.items():
        if measured is not None:
            quality = samples.quality(basis, measured)
            found |= {f"{name}.{measure}": values for measure, values in quality.items()}
    if eigencells:
        found["eigencells"] = panels(basis.components[:CURVE], samples.axes)
    if fewer:
        counts = fewer_of(fitted.n_components)
        found["fewer"] = np.stack([samples.pictures(basis, count) for count in counts])
    if strategy.name == HOLISTIC:
        found |= {"rows": basis.components[:CURVE], "mean": basis.mean}
    if strategy.name == RANDOM:
        found["rows"] = combined(basis, samples.training.values, CURVE)
    return found


def fewer_of(components: int) -> list[int]:
    """Return the numbers of components of the largest cells that a picture shows."""
    return sorted({max(1, round(share * components)) for share in FEWER})
