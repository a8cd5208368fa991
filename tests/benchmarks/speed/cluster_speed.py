"""What a cluster adds: two workers against one, Dask's share of the processor time, and memory against the plan.

    python tests/benchmarks/speed/cluster_speed.py --source lfw-deepfunneled-00.tar

Two workers are held against one by seconds on the wall, which mean something only where two processors are free.
Dask's share is what a fit takes on one worker, with the scheduler, beyond what it takes in this process. Memory is the
growth of a new worker's peak, beside what was planned for a task, on stacks whose shards are links to one.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from dpca import CellPCA
from dpca.engine.clusters.cluster import open_client
from dpca.engine.folds.fold import fold
from dpca.engine.sources.source import as_source
from dpca.jobs.scores.transform import transform_store
from dpca.partition import CellGrid
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.storage import ingest
from dpca.storage.arrays.layout import Layout
from dpca.storage.run import Run
from tests.benchmarks.inputs import CELL, Inputs
from tests.benchmarks.sides import Line, alone, at_least, at_most, in_turn, ratio_of
from tests.engine.folds.worker_memory import linked_stack, measured

_K = 20


def worker_lines(inputs: Inputs) -> Iterator[Line]:
    """Compare two workers with one, and one with this process."""
    with open_client(workers=1) as one, open_client(workers=2) as two:
        yield from compared_workers(inputs, one, two)


def compared_workers(inputs: Inputs, one: Any, two: Any) -> Iterator[Line]:
    """Compare the two clusters that these clients belong to."""
    stack, where = inputs.stack, f"photographs of {inputs.stack.sample_shape}, cells of {CELL}"
    CellPCA(_K, cell_shape=CELL).fit(stack).save(inputs.folder / "cluster model.zarr")
    for client in (one, two):
        client.run(_warm)
    for name, work in _stages(inputs).items():
        sides = {"one worker": partial(work, one), "two workers": partial(work, two)}
        rounds = in_turn(sides, inputs.rounds, time.perf_counter)
        found = ratio_of(rounds, ["one worker"], ["two workers"], unit="wall s")
        yield at_least(1.8, name=f"two workers, {name}", where=where, n=stack.n_samples, **found)
    # An estimator would find a client by itself.
    fit = partial(fold, CovariancePCA(_K), as_source(stack), CellGrid(stack.sample_shape, (CELL, CELL)))
    sides = {"on a cluster": partial(fit, run=Run(client=one)), "in this process": partial(fit, run=Run(client=None))}
    rounds = in_turn(sides, inputs.rounds, lambda: _cpu(one))
    for each in rounds:
        each["Dask"] = each["on a cluster"] - each["in this process"]
    found = ratio_of(rounds, ["Dask"], ["on a cluster"])
    yield at_most(0.1, name="Dask's share of a fit", where=where, n=stack.n_samples, **found)


def _stages(inputs: Inputs) -> dict[str, Callable[[Any], None]]:
    def _ingest(client: Any) -> None:
        ingest(inputs.photographs, inputs.folder / "again.zarr", cell_shape=CELL, run=Run(client=client))
        shutil.rmtree(inputs.folder / "again.zarr")

    def _scores(client: Any) -> None:
        target = inputs.folder / "cluster scores.zarr"
        transform_store(
            inputs.stack, inputs.folder / "cluster model.zarr", target, reconstruct=True, run=Run(client=client)
        )
        shutil.rmtree(target)

    fit = CellPCA(_K, cell_shape=CELL).fit
    return {"ingest": _ingest, "fit": lambda client: fit(inputs.stack, run=Run(client=client)), "scores": _scores}


def _cpu(client: Any) -> float:
    """Processor seconds of all workers and of this process, which holds the scheduler."""
    return float(time.process_time() + sum(client.run(time.process_time).values()))


def _warm() -> None:
    import dpca.jobs  # noqa: F401  (imports are not what is measured)


def memory_lines(inputs: Inputs) -> Iterator[Line]:
    """Compare what workers hold with the plan, and for long stacks with what they hold for short ones."""
    n, times = (512, (1, 2)) if inputs.quick else (4096, (1, 10, 30))
    layout, sample = Layout((256, 30, 30, 3), (512, 60, 60, 3)), (60, 60, 3)
    paths = {t: linked_stack(inputs.folder, t * n, sample, np.uint8, layout) for t in times}
    for what, cell, rule in (("cells", (5, 5), CovariancePCA(3)), ("streaming", sample[:2], IncrementalSVD(5))):
        grown = {}
        for t, path in paths.items():
            peak, plan = measured(path, cell, rule)
            grown[f"{t} n"] = float(peak)
            found = ratio_of([{"growth": float(peak), "plan": float(plan.task_bytes)}], ["growth"], ["plan"], "bytes")
            yield at_most(1.0, name=f"memory, {what}, {t} n", where=f"samples of {sample}", n=t * n, **found)
        first, *_, last = grown
        found = ratio_of([grown], [last], [first], "bytes")
        yield at_most(1.05, name=f"memory, {what}, flat", where=f"samples of {sample}", n=times[-1] * n, **found)


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure all."""
    return chain(worker_lines(inputs), memory_lines(inputs))


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__, on_cluster=True))
