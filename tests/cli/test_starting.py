"""Processes end with the program that started them, also while they still import libraries."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpca.engine.clusters.forking import CAN_FORK

PROGRAM = """
import sys, time
from pathlib import Path

here = Path(__file__).parent
if __name__ == "__mp_main__" and sys.argv[1] == "before":
    while not (here / "killed").exists():
        time.sleep(0.05)
from dpca.cli.starting import start

start(__name__)
if __name__ == "__mp_main__":
    (here / "started").touch()
    time.sleep(20)
    print("outlived", flush=True)
if __name__ == "__main__":
    import multiprocessing

    worker = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    worker.start()
    (here / "spawned").touch()
    worker.join()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_no_process_that_imports_outlives_its_program(when: str, tmp_path: Path) -> None:
    """A program is killed before its worker looks for it the first time, or after."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), when]
    # In a session of its own, as a terminal or a scheduler starts it; the worker holds the same standard output.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as program:
        assert program.stdout is not None
        while not (tmp_path / ("started" if when == "after" else "spawned")).exists():
            assert program.poll() is None
            time.sleep(0.01)
        program.kill()
        program.wait()
        (tmp_path / "killed").touch()
        # Ends when nobody holds the standard output any more.
        assert program.stdout.read() == ""


FORKING = """
import sys
from pathlib import Path

here = Path(__file__).parent
if __name__ == "__main__":
    from dpca.engine.clusters.forking import start_forking

    start_forking("slow_module")
    (here / "spawned").touch()
    sys.stdin.read()
"""
SLOW_MODULE = """
import time
from pathlib import Path

(Path(__file__).parent / "started").touch()
time.sleep(20)
print("outlived", flush=True)
"""


@pytest.mark.skipif(not CAN_FORK, reason="workers are forked on Linux only")
@pytest.mark.parametrize("when", ["spawned", "started"])
def test_the_process_that_forks_workers_ends_with_its_program(when: str, tmp_path: Path) -> None:
    """It imports modules for seconds, before it waits for its program."""
    (tmp_path / "program.py").write_text(FORKING)
    (tmp_path / "slow_module.py").write_text(SLOW_MODULE)
    command, pipe = [sys.executable, str(tmp_path / "program.py")], subprocess.PIPE
    # Before Python 3.13, that process does not get this program's path of modules.
    path = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True, env=path) as program:
        assert program.stdout is not None
        while not (tmp_path / when).exists():
            assert program.poll() is None
            time.sleep(0.01)
        program.kill()
        program.wait()
        assert program.stdout.read() == ""


TIMED = """
import sys, time

first = time.time()
sys.argv = ["dpca", "--version"]
from dpca.cli import main

try:
    main({argv})
except SystemExit:
    pass
from dpca.cli.running import started

print(first, started(), time.time())
"""


def _times(argv: str, program: str = TIMED) -> tuple[float, ...]:
    command = [sys.executable, "-c", program.format(argv=argv)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return tuple(map(float, ended.stdout.splitlines()[-1].split()))


def test_a_program_begins_with_its_process() -> None:
    before = time.time()
    first, began, _ = _times("")
    tick = 0.02  # of the clock that counts from the boot
    assert before - tick <= began <= first + tick


def test_a_command_within_another_program_begins_when_it_is_called() -> None:
    first, began, last = _times('["--version"]')
    assert first < began < last


def test_a_shell_that_became_the_program_does_not_count() -> None:
    """It may have waited for long before, in the same process. Here any time is long."""
    first, began, last = _times(
        "", TIMED.replace("print(", "import dpca.cli.running as at\nat._START_SECONDS = 0\nprint(")
    )
    assert first < began < last
