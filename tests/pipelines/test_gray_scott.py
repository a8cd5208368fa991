"""The simulation that is followed: its patterns live, and a run that was stopped goes on to the same bytes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from dpca.pipelines.gray_scott import main, simulate
from dpca.storage import open_stack
from tests.storage.transaction.jobs_to_kill import tree


def test_patterns_live() -> None:
    first, last = (frame.copy() for frame in islice(simulate(24, 40), 0, 21, 20))
    assert 0 <= last.min() < 0.05 < 0.2 < last.max() < 1
    assert np.abs(last - first).max() > 0.1
    np.testing.assert_array_equal(next(simulate(24, 40)), first)


def test_a_run_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(target: Path) -> int:
        return main([str(target), "--side", "8", "--frames", "9", "--steps", "3"])

    assert run(tmp_path / "calm" / "run.zarr") == 0

    def stopped(*how: int) -> object:
        yield from islice(simulate(*how), 5)
        raise OSError("the power went out")

    with monkeypatch.context() as patch:
        patch.setattr("dpca.pipelines.gray_scott.simulate", stopped)
        assert run(tmp_path / "run.zarr") != 0
    assert run(tmp_path / "run.zarr") == 0
    assert tree(tmp_path / "run.zarr") == tree(tmp_path / "calm" / "run.zarr")
    assert open_stack(tmp_path / "run.zarr").samples.shape == (9, 8, 8, 8)
