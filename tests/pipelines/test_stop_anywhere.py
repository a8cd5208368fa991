"""Signals at random moments of a program, from its first import to its last line."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.searches.stop_anywhere import SIGNALS, commands, faults_of, prepare, stop_anywhere, stopped
from tests.helpers.forked import Programs


def test_every_program_ends_quietly_whenever_it_is_stopped(tmp_path: Path) -> None:
    assert stop_anywhere(tmp_path, 3, seed=3) == 0


def test_no_worker_outlives_its_killed_program_and_the_next_run_finishes(
    tmp_path: Path, scheduler: str, programs: Programs
) -> None:
    command = prepare(tmp_path, 100)["main job"]
    for delay in (1.5, 3.5):
        assert not faults_of(stopped(command, SIGNALS[-1], delay), SIGNALS[-1])
    # What was killed had its own workers; how the next one gets its workers makes no difference to what it finds.
    finishing = programs.start(commands(tmp_path, ("--scheduler", scheduler))["main job"])
    assert finishing.communicate()[1] == ""
    assert finishing.returncode == 0
