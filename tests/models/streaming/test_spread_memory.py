"""The memory of a basis that is spread over blocks: what was planned for each, and half of that of a single task."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.helpers.forked import Programs, printed_by

pytestmark = [
    pytest.mark.memory,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process forget its peak"),
]

SHAPE, N = (64, 128, 128), 90

_PROBE = """
import json, sys, warnings
import numpy as np
import psutil
from dpca import Run, StreamingPCA
from dpca.engine.folds.spread import spread_fold
from dpca.storage.remote.memory import peak_resident_bytes
warnings.simplefilter("ignore")
path, threads, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def fit(x, run, callback=None):
    options = dict(oversampling=15, batch_size=30, random_state=0)
    return StreamingPCA(5, **options).fit(x, run=run, callback=callback)
fit(np.random.default_rng(0).random((40, 12, 12), np.float32), Run(threads=1))
before = psutil.Process().memory_info().rss
model = fit(path, Run(threads=threads, memory=memory), (lambda progress: None) if len(sys.argv) > 4 else None)
plan = model.fit_report_.plan
print(json.dumps({
    "grown": peak_resident_bytes() - before, "planned": plan.task_bytes, "blocks": len(plan.groups),
    "caller": plan.caller_bytes, "components": model.components_.nbytes,
}))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("store") / "x.zarr")
    array = zarr.create_array(path, shape=(N, *SHAPE), chunks=(30, 4, 128, 128), dtype="f4")
    rng = np.random.default_rng(0)
    for start in range(0, N, 30):
        array[start : start + 30] = rng.random((30, *SHAPE), np.float32)
    return path


def probe(programs: Programs, *arguments: Any) -> dict[str, int]:
    found: dict[str, int] = json.loads(printed_by(programs, [sys.executable, "-c", _PROBE, *map(str, arguments)]))
    return found


def test_blocks_take_what_was_planned_for_them(store: str, programs: Programs) -> None:
    one = probe(programs, store, 1, 10**10)
    assert one["blocks"] == 1
    assert one["grown"] <= one["planned"] + one["caller"]
    for further in ([], ["callback"]):
        two = probe(programs, store, 2, int(0.75 * one["planned"]), *further)
        assert two["blocks"] == 2
        assert two["planned"] < (0.6 if not further else 0.75) * one["planned"]
        assert two["grown"] <= 2 * two["planned"] + two["caller"]
        assert two["grown"] <= 1.5 * one["grown"]


_ON_WORKERS = """
import json, sys
import numpy as np
import psutil
from dask.distributed import Client
from dpca import Run, StreamingPCA
from dpca.storage.remote.memory import peak_resident_bytes
def forget():
    open("/proc/self/clear_refs", "w").write("5")
    return psutil.Process().memory_info().rss
if __name__ == "__main__":
    with Client(n_workers=2, threads_per_worker=1, memory_limit="2GB", dashboard_address=None) as client:
        options = dict(oversampling=15, batch_size=30, random_state=0, execution="chain")
        small = np.random.default_rng(0).random((40, 12, 12), np.float32)
        StreamingPCA(5, **options).fit(small, run=Run(client=client))
        client.run(StreamingPCA(5, **options).fit, small, run=Run(threads=1))
        before = client.run(forget)
        model = StreamingPCA(5, **options).fit(sys.argv[1], run=Run(client=client, memory=int(sys.argv[2])))
        after = client.run(peak_resident_bytes)
        plan = model.fit_report_.plan
        grown = [after[at] - before[at] for at in before]
        print(json.dumps({"grown": max(grown), "planned": plan.task_bytes, "blocks": len(plan.groups)}))
"""


def test_a_worker_takes_half(store: str, tmp_path: Path, programs: Programs) -> None:
    one = probe(programs, store, 1, 10**10)
    program = tmp_path / "on_workers.py"
    program.write_text(_ON_WORKERS)
    memory = int(0.75 * one["planned"])
    two = json.loads(printed_by(programs, [sys.executable, str(program), store, str(memory)]).splitlines()[-1])
    assert two["blocks"] == 2
    assert two["grown"] <= two["planned"]
    assert two["grown"] <= 0.6 * (one["grown"] - one["components"])
