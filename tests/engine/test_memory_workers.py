"""What a worker of a cluster really takes, task after task, beside what was planned for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

from dpca.engine.cluster import open_client
from dpca.engine.fold import fold
from dpca.engine.plan import FoldPlan, plan_fold
from dpca.engine.source import ZarrSource, as_source
from dpca.partition import CellGrid
from dpca.rules.covariance import CovariancePCA
from dpca.rules.moments import Moments
from dpca.storage.arrays import create_array, create_root, write_shard
from dpca.storage.layout import Layout, choose_layout

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process forget its peak")


def status(field: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def forget_peak() -> int:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return status("VmRSS:")


def stack(folder: Path, n: int, sample: tuple[int, ...], dtype: Any, layout: Layout | None = None) -> str:
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


def measure(path: str, cell: tuple[int, ...], rule: Any, budget: int | None = None) -> tuple[int, FoldPlan]:
    """Growth of a new worker's peak above what it takes without data, and what was planned for one task."""
    with open_client(workers=1, memory="3GB") as client:
        small = da.zeros((20, 8, 8), chunks=(5, 8, 8), dtype=np.uint8)
        fold(rule, as_source(small), CellGrid((8, 8), (4, 4)), client=client)
        source = as_source(path)
        (before,) = client.run(forget_peak).values()
        _, report = fold(rule, source, CellGrid(source.shape[1:], cell), client=client, budget=budget)
        (peak,) = client.run(status, "VmHWM:").values()
    assert before < report.peak_memory <= peak
    print(f"measured {(peak - before) / 1e6:.0f} MB, planned {report.plan.task_bytes / 1e6:.0f} MB")  # shown on failure
    return peak - before, report.plan


def test_a_long_stack_takes_no_more_than_was_planned_for_a_tenth_of_it(tmp_path: Path) -> None:
    layout = Layout((256, 30, 30, 3), (512, 60, 60, 3))
    grid, rule = CellGrid((60, 60, 3), (5, 5)), CovariancePCA(3)
    n = rule.batch_rows(np.uint8)
    tenth = ZarrSource("nowhere", (n, 60, 60, 3), np.dtype(np.uint8), layout.chunks)
    short = plan_fold(tenth, grid, rule, budget=2**30)
    grown, plan = measure(stack(tmp_path, 10 * n, (60, 60, 3), np.uint8, layout), (5, 5), rule)
    assert 30e6 < grown <= plan.task_bytes <= short.task_bytes


def test_foreign_chunks_of_one_image_in_little_memory(tmp_path: Path) -> None:
    """Every group has to decode whole images to get at its cells."""
    path = stack(tmp_path, 300, (128, 96, 3), np.float32, Layout((1, 128, 96, 3), (60, 128, 96, 3)))
    grown, plan = measure(path, (12, 12), CovariancePCA(4), budget=100 * 2**20)
    assert len(plan.groups) > 2
    assert 30e6 < grown <= plan.task_bytes <= 100 * 2**20


def test_moments_of_large_batches(tmp_path: Path) -> None:
    path = stack(tmp_path, 2048, (128, 96), np.float32)
    grown, plan = measure(path, (128, 96), Moments())
    assert 80e6 < grown <= plan.task_bytes
