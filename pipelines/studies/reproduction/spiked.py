"""The table on the spiked covariance model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpca.engine.sources.source import as_source
from dpca.pipelines.studies.convergence.reference import exact_reference
from dpca.pipelines.studies.data import Setting
from dpca.pipelines.studies.reproduction.tables import Published, ReproductionTable
from dpca.pipelines.studies.reproduction.thesis import (
    ACCELERATION,
    SCHEDULE_OF_SM,
    STEP_OF_SM,
    STRATEGIES,
    accelerated_oja,
    accelerated_power,
)
from dpca.pipelines.studies.reproduction.trials import MEASURE, Make, Stream, entry, in_batches
from dpca.rules import CCIPCA, IPCA, BlockPower, Harmonic, Oja, SimilarityMatching
from dpca.storage import create_synthetic

_SAMPLES, _ATTRIBUTES = 10_000, 1000
_K = 5
#: Rule -> (value, spread) with one sample, ten and a hundred at a time.
_THESIS: dict[str, tuple[tuple[float, float] | None, ...]] = {
    "Oja, 1 / t": ((-0.87, 0.1), (-0.83, 0.065), (-1.47, 0.08)),
    "Oja, 10 / t": ((-0.86, 0.05), (-0.83, 0.065), (-1.47, 0.08)),
    "Oja, 100 / t": ((-0.82, 0.09), (-0.83, 0.065), (-1.47, 0.08)),
    "block power": (None, (-0.84, 0.08), (-1.46, 0.1)),
    "CCIPCA": ((-1.57, 0.14), (-1.63, 0.17), (-1.48, 0.1)),
    "IPCA": ((-1.53, 0.22), None, None),
    "SM": ((-1.5, 0.14), (-1.56, 0.13), (-1.39, 0.1)),
    "accelerated Oja, 1st strategy": (None, (-1.67, 0.15), (-1.5, 0.1)),
    "accelerated Oja, 2nd strategy": (None, (-1.81, 0.2), (-2.41, 0.2)),
    "accelerated block power, 1st strategy": (None, (-1.68, 0.18), (-1.5, 0.1)),
    "accelerated block power, 2nd strategy": (None, (-1.88, 0.2), (-2.4, 0.17)),
}


def _rules(online: bool) -> dict[str, Make]:
    """Return functions that make the rules, with the samples of a batch one by one or at once."""

    def oja(c: float) -> Make:
        return lambda seed: Oja(_K, Harmonic(c), online=online, seed=seed, unit=1.0)

    rules: dict[str, Make] = {f"Oja, {c} / t": oja(c) for c in (1, 10, 100)}
    rules |= {
        "block power": lambda seed: BlockPower(_K, seed=seed),
        "CCIPCA": lambda seed: CCIPCA(_K, online=online, seed=seed),
        "IPCA": lambda seed: IPCA(_K),
        "SM": lambda seed: SimilarityMatching(_K, STEP_OF_SM, online=online, seed=seed),
    }
    accelerated: dict[str, Callable[..., Make]] = {"Oja": accelerated_oja, "block power": accelerated_power}
    for name, make in accelerated.items():
        rules |= {f"accelerated {name}, {which}": make(_K, strategy) for which, strategy in STRATEGIES}
    return rules


def spiked_table(setting: Setting) -> ReproductionTable:
    """Alakkari 2020, table 3.2: spiked covariance model, a new one for each trial."""
    streams = [_stream(setting, seed) for seed in range(setting.trials)]
    entries = []
    for name, results in _THESIS.items():
        open_points = SCHEDULE_OF_SM if name == "SM" else ACCELERATION if name.startswith("accelerated") else ""
        for size, result in zip((1, 10, 100), results, strict=True):
            if result is not None:
                online = size == 1
                entries.append(
                    entry(
                        name,
                        "one sample at a time" if online else f"B = {size}",
                        in_batches(_rules(online)[name], 100 if online else size),
                        streams,
                        published=Published(*result),
                        open_points=open_points,
                    )
                )
    return ReproductionTable(
        "spiked",
        "Spiked covariance model, one pass (Alakkari 2020, table 3.2)",
        MEASURE,
        f"{_SAMPLES:,} samples of {_ATTRIBUTES:,} attributes, 10 spikes, sigma = 1, 5 components; {setting.trials} "
        f"trials, each with its own model, samples and start.",
        entries,
    )


def _stream(setting: Setting, seed: int) -> Stream:
    path = setting.workspace / f"spiked-{seed}.zarr"
    stack = create_synthetic(path, "spiked", n_samples=_SAMPLES, sample_shape=(_ATTRIBUTES,), seed=seed)
    # In memory, because every rule reads it several times.
    source = as_source(np.asarray(stack.samples[...]))
    return source, exact_reference(source, _K)
