"""SIGKILL of the program and of a worker, in every stage: the next run finishes, and nothing is different.

`tests/benchmarks/kill_and_resume.py` does the same as often as one likes, with any source.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.benchmarks.kill_and_resume import PROGRAM, VICTIMS, Job, commands, disturbed, undisturbed, whole_job

FEW = ("--components", "5", "--memory", "1GB")


@pytest.fixture
def images(image_folder: Callable[..., Path]) -> str:
    return str(image_folder(400, (60, 52, 3)))


def _differences(job: Job, folder: Path, seed: int, victims: Sequence[str] = VICTIMS) -> int:
    kills, differences = disturbed(job, folder, *undisturbed(job, folder), 0, random.Random(seed), victims)
    assert kills
    return differences


def test_killed_anywhere_the_store_is_that_of_an_undisturbed_run(images: str, tmp_path: Path) -> None:
    assert _differences(whole_job(images, FEW), tmp_path, 1) == 0


def test_eigenimages_of_a_run_that_was_killed_in_its_passes_are_the_same_bytes(images: str, tmp_path: Path) -> None:
    program, arguments = PROGRAM.with_name("lsun_streaming.py"), (*FEW, "--passes", "2")
    assert _differences(whole_job(images, arguments, program, ("fit", "scores")), tmp_path, 2, ["program"]) == 0


def test_commands_that_were_killed_make_the_same_bytes(images: str, tmp_path: Path, scheduler: str) -> None:
    # The main job goes through the same stages, where both are killed; one each is left to the commands.
    jobs = commands(images, tmp_path, ("--memory", "1GB"), scheduler)
    for seed, (job, victim) in enumerate(zip(jobs, ("program", "worker", "program"), strict=True)):
        assert _differences(job, tmp_path, seed, [victim]) == 0
