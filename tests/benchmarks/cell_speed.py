"""How fast cell PCA is against what this machine can do at all; prints ratios measured in one run.

    python tests/benchmarks/cell_speed.py                        (LFW from ../shared/data)
    python tests/benchmarks/cell_speed.py --stack lfw.zarr --cells 10 --workers 2 --rounds 5

Limits, each measured with as many processes at once as the fit uses:

* read: every chunk of the store read and decoded once, in the fit's own order;
* SYRK: the products X^T X of the fit alone, float32, 1,024 rows at a time, at the faster of BLAS's and numpy's rate;
* write: scores and reconstructions of the same shape written to a store, from memory;
* SSIM: of all images, alone.

The thesis's seconds a cell (Alakkari 2020, table 4.3, CPU) stand beside ours.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.linalg

from dpca import CellPCA
from dpca.engine.checkpoint import Checkpoints
from dpca.engine.cluster import open_client
from dpca.engine.plan import plan_fold
from dpca.engine.source import Source, as_source, batches
from dpca.jobs.score_write import WriteJob, write_scores
from dpca.kernels import linalg_int8
from dpca.kernels.quality import ssim_per_sample
from dpca.models.store import model_fingerprint
from dpca.partition import CellGrid
from dpca.rules.covariance import CovariancePCA
from dpca.storage import Stack, ingest, open_stack
from dpca.storage.arrays import create_array, create_root, write_shard
from dpca.storage.layout import Layout, choose_layout
from dpca.storage.progress import bar_progress
from dpca.storage.reading import open_array

THESIS_SECONDS = {5: 0.0427, 10: 0.16, 25: 7.87}
COMPONENTS = {5: 5, 10: 20, 25: 125}
ROWS = 1024


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stack", help="stack store (default: LFW, ingested)")
    parser.add_argument("--cells", type=int, nargs="+", default=[5, 10, 25])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3, help="repeat fits and limits in turn; medians count")
    parser.add_argument("--skip-write", action="store_true", help="leave the second pass out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder, ExitStack() as clusters:
        stack = open_stack(options.stack) if options.stack else _lfw(Path(folder), options.workers)
        one = clusters.enter_context(open_client(workers=1))
        many = clusters.enter_context(open_client(workers=options.workers))
        for client in (one, many):
            client.run(_warm)
        exact = all(many.run(linalg_int8.is_available).values())
        print("products of 8-bit pixels:", "integers, by MKL" if exact else "floats (the extra mkl is not installed)")
        for cell in options.cells:
            _compare_fit(stack, cell, one, many, options.rounds)
        if not options.skip_write:
            _second_pass(stack, many, Path(folder))
    return 0


def _lfw(folder: Path, workers: int) -> Stack:
    tars = sorted((Path(__file__).parents[3] / "shared" / "data").glob("lfw-deepfunneled-*.tar"))
    if not tars:
        sys.exit("LFW is not in ../shared/data: give a stack store with --stack")
    with open_client(workers=workers) as client:
        return ingest(tars, folder / "lfw.zarr", cell_shape=(10, 10), client=client, progress=bar_progress)


@dataclass(frozen=True)
class Cost:
    """Wall-clock seconds, and processor seconds of all workers together."""

    wall: float
    cpu: float

    def __mul__(self, factor: float) -> Cost:
        return Cost(self.wall * factor, self.cpu * factor)


def _cost(client: Any, work: Callable[[], Any]) -> Cost:
    began, before = time.perf_counter(), sum(client.run(_processor_seconds).values())
    work()
    wall = time.perf_counter() - began
    return Cost(wall, sum(client.run(_processor_seconds).values()) - before)


def _processor_seconds() -> float:
    return time.process_time()


def _fit_cost(stack: Stack, cell: int, client: Any) -> Cost:
    return _cost(client, lambda: CellPCA(COMPONENTS.get(cell, 20), cell_shape=cell).fit(stack, client=client))


def _compare_fit(stack: Stack, cell: int, one: Any, many: Any, rounds: int) -> None:
    """Compare fits with the limits, all in turn, because the speed of a machine with neighbors drifts."""
    source = as_source(stack)
    grid = CellGrid(tuple(stack.sample_shape), (cell,) * 2)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        fit = _fit_cost(stack, cell, many)
        read = _read_cost(source, many)
        syrk = _syrk_cost(grid, stack.n_samples, many)
        measured = {
            "fit, s": fit.wall,
            "read, s": read.wall,
            "SYRK, s": syrk.wall,
            "fit / max(read, SYRK)": fit.wall / max(read.wall, syrk.wall),
            "the same in CPU time": fit.cpu / max(read.cpu, syrk.cpu),
            "fit / (read + SYRK)": fit.wall / (read.wall + syrk.wall),
            "the same in CPU time ": fit.cpu / (read.cpu + syrk.cpu),
            f"{len(many.nthreads())} workers against 1": _fit_cost(stack, cell, one).wall / fit.wall,
        }
        for name, value in measured.items():
            found.setdefault(name, []).append(value)
    per_cell = median(found["fit, s"]) / grid.n_partitions
    print(f"{cell} px, {len(many.nthreads())} workers, {rounds} rounds: {per_cell:.4f} s a cell", end="")
    print(f", {THESIS_SECONDS[cell] / per_cell:.0f} x faster than the thesis" if cell in THESIS_SECONDS else "")
    for name, values in found.items():
        print(f"  {name:24} median {median(values):6.2f}   from {min(values):6.2f} to {max(values):6.2f}", flush=True)


def _read_cost(source: Source, client: Any) -> Cost:
    """Read all tiles of the fit with 10 x 10 cells."""
    grid = CellGrid(tuple(source.shape[1:]), (10, 10))
    plan = plan_fold(source, grid, CovariancePCA(1), budget=2**31)
    calls = [(source, g.region, plan.batch_rows) for g in plan.groups]
    return _cost(client, lambda: _run(client, _read_region, calls))


def _read_region(source: Source, region: Any, rows: int) -> int:
    return sum(len(batch) for _, batch in batches(source, (0, source.shape[0]), region, rows))


def _syrk_cost(grid: CellGrid, n: int, client: Any) -> Cost:
    """Products of a tenth of the cells, of each size there is, scaled to all of them."""
    sizes = [grid.n_features(i) for i in range(grid.n_partitions)]
    blocks = math.ceil(n / ROWS)
    share = max(1, math.ceil(len(sizes) * blocks / 10))
    d = max(sizes)
    workers = len(client.nthreads())
    repeats = math.ceil(share / workers)
    kinds = [[(d, repeats, kind)] * workers for kind in ("matmul", "syrk")]
    best = min((_cost(client, lambda c=calls: _run(client, _products, c)) for calls in kinds), key=lambda c: c.cpu)
    flops = sum(size**2 for size in sizes) * n
    return best * (flops / (d**2 * ROWS * repeats * workers))


def _products(d: int, repeats: int, kind: str) -> None:
    x = np.random.default_rng(0).integers(-128, 128, (ROWS, d)).astype(np.float32)
    out = np.zeros((d, d), np.float32)
    for _ in range(repeats):
        if kind == "matmul":
            np.matmul(x.T, x, out=out)
        else:
            scipy.linalg.blas.ssyrk(1.0, x.T, beta=0.0, c=out.T, overwrite_c=True)


def _second_pass(stack: Stack, client: Any, folder: Path) -> None:
    """Compare the pass that writes scores, reconstructions and quality with the sum of its unavoidable parts."""
    source = as_source(stack)
    path, store = str((folder / "model.zarr").resolve()), str((folder / "scores.zarr").resolve())
    CellPCA(20, cell_shape=10).fit(stack, client=client).save(path)
    group = create_root(store, kind="cell-scores", fingerprint="benchmark")
    layout = choose_layout(stack.shape, stack.dtype.itemsize, stack.axes, (10, 10))
    rows, bounds = layout.shards[0], stack.data_range or (0, 1)
    began = time.perf_counter()
    records = Checkpoints(str((folder / "records").resolve()))
    job = WriteJob(source, path, model_fingerprint(path), store, stack.axes, rows, bounds, True, True, records)
    write_scores(job, group, client=client)
    whole = time.perf_counter() - began
    starts = range(0, stack.n_samples, rows)
    calls = [(source, start, min(start + rows, stack.n_samples)) for start in starts]
    read = _timed(client, _read_samples, calls)
    target = create_root(folder / "copy.zarr", kind="copy", fingerprint="benchmark")
    create_array(target, "reconstructions", stack.shape, stack.dtype, layout, stack.axes)
    scores = (stack.n_samples, 25, 25, 20)
    create_array(target, "scores", scores, np.float32, Layout((64, *scores[1:]), (rows, *scores[1:])), "sabk")
    where = str((folder / "copy.zarr").resolve())
    write = _timed(client, _write_samples, [(where, start) for _, start, _ in calls])
    # A quarter of the images, scaled: the time of an image does not depend on what it shows.
    workers = len(client.nthreads())
    share = math.ceil(stack.n_samples / 4 / workers)
    ssim = _timed(client, _ssim_of_noise, [(stack.sample_shape, share)] * workers)
    ssim *= stack.n_samples / (share * workers)
    print(
        f"second pass {whole:.1f} s; read {read:.1f} + write {write:.1f} + SSIM {ssim:.1f} s alone; "
        f"ratio {whole / (read + write + ssim):.2f}"
    )


def _read_samples(source: Source, start: int, stop: int) -> int:
    whole = tuple((0, s) for s in source.shape[1:])
    return sum(len(batch) for _, batch in batches(source, (start, stop), whole, stop - start))


def _write_samples(store: str, start: int) -> None:
    for name in ("reconstructions", "scores"):
        array = open_array(f"{store}/{name}", mode="r+")
        rows = min(array.shards[0], array.shape[0] - start)
        write_shard(array, start, np.ones((rows, *array.shape[1:]), array.dtype))


def _ssim_of_noise(shape: tuple[int, ...], n: int) -> None:
    x = np.random.default_rng(0).integers(0, 256, (32, *shape), dtype=np.uint8)
    y = x[::-1].copy()
    for _ in range(math.ceil(n / 32)):
        ssim_per_sample(x, y, data_range=255.0, n_spatial=2)


def _timed(client: Any, function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> float:
    began = time.perf_counter()
    _run(client, function, calls)
    return time.perf_counter() - began


def _run(client: Any, function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> None:
    client.gather([client.submit(function, *call, pure=False) for call in calls])


def _warm() -> None:
    import dpca.jobs  # noqa: F401  (imports are not what is measured)


if __name__ == "__main__":
    sys.exit(main())
