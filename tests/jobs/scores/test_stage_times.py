"""The times of stages add up to that of the run."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import dpca
from dpca.jobs import CompressionSettings, compress
from dpca.storage.run import Run
from tests.conftest import smooth_images

pytestmark = pytest.mark.usefixtures("small_pictures")


@pytest.mark.parametrize("goal", [None, {"psnr": 36.0}])
def test_all_seconds_between_start_and_report_belong_to_a_stage(goal: dict[str, float] | None, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", smooth_images(40, (32, 24, 3)))
    settings = CompressionSettings(dpca.CellPCA(4, cell_shape=8, random_state=0), goal=goal)
    before = time.time() - 7  # the program has imported libraries and opened a cluster for 7 seconds
    stages = compress(tmp_path / "a.npy", tmp_path / "out.zarr", settings, run=Run(started=before)).report["stages"]
    lasted = time.time() - before
    assert list(stages) == ["start", "ingest", "fit", "scores" if goal is None else "encode", "report"]
    assert stages["start"]["seconds"] > 7
    total = sum(stage["seconds"] for stage in stages.values())
    assert lasted - 1 < total <= lasted
