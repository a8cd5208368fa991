"""Interrupts jobs between their checkpoints and done-markers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.workspace import Workspace


def interrupt_at(patch: pytest.MonkeyPatch, more: Callable[[str], bool]) -> None:
    """Raise KeyboardInterrupt instead of writing a checkpoint or a done-marker that ``more`` does not allow."""

    def guarded(write: Callable[..., None]) -> Callable[..., None]:
        def stops(self: Any, unit: str, *given: Any, **named: Any) -> None:
            if not more(unit):
                raise KeyboardInterrupt
            write(self, unit, *given, **named)

        return stops

    patch.setattr(Checkpoints, "save", guarded(Checkpoints.save))
    patch.setattr(Workspace, "mark_done", guarded(Workspace.mark_done))
