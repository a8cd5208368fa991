"""Fit every estimator to stacks of odd shapes, and hold the measured memory against the plan.

    python tests/benchmarks/searches/odd_shapes.py --budget 2000

prints a line for each estimator and shape: what a new process took for the fit beyond what it held before, what was
planned for the task, the results and the arrays of one entry a sample of its largest pass, or the sentence that
refused it. Ends with 1 where more was taken than was planned, or something else than a sentence of ours ended a fit.
Linux only: there a process can forget its peak.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

sys.path.insert(0, str(Path(__file__).parents[3]))

from dpca import EOF, PCA, BandPCA, CellPCA, KernelPCA, PatchPCA, StreamingPCA, StreamingRidgeClassifier
from dpca.storage.errors import ClusterError, DataError, PlanError
from dpca.storage.run import Run
from tests.engine.folds.worker_memory import forget_peak, status

#: Shape of the stack, of one chunk of it, components, and the side of a cell.
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int]] = {
    "4 huge samples": ((4, 1500, 1500), (1, 1500, 1500), 2, 50),
    "d = 1e7": ((3, 10_000_000), (1, 2_500_000), 2, 1000),
    "n = 1e7": ((10_000_000, 3), (1_000_000, 3), 2, 1),
    "k near d": ((2_000, 20, 20), (500, 20, 20), 399, 20),
    "1e5 cells": ((48, 960, 960), (16, 960, 960), 2, 3),
    "1 sample": ((1, 30, 30), (1, 30, 30), 1, 5),
    "2 samples": ((2, 300, 300), (1, 300, 300), 1, 10),
    "d = 1": ((100_000, 1), (10_000, 1), 1, 1),
}
#: Estimators of the side of a cell, the components, the number of samples and of attributes.
ESTIMATORS: dict[str, Callable[..., Any]] = {
    "PCA": lambda side, k, n, d, room: PCA(k, random_state=0, memory_budget=room),
    "StreamingPCA": lambda side, k, n, d, room: StreamingPCA(k, random_state=0, memory_budget=room),
    "CellPCA": lambda side, k, n, d, room: CellPCA(min(k, side), cell_shape=side, memory_budget=room),
    "BandPCA": lambda side, k, n, d, room: BandPCA(
        min(k, n), band_size=min(d, 100), random_state=0, memory_budget=room
    ),
    "KernelPCA": lambda side, k, n, d, room: KernelPCA(
        min(k, 20), n_landmarks=min(n, 100), random_state=0, memory_budget=room
    ),
    "PatchPCA": lambda side, k, n, d, room: PatchPCA(min(k, side), patch_shape=min(side, 5), memory_budget=room),
    "EOF": lambda side, k, n, d, room: EOF(k, random_state=0, memory_budget=room),
    "StreamingRidgeClassifier": lambda side, k, n, d, room: StreamingRidgeClassifier(memory_budget=room),
}


def write(folder: Path, name: str) -> None:
    """Write a stack chunk by chunk."""
    shape, chunks, _, _ = SHAPES[name]
    array = zarr.create_array(str(folder / name), shape=shape, chunks=chunks, dtype="u1", compressors=None)
    rng, rows = np.random.default_rng(0), chunks[0]
    for at in range(0, shape[0], rows):
        size = (min(rows, shape[0] - at), *shape[1:])
        array[at : at + rows] = rng.integers(0, 256, size, dtype=np.uint8)


def fitted(path: str, name: str, estimator: str, room: int) -> dict[str, Any]:
    """Fit in this process: what it took, what was planned, or why it was refused."""
    warnings.simplefilter("ignore")
    planned: list[int] = []
    engine: Any = sys.modules["dpca.engine.folds.fold"]
    outcomes = engine._Folding.outcomes

    def noted(self: Any, plan: Any, *given: Any) -> Any:
        planned.append(plan.task_bytes + plan.caller_bytes)
        return outcomes(self, plan, *given)

    engine._Folding.outcomes = noted
    one_task = Run(threads=1)  # what is planned is one task
    shape, _, k, side = SHAPES[name]

    def fit(given: Any, shape: tuple[int, ...], k: int, side: int) -> None:
        n, d = shape[0], int(np.prod(shape[1:]))
        model = ESTIMATORS[estimator](side, k, n, d, room)
        labels = np.zeros(n, np.uint8)
        labels[::2] = 1
        model.fit(given, *([labels] if isinstance(model, StreamingRidgeClassifier) else []), run=one_task)

    small = np.random.default_rng(0).integers(0, 256, (64, *(12,) * (len(shape) - 1)), dtype=np.uint8)
    fit(small, small.shape, 2, 3 if len(shape) > 2 else 2)
    planned.clear()
    before = forget_peak()
    try:
        fit(path, shape, k, side)
    except (DataError, PlanError, ClusterError) as error:
        return {"refused": f"{type(error).__name__}: {error}", "grown": status("VmHWM:") - before}
    except Exception as error:
        return {"foreign": f"{type(error).__name__}: {error}"}
    return {"grown": status("VmHWM:") - before, "planned": max(planned, default=0)}


def forked(work: Callable[[], Any]) -> Any:
    """Do something in a process of its own, which starts with what is imported here."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(writes, "w") as out:
            json.dump(work(), out)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as found:
        text = found.read()
    _, code = os.waitpid(child, 0)
    return json.loads(text) if text else {"foreign": f"ended with {code}"}


def main() -> int:
    """Run the series; return 1 if a plan did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=2000, help="MB that a task may take")
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES), metavar="SHAPE")
    parser.add_argument("--estimators", nargs="*", default=list(ESTIMATORS), choices=list(ESTIMATORS), metavar="NAME")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.shapes:
            forked(lambda name=name: write(Path(folder), name))  # type: ignore[misc]
            for estimator in options.estimators:
                path, room = str(Path(folder) / name), int(options.budget * 1e6)
                spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
                found = forked(lambda: fitted(path, name, estimator, room))  # noqa: B023
                over = found.get("grown", 0) > found.get("planned", room)
                wrong += over or "foreign" in found
                sizes = " ".join(f"{key} {found[key] / 1e6:,.1f} MB" for key in ("grown", "planned") if key in found)
                said = found.get("refused") or found.get("foreign", "")
                mark = "FOREIGN" if "foreign" in found else "OVER" if over else "ok"
                spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - spent
                print(f"{mark:8}{name}: {estimator}: {sizes} {said} ({spent:.1f} CPU s)", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
