"""One job on a synthetic stack of any size that is killed twice and goes on, with a record of every minute.

    python tests/benchmarks/killed_run.py --gigabytes 1099.5 > run.jsonl             (two processors: half an hour)
    python tests/benchmarks/killed_run.py --gigabytes 10 --every 5 --undisturbed     (a second run, and its bytes)
    python tests/benchmarks/killed_run.py --gigabytes 1099.5 --estimator cells --components 3
    python tests/benchmarks/killed_run.py --gigabytes 1099.5 --draw records.jsonl picture.svg

Records are lines on standard error, and ratios are lines on standard output.

The samples are made where they are read: nothing but the model, and the scores of cells, is stored. The program and all
its workers are killed with SIGKILL at a third of the planned time, and again at two thirds. A record has the
finished samples, the memory of the largest worker and of the program with its scheduler, open files, written bytes, and
processor seconds. With --undisturbed, a second run must end with the same bytes. The seconds of a job are those of
the clock, with the start of its programs, less those that other programs took of the processors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from dpca import CellPCA, StreamingPCA
from dpca.engine.clusters.cluster import open_client
from dpca.jobs import CompressionSettings, compress, fit_store, plan_job
from dpca.storage import create_synthetic, open_stack
from dpca.storage.progress import Stage
from dpca.storage.remote.memory import parallel_tasks, task_budget, thread_count
from dpca.storage.run import Run
from tests.benchmarks.sides import Line, at_most, print_line, ratio_of

_LOOKED = 0.5
Record = dict[str, float]


def settings_of(estimator: str, k: int) -> CompressionSettings:
    """Return the settings of a job."""
    if estimator == "cells":
        return CompressionSettings(CellPCA(k, cell_shape=16), ssim=False)
    return CompressionSettings(StreamingPCA(k, method="incremental-svd", random_state=0))


def go_on(path: Path, target: Path, settings: CompressionSettings, told: Path) -> None:
    """Run a job, or go on with it, and append finished samples of each stage to a file."""

    class Telling:
        def __init__(self, stage: str, total: int, unit: str) -> None:
            self._stage, self._total, self._done = stage, total, 0

        def advance(self, n: int) -> None:
            self._done += n
            with told.open("a") as file:
                file.write(json.dumps([self._stage, self._done / self._total]) + "\n")

        def close(self) -> None:
            pass

    def progress(stage: str, total: int, unit: str) -> Stage:
        return Telling(stage, total, unit)

    with open_client() as client:
        run = Run(client=client, progress=progress)
        if isinstance(settings.model, CellPCA):
            compress(open_stack(path), target, settings, run=run, plan=False)
        else:
            fit_store(open_stack(path), target, settings.model, run=run)


class Job:
    """A job in a program of its own, whose processes are looked at twice a second.

    Parameters
    ----------
    command : sequence of str
    told : Path
        File with the progress of the program.
    every : float
        Seconds between two records.
    """

    def __init__(self, command: Sequence[str], told: Path, every: float) -> None:
        self.records: list[Record] = []
        self.seconds = self.taken = 0.0
        self._command, self._told, self._every = command, told, every
        self._peak, self._ours, self._written = 0.0, 0.0, 0.0

    def run(self, kills: Sequence[float]) -> None:
        """Run the job to its end; kill it when it has run for each of these seconds, and start it again."""
        for until in [*kills, math.inf]:
            self._part(until)
            if until < math.inf:
                time.sleep(5)  # for workers to notice

    def _part(self, until: float) -> None:
        began, before, spent = time.perf_counter(), _everyone(), dict[int, float]()
        written, looked = dict[int, float](), began - self._every
        self._told.write_text("")
        program = subprocess.Popen(self._command, start_new_session=True)
        while program.poll() is None:
            family = _family(program.pid)
            sizes = {pid: _resident(process) for pid, process in family.items()}
            workers = [size for pid, size in sizes.items() if pid != program.pid]
            self._peak = max([self._peak, *workers])
            for pid, process in family.items():
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    spent[pid], written[pid] = times.user + times.system, process.io_counters().write_bytes
            stage, share = self._progress()
            if time.perf_counter() - looked >= self._every:
                looked = time.perf_counter()
                self.records.append(
                    {
                        "seconds": round(self.seconds + looked - began, 1),
                        "stage": stage,
                        "share": share,
                        "largest worker": max(workers, default=0),
                        "program and scheduler": sizes.get(program.pid, 0),
                        "open files": sum(map(_open_files, family.values())),
                        "written": self._written + sum(written.values()),
                        "processor seconds": round(self._ours + sum(spent.values()), 1),
                    }
                )
                print(json.dumps(self.records[-1]), file=sys.stderr, flush=True)
            if self.seconds + time.perf_counter() - began >= until:
                os.killpg(program.pid, signal.SIGKILL)
                for process in family.values():
                    with suppress(psutil.Error):
                        process.kill()
            time.sleep(_LOOKED)
        if program.wait() and until == math.inf:
            sys.exit(f"the job ended with the exit code {program.returncode}")
        self._ours += sum(spent.values())
        self._written += sum(written.values())
        self.seconds += time.perf_counter() - began
        self.taken += max(0.0, _everyone() - before - sum(spent.values())) / thread_count()

    def _progress(self) -> tuple[Any, float]:
        lines = self._told.read_text().splitlines()
        return json.loads(lines[-1]) if lines else ("start", 0.0)

    @property
    def peak(self) -> float:
        """Largest resident memory of a worker, in bytes."""
        return self._peak

    def largest_until(self, share: float) -> float | None:
        """Return the largest recorded memory of a worker until a share of the time of the job.

        None if the job ended before a record with a worker.
        """
        first = next((record["seconds"] for record in self.records if record["largest worker"]), None)
        if first is None:
            return None
        until = max(share * self.seconds, first)
        return max(record["largest worker"] for record in self.records if record["seconds"] <= until)


def lines_of(options: argparse.Namespace, folder: Path) -> Iterator[Line]:
    """Plan a job, run it with kills, and compare."""
    n, shape = _samples(options), (options.side, options.side, 3)
    stack = create_synthetic(folder / "stack.zarr", "textures", n_samples=n, sample_shape=shape)
    settings, target, told = settings_of(options.estimator, options.components), folder / "torn.zarr", folder / "told"
    with open_client() as client:
        workers, budget = parallel_tasks(client, thread_count()), task_budget(client, thread_count())
        (plan,) = plan_job(stack, settings, workers=[workers], budget=budget)
    stages = {"fit": plan.stages["fit"]} if options.estimator == "streaming" else plan.stages
    planned = sum(stage.seconds for stage in stages.values())
    command = [sys.executable, __file__, "--go-on", stack.path, str(target), options.estimator, str(options.components)]
    job = Job([*command, str(told)], told, options.every)
    job.run([] if options.whole else [planned / 3, 2 * planned / 3])
    where = f"{stack.nbytes / 1e9:,.0f} GB of {stack.sample_shape}, {options.components} components"
    times = {"seconds": job.seconds - job.taken, "planned": planned, "taken by other programs": job.taken}
    line = {"where": where, "n": n}
    found = ratio_of([times], ["seconds"], ["planned"], "wall s")
    yield at_most(1.15, name=f"a job that is killed twice, {options.estimator}, against its plan", **found, **line)
    most = max(stage.memory for stage in stages.values())
    yield from memory_lines(job, most, f"memory of a job, {options.estimator}", line)
    if options.undisturbed:
        calm = Job([*command[:4], str(folder / "calm.zarr"), *command[5:], str(told)], told, options.every)
        calm.run([])
        if contents(target) != contents(folder / "calm.zarr"):
            sys.exit("the output of the job that was killed has other bytes than that of the undisturbed one")
        times = {"killed": job.seconds - job.taken, "undisturbed": calm.seconds - calm.taken}
        found = ratio_of([times], ["killed"], ["undisturbed"], "wall s")
        yield at_most(None, name=f"a job that is killed twice, {options.estimator}, the same bytes", **found, **line)


def memory_lines(job: Job, planned: int, name: str, line: dict[str, Any]) -> Iterator[Line]:
    """Compare the largest memory of a worker with the plan, and with its first tenth if there are records of it."""
    sizes, limits = {"peak": job.peak, "planned": float(planned)}, {"planned": 1.0}
    if (early := job.largest_until(0.1)) is not None:
        sizes["until a tenth"], limits = early, {"until a tenth": 1.05, **limits}
    for other, limit in limits.items():
        yield at_most(limit, name=f"{name}, {other}", **ratio_of([sizes], ["peak"], [other], "bytes"), **line)


def draw(records: Sequence[Record], n: int, target: Path) -> None:
    """Draw finished samples a second and the memory of processes over the time of a job of ``n`` samples."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "dpca"
    from matplotlib import pyplot as plt

    minutes = [record["seconds"] / 60 for record in records]
    figure, (speed, memory) = plt.subplots(2, 1, sharex=True, figsize=(8, 4.5), layout="constrained")
    for (begin, before), (end, after) in itertools.pairwise(zip(minutes, records, strict=True)):
        done = (after["share"] - before["share"]) * n
        if done < 0:  # the job was killed, and went on from a checkpoint
            speed.axvline(end, color="tab:red", linestyle=":", label="killed")
            memory.axvline(end, color="tab:red", linestyle=":")
        elif begin == 0 or before["stage"] != "start":  # the first count after a kill has samples of earlier runs, too
            speed.plot([begin, end], [done / (end - begin) / 60] * 2, color="tab:blue")
    for name in ("largest worker", "program and scheduler"):
        memory.plot(minutes, [record[name] / 1e9 for record in records], label=name)
    speed.set_ylabel("samples a second")
    memory.set_ylabel("memory (GB)")
    memory.set_xlabel("minutes")
    speed.set_ylim(bottom=0)
    memory.set_ylim(0, 1.6 * max(record["largest worker"] for record in records) / 1e9)
    memory.legend(loc="upper left", ncols=2)
    figure.savefig(target, metadata={"Date": None})


def contents(store: Path) -> dict[str, bytes]:
    """Return the files of a store."""
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def _samples(options: argparse.Namespace) -> int:
    return max(2, round(options.gigabytes * 1e9 / (3 * options.side**2)))


def _family(pid: int) -> dict[int, psutil.Process]:
    with suppress(psutil.Error):
        program = psutil.Process(pid)
        return {process.pid: process for process in (program, *program.children(recursive=True))}
    return {}


def _resident(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        return float(process.memory_info().rss)
    return 0.0


def _open_files(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.num_fds())
    return 0


def _everyone() -> float:
    """Return the processor seconds of all programs, and of other guests of the host."""
    total = psutil.cpu_times()
    return float(total.user + total.nice + total.system + getattr(total, "steal", 0.0))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == ["--go-on"]:
        path, target, estimator, k, told = arguments[1:]
        go_on(Path(path), Path(target), settings_of(estimator, int(k)), Path(told))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=100.0, metavar="GB", help="decoded (default: %(default)s)")
    parser.add_argument("--side", type=int, default=256, metavar="N", help="pixels (default: %(default)s)")
    parser.add_argument("--estimator", choices=("streaming", "cells"), default="streaming", help="(default: streaming)")
    parser.add_argument("--components", type=int, default=50, metavar="K", help="(default: %(default)s)")
    parser.add_argument("--every", type=float, default=60.0, metavar="S", help="seconds of a record (default: 60)")
    parser.add_argument("--whole", action="store_true", help="do not kill the job")
    parser.add_argument("--undisturbed", action="store_true", help="run it again without a kill, and compare bytes")
    parser.add_argument("--draw", nargs=2, type=Path, metavar="PATH", help="draw records to a picture instead")
    options = parser.parse_args(arguments)
    if options.draw:
        lines = [json.loads(line) for line in options.draw[0].read_text().splitlines() if line.startswith("{")]
        draw(lines, _samples(options), options.draw[1])
        return 0
    with tempfile.TemporaryDirectory(dir=".") as given:
        for line in lines_of(options, Path(given).resolve()):
            print_line(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
