"""Setup of the worker processes of a cluster that dpca starts. Dask preloads this module there."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SILENCE = logging.CRITICAL + 1
# Loggers with levels set by Dask, and asyncio's, which reports tasks that end with their loop.
_LOGGERS = ("distributed", "distributed.client", "bokeh", "tornado", "tornado.application", "asyncio")


def dask_setup(worker: Any) -> None:
    """Close the HTTP server and silence all output. Errors of a worker reach the program as exceptions."""
    worker.http_server.stop()
    for logger in map(logging.getLogger, _LOGGERS):
        logger.setLevel(SILENCE)
    # A worker that ends before it has joined the cluster prints a traceback, which no logger suppresses.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Dask's loggers. They print tracebacks of errors that the caller receives as exceptions."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(SILENCE)
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
