"""Worker processes end with their program, also while they still import its libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
        program.kill()
        program.wait()
        (tmp_path / "killed").touch()
        # Ends when nobody holds the standard output any more.
        assert program.stdout.read() == ""
