"""The table on the spiked covariance model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpca.engine.sources.source import Source, as_source
from dpca.pipelines.studies.convergence.reference import Reference, exact_reference
from dpca.pipelines.studies.reproduction.data import Setting
from dpca.pipelines.studies.reproduction.digits import ACCELERATION, SCHEDULE_OF_SM, in_batches
from dpca.pipelines.studies.reproduction.tables import Published, ReproductionTable
from dpca.pipelines.studies.reproduction.trials import entry
from dpca.rules import (
    CCIPCA,
    IPCA,
    AcceleratedBlockPower,
    AcceleratedOja,
    BlockPower,
    Delayed,
    FirstStrategy,
    Harmonic,
    Oja,
    SecondStrategy,
    SimilarityMatching,
)
from dpca.storage import create_synthetic

_SAMPLES, _ATTRIBUTES = 10_000, 1000
_K = 5
_SM = Delayed(0.2, 2.5)

#: Rule -> what makes it, online -> (value, spread) with one sample, ten and a hundred at a time.
_Made = Callable[[int, bool], Any]
_OPEN = {"SM": SCHEDULE_OF_SM}


def _rules() -> list[tuple[str, _Made, tuple[tuple[float, float] | None, ...]]]:
    def oja(c: float) -> _Made:
        return lambda seed, online: Oja(_K, Harmonic(c), online=online, seed=seed, unit=1.0)

    def accelerated_oja(strategy: Any) -> _Made:
        return lambda seed, online: AcceleratedOja(_K, Harmonic(100.0), strategy(seed=seed), seed=seed, unit=1.0)

    def accelerated_power(strategy: Any) -> _Made:
        return lambda seed, online: AcceleratedBlockPower(_K, strategy(seed=seed), seed=seed)

    return [
        ("Oja, 1 / t", oja(1), ((-0.87, 0.1), (-0.83, 0.065), (-1.47, 0.08))),
        ("Oja, 10 / t", oja(10), ((-0.86, 0.05), (-0.83, 0.065), (-1.47, 0.08))),
        ("Oja, 100 / t", oja(100), ((-0.82, 0.09), (-0.83, 0.065), (-1.47, 0.08))),
        ("block power", lambda seed, online: BlockPower(_K, seed=seed), (None, (-0.84, 0.08), (-1.46, 0.1))),
        (
            "CCIPCA",
            lambda seed, online: CCIPCA(_K, online=online, seed=seed),
            ((-1.57, 0.14), (-1.63, 0.17), (-1.48, 0.1)),
        ),
        ("IPCA", lambda seed, online: IPCA(_K), ((-1.53, 0.22), None, None)),
        (
            "SM",
            lambda seed, online: SimilarityMatching(_K, _SM, online=online, seed=seed),
            ((-1.5, 0.14), (-1.56, 0.13), (-1.39, 0.1)),
        ),
        ("accelerated Oja, 1st strategy", accelerated_oja(FirstStrategy), (None, (-1.67, 0.15), (-1.5, 0.1))),
        ("accelerated Oja, 2nd strategy", accelerated_oja(SecondStrategy), (None, (-1.81, 0.2), (-2.41, 0.2))),
        ("accelerated block power, 1st strategy", accelerated_power(FirstStrategy), (None, (-1.68, 0.18), (-1.5, 0.1))),
        (
            "accelerated block power, 2nd strategy",
            accelerated_power(SecondStrategy),
            (None, (-1.88, 0.2), (-2.4, 0.17)),
        ),
    ]


def spiked_table(setting: Setting) -> ReproductionTable:
    """Alakkari 2020, table 3.2: each trial draws the model anew."""
    streams = [_stream(setting, seed) for seed in range(setting.trials)]
    entries = []
    for name, make, results in _rules():
        for size, result in zip((1, 10, 100), results, strict=True):
            if result is None:
                continue
            online = size == 1
            entries.append(
                entry(
                    name,
                    "one sample at a time" if online else f"B = {size}",
                    # Online rules take the samples of a batch one by one.
                    in_batches(_fixed(make, online), 100 if online else size),
                    streams,
                    published=Published(*result),
                    open_points=_OPEN.get(name, ACCELERATION if name.startswith("accelerated") else ""),
                )
            )
    return ReproductionTable(
        "spiked",
        "Spiked covariance model, one pass (Alakkari 2020, table 3.2)",
        "Convergence, log10(1 - captured / best)",
        f"{_SAMPLES:,} samples of {_ATTRIBUTES:,} attributes, 10 spikes, sigma = 1, 5 components recovered; "
        f"{setting.trials} trials, each with a model, samples and start of its own.",
        tuple(entries),
    )


def _fixed(make: _Made, online: bool) -> Callable[[int], Any]:
    return lambda seed: make(seed, online)


def _stream(setting: Setting, seed: int) -> tuple[Source, Reference]:
    path = setting.workspace / f"spiked-{seed}.zarr"
    stack = create_synthetic(path, "spiked", n_samples=_SAMPLES, sample_shape=(_ATTRIBUTES,), seed=seed)
    # Every rule reads it, several times over.
    source = as_source(np.asarray(stack.samples[...]))
    return source, exact_reference(source, _K)
