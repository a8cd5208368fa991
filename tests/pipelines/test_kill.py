"""SIGKILL of the program and of a worker, in every stage: the next run finishes, and nothing is different."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.kill_and_resume import PROGRAM, kill_everywhere


def test_killed_anywhere_the_store_is_that_of_an_undisturbed_run(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = image_folder(400, (60, 52, 3))
    assert kill_everywhere(str(folder), tmp_path, 1, seed=1, arguments=("--components", "5", "--memory", "1GB")) == 0


def test_eigenimages_of_a_run_that_was_killed_in_its_passes_are_the_same_bytes(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = image_folder(400, (60, 52, 3))
    program = PROGRAM.with_name("lsun_streaming.py")
    arguments = ("--components", "5", "--passes", "2", "--memory", "1GB")
    assert kill_everywhere(str(folder), tmp_path, 1, 2, arguments, program, ("fit", "scores")) == 0
