"""The convergence report as a user runs it: store, numbers, figures; stopped, repeated, refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from PIL import Image

from dpca.metrics import convergence
from dpca.pipelines.convergence_report import main
from dpca.pipelines.studies.convergence import study as job
from dpca.pipelines.studies.convergence.study import ConvergenceSettings, report_convergence
from dpca.storage import open_stack, verify
from dpca.storage.errors import DataError
from tests.conftest import smooth_images

METHODS = ("incremental-svd", "accelerated-block-power", "oja")


@pytest.fixture
def stack(tmp_path: Path) -> str:
    zarr.create_array(str(tmp_path / "x.zarr"), data=smooth_images(300, (12, 10, 3)), chunks=(64, 12, 10, 3))
    return str(tmp_path / "x.zarr")


def test_numbers_are_those_of_the_rules(stack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.zarr"
    argv = ["--source", stack, "--output", str(output), "--components", "4", "--batch", "50", "--points", "4"]
    assert main([*argv, "--methods", *METHODS]) == 0
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    x = open_stack(stack).samples[...].reshape(300, -1).astype(np.float64)
    best = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[2][:4]
    assert [line["rule"] for line in report["rules"]] == list(METHODS)
    assert report["samples"] == 300
    assert report["reference"] == "dual"
    for line in report["rules"]:
        assert line["samples"] == [50, 100, 150, 300]
        assert line["seconds"] == sorted(line["seconds"])
        # The program scales pixels to 0..1 and seeds its rules with 0.
        seen = (x[:150] / 255).astype(np.float32)
        rule = job.make_rule(line["rule"], 4, center=True, options={}, batch_size=50, seed=0)
        found = rule.finish(rule.update(rule.init(360, np.float32), seen))
        assert line["convergence"][2] == pytest.approx(convergence(found["components"], best, x), abs=0.01)
    group = zarr.open_group(str(output), mode="r")
    np.testing.assert_array_equal(group["samples"][...], [50, 100, 150, 300])
    np.testing.assert_allclose(group["convergence"][...], [line["convergence"] for line in report["rules"]])
    assert list(group["rule"][...]) == list(METHODS)
    assert verify(output) == []
    for picture in ("convergence_samples", "convergence_seconds"):
        with Image.open(tmp_path / "out.report" / f"{picture}.png") as image:
            assert image.size[0] > 1000
    page = (tmp_path / "out.report" / "index.html").read_text()
    assert "accelerated-block-power" in page
    assert "4 principal components." in page
    printed = capsys.readouterr().out
    assert printed.index("incremental-svd   ") < printed.index("oja   ")


@pytest.mark.usefixtures("small_pictures")
def test_the_same_command_twice_does_nothing(stack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--source", stack, "--output", str(tmp_path / "out.zarr"), "--methods", "ccipca", "--components", "2"]
    assert main(argv) == 0
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    capsys.readouterr()
    assert main(argv) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == stamps
    assert main([*argv[:-1], "3"]) == 4


@pytest.mark.usefixtures("small_pictures")
def test_a_stopped_run_goes_on_after_the_last_rule(stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ConvergenceSettings(METHODS, 3, 50, 3)
    ran: list[str] = []
    real = job.run_rule

    def fragile(*args: Any, stage: str, **options: Any) -> Any:
        if stage == "oja" and "oja" not in ran:
            ran.append(stage)
            raise KeyboardInterrupt
        ran.append(stage)
        return real(*args, stage=stage, **options)

    monkeypatch.setattr(job, "run_rule", fragile)
    with pytest.raises(KeyboardInterrupt):
        report_convergence(open_stack(stack), tmp_path / "out.zarr", settings)
    assert not (tmp_path / "out.zarr").exists()
    report, already = report_convergence(open_stack(stack), tmp_path / "out.zarr", settings)
    assert ran == [*METHODS, "oja"]
    assert not already
    assert [len(line["convergence"]) for line in report["rules"]] == [3, 3, 3]


@pytest.mark.usefixtures("small_pictures")
def test_a_rule_that_diverges_is_in_the_table(
    stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = job.make_rule

    def unstable(method: str, k: int, **options: Any) -> Any:
        if method != "sanger":
            return real(method, k, **options)
        from dpca.rules import Constant, Sanger
        from dpca.rules.base.minibatch import InBatches

        return InBatches(Sanger(k, Constant(500.0), unit=1.0), 50)

    monkeypatch.setattr(job, "make_rule", unstable)
    argv = ["--source", stack, "--output", str(tmp_path / "out.zarr"), "--methods", "sanger", "ipca"]
    assert main([*argv, "--components", "2"]) == 0
    assert "Sanger diverged" in capsys.readouterr().out
    line = json.loads((tmp_path / "out.report" / "report.json").read_text())["rules"][0]
    assert "diverged" in line["failure"]


@pytest.mark.usefixtures("small_pictures")
def test_images_are_ingested_in_random_order_if_asked(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    output = tmp_path / "out.zarr"
    argv = ["--source", str(image_folder(40)), "--output", str(output), "--methods", "ipca", "--components", "2"]
    assert main([*argv, "--shuffle", "3", "--batch", "10", "--resize", "20x18"]) == 0
    names = open_stack(output / "stack").names.tolist()
    assert sorted(names) == [f"photo-{i:04d}.png" for i in range(40)]
    assert names != sorted(names)
    assert open_stack(output / "stack").sample_shape == (20, 18, 3)
    assert verify(output) == []


def test_as_a_program(stack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = [sys.executable, "pipelines/convergence_report.py"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    argv = ["--source", stack, "--output", str(tmp_path / "out.zarr"), "--methods", "incremental-svd"]
    command = [*program, *argv, "--components", "3"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "incremental-svd" in done.stdout
    assert main(["--source", stack, "--output", str(tmp_path / "b.zarr"), "--components", "300"]) == 3
    told = capsys.readouterr().err
    assert told.startswith("error: 300 components of 300 samples")
    assert told.count("\n") == 1
    assert not (tmp_path / "b.zarr").exists()
    assert main(["--source", str(tmp_path / "nothing")]) == 3


def test_settings_that_make_no_sense_are_refused(stack: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="points"):
        report_convergence(open_stack(stack), tmp_path / "out.zarr", ConvergenceSettings(points=0))
    with pytest.raises(DataError, match="method"):
        report_convergence(open_stack(stack), tmp_path / "out.zarr", ConvergenceSettings(methods=("pca",)))
    assert not list(tmp_path.glob("out*"))
