"""SIGKILL of the program and of a worker, in every stage: the next run finishes, and nothing is different.

`tests/benchmarks/searches/kill_and_resume.py` does the same as often as one likes, with any source and a cluster for
each run.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.searches.kill_and_resume import PROGRAM, TWO_WORKERS, commands, disturbed, undisturbed, whole_job
from tests.conftest import write_images
from tests.helpers.forked import Programs

FEW = ("--components", "5")
OWN = (*FEW, *TWO_WORKERS, "--memory", "1.5GB")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_images(tmp_path_factory.mktemp("images") / "photos", 160, (60, 52, 3)))


def _same(found: tuple[int, int]) -> bool:
    kills, differences = found
    return kills > 0 and differences == 0


def test_killed_anywhere_the_store_is_that_of_an_undisturbed_run(
    images: str, tmp_path: Path, scheduler: str, programs: Programs
) -> None:
    job, rng = whole_job(images, (*FEW, "--scheduler", scheduler)), random.Random(1)
    calm = undisturbed(job, tmp_path, programs.start)
    assert _same(disturbed(job, tmp_path, *calm, 0, rng, ["program"], programs.start))
    # Workers of its own, which the program has to replace.
    assert _same(disturbed(whole_job(images, OWN), tmp_path, *calm, 1, rng, ["worker"], programs.start))


def test_eigenimages_of_a_run_that_was_killed_in_its_passes_are_the_same_bytes(
    images: str, tmp_path: Path, scheduler: str, programs: Programs
) -> None:
    program, rng, twice = PROGRAM.with_name("lsun_streaming.py"), random.Random(2), ("--passes", "2")
    job = whole_job(images, (*FEW, *twice, "--scheduler", scheduler), program, ("fit", "scores"))
    store, seconds = undisturbed(job, tmp_path, programs.start)
    assert _same(disturbed(job, tmp_path, store, seconds, 0, rng, ["program"], programs.start))
    alone = iter([whole_job(images, (*OWN, *twice), program)])

    def start(command: list[str]) -> Any:
        """Start it with workers of its own, which die with it, and the next time on the given ones."""
        own = next(alone, None)
        return programs.start(own.command(Path(command[-1])) if own else command)

    assert _same(disturbed(job, tmp_path, store, {"fit": seconds["fit"]}, 1, rng, ["program"], start))


def test_commands_that_were_killed_make_the_same_bytes(
    images: str, tmp_path: Path, cluster: Any, scheduler: str, programs: Programs
) -> None:
    def workers(program: int) -> list[int]:
        return sorted(cluster.run(os.getpid).values())

    # The main job goes through the same stages, where both are killed; one each is left to the commands.
    jobs = commands(images, tmp_path, ("--scheduler", scheduler))
    kills, victims = 0, ("program", "worker", "program", "program", "worker")
    for seed, (job, victim) in enumerate(zip(jobs, victims, strict=True)):
        (store, seconds), rng = undisturbed(job, tmp_path, programs.start), random.Random(seed)
        early = {stage: taken / 4 for stage, taken in seconds.items()}  # the machine may be busier now than then
        struck, differences = disturbed(job, tmp_path, store, early, 0, rng, [victim], programs.start, workers)
        assert differences == 0
        kills += struck
        cluster.wait_for_workers(2, timeout=60)
    assert kills >= 2
