"""The report of a store with an error bound states the bound, and the largest error of its decoded values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpca import open_compressed
from dpca.cli import main
from dpca.report.record import read_report


@pytest.mark.usefixtures("small_pictures")
def test_the_largest_error_and_its_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    y, x = np.mgrid[:12, :16] / 5.0
    steps = np.stack([np.sin(x - t / 3) * np.cos(2 * y) for t in range(20)]).astype("f4")
    np.save(tmp_path / "run.npy", steps)
    arguments = ["--cell", "6", "--quality", "max-error=0.02"]
    assert main(["compress", str(tmp_path / "run.npy"), str(tmp_path / "small.zarr"), *arguments]) == 0
    printed = capsys.readouterr().out
    errors = np.abs(open_compressed(tmp_path / "small.zarr")[...].astype(float) - steps).reshape(20, -1).max(axis=1)
    report = read_report(tmp_path / "small.report")
    assert report is not None
    assert report["error_bound"] == 0.02
    assert report["max_error"] == pytest.approx(errors.max(), rel=1e-6)
    assert errors[int(report["max_error_name"])] == pytest.approx(errors.max(), rel=1e-6)
    assert f"largest error {errors.max():.4g}, promised 0.02" in printed
