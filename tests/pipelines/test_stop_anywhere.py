"""Signals at random moments of a program, from its first import to its last line."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.benchmarks.stop_anywhere import SIGNALS, faults_of, prepare, stop_anywhere, stopped


def test_every_program_ends_quietly_whenever_it_is_stopped(tmp_path: Path) -> None:
    assert stop_anywhere(tmp_path, 3, seed=3) == 0


def test_no_worker_outlives_its_killed_program_and_the_next_run_finishes(tmp_path: Path) -> None:
    command = prepare(tmp_path)["main job"]
    for delay in (1.5, 3.5):
        assert not faults_of(stopped(command, SIGNALS[-1], delay), SIGNALS[-1])
    assert subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True).stderr == b""
