"""Fits to two fields take no more memory than they announce, and less than the fields."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import zarr

from tests.helpers.forked import Programs, printed_by

pytestmark = pytest.mark.memory

_PROBE = """
import json, sys
import numpy as np
import psutil
from dpca import MCA, Run
from dpca.engine.folds import fold as folds
from dpca.models.base import passes
from dpca.storage.remote.memory import peak_resident_bytes
solver, q, budget, paths = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
small = [np.random.default_rng(0).normal(size=(40, 30)) for _ in paths]
MCA(2, solver=solver, n_pca_modes=q, random_state=0).fit(*small).scores()
plans = []
def noted(*given, **named):
    found = folds.fold(*given, **named)
    plans.append(found[1].plan)
    return found
passes.fold = noted
before = psutil.Process().memory_info().rss
MCA(2, solver=solver, n_pca_modes=q, random_state=0, memory_budget=budget).fit(*paths, run=Run(threads=1))
planned = max(plan.task_bytes + plan.caller_bytes for plan in plans)
print(json.dumps({"grown": peak_resident_bytes() - before, "planned": planned}))
"""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Fields of few large samples, 320 MB, and of many small ones, 128 MB."""
    folder, rng = tmp_path_factory.mktemp("fields"), np.random.default_rng(0)
    found: dict[str, list[str]] = {}
    for name, shape in (("large", (200, 200_000)), ("many", (40_000, 400))):
        found[name] = [str(folder / f"{name}-{i}") for i in range(2)]
        for path in found[name]:
            stored = zarr.create_array(path, shape=shape, chunks=(shape[0] // 50, shape[1] // 4), dtype="f4")
            stored[:] = rng.standard_normal(shape, np.float32)
    return found


@pytest.mark.parametrize(
    ("solver", "q", "budget", "size"),
    [
        ("covariance", None, 150, "many"),
        ("dual", None, 150, "large"),
        ("streaming", 5, 250, "many"),
    ],
)
def test_measured_stays_below_planned(
    solver: str, q: int | None, budget: int, size: str, paths: dict[str, list[str]], programs: Programs
) -> None:
    """The plan of passes does not count the blocks of 32 MiB from which "streaming" computes its time series."""
    given = [solver, json.dumps(q), str(budget * 10**6), *paths[size]]
    found = json.loads(printed_by(programs, [sys.executable, "-c", _PROBE, *given]))
    assert found["grown"] <= (budget * 10**6 if solver == "streaming" else found["planned"])
    assert found["planned"] <= 1.5 * budget * 10**6
