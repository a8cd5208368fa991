"""The memory of every stage of a whole job, planned before the first one begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.engine.memory import task_budget, thread_count
from dpca.engine.plan import PlanError
from dpca.engine.source import Reader as SampleReader
from dpca.engine.source import Source, as_source
from dpca.jobs.score_write import plan_scores
from storage.ingest import plan_ingest
from storage.readers import Reader
from storage.stack import Stack

Cells = Callable[[Sequence[str]], tuple[int, ...] | None]


def plan_compression(
    given: Stack | Reader,
    reading: Mapping[str, Any],
    cells: Cells,
    model: Any,
    *,
    reconstruct: bool,
    ssim: bool,
    client: Any | None,
) -> None:
    """Refuse a job of which any stage, be it the last, does not fit the memory.

    Parameters
    ----------
    given : Stack or Reader
        Of a reader, the first few samples are read.
    reading : mapping
        Options of `storage.ingest` for a reader.
    cells : callable
        Gives the cells that chunks should fit, from the names of a sample's axes.
    model : Estimator
        Not fitted.
    reconstruct, ssim
        As for `write_scores`.
    client : distributed.Client, optional

    Raises
    ------
    PlanError
        Naming the stage, what it takes, the limit, and the setting that fits.
    DataError
        If the source or the parameters are wrong.
    """
    budget = task_budget(client, thread_count())
    if isinstance(given, Stack):
        source: Source = as_source(given)
        axes = given.axes
    else:
        with _stage("ingest"):
            shape, dtype, layout, axes = plan_ingest(given, reading, cells, budget)
        source = Outline(given.name, shape, dtype, layout.chunks)
    with _stage("fit"):
        basis, known = model.plan_fit(source, axes[1:], client)
    with _stage("scores", "" if known else ", even with as few components as the choice can come to"):
        plan_scores(source, basis, axes, reconstruct=reconstruct, ssim=ssim, budget=budget)


@dataclass(frozen=True)
class Outline:
    """What planning needs to know of a stack that is still to be made."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]

    def reader(self) -> SampleReader:
        """There is nothing to read yet."""
        raise TypeError(f"{self.name} is an outline: it holds no samples")


@contextmanager
def _stage(name: str, why: str = "") -> Iterator[None]:
    try:
        yield
    except PlanError as error:
        raise PlanError(f"stage {name!r} of this job does not fit the memory{why}: {error}") from error
