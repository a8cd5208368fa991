"""`dpca denoise` in small groups of cells, which `test_denoise_kill` kills.

``python denoise_to_kill.py STAGE N ARGUMENTS``, the arguments those of the command, kills itself with SIGKILL when N
tasks of a stage are finished. The stages are "noise", the first pass, and "denoise", the second one.
"""

from __future__ import annotations

import os
import signal
import sys

import dpca.cli.work
import dpca.engine.folds.plan
from dpca.cli import main


class Deadly:
    """A stage that ends the program after some tasks."""

    def __init__(self, left: int) -> None:
        self.left = left

    def advance(self, n: int) -> None:
        """Count a task."""
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        """Do nothing."""


if __name__ == "__main__":
    _, stage, n, *arguments = sys.argv
    dpca.engine.folds.plan._SHORT_TASK = 0
    dpca.cli.work.shown_progress = lambda name, total, unit: Deadly(int(n) if name == stage else -1)
    sys.exit(main(["denoise", *arguments]))
