"""What a worker process of our own cluster does first (Dask preloads this module there)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SILENCE = logging.CRITICAL + 1
# Those that Dask gives levels of their own, and that of a loop whose tasks end with it.
_LOGGERS = ("distributed", "distributed.client", "bokeh", "tornado", "tornado.application", "asyncio")


def dask_setup(worker: Any) -> None:
    """Serve no pages, and say nothing: what a worker has to say reaches the program as exceptions."""
    worker.http_server.stop()
    for logger in map(logging.getLogger, _LOGGERS):
        logger.setLevel(SILENCE)
    # one that is ended before it has joined the cluster tells of that with a traceback, which no logger stops
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Dask from telling at length, with tracebacks, what reaches the caller as an exception."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(SILENCE)
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
