"""Fit and scores pass of cell PCA against what they cannot do without; prints ratios of processor time, and the rest.

    taskset -c 0 python tests/benchmarks/fit_bounds.py --stack lfw.zarr       (default: LFW from ../shared/data)
    taskset -c 0 python tests/benchmarks/fit_bounds.py --stack lfw.zarr --cells 10 --rounds 5

A fit is held against reading the stack and the integer products X^T X of its cells, already in memory. Where the rest
goes is measured on some groups of cells, whose fit is made step by step. The scores pass is held against reading,
the products that encode and decode, SSIM and writing. All sides take turns, since the speed of a machine with neighbors
drifts, and medians count. On one processor no side pays for threads that disturb each other.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import zarr

from dpca import CellPCA
from dpca.engine.fold import plan_for
from dpca.engine.plan import FoldPlan, Group
from dpca.engine.source import Source, as_source, batches
from dpca.jobs.transform import transform_store
from dpca.kernels import linalg_int8
from dpca.kernels.linalg import gram_lower
from dpca.kernels.quality import ssim_per_sample
from dpca.partition import CellGrid
from dpca.rules.covariance import CovariancePCA
from dpca.storage import Stack, ingest, open_stack
from dpca.storage.arrays import create_array, create_root, write_shard
from dpca.storage.layout import Layout
from dpca.storage.progress import bar_progress
from dpca.storage.tasks import one_blas_thread

Seconds = dict[str, float]

# Side of the cells of the scores pass.
CELL = 10


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stack", help="stack store of 8-bit images (default: LFW, ingested)")
    parser.add_argument("--cells", type=int, nargs="+", default=[5, 10, 25])
    parser.add_argument("--components", type=int, default=20)
    parser.add_argument("--groups", type=int, default=3, help="groups of cells that are fitted step by step")
    parser.add_argument("--samples", type=int, default=2048, help="images of the scores pass")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("products of 8-bit pixels:", "integers, by MKL" if linalg_int8.is_available() else "floats")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        stack = open_stack(options.stack) if options.stack else _lfw(Path(folder))
        for cell in options.cells:
            rounds = [_fit(stack, cell, options.components, options.groups) for _ in range(options.rounds)]
            _print(f"fit, cells of {cell}", ("read", "integer products"), rounds, stack.n_samples)
        np.save(Path(folder) / "few.npy", stack.samples[: options.samples])
        few = ingest(Path(folder) / "few.npy", Path(folder) / "few.zarr", cell_shape=CELL)
        CellPCA(options.components, cell_shape=CELL).fit(few).save(Path(folder) / "model.zarr")
        rounds = [_scores_pass(few, Path(folder), options.components) for _ in range(options.rounds + 1)]
        bound = ("read", "products", "SSIM", "write")
        _print(f"scores pass, cells of {CELL}", bound, rounds[1:], few.n_samples)  # the first one loads code
    return 0


def _lfw(folder: Path) -> Stack:
    tars = sorted((Path(__file__).parents[3] / "shared" / "data").glob("lfw-deepfunneled-*.tar"))
    if not tars:
        sys.exit("LFW is not in ../shared/data: give a stack store with --stack")
    return ingest(tars, folder / "lfw.zarr", cell_shape=CELL, progress=bar_progress)


def _print(what: str, bound: tuple[str, ...], rounds: list[Seconds], n: int) -> None:
    ratios = [each["whole"] / sum(each[part] for part in bound) for each in rounds]
    print(f"{what}: {median(ratios):.2f} x ({' + '.join(bound)}), from {min(ratios):.2f} to {max(ratios):.2f}")
    each = {name: median(found[name] for found in rounds) / n * 1e3 for name in rounds[0]}
    each["not attributed"] = each["whole"] - sum(each[name] for name in each if name != "whole")
    print("  ms an image:", ", ".join(f"{name} {ms:.3f}" for name, ms in each.items()), flush=True)


@dataclass
class Clock:
    """Adds up the processor seconds of what it runs, of all threads, by name."""

    seconds: Seconds

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        """Run and return what that returns."""
        began = time.process_time()
        result = work()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began
        return result


def _fit(stack: Stack, cell: int, k: int, n_groups: int) -> Seconds:
    whole, parts = Clock({}), Clock({})
    whole("whole", lambda: CellPCA(k, cell_shape=cell).fit(stack))
    source, rule = as_source(stack), CovariancePCA(k)
    grid = CellGrid(tuple(stack.sample_shape), (cell, cell))
    plan = plan_for(rule, source, grid)
    some = plan.groups[:: max(1, len(plan.groups) // n_groups)]
    with one_blas_thread():
        for group in some:
            _fit_group(parts, source, grid, rule, plan, group)
    # Sizes of groups differ where cells do not divide the sample.
    share = sum(grid.n_features(i) for group in some for i in group.partitions) / np.prod(stack.sample_shape)
    return whole.seconds | {name: seconds / share for name, seconds in parts.seconds.items()}


def _fit_group(clock: Clock, source: Source, grid: CellGrid, rule: CovariancePCA, plan: FoldPlan, group: Group) -> None:
    """Fit some cells step by step; the products, which are a part of the updates, are made once more alone."""
    members, origin = group.partitions, tuple(start for start, _ in group.region)
    buffer = np.empty(plan.batch_rows * sum(map(grid.n_features, members)), source.dtype)
    states = [rule.init(grid.n_features(i), source.dtype) for i in members]
    reading = (batches(source, segment, group.region, plan.batch_rows) for segment in plan.segments)
    coming = itertools.chain.from_iterable(reading)
    while True:
        # The thread that reads ahead works on while this one waits for it.
        _, batch = clock("read", lambda: next(coming, (0, None)))
        if batch is None:
            break
        clock("read", lambda: time.sleep(0.05))
        parts = clock("split", lambda b=batch: grid.split(b, members, origin, buffer))
        before = clock.seconds.get("integer products", 0.0)
        clock("integer products", lambda p=parts: [_product(part) for part in p])
        began = time.process_time()
        states = [rule.update(state, part) for state, part in zip(states, parts, strict=True)]
        rest = time.process_time() - began - (clock.seconds["integer products"] - before)
        clock.seconds["adding up"] = clock.seconds.get("adding up", 0.0) + rest
    clock("eigenproblems", lambda: [rule.finish(state) for state in states])


def _product(part: Any) -> None:
    if linalg_int8.is_available():
        linalg_int8.gram_lower(part)
    else:
        values = part.astype(np.float32)
        gram_lower(values, np.empty((part.shape[1],) * 2, np.float32))


def _scores_pass(stack: Stack, folder: Path, k: int) -> Seconds:
    clock, model, target = Clock({}), folder / "model.zarr", folder / "scores.zarr"
    shutil.rmtree(target, ignore_errors=True)
    clock("whole", lambda: transform_store(stack, model, target, reconstruct=True))
    source, shape, n = as_source(stack), tuple(stack.sample_shape), stack.n_samples
    made = zarr.open_group(target, mode="r")
    rows = made["reconstructions"].shards[0]
    copies = create_root(folder / "copy.zarr", kind="copy", fingerprint="benchmark")
    arrays = [_copy_of(copies, made[name]) for name in ("scores", "reconstructions")]
    region, grid = tuple((0, length) for length in shape), CellGrid(shape, (CELL, CELL))
    with one_blas_thread():
        for start in range(0, n, rows):
            stop = min(start + rows, n)
            x = clock("read", lambda at=(start, stop): next(batches(source, at, region, rows))[1])
            scores, pixels = (array[start:stop] for array in (made["scores"], made["reconstructions"]))
            clock("products", lambda m=stop - start: _products(grid, m, k))
            clock("SSIM", lambda x=x, y=pixels: ssim_per_sample(x, y, data_range=255.0, n_spatial=2))
            for array, values in zip(arrays, (scores, pixels), strict=True):
                clock("write", lambda a=array, at=start, v=values: write_shard(a, at, v))
    return clock.seconds


def _copy_of(group: zarr.Group, array: zarr.Array[Any]) -> zarr.Array[Any]:
    layout = Layout(array.chunks, array.shards or array.chunks)
    return create_array(group, array.basename, array.shape, array.dtype, layout, array.metadata.dimension_names)


def _products(grid: CellGrid, n: int, k: int) -> None:
    """Encode and decode the cells of samples, at a time as many as stay in the cache."""
    d, step = grid.max_features, 64
    x, rows = np.ones((step, d), np.float32), np.ones((k, d), np.float32)
    columns, scores, decoded = rows.T.copy(), np.empty((step, k), np.float32), np.empty_like(x)
    for start in range(0, n, step):
        m = min(step, n - start)
        for _ in range(grid.n_partitions):
            np.matmul(x[:m], columns, out=scores[:m])
            np.matmul(scores[:m], rows, out=decoded[:m])


if __name__ == "__main__":
    sys.exit(main())
