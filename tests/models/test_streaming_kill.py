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

PROGRAM = Path(__file__).with_name("fit_to_kill.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "x.zarr"
    zarr.create_array(str(path), data=smooth_images(600, (5, 4, 3)), chunks=(16, 5, 4, 3))
    return path


def start(store: Path, folder: Path, method: str, seconds: float, workers: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), str(store), str(folder / "kept"), method, str(folder / "out.npz")]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [*command, str(seconds), str(workers)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def wait_for_segments(folder: Path, n: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.rglob("*segment*.npz"))) < n:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def calm(store: Path, folder: Path, method: str, workers: int = 0) -> dict[str, np.ndarray]:
    folder.mkdir()
    process = start(store, folder, method, 0, workers)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert int(printed.split()[-1]) > 5
    return contents(folder)


def contents(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "out.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize("method", ["incremental-svd", "accelerated-block-power"])
def test_the_program_killed_and_started_again(store: Path, tmp_path: Path, method: str) -> None:
    expected = calm(store, tmp_path / "calm", method)
    folder = tmp_path / "disturbed"
    folder.mkdir()
    killed = start(store, folder, method, 0.05)
    wait_for_segments(folder, 2, killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (folder / "out.npz").exists()
    again = start(store, folder, method, 0)
    again.communicate(timeout=300)
    assert again.returncode == 0
    for name, value in contents(folder).items():
        np.testing.assert_array_equal(value, expected[name])
    assert expected["facts"][2] == 600


def test_a_worker_killed_in_mid_pass(store: Path, tmp_path: Path) -> None:
    expected = calm(store, tmp_path / "calm", "accelerated-block-power", workers=1)
    folder = tmp_path / "disturbed"
    folder.mkdir()
    process = start(store, folder, "accelerated-block-power", 0.05, workers=1)
    assert process.stdout is not None
    (worker,) = map(int, process.stdout.readline().split())
    wait_for_segments(folder, 2, process)
    os.kill(worker, signal.SIGKILL)
    process.communicate(timeout=300)
    assert process.returncode == 0
    for name, value in contents(folder).items():
        np.testing.assert_array_equal(value, expected[name])
