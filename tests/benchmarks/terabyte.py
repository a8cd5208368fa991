"""One pass over a synthetic stack of any size: seconds beside the plan made before, memory on the way, a kill at half.

    python tests/benchmarks/terabyte.py --gigabytes 100 > pass.jsonl       (two processors: ten minutes)
    python tests/benchmarks/terabyte.py --gigabytes 100 --estimator cells
    python tests/benchmarks/terabyte.py --gigabytes 10 --kill

The samples are made where they are read: nothing is stored. What making them takes is told apart. Seconds are those of
the clock, less those that other programs took of the processors meanwhile, which are told apart, too. With --kill, the
program and all its workers are killed at half of the time that a pass took, and started again: the model must have the
same bytes as that of the undisturbed pass.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import dpca.engine.folds.plan
from dpca import CellPCA, StreamingPCA
from dpca.engine.clusters.cluster import open_client
from dpca.engine.sources.source import as_source
from dpca.jobs import CompressionSettings, fit_store, plan_job
from dpca.storage import Stack, create_synthetic, open_stack
from dpca.storage.remote.memory import parallel_tasks, task_budget, thread_count
from dpca.storage.run import Run
from tests.benchmarks.sides import Line, at_most, print_line, ratio_of

MODELS: dict[str, Any] = {
    "streaming": StreamingPCA(5, method="incremental-svd", oversampling=10, random_state=0),
    "cells": CellPCA(5, cell_shape=5),
}
# Samples that tell what the generator takes.
_MADE = 256


def one_pass(stack: Stack, target: Path, estimator: str) -> Iterator[Line]:
    """Plan a pass, run it on a cluster of this machine, and compare."""
    model, n, where = MODELS[estimator], stack.n_samples, f"{stack.nbytes / 1e9:,.0f} GB of {stack.sample_shape}"
    with open_client() as client:
        workers, budget = parallel_tasks(client, thread_count()), task_budget(client, thread_count())
        (plan,) = plan_job(stack, CompressionSettings(model), workers=[workers], budget=budget)
        planned, made = plan.stages["fit"], _generator(stack) * n / plan.cores
        with Watch(list(client.run(os.getpid).values())) as watch:
            cost = fit_store(stack, target, model, run=Run(client=client)).cost
    early = watch.peak_at(cost.seconds / 10)
    common = {"where": where, "n": n}
    times = {
        **{"seconds": cost.seconds - watch.taken, "planned": planned.seconds, "generator alone": made},
        **{"taken by other programs": watch.taken, "workers' processors": watch.spent},
    }
    found = ratio_of([times], ["seconds"], ["planned"], "wall s")
    yield at_most(1.15, name=f"a pass, {estimator}, against its plan", **found, **common)
    sizes = {"peak": float(watch.peak), "at a tenth": float(early), "planned": float(planned.memory)}
    found = ratio_of([sizes], ["peak"], ["at a tenth"], "bytes")
    yield at_most(1.05, name=f"memory of a pass, {estimator}, flat", **found, **common)
    found = ratio_of([sizes], ["peak"], ["planned"], "bytes")
    yield at_most(1.0, name=f"memory of a pass, {estimator}, against its plan", **found, **common)


def killed_pass(path: Path, target: Path, estimator: str, undisturbed: float, distance: int) -> float:
    """Kill a pass at half, with all its workers, and let it go on; return the seconds of both runs together."""
    command = [sys.executable, __file__, "--go-on", str(path), str(target), estimator, str(distance)]
    began = time.perf_counter()
    first = subprocess.Popen(command, start_new_session=True)
    try:
        first.wait(undisturbed / 2)
    except subprocess.TimeoutExpired:
        os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    spent = time.perf_counter() - began
    time.sleep(5)  # for workers to notice
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return spent + time.perf_counter() - began


def go_on(path: Path, target: Path, estimator: str) -> None:
    """Fit and store a model, or go on with that."""
    with open_client() as client:
        fit_store(open_stack(path), target, MODELS[estimator], run=Run(client=client))


def kill_lines(stack: Stack, folder: Path, estimator: str, distance: int) -> Iterator[Line]:
    """Compare a pass that is killed at half with one that is not."""
    path, calm, torn = Path(stack.path), folder / "calm.zarr", folder / "torn.zarr"
    began = time.perf_counter()
    subprocess.run([sys.executable, __file__, "--go-on", path, calm, estimator, str(distance)], check=True)
    whole = time.perf_counter() - began
    both = killed_pass(path, torn, estimator, whole, distance)
    if contents(calm) != contents(torn):
        sys.exit("the model of the pass that was killed has other bytes than that of the undisturbed one")
    found = ratio_of([{"killed at half": both, "undisturbed": whole}], ["killed at half"], ["undisturbed"], "wall s")
    where = f"{stack.nbytes / 1e9:,.0f} GB of {stack.sample_shape}, same bytes"
    yield at_most(1.5, name=f"a pass that was killed, {estimator}", where=where, n=stack.n_samples, **found)


def contents(store: Path) -> dict[str, bytes]:
    """Return the files of a store."""
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def _generator(stack: Stack) -> float:
    """Return the processor seconds of making a sample, and of copying it out of chunks."""
    source, shape = as_source(stack), stack.sample_shape
    read, region = source.reader(), tuple((0, length) for length in shape)
    block = np.empty((min(_MADE, stack.n_samples), *shape), source.dtype)
    spent = []
    for _ in range(2):  # the first one compiles
        began = time.process_time()
        read((0, len(block)), region, block)
        spent.append(time.process_time() - began)
    return spent[-1] / len(block)


class Watch:
    """Measures the peaks of some processes twice a second, and the processor time of all."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids, self._ended = pids, threading.Event()
        self._seen: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._began = time.perf_counter()
        self._before = self._processors()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        ours, workers, everyone = (now - then for now, then in zip(self._processors(), self._before, strict=True))
        self.seconds = time.perf_counter() - self._began
        self.spent, self.taken = workers, max(0.0, everyone - ours) / thread_count()

    def _processors(self) -> tuple[float, float, float]:
        """Return processor seconds: of this program and its workers, of the workers, and of all there are."""
        workers = sum(map(_processor_seconds, map(psutil.Process, self._pids)))
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        total = psutil.cpu_times()
        # Other guests of the machine that this one is a guest of are others, too.
        everyone = total.user + total.nice + total.system + getattr(total, "steal", 0.0)
        return sum(map(_processor_seconds, family)), workers, everyone

    def _look(self) -> None:
        while True:  # at once, too: a small pass ends within half a second
            self._seen.append((time.perf_counter() - self._began, max(map(_peak_of, self._pids))))
            if self._ended.wait(0.5):
                return

    @property
    def peak(self) -> int:
        return max(size for _, size in self._seen)

    def peak_at(self, seconds: float) -> int:
        return max(size for at, size in self._seen if at <= max(seconds, self._seen[0][0]))


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _peak_of(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == ["--go-on"]:
        path, target, estimator, distance = arguments[1:]
        dpca.engine.folds.plan.CHECKPOINT_BYTES = int(distance)
        go_on(Path(path), Path(target), estimator)
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=100.0, metavar="GB", help="decoded (default: %(default)s)")
    parser.add_argument("--side", type=int, default=256, metavar="N", help="pixels (default: %(default)s)")
    parser.add_argument("--estimator", choices=MODELS, default="streaming", help="(default: %(default)s)")
    parser.add_argument("--kill", action="store_true", help="kill a pass at half instead")
    options = parser.parse_args(arguments)
    shape = (options.side, options.side, 3)
    with tempfile.TemporaryDirectory(dir=".") as given:
        folder = Path(given).resolve()
        n = max(2, round(options.gigabytes * 1e9 / math.prod(shape)))
        stack = create_synthetic(folder / "stack.zarr", n_samples=n, sample_shape=shape)
        if options.kill:  # checkpoints as far apart, as a share of the pass, as those of 100 GB
            lines = kill_lines(stack, folder, options.estimator, stack.nbytes // 24)
        else:
            lines = one_pass(stack, folder / "model.zarr", options.estimator)
        for line in lines:
            print_line(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
