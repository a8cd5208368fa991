"""What a worker process of our own cluster does first (Dask preloads this module there)."""

from __future__ import annotations

import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """Leave Ctrl-C to the program: a terminal sends it to every process, and workers end with their cluster anyway."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
