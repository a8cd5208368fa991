"""SIGKILL of the program or of a worker in the middle of a pass: the next run ends with the bytes of a calm one."""

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

PROGRAM = Path(__file__).with_name("fit_to_kill.py")
METHODS = ["incremental-svd", "accelerated-block-power"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "x.zarr"
    zarr.create_array(str(path), data=smooth_images(600, (5, 4, 3)), chunks=(16, 5, 4, 3))
    return path


def command(store: Path, folder: Path, method: str, seconds: float, workers: int = 0) -> list[str]:
    inputs = [str(store), str(folder / "kept"), method, str(folder / "out.npz")]
    return [sys.executable, str(PROGRAM), *inputs, str(seconds), str(workers)]


def wait_for_segments(folder: Path, n: int, process: Program) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.rglob("*segment*.npz"))) < n:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def calm(store: Path, tmp_path_factory: pytest.TempPathFactory, programs: Programs) -> dict[str, dict[str, np.ndarray]]:
    """What each method finds on the threads of a program that nothing disturbs."""
    found = {}
    for method in METHODS:
        folder = tmp_path_factory.mktemp(method)
        printed = printed_by(programs, command(store, folder, method, 0))
        assert int(printed.split()[-1]) > 5
        found[method] = contents(folder)
    return found


def contents(folder: Path, name: str = "out.npz") -> dict[str, np.ndarray]:
    with np.load(folder / name) as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize("method", METHODS)
def test_the_program_killed_and_started_again(
    store: Path, tmp_path: Path, method: str, programs: Programs, calm: dict[str, dict[str, np.ndarray]]
) -> None:
    expected = calm[method]
    folder = tmp_path / "disturbed"
    folder.mkdir()
    killed = programs.start(command(store, folder, method, 0.05))
    wait_for_segments(folder, 2, killed)
    killed.kill()
    killed.communicate()
    assert not (folder / "out.npz").exists()
    printed_by(programs, command(store, folder, method, 0))
    for name, value in contents(folder).items():
        np.testing.assert_array_equal(value, expected[name])
    assert expected["facts"][2] == 600


def test_a_worker_killed_in_mid_pass(store: Path, tmp_path: Path, programs: Programs) -> None:
    process = programs.start(command(store, tmp_path, METHODS[-1], 0.05, workers=1))
    (worker,) = map(int, process.stdout.readline().split())
    wait_for_segments(tmp_path, 2, process)
    os.kill(worker, signal.SIGKILL)
    process.communicate()
    assert process.returncode == 0
    expected = contents(tmp_path, "out.npz.calm.npz")
    for name, value in contents(tmp_path).items():
        np.testing.assert_array_equal(value, expected[name])
