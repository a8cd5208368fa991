"""Stores that are replaced while they are opened: opening is repeated, and returns the old or the new store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from dpca.storage.errors import ReplacedError
from dpca.storage.transaction.claim import REPLACED, WORK_SUFFIX

P = ParamSpec("P")
T = TypeVar("T")

# Most attempts to open a store while it is being replaced, and seconds between two attempts.
_OPENINGS, _PAUSE = 100, 0.01
_OPENING = threading.local()


def reopening(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that opens a store: it is repeated if the store is replaced meanwhile.

    If such functions call each other, only the outermost is repeated.
    """

    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> T:
        if getattr(_OPENING, "now", False):
            return function(*args, **kwargs)
        _OPENING.now = True
        try:
            for _ in range(_OPENINGS - 1):
                try:
                    return function(*args, **kwargs)
                except ReplacedError:
                    time.sleep(_PAUSE)
            return function(*args, **kwargs)
        finally:
            _OPENING.now = False

    return opened


def refuse_gap(path: Path) -> None:
    """Raise `ReplacedError` between the two renames that replace a store on systems that cannot swap folders."""
    for store in (path, *path.parents):
        if os.path.lexists(f"{store}{WORK_SUFFIX}/{REPLACED}"):
            raise ReplacedError(
                f"'{store}' is being replaced, or the run that replaced it was killed: open it again, or run the "
                f"command again"
            )
