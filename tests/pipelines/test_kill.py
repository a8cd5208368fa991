"""SIGKILL of the program and of a worker, in every stage: the next run finishes, and nothing is different."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.kill_and_resume import PROGRAM, Job, commands, disturbed, undisturbed, whole_job

FEW = ("--components", "5", "--memory", "1GB")


def _differences(job: Job, folder: Path, seed: int) -> int:
    kills, differences = disturbed(job, folder, *undisturbed(job, folder), 0, random.Random(seed))
    assert kills
    return differences


def test_killed_anywhere_the_store_is_that_of_an_undisturbed_run(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = image_folder(400, (60, 52, 3))
    assert _differences(whole_job(str(folder), FEW), tmp_path, 1) == 0


def test_eigenimages_of_a_run_that_was_killed_in_its_passes_are_the_same_bytes(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = image_folder(400, (60, 52, 3))
    program, arguments = PROGRAM.with_name("lsun_streaming.py"), (*FEW, "--passes", "2")
    assert _differences(whole_job(str(folder), arguments, program, ("fit", "scores")), tmp_path, 2) == 0


def test_commands_that_were_killed_make_the_same_bytes(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = image_folder(400, (60, 52, 3))
    for seed, job in enumerate(commands(str(folder), tmp_path, ("--memory", "1GB"))):
        assert _differences(job, tmp_path, seed) == 0
