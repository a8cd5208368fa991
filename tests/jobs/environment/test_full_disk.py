"""A disk that becomes full at any write of any job: one error, no partial output, and the same call resumes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dpca.cli import main as dpca_main
from dpca.pipelines.celeba_cpca import main as job
from tests.conftest import smooth_images
from tests.helpers.forked import Programs, printed_by

#: Of how many writes the disk is full from one on; 1 tries every one (`disk_to_fill.py` says how).
EVERY = {
    "ingest": 9,
    "save CellPCA": 19,
    "save BandPCA": 19,
    "save StreamingPCA": 19,
    "save PCA": 19,
    "fit cells": 11,
    "fit stream": 19,
    "transform": 19,
    "reconstruct": 11,
    "compress cells": 47,
    "compress stream": 61,
    "convergence": 29,
}


@pytest.mark.parametrize("name", EVERY)
def test_a_disk_that_is_full_from_any_write_on(name: str, tmp_path: Path, programs: Programs) -> None:
    command = [sys.executable, str(Path(__file__).with_name("disk_to_fill.py")), str(tmp_path), name, str(EVERY[name])]
    assert int(printed_by(programs, command)) >= 10  # writes


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.usefixtures("small_pictures")
def test_a_small_disk_and_workers_of_a_cluster(
    small_disk: Path, tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "a.npy", smooth_images(300, (40, 36, 3)))
    where = ["--scheduler", scheduler]
    stack, model, scores = (str(tmp_path / name) for name in ("s", "m", "sc"))
    assert dpca_main(["ingest", str(tmp_path / "a.npy"), stack, *where]) == 0
    assert dpca_main(["fit", stack, model, "--cell", "10", "--components", "30", *where]) == 0
    assert dpca_main(["transform", model, stack, scores, *where]) == 0
    ballast = small_disk / "ballast"
    for name, command, argv in (
        ("again", dpca_main, ["reconstruct", model, scores]),
        ("fitted", dpca_main, ["fit", stack]),
        ("moved", dpca_main, ["transform", model, stack]),
        ("done", job, ["--source", str(tmp_path / "a.npy"), "--cell", "10", "--components", "3"]),
    ):
        target = small_disk / name
        options = ["--cell", "10", "--components", "30"] if argv[0] == "fit" else []
        named = ["--output", str(target)] if command is job else [str(target)]
        for free in (5_000, 300_000):
            ballast.write_bytes(b"x" * (shutil.disk_usage(small_disk).free - free))
            capsys.readouterr()
            assert command([*argv, *named, *options, *where]) == 4
            error = capsys.readouterr().err
            assert re.match(r"error: .*(the disk is full| free: )", error)
            assert error.count("\n") == 1
            assert not target.exists()
            ballast.unlink()
        assert command([*argv, *named, *options, *where]) == 0
        shutil.rmtree(target)
        shutil.rmtree(small_disk / f"{name}.report", ignore_errors=True)
