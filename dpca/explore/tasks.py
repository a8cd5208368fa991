"""Slow work of a page, outside the server's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from bokeh.document import Document


class Tasks:
    """Runs slow work in a thread: of each kind only the latest request, with the priorities of `_FIRST`.

    Parameters
    ----------
    document : Document
        The page, which shows results between two events.
    """

    _FIRST = ("sample", "quality", "search", "order", "gallery", "model")

    def __init__(self, document: Document) -> None:
        self._document, self._ended = document, False
        self._waiting: dict[str, tuple[Callable[[], Callable[[], None]], Callable[[Exception], None]]] = {}
        self._condition = threading.Condition()
        threading.Thread(target=self._run, name="page", daemon=True).start()

    def do(self, kind: str, work: Callable[[], Callable[[], None]], on_error: Callable[[Exception], None]) -> None:
        """Run ``work`` soon, instead of a waiting request of this kind. Its result is called in the page's thread."""
        with self._condition:
            self._waiting[kind] = work, on_error
            self._condition.notify()

    def waits(self, kind: str) -> bool:
        """Return whether a request of this kind waits."""
        return kind in self._waiting

    def end(self) -> None:
        """End the thread."""
        with self._condition:
            self._ended = True
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._ended)
                if self._ended:
                    return
                kind = next(kind for kind in self._FIRST if kind in self._waiting)
                work, on_error = self._waiting.pop(kind)
            try:
                show = work()
            except Exception as error:  # reported on the page
                show = partial(on_error, error)
            if not self._ended:
                self._document.add_next_tick_callback(show)
