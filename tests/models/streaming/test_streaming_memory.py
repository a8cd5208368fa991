"""A streaming fit takes what was planned, shuffled or not, and no more of it when the stack is three times as long."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

from dpca.storage.arrays.layout import Layout
from tests.engine.folds.worker_memory import linked_stack
from tests.helpers.forked import Programs, printed_by

pytestmark = [
    pytest.mark.memory,
    pytest.mark.skipif(sys.platform != "linux", reason="the helper that makes stores is for Linux"),
]

_PROBE = """
import json, sys, warnings
import numpy as np
import psutil
from dpca import Run, StreamingPCA
from dpca.storage.remote.memory import peak_resident_bytes
one_task = Run(threads=1)  # what is planned is one task
warnings.simplefilter("ignore")
path, method, k = sys.argv[1], sys.argv[2], 10
options = {"random_state": 0, **json.loads(sys.argv[3])}
small = np.random.default_rng(0).integers(0, 256, (300, 12, 12), dtype=np.uint8)
StreamingPCA(k, method=method, **options).fit(small, run=one_task)
before = psutil.Process().memory_info().rss
model = StreamingPCA(k, method=method, **options).fit(path, run=one_task)
plan = model.fit_report_.plan
print(json.dumps({"grown": peak_resident_bytes() - before, "planned": plan.task_bytes, "seen": model.n_samples_seen_}))
"""
SHAPE, SHARD = (48, 48, 1), 2_000


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp("stacks")
    layout = Layout((500, *SHAPE), (SHARD, *SHAPE))
    return {n: linked_stack(folder, n, SHAPE, np.uint8, layout) for n in (16_000, 48_000)}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("incremental-svd", {}),
        ("block-power", {"shuffle": True}),
        ("implicit-krasulina", {"execution": "averaged", "n_streams": 4, "round_size": 1000}),
        ("oja", {"execution": "data-parallel", "batch_size": 2000}),
        ("implicit-krasulina", {"execution": "averaged", "n_streams": 4, "round_size": 1000, "shuffle": True}),
    ],
)
def test_measured_stays_below_planned_while_the_stack_grows(
    stacks: dict[int, str], method: str, options: dict[str, Any], programs: Programs
) -> None:
    probe = [sys.executable, "-c", _PROBE]
    short, long = (
        json.loads(printed_by(programs, [*probe, path, method, json.dumps(options)])) for path in stacks.values()
    )
    assert (short["seen"], long["seen"]) == (16_000, 48_000)
    assert short["grown"] <= short["planned"]
    assert long["grown"] <= long["planned"]
    assert long["planned"] <= 1.1 * short["planned"]
    # The window is held, and the plan says so.
    if "shuffle" in options:
        assert long["planned"] > 33e6
