"""Jobs that `test_full_disk` runs in a process of its own, on a disk that is full from one write on.

``python disk_to_fill.py FOLDER JOB [EVERY]`` runs a job undisturbed, then again and again, each time with the disk full
from another of its writes on (the first, the one ``EVERY`` later, ...). Each must end in one StoreError, with nothing
under the final name, and be finished by the same call once there is room, to the same bytes. The limit on the size of
files stands in for the disk: from then on the system refuses every byte, in every file.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dpca import PCA, BandPCA, CellPCA, StreamingPCA
from dpca.jobs import CompressionSettings, compress, fit_store, reconstruct_store, transform_store
from dpca.pipelines.studies.convergence.study import ConvergenceSettings, report_convergence
from dpca.storage import ingest, open_stack
from dpca.storage.errors import StoreError
from dpca.storage.run import Run
from tests.helpers.pictures import leave_pictures_empty

# Here and not in the jobs: what is imported when the disk is full already cannot be cached, and every fork would import
# it again.
for module in ("distributed", "dpca.jobs.scores.report", "dpca.plots.samples", "dpca.storage.readers"):
    import_module(module)
leave_pictures_empty()


def pixels(n: int = 24) -> np.ndarray[Any, Any]:
    y, x = np.mgrid[:16, :16]
    waves = np.random.default_rng(0).uniform(0, 1, (n, 3, 1, 1)) * [np.sin(y / 3), np.cos(x / 4), np.sin((x + y) / 5)]
    return np.clip(128 + 60 * waves.sum(1) + np.random.default_rng(1).normal(0, 5, (n, 16, 16)), 0, 255).astype("u1")


def inputs(folder: Path) -> None:
    np.save(folder / "a.npy", pixels())
    ingest(folder / "a.npy", folder / "s.zarr", run=Run(threads=1))
    fit_store(open_stack(folder / "s.zarr"), folder / "m.zarr", CellPCA(3, cell_shape=8, random_state=0))
    transform_store(open_stack(folder / "s.zarr"), folder / "m.zarr", folder / "sc.zarr")


def saved(make: Callable[[], Any]) -> Callable[[Path], None]:
    return lambda folder: make().fit(pixels()).save(folder / "out.zarr")


def whole(settings: Any, source: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        compress(folder / source, folder / "out.zarr", settings, run=Run(client=None))

    return run


JOBS: dict[str, Callable[[Path], Any]] = {
    "ingest": lambda folder: ingest(folder / "a.npy", folder / "out.zarr", run=Run(threads=2)),
    "save CellPCA": saved(lambda: CellPCA(3, cell_shape=8)),
    "save BandPCA": saved(lambda: BandPCA(3, band_size=50)),
    "save StreamingPCA": saved(lambda: StreamingPCA(3, random_state=0)),
    # It states why it chose its solver, with the memory that there is.
    "save PCA": saved(lambda: PCA(3, random_state=0, memory_budget=2**30)),
    "fit cells": lambda folder: fit_store(
        open_stack(folder / "s.zarr"), folder / "out.zarr", CellPCA(3, cell_shape=8, random_state=0)
    ),
    "fit stream": lambda folder: fit_store(
        open_stack(folder / "s.zarr"), folder / "out.zarr", StreamingPCA(3, n_passes=2, random_state=0)
    ),
    "transform": lambda folder: transform_store(
        open_stack(folder / "s.zarr"), folder / "m.zarr", folder / "out.zarr", reconstruct=True
    ),
    "reconstruct": lambda folder: reconstruct_store(folder / "m.zarr", folder / "sc.zarr", folder / "out.zarr"),
    "compress cells": whole(CompressionSettings(CellPCA(3, cell_shape=8), reconstruct=True), "a.npy"),
    "compress stream": whole(CompressionSettings(StreamingPCA(3, random_state=0)), "a.npy"),
    "convergence": lambda folder: report_convergence(
        open_stack(folder / "s.zarr"), folder / "out.zarr", ConvergenceSettings(("oja",), 2, 8, 2)
    ),
}


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def full_from_write(n: int, folder: str) -> Callable[[], int]:
    """Have the disk full from the n-th file on that is opened for writing below a folder; return what counts them."""
    seen = 0

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal seen
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if writes and str(args[0]).startswith(folder):
            seen += 1
            if seen == n:
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    sys.addaudithook(hook)
    return lambda: seen


def in_a_child(task: Callable[..., None], *args: object) -> int:
    """Run in a fork, which is safe as long as this process starts no thread; return its exit code."""
    pid = os.fork()
    if pid == 0:
        status = 9
        try:
            task(*args)
            status = 0
        except StoreError as error:
            status = 4 if "the disk is full" in str(error) and "\n" not in str(error) else 8
            if status == 8:
                traceback.print_exc()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def filled(job: Callable[[Path], Any], folder: Path, n: int) -> None:
    full_from_write(n, str(folder / "out"))
    job(folder)


def counted(job: Callable[[Path], Any], folder: Path) -> None:
    seen = full_from_write(-1, str(folder / "out"))
    job(folder)
    (folder / "count").write_text(str(seen()))


def stages_apart(files: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out what tells how long things took."""
    return {name: text for name, text in files.items() if not name.endswith((".html", "report.json"))}


def main(base: Path, name: str, every: int) -> int:
    job = JOBS[name]
    base.mkdir(parents=True, exist_ok=True)
    assert in_a_child(inputs, base) == 0
    before = set(os.listdir(base))
    assert in_a_child(counted, job, base) == 0
    calm = tree(base / "out.zarr")
    count = int((base / "count").read_text())
    (base / "count").unlink()
    for n in range(1, count + 1, every):
        shutil.rmtree(base / "out.zarr")
        shutil.rmtree(base / "out.report", ignore_errors=True)
        code = in_a_child(filled, job, base, n)
        assert code == 4, f"{name}, full from write {n} of {count} on: exit code {code}"
        assert not (base / "out.zarr").exists(), f"{name}, full from write {n} of {count} on: a store is there"
        left = set(os.listdir(base)) - before
        assert left <= {"out.zarr.partial", "out.report"}, f"{name}, full from write {n} of {count} on: {left} left"
        assert in_a_child(job, base) == 0, f"{name}, full from write {n} of {count} on: not finished with room"
        now = tree(base / "out.zarr")
        if "convergence" not in name:
            assert now == calm, f"{name}, full from write {n} of {count} on: another store"
        assert not (base / "out.zarr.partial").exists()
    return count


if __name__ == "__main__":
    os.fsync = lambda handle: None
    threadpool_limits(1)  # how many threads a library takes may depend on the load, and with it a product's last bits
    every = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    print(main(Path(sys.argv[1]), sys.argv[2], every))
