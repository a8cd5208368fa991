"""What the pass that writes scores, reconstructions and quality costs beside its unavoidable parts; and the whole job.

    python tests/benchmarks/speed/scores_speed.py --source lfw-deepfunneled-00.tar

The pass is held against reading, the products that encode and decode, SSIM and writing; the whole job, report included,
against the bounds of ingest, fit and scores together.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr

from dpca import CellPCA
from dpca.engine.sources.source import as_source, batches
from dpca.jobs import CompressionSettings, compress
from dpca.jobs.scores.transform import transform_store
from dpca.kernels.quality import ssim_per_sample
from dpca.partition import CellGrid
from dpca.storage import Stack
from dpca.storage.arrays.arrays import create_array, create_root, write_shard
from dpca.storage.arrays.layout import Layout
from dpca.storage.remote.tasks import one_blas_thread
from tests.benchmarks.inputs import CELL, Inputs
from tests.benchmarks.sides import Clock, Line, Seconds, alone, at_most, in_turn, ratio_of
from tests.benchmarks.speed import fit_speed, ingest_speed

_K = fit_speed.CELLS[CELL][0]
_PARTS = ("read", "products", "fused SSIM", "write")
# Photographs of the pass: what one takes does not depend on their number.
_SAMPLES = 2048


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure the pass."""
    few = _few(inputs)
    _pass(inputs, few)  # the first one compiles
    rounds = [_pass(inputs, few) | bound(inputs, few) for _ in range(inputs.rounds)]
    found = ratio_of(rounds, ["scores pass"], _PARTS)
    where = f"stack of {few.sample_shape}, cells of {CELL}, k = {_K}"
    yield at_most(1.8, name="scores pass", where=where, n=few.n_samples, **found)


def job_lines(inputs: Inputs) -> Iterator[Line]:
    """Measure the whole job."""
    stack, few = inputs.stack, _few(inputs)
    _pass(inputs, few)
    rounds = in_turn({"job": lambda: _job(inputs), **ingest_speed.bound(inputs)}, inputs.rounds)
    for each in rounds:
        fit, scores = fit_speed.bound(stack, CELL, _K), bound(inputs, few)
        each["fit's bound"] = fit["read"] + fit["integer products"]
        each["scores' bound"] = sum(scores[part] for part in _PARTS) * stack.n_samples / few.n_samples
    found = ratio_of(rounds, ["job"], ["turbo decode", "write files", "fit's bound", "scores' bound"])
    where = f"JPEGs of {stack.sample_shape}, cells of {CELL}, k = {_K}"
    yield at_most(None, name="whole job", where=where, n=stack.n_samples, **found)


def _few(inputs: Inputs) -> Stack:
    few = inputs.few(min(_SAMPLES, inputs.stack.n_samples))
    if not (inputs.folder / "model.zarr").exists():
        CellPCA(_K, cell_shape=CELL).fit(few).save(inputs.folder / "model.zarr")
    return few


def _job(inputs: Inputs) -> None:
    settings = CompressionSettings(CellPCA(_K, cell_shape=CELL), reconstruct=True)
    done = compress(inputs.photographs, inputs.folder / "job.zarr", settings)
    shutil.rmtree(inputs.folder / "job.zarr")
    shutil.rmtree(done.folder)


def _pass(inputs: Inputs, few: Stack) -> Seconds:
    clock, target = Clock(), inputs.folder / "scores.zarr"
    shutil.rmtree(target, ignore_errors=True)
    clock("scores pass", lambda: transform_store(few, inputs.folder / "model.zarr", target, reconstruct=True))
    return clock.seconds


def bound(inputs: Inputs, few: Stack) -> Seconds:
    """Return the processor seconds of what the pass cannot do without, once `_pass` has run."""
    clock, source, shape, n = Clock(), as_source(few), tuple(few.sample_shape), few.n_samples
    made = zarr.open_group(inputs.folder / "scores.zarr", mode="r")
    rows = made["reconstructions"].shards[0]
    shutil.rmtree(inputs.folder / "copy.zarr", ignore_errors=True)
    copies = create_root(inputs.folder / "copy.zarr", kind="copy", fingerprint="benchmark")
    arrays = [_copy_of(copies, made[name]) for name in ("scores", "reconstructions")]
    region, grid = tuple((0, length) for length in shape), CellGrid(shape, (CELL, CELL))
    with one_blas_thread():
        for start in range(0, n, rows):
            stop = min(start + rows, n)
            x = clock("read", lambda at=(start, stop): next(batches(source, at, region, rows))[1])
            scores, pixels = (array[start:stop] for array in (made["scores"], made["reconstructions"]))
            clock("products", lambda m=stop - start: _products(grid, m, _K))
            clock("fused SSIM", lambda x=x, y=pixels: ssim_per_sample(x, y, data_range=255.0, n_spatial=2))
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
        for _ in range(grid.n_parts):
            np.matmul(x[:m], columns, out=scores[:m])
            np.matmul(scores[:m], rows, out=decoded[:m])


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
