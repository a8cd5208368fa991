"""The rules of `PCA` take no more memory than they announce to the planner."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.helpers.forked import Programs, printed_by

pytestmark = pytest.mark.memory

_PROBE = """
import json, sys
import numpy as np
import psutil
from dpca.engine.folds.fold import fold
from dpca.engine.sources.source import as_source
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.partition.whole import Whole
from dpca.rules.covariance.covariance_product import RayleighRitz
from dpca.rules.dual.components import DualComponents
from dpca.rules.dual.gram import BlockGram
from dpca.rules.base.minibatch import InBatches
from dpca.rules.covariance.vr_pca import VRPCA
from dpca.kernels.gaps import LowRank
from dpca.rules.gaps.expectation import GapEM
from dpca.rules.gaps.present import PresentMoments
from dpca.storage.run import Run
n, d, name = 600, 40_000, sys.argv[2]
rng = np.random.default_rng(0)

def rule(n, d):
    rows = np.linalg.qr(rng.random((d, 40), np.float32))[0].T.copy()
    return {
        "gram": lambda: BlockGram(n),
        "dual": lambda: DualComponents(rng.random((38, n)), np.dtype(np.float32)),
        "ritz": lambda: RayleighRitz(rows, np.zeros(d), n_components=30),
        "vr-pca": lambda: InBatches(VRPCA(rows, rows, np.zeros(d), 0.1), 20),
        "gaps": lambda: GapEM(12, (LowRank(rows[:12], np.ones(12), np.zeros(d), 1.0),), 0, 0.02),
        "present": lambda: PresentMoments(0),
    }[name]()

fold(rule(64, 1000), as_source(np.ones((64, 1000), np.uint8)), Whole((1000,)))
wanted, source = rule(n, d), as_source(sys.argv[1])
before = psutil.Process().memory_info().rss
_, report = fold(wanted, source, Whole((d,)), run=Run(threads=1))
print(json.dumps({"grown": peak_resident_bytes() - before, "planned": report.plan.task_bytes}))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stored = tmp_path_factory.mktemp("stack") / "x.zarr"
    samples = np.random.default_rng(0).integers(0, 256, (600, 40_000), dtype=np.uint8)
    zarr.create_array(str(stored), data=samples, chunks=(25, 40_000))
    return stored


@pytest.mark.parametrize("rule", ["gram", "dual", "ritz", "vr-pca", "gaps", "present"])
def test_measured_stays_below_planned(path: Path, rule: str, programs: Programs) -> None:
    found = json.loads(printed_by(programs, [sys.executable, "-c", _PROBE, str(path), rule]))
    assert found["grown"] <= found["planned"]
    # A forked program also uses memory that its parent has freed: as little as 17 MB were new.
    assert found["planned"] < 6 * found["grown"] + 128 * 2**20
