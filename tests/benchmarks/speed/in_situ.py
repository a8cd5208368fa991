"""Compare a model that follows a simulation frame by frame with its rule, with the simulation, and with a second pass.

The simulation is that of `pipelines/gray_scott.py`, 20 time steps a frame. Frames of 128 points a side are those of 64,
each point eight times: what a frame costs does not depend on it, and simulating as many takes minutes.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dpca import StreamingPCA
from dpca.models.streaming.streaming_methods import RuleStream, make_rule
from dpca.pipelines.gray_scott import simulate
from tests.benchmarks.inputs import Inputs
from tests.benchmarks.sides import Line, alone, at_most, in_turn, ratio_of

Array = np.ndarray[Any, Any]

_K, _STEPS = 9, 20


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure all."""
    side, n = (8, 40) if inputs.quick else (64, 240)
    with threadpool_limits(1):
        frames = np.stack([frame.copy() for frame in islice(simulate(side, _STEPS), n)])
        for factor in (1, 2):
            yield from _costs(inputs, frames, factor)
        yield from _looks(frames, 10, 8)


def _costs(inputs: Inputs, frames: Array, factor: int) -> Iterator[Line]:
    """Compare processor seconds of frames that come one by one to a model, and in batches to its rule.

    Both have taken in as many before: memory that is used for the first time costs more than the arithmetic here.
    """
    side, batch = frames.shape[1] * factor, min(len(frames) // 2, 100)
    n = batch
    fine = np.empty((n, *(side,) * 3), np.float32)
    fine.reshape(n, *(part for length in frames.shape[1:] for part in (length, factor)))[...] = frames[
        -n:, :, None, :, None, :, None
    ]
    flat, model = fine.reshape(n, -1), StreamingPCA(_K, batch_size=batch, random_state=0)
    rule = make_rule(
        "incremental-svd", _K, center=True, options={}, batch_size=batch, seed=0, stream=RuleStream(n_features=side**3)
    )
    state, few, simulation = rule.init(side**3, np.float32), 2, simulate(side, _STEPS)

    def one_by_one() -> None:
        for i in range(n):
            model.partial_fit(fine[i : i + 1])

    sides = {
        "partial_fit": one_by_one,
        "rule": lambda: rule.update(state, flat),
        "simulation": lambda: list(islice(simulation, few)),
    }
    rounds = in_turn(sides, 1 + inputs.rounds)[1:]
    for each in rounds:
        each["simulation"] *= n / few
    where = f"Gray-Scott frames of {side} x {side} x {side}, k = {_K}, batches of {batch}"
    for name, asked in (("rule", 2.0), ("simulation", 0.1)):
        found = ratio_of(rounds, ["partial_fit"], [name])
        yield at_most(asked, name=f"in situ, by the {name}, {side}", where=where, n=n, **found)


def _looks(frames: Array, batch: int, n_looks: int) -> Iterator[Line]:
    """Compare what components capture with the optimum, and tracked scores with a second pass, at every look."""
    n, rows = len(frames), frames.reshape(len(frames), -1)
    model = StreamingPCA(_K, batch_size=batch, track_scores=True, random_state=0)
    edges = np.linspace(0, n, n_looks + 1).astype(int)
    missed, optimum, tracked, passed = [], [], [], []
    for a, b in itertools.pairwise(edges):
        for i in range(a, b):
            model.partial_fit(frames[i : i + 1])
        seen = rows[:b].astype(np.float64)
        seen -= seen.mean(axis=0)
        optimum.append(float(np.linalg.eigvalsh(seen @ seen.T)[-_K:].sum()))
        missed.append(max(optimum[-1] - float(((seen @ model.components_.T) ** 2).sum()), 0.0))
        again = model.transform(frames[:b])
        tracked.append(float(np.linalg.norm(model.tracked_scores_ - again)))
        passed.append(float(np.linalg.norm(again)))
    side = frames.shape[1]
    where = f"Gray-Scott frames of {side} x {side} x {side}, k = {_K}, batches of {batch}, worst of {n_looks} looks"
    for name, asked, above, below in (
        ("captured at looks", 1e-5, {"missed": missed}, {"optimum": optimum}),
        ("tracked scores", 2e-3, {"difference": tracked}, {"second pass": passed}),
    ):
        (over, values), (under, whole) = *above.items(), *below.items()
        worst = int(np.argmax(np.divide(values, whole)))
        found = ratio_of([{over: values[worst], under: whole[worst]}], [over], [under], unit="share")
        yield at_most(asked, name=f"in situ, {name}", where=where, n=n, **found)


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
