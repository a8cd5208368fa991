"""What a compressed store will take, tried on a few of its samples: for people who plan before they begin."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.base import clone

from dpca.engine.plan import Outline
from dpca.engine.sampling import read_samples, spread_samples
from dpca.engine.source import as_source
from dpca.jobs.cell_choice import cells_tried
from dpca.jobs.compression import CompressionSettings
from dpca.jobs.encode import stated_facts, wanted_goal
from dpca.jobs.encode_trials import Trials, cell_components
from dpca.jobs.encode_write import task_bytes
from dpca.representation.compressed_form import Form
from dpca.storage.ingest import ingest
from dpca.storage.readers import Reader
from dpca.storage.readers.base import Block
from dpca.storage.stack import Stack

# Samples that are tried at most, and bytes of them.
_MOST, _MOST_BYTES = 64, 2**26


@dataclass(frozen=True)
class Estimate:
    """What a job takes, roughly: some samples stand for all.

    Attributes
    ----------
    samples : int
    sample_shape : tuple of int
    dtype : str
    bytes_decoded, bytes_compressed : int
    seconds : float
        Of one process, for each stage: ``ingest``, ``fit`` and ``encode``.
    memory : int
        Bytes of the largest task that writes the store.
    """

    samples: int
    sample_shape: tuple[int, ...]
    dtype: str
    bytes_decoded: int
    bytes_compressed: int
    seconds: dict[str, float]
    memory: int


class _Few(Reader):
    """Some samples of a reader: from all over it, or the first ones where it can only be read from its beginning."""

    def __init__(self, reader: Reader) -> None:
        self._reader, n = reader, len(reader)
        count = min(n, _MOST)
        if not reader.encoded:
            count = max(1, min(count, _MOST_BYTES // max(1, math.prod(reader.sample_shape) * reader.dtype.itemsize)))
        spread = spread_samples(n, count, np.random.default_rng(0)) if reader.random_access else np.arange(count)
        self._chosen = spread.tolist()
        for name in ("kind", "name", "encoded", "random_access", "sample_shape", "dtype", "axes", "data_range"):
            setattr(self, name, getattr(reader, name))
        self.refused = {i: reader.refused[at] for i, at in enumerate(self._chosen) if at in reader.refused}

    @property
    def names(self) -> Sequence[str]:
        names = self._reader.names
        return [names[at] for at in self._chosen]

    def fingerprint(self) -> str:
        return self._reader.fingerprint()

    def part(self, indices: Sequence[int]) -> Callable[[], Block]:
        return self._reader.part([self._chosen[i] for i in indices])

    def stream(self, requests: Iterable[Sequence[int]]) -> Iterator[Block]:
        return self._reader.stream([self._chosen[i] for i in indices] for indices in requests)


def estimate(given: Stack | Reader, settings: CompressionSettings) -> Estimate:
    """Ingest, fit and encode some samples of a job with a goal, and scale what that takes to all of them.

    Of a job that chooses its cells, those that it tries first stand for all.

    Raises
    ------
    DataError
        As `dpca.jobs.compress`; a goal that those samples do not reach is one.
    """
    assert settings.goal is not None
    wanted, n, model = wanted_goal(settings.goal), _count(given), clone(settings.model)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        stack = _few(given, Path(folder), settings)
        if settings.choose_cells:
            model.set_params(**cells_tried(model, stack.sample_shape, stack.axes[1:])[0])
        ingested = time.perf_counter()
        model.fit(stack)
        fitted = time.perf_counter()
        trials = Trials(as_source(stack), cell_components(model), stated_facts(stack, model.grid_, wanted), n_samples=n)
        found = trials.reach(wanted)
        size, tried = trials.stored_bytes(found), time.perf_counter()
        codec = trials.codec(found)
        codec.decode(codec.of_samples(codec.encode(trials.samples, np.int32, found.least)))
        encoded = time.perf_counter()
    times, few = n / stack.n_samples, len(trials.samples)
    seconds = {
        "ingest": 0.0 if isinstance(given, Stack) else (ingested - began) * times,
        "fit": (fitted - ingested) * times,
        "encode": tried - fitted + (encoded - tried) * n / few,
    }
    shape = (n, *stack.sample_shape)
    source = Outline("", shape, stack.dtype, stack.samples.chunks)
    memory = task_bytes(source, Form(shape, stack.dtype.itemsize, not len(found.cell)), len(found.cell))
    decoded = math.prod(shape) * stack.dtype.itemsize
    return Estimate(n, shape[1:], stack.dtype.name, decoded, round(size), seconds, memory)


def _count(given: Stack | Reader) -> int:
    return given.n_samples if isinstance(given, Stack) else len(given)


def _few(given: Stack | Reader, folder: Path, settings: CompressionSettings) -> Stack:
    if isinstance(given, Reader):
        return ingest(_Few(given), folder / "stack.zarr", **settings.reading)
    count = max(1, min(_MOST, given.n_samples, _MOST_BYTES * given.n_samples // given.nbytes))
    chosen = spread_samples(given.n_samples, count, np.random.default_rng(0))
    np.save(folder / "few.npy", np.concatenate(list(read_samples(as_source(given), chosen))))
    return ingest(folder / "few.npy", folder / "stack.zarr", axes=given.axes[1:], data_range=given.data_range)
