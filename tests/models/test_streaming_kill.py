"""SIGKILL of the program or of a worker in the middle of a pass: the next run ends with the bytes of a calm one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.conftest import smooth_images
from tests.forked import ROOT, Program, Programs, printed_by

PROGRAM = Path(__file__).with_name("fit_to_kill.py")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "x.zarr"
    zarr.create_array(str(path), data=smooth_images(600, (5, 4, 3)), chunks=(16, 5, 4, 3))
    return path


def command(store: Path, folder: Path, method: str, seconds: float, workers: int = 0) -> list[str]:
    inputs = [str(store), str(folder / "kept"), method, str(folder / "out.npz")]
    return [sys.executable, str(PROGRAM), *inputs, str(seconds), str(workers)]


def wait_for_segments(folder: Path, n: int, process: Program | subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.rglob("*segment*.npz"))) < n:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def calm(store: Path, folder: Path, method: str, programs: Programs) -> dict[str, np.ndarray]:
    folder.mkdir()
    printed = printed_by(programs, command(store, folder, method, 0))
    assert int(printed.split()[-1]) > 5
    return contents(folder)


def contents(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "out.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize("method", ["incremental-svd", "accelerated-block-power"])
def test_the_program_killed_and_started_again(store: Path, tmp_path: Path, method: str, programs: Programs) -> None:
    expected = calm(store, tmp_path / "calm", method, programs)
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


def test_a_worker_killed_in_mid_pass(store: Path, tmp_path: Path) -> None:
    def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
        folder.mkdir()
        with_a_worker = command(store, folder, "accelerated-block-power", seconds, workers=1)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        return subprocess.Popen(with_a_worker, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    with start(calm, 0) as process:
        process.communicate(timeout=300)
    assert process.returncode == 0
    with start(disturbed, 0.05) as process:
        assert process.stdout is not None
        (worker,) = map(int, process.stdout.readline().split())
        wait_for_segments(disturbed, 2, process)
        os.kill(worker, signal.SIGKILL)
        process.communicate(timeout=300)
    assert process.returncode == 0
    expected = contents(calm)
    for name, value in contents(disturbed).items():
        np.testing.assert_array_equal(value, expected[name])
