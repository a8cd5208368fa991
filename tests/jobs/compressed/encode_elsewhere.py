"""Encode a stack in a process of its own, which `test_encode_processors` has compute as another processor does.

``python encode_elsewhere.py STACK MODEL TARGET MAX_ERROR [KILL]``: with KILL it is killed once a shard is written.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from dpca.jobs import encode_store
from dpca.storage import open_stack
from dpca.storage.run import Run


class Strike:
    """Ends the process at the first thing that is done."""

    def __init__(self, *_: Any) -> None: ...

    def advance(self, n: int) -> None:
        """Strike."""
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None: ...


if __name__ == "__main__":
    stack, model, target, max_error, *kill = sys.argv[1:]
    run = Run(progress=Strike) if kill else Run()
    encode_store(open_stack(stack), model, target, max_error=float(max_error), run=run)
