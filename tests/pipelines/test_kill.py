"""SIGKILL of the program and of a worker, in every stage: the next run finishes, and nothing is different."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.kill_and_resume import kill_everywhere


def test_killed_anywhere_the_store_is_that_of_an_undisturbed_run(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = image_folder(400, (60, 52, 3))
    assert kill_everywhere(str(folder), tmp_path, 1, seed=1, arguments=("--components", "5", "--memory", "1GB")) == 0
