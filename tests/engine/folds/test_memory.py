"""No process uses more memory than planned, for stacks of any length."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from dpca.rules import IncrementalSVD
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.storage.arrays.layout import choose_layout
from tests.engine.folds.worker_memory import linked_stack
from tests.helpers.forked import Programs, printed_by

# Cells of 1,200 attributes: matrices of 11 MB, whose products and eigenvectors take a few seconds.
SHAPE = (20, 40, 3)
pytestmark = [
    pytest.mark.memory,
    pytest.mark.skipif(sys.platform != "linux", reason="the helper that makes stores is for Linux"),
]

_PROBE = """
import json, sys
import numpy as np
import psutil
from dpca.engine.folds.fold import fold
from dpca.engine.sources.source import as_source
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.kernels.algebra import integers
from dpca.partition import CellGrid, LappedGrid, SharedGrid, map_at_random
from dpca.rules import IncrementalSVD
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.rules.covariance.pooled_covariance import PooledBlocks, PooledCovariancePCA
from dpca.storage.run import Run
import dpca.engine.folds.plan, sys
path, partition, rule, k, threads = *sys.argv[1:4], *map(int, sys.argv[4:])
if threads > 1:
    sys.modules["dpca.engine.folds.plan"]._SHORT_TASK = 0  # what takes a moment is not worth any threads
small = np.random.default_rng(0).integers(0, 256, (64, 30, 30, 3), dtype=np.uint8)
integers.kernel(sys.maxsize)  # the code of kernels is no part of a plan
fold(CovariancePCA(2), as_source(small), CellGrid((30, 30, 3), (15, 15)))
source = as_source(path)
before = psutil.Process().memory_info().rss
shape, (kind, size) = tuple(source.shape[1:]), partition.split()
if kind == "cells":
    split = CellGrid(shape, (int(size),) * 2)
elif kind == "lapped":
    split = LappedGrid(shape, (int(size),) * 2, int(size) // 2)
else:
    split = map_at_random(shape, int(size), np.random.default_rng(0))
if rule == "pooled":
    split = SharedGrid(split)
if rule == "pooled-blocks":  # all cells of the upper half of a sample, and of the lower half
    split = SharedGrid(split, (-(-split.grid_shape[0] // 2), split.grid_shape[1]))
rules = {
    "covariance": lambda: CovariancePCA(k),
    "incremental-svd": lambda: IncrementalSVD(k),
    "pooled": lambda: PooledCovariancePCA(k, split.groups),
    "pooled-blocks": lambda: PooledBlocks(tuple(map(split.groups_in, range(split.n_parts)))),
}
_, report = fold(rules[rule](), source, split, run=Run(threads=threads))
assert report.plan.threads == threads
print(json.dumps({"grown": peak_resident_bytes() - before, "planned": report.plan.task_bytes}))
"""


def made(folder: Path, n: int, dtype: type) -> str:
    """Make a store of n samples of SHAPE."""
    layout = choose_layout((n, *SHAPE), np.dtype(dtype).itemsize, ("sample", "y", "x", "channel"), (20, 20))
    return linked_stack(folder, n, SHAPE, dtype, layout)


@pytest.mark.parametrize(
    ("dtype", "partition", "rule", "k", "threads"),
    [
        (np.uint8, "cells 10", "covariance", 20, 1),
        (np.float32, "cells 20", "covariance", 190, 1),
        (np.uint8, "lapped 10", "covariance", 20, 1),
        (np.uint8, "cells 20", "incremental-svd", 40, 1),
        (np.float32, "cells 8", "pooled", 20, 1),
        (np.uint8, "cells 12", "pooled", 20, 1),
        (np.float32, "cells 8", "pooled-blocks", 20, 1),
        (np.uint8, "bands 800", "covariance", 40, 1),
        (np.float32, "bands 800", "covariance", 40, 3),
    ],
)
def test_measured_stays_below_planned_and_does_not_grow_with_the_stack(
    dtype: type, partition: str, rule: str, k: int, threads: int, tmp_path: Path, programs: Programs
) -> None:
    def probe(path: str) -> tuple[int, int]:
        command = [sys.executable, "-c", _PROBE, path, partition, rule, str(k), str(threads)]
        found = json.loads(printed_by(programs, command))
        return found["grown"], found["planned"]

    full = (IncrementalSVD if rule == "incremental-svd" else CovariancePCA)(k).batch_rows(dtype)
    short, planned = probe(made(tmp_path, full, dtype))
    long, planned_long = probe(made(tmp_path, 3 * full, dtype))
    assert short <= planned
    assert long <= planned_long
    # The plan is not a number out of thin air, either; but memory that the first small fold gave back may be used
    # again, and then does not show as growth.
    assert planned_long < 3 * long + 64 * 2**20
    # One full batch or three: only the one read ahead comes on top.
    assert planned_long <= 1.5 * planned
