"""Stores that are replaced while they are read: before each access of a reader to the file system."""

from __future__ import annotations

import io
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zarr

import dpca
from dpca.models.base.store import load_any
from dpca.storage import ReplacedError, open_stack, verify
from dpca.storage.disk import exchanged
from tests.trust.ways import _decoded, _equal, _labelled, _model_parts, _scores_parts, _stack_parts

Read = Callable[[Path], Any]

#: Functions that open each store, which never fail, and functions that read it, which may raise `ReplacedError`.
OPENED: dict[str, dict[str, Read]] = {
    "stack.zarr": {"open_stack": lambda path: open_stack(path).data_range},
    "cells.zarr": {"load": lambda path: load_any(path).components_},
    "job.zarr": {"open_scores": lambda path: dpca.open_scores(path).model.mean_},
    "compressed.zarr": {
        "open_compressed": lambda path: dpca.open_compressed(path).codec.components.mean,
        "a URL": lambda path: zarr.open_array(f"dpca::{path}", mode="r").shape,
    },
}
READ: dict[str, dict[str, Read]] = {
    "stack.zarr": {"open_stack": lambda path: _stack_parts(path)},
    "cells.zarr": {"load": lambda path: _model_parts(path)},
    "job.zarr": {
        "open_scores": lambda path: _scores_parts(path),
        "their quality": lambda path: [*dpca.open_scores(path).quality.values()],
        "the stack inside": lambda path: _stack_parts(path / "stack"),
    },
    "compressed.zarr": {
        "open_compressed": lambda path: _decoded(path),
        "a URL": lambda path: zarr.open_array(f"dpca::{path}", mode="r")[2:30],
        "with xarray": lambda path: _labelled(f"dpca::{path}"),
        "verify": lambda path: verify(path),
    },
    "waves.zarr": {"open_compressed": lambda path: _decoded(path)},
}


class Replacement:
    """Two stores of one kind. One replaces the other while it is read.

    Parameters
    ----------
    made : Path
        Folders ``a`` and ``b`` of stores.
    scratch : Path
    store : str
    gap : bool
        Whether there is no store for a moment, as on systems that cannot swap folders in one step.
    """

    def __init__(self, made: Path, scratch: Path, store: str, *, gap: bool = False) -> None:
        self.path, self._gap, self._waiting = scratch / store, gap, scratch / "new"
        self._writer: threading.Thread | None
        shutil.copytree(made / "a" / store, self.path)
        shutil.copytree(made / "b" / store, self._waiting)
        self._inode, self._writer = self.path.stat().st_ino, None

    def accesses(self, read: Read) -> int:
        """Return the number of file accesses of a reader."""
        with _before_access(self.path, 0, lambda: None) as seen:
            read(self.path)
        return seen[0]

    def wrong(self, read: Read, n: int, *, opens: bool, expected: list[Any] | None = None) -> str | None:
        """Replace the store before access ``n``; return the fault, which should be None.

        ``expected`` are the values of both stores, by default read here.
        """
        expected = self.expected(read) if expected is None else expected
        try:
            with _before_access(self.path, n, self._replace):
                found = read(self.path)
        except ReplacedError as error:
            return f"opening raised {error!r}" if opens else None
        except Exception as error:
            return f"raised {error!r}"
        finally:
            self._restore()
        return None if any(_equal(found, one) for one in expected) else "other values than those of either store"

    def expected(self, read: Read) -> list[Any]:
        """Return the values of both stores."""
        one = read(self.path)
        exchanged(self.path, self._waiting)
        other = read(self.path)
        exchanged(self.path, self._waiting)
        return [one, other]

    def _replace(self) -> None:
        if not self._gap:
            exchanged(self.path, self._waiting)
            return
        (work := self.path.with_name(f"{self.path.name}.partial")).mkdir()
        self.path.rename(work / "replaced")

        def appear() -> None:
            time.sleep(0.03)
            self._waiting.rename(self.path)

        self._writer = threading.Thread(target=appear)
        self._writer.start()

    def _restore(self) -> None:
        if not self._gap:
            if self._swapped():
                exchanged(self.path, self._waiting)
            return
        if self._writer is not None:
            self._writer.join()
            self._writer = None
            work = self.path.with_name(f"{self.path.name}.partial")
            self.path.rename(self._waiting)
            (work / "replaced").rename(self.path)
            work.rmdir()

    def _swapped(self) -> bool:
        return self.path.stat().st_ino != self._inode


@contextmanager
def _before_access(folder: Path, n: int, act: Callable[[], None]) -> Iterator[list[int]]:
    """Call ``act`` before this process opens or asks for a file below a folder for the n-th time; yield the count."""
    seen, lock, root = [0], threading.RLock(), f"{folder}{os.sep}"

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(root):
                with lock:
                    seen[0] += 1
                    if seen[0] == n:
                        act()
            return function(path, *args, **kwargs)

        return call

    real = os.open, os.stat, io.open
    os.open, os.stat, io.open = (watched(function) for function in real)  # type: ignore[assignment]
    try:
        yield seen
    finally:
        os.open, os.stat, io.open = real  # type: ignore[assignment]
