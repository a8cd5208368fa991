"""The memory of a new worker in a fold, compared with the plan; for tests and benchmarks, on Linux.

Only there a process can forget its peak.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

from dpca.engine.clusters.cluster import open_client
from dpca.engine.folds.fold import fold
from dpca.engine.folds.plan import FoldPlan
from dpca.engine.sources.source import as_source
from dpca.partition import CellGrid
from dpca.storage.arrays.arrays import create_array, create_root, write_shard
from dpca.storage.arrays.layout import Layout, choose_layout
from dpca.storage.run import Run


def status(field: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def forget_peak() -> int:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return status("VmRSS:")


def linked_stack(folder: Path, n: int, sample: tuple[int, ...], dtype: Any, layout: Layout | None = None) -> str:
    """A store of n samples, of which only the first shard is on disk: the others are links to it."""
    axes, shape = ("sample", "y", "x", "channel")[: len(sample) + 1], (n, *sample)
    layout = layout or choose_layout(shape, np.dtype(dtype).itemsize, axes)
    root = create_root(
        folder / f"{n}.zarr", kind="stack", fingerprint=str(n), axes=list(axes), data_range=[0, 255], source={}
    )
    array = create_array(root, "samples", shape, dtype, layout, axes)
    rows = layout.shards[0]
    assert n % rows == 0
    write_shard(array, 0, np.random.default_rng(0).integers(0, 256, (rows, *sample)).astype(dtype))
    chunks = folder / f"{n}.zarr" / "samples" / "c"
    for shard in range(1, n // rows):
        (chunks / str(shard) / "/".join("0" * (len(sample) - 1))).mkdir(parents=True)
        os.link(chunks / "0" / "/".join("0" * len(sample)), chunks / str(shard) / "/".join("0" * len(sample)))
    return str(folder / f"{n}.zarr")


def measured(path: str, cell: tuple[int, ...], rule: Any, budget: int | None = None) -> tuple[int, FoldPlan]:
    """Growth of a new worker's peak above what it takes without data, and what was planned for one task."""
    with open_client(workers=1, memory="3GB") as client:
        small = da.zeros((20, 8, 8), chunks=(5, 8, 8), dtype=np.uint8)
        fold(rule, as_source(small), CellGrid((8, 8), (4, 4)), run=Run(client=client))
        source = as_source(path)
        client.run(import_module, "dpca.kernels.integer_products")  # numba alone takes 50 MB
        (before,) = client.run(forget_peak).values()
        _, report = fold(rule, source, CellGrid(source.shape[1:], cell), run=Run(client=client, memory=budget))
        (peak,) = client.run(status, "VmHWM:").values()
    assert before < report.peak_memory <= peak
    return peak - before, report.plan
