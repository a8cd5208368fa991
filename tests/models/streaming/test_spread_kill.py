"""SIGKILL of the program, or of a worker with a block of a basis: the next run ends with the bytes of a calm one."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.conftest import smooth_images
from tests.helpers.forked import Program, Programs, printed_by

PROGRAM = Path(__file__).with_name("spread_to_kill.py")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "x.zarr"
    zarr.create_array(str(path), data=smooth_images(600, (6, 4, 3)), chunks=(16, 3, 4, 3))
    return path


def command(store: Path, folder: Path, seconds: float) -> list[str]:
    return [sys.executable, str(PROGRAM), str(store), str(folder / "kept"), str(folder / "out.npz"), str(seconds)]


def wait_for_checkpoints(folder: Path, process: Program) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.rglob("all-*.npz"))) < 2:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def calm(store: Path, tmp_path_factory: pytest.TempPathFactory, programs: Programs) -> dict[str, np.ndarray]:
    folder = tmp_path_factory.mktemp("calm")
    assert printed_by(programs, command(store, folder, 0)).split()[-1] == "600"
    return contents(folder)


def contents(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "out.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize("what", ["program", "worker"])
def test_killed_and_started_again(
    what: str, store: Path, tmp_path: Path, programs: Programs, calm: dict[str, np.ndarray]
) -> None:
    killed = programs.start(command(store, tmp_path, 0.05))
    pids = list(map(int, killed.stdout.readline().split()))
    wait_for_checkpoints(tmp_path, killed)
    if what == "program":
        killed.kill()
        killed.communicate()
    else:
        os.kill(pids[1], signal.SIGKILL)
        printed, _ = killed.communicate()
        assert "ClusterError" in printed
        assert "resume" in printed
    assert not (tmp_path / "out.npz").exists()
    n_read = int(printed_by(programs, command(store, tmp_path, 0)).split()[-1])
    assert n_read < 600
    for name, value in contents(tmp_path).items():
        np.testing.assert_array_equal(value, calm[name])
