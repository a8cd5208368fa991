"""How close streaming rules come to the best components, and what it costs them, as samples go by."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.engine.source import Source, batches
from dpca.kernels.dtypes import working_dtype
from dpca.rules.state import State
from pipelines.studies.convergence.reference import Reference
from storage.errors import DataError
from storage.progress import Progress, no_progress
from storage.tasks import one_blas_thread

Array = NDArray[Any]

_READ_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Course:
    """What became of one rule.

    Attributes
    ----------
    rule : str
        Its name.
    samples : tuple of int
        How many samples had been seen at each point.
    seconds : tuple of float
        Processor time of all updates up to there: reading and measuring left out, one BLAS thread.
    convergence : tuple of float
        T 2.24, in float64; -inf for the best components themselves.
    failure : str
        Why the rule gave up before the end, if it did.
    """

    rule: str
    samples: tuple[int, ...]
    seconds: tuple[float, ...]
    convergence: tuple[float, ...]
    failure: str = ""


@dataclass(frozen=True)
class Run:
    """One pass of a rule: what it had found at each mark, before that is measured."""

    samples: list[int]
    seconds: list[float]
    found: list[dict[str, Array]]
    failure: str = ""

    def course(self, name: str, reference: Reference, *, progress: Progress = no_progress) -> Course:
        """Measure it."""
        bases = [found["components"] for found in self.found]
        values = reference.convergence(bases, progress=progress) if bases else []
        return Course(name, tuple(self.samples), tuple(self.seconds), tuple(values), self.failure)


def run_rule(
    rule: Any,
    source: Source,
    marks: Sequence[int],
    *,
    value_range: tuple[float, float] | None = None,
    progress: Progress = no_progress,
    stage: str = "",
) -> Run:
    """Give a rule the samples of a source in their order, once, and note what it has found at some marks.

    Parameters
    ----------
    rule : Rule
        A streaming rule; wrap it in `dpca.rules.InBatches` for mini-batches of one size.
    source : Source
    marks : sequence of int
        Numbers of samples, ascending, at most as many as there are. What comes after the last is not read.
    value_range : tuple of 2 floats, optional
        Values that the rule is to see as 0 and 1, as floats: the step sizes of the literature are meant for pixels
        scaled like that. By default the values stay as they are.
    progress : Progress
        Told the bytes read.
    stage : str
        What the progress is called.

    Returns
    -------
    Run
        If the rule refuses to go on, because it diverges, up to there.

    Notes
    -----
    Holds what is found at every mark: k d numbers each.
    """
    d = math.prod(source.shape[1:])
    dtype = source.dtype if value_range is None else working_dtype(source.dtype)
    state, seconds, bar = rule.init(d, dtype), 0.0, progress(stage, marks[-1] * d * source.dtype.itemsize, "B")
    run = Run([], [], [])
    try:
        with one_blas_thread():
            for n, batch in _pieces(source, marks):
                x = batch if value_range is None else _scaled(batch, value_range, dtype)
                began = time.thread_time()
                state = rule.update(state, x)
                seconds += time.thread_time() - began
                bar.advance(batch.nbytes)
                if n in marks:
                    # ``finish`` uses a state up.
                    copy = State({name: a.copy() for name, a in state.arrays.items()}, dict(state.counts))
                    run.found.append(rule.finish(copy))
                    run.samples.append(n)
                    run.seconds.append(seconds)
    except DataError:
        # The samples' fault, not the rule's.
        raise
    except ValueError as error:
        return Run(run.samples, run.seconds, run.found, str(error))
    finally:
        bar.close()
    return run


def marks_for(n_samples: int, points: int, batch_size: int) -> list[int]:
    """Return up to ``points`` numbers of samples, whole batches, equally far apart in their logarithm, the last all.

    The first one is at the end of the first batch, where most rules have hardly begun.
    """
    wanted = np.geomspace(min(batch_size, n_samples), n_samples, max(points, 2))
    whole = {min(n_samples, round(w / batch_size) * batch_size or n_samples) for w in wanted[:-1]}
    return sorted(whole | {n_samples})[-points:]


def _pieces(source: Source, marks: Sequence[int]) -> Iterator[tuple[int, Array]]:
    """Yield (samples up to its end, rows) in order, cut at every mark."""
    region = tuple((0, length) for length in source.shape[1:])
    row = math.prod(source.shape[1:]) * source.dtype.itemsize
    chunk = source.chunks[0]
    # Whole chunks, so that none is decoded twice.
    rows = max(1, _READ_BYTES // (row * chunk)) * chunk
    for first, block in batches(source, (0, marks[-1]), region, rows):
        stop = first + len(block)
        edges = [first, *(mark for mark in marks if first < mark < stop), stop]
        for a, b in itertools.pairwise(edges):
            yield b, block[a - first : b - first].reshape(b - a, -1)


def _scaled(batch: Array, value_range: tuple[float, float], dtype: np.dtype[Any]) -> Array:
    low, high = value_range
    x = batch.astype(dtype)
    x -= dtype.type(low)
    x *= dtype.type(1 / (high - low))
    return x
