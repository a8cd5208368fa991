"""Seconds a cell: every column is there, and both ways find the same components."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from dpca.engine.folds import device as devices
from dpca.engine.folds.device import Device
from dpca.pipelines.studies.partitions.device_speed import TABLE_4_3, cell_speeds
from dpca.storage import ingest
from tests.conftest import smooth_images

CASES = TABLE_4_3[:2]


def test_without_an_accelerator_its_column_is_empty() -> None:
    found = list(cell_speeds(smooth_images(60, (20, 25, 3)), None, CASES))
    assert [speed.case for speed in found] == list(CASES)
    assert all(speed.cpu > 0 and speed.gpu is None and speed.apart is None for speed in found)


def test_both_find_the_same_components() -> None:
    pytest.importorskip("torch")
    device = Device("torch", "cpu", "processor")
    for speed in cell_speeds(smooth_images(60, (20, 25, 3)), device, CASES):
        assert speed.gpu is not None
        assert speed.apart is not None
        assert speed.gpu > 0
        assert speed.apart < 1e-8


def test_the_command_says_that_there_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if devices.find_device() is not None:
        pytest.skip("an accelerator is here")
    np.save(tmp_path / "few.npy", smooth_images(60, (20, 25, 3)))
    ingest(tmp_path / "few.npy", tmp_path / "few.zarr")
    monkeypatch.chdir(tmp_path)
    script = Path(__file__).parents[1] / "benchmarks" / "gpu_cells.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--stack", str(tmp_path / "few.zarr"), "--cells", "5", "10"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "no GPU was found (torch.cuda or CuPy): only the processors are measured"
    assert [line.split()[0] for line in lines[-2:]] == ["5x5x3", "10x10x3"]
    for line, case in zip(lines[-2:], TABLE_4_3[:2], strict=True):
        assert line.split()[3:6] == ["-", str(case.published.cpu), str(case.published.gpu)]
