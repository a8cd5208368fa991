"""Constants of the planner, patched in one place so that tests plan small stacks like large ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from dpca.rules.base.minibatch import InBatches

_PLACES = {
    "short_task": ("engine.folds.plan", "_SHORT_TASK"),
    "link_bytes": ("engine.folds.plan", "LINK_BYTES"),
    "segment_bytes": ("engine.folds.plan", "SEGMENT_BYTES"),
    "checkpoint_bytes": ("engine.folds.plan", "CHECKPOINT_BYTES"),
    "worth_a_task": ("engine.folds.fold_tasks", "_WORTH_A_TASK"),
    "threads": ("storage.run", "thread_count"),
    "usable": ("engine.folds.fold", "usable_bytes"),
}


@pytest.fixture
def given_plan(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what the planner takes as given: ``given_plan(threads=3, short_task=0)``.

    ``short_task``, ``link_bytes``, ``segment_bytes``, ``checkpoint_bytes`` and ``worth_a_task`` are the constants of
    these names, ``threads`` and ``usable`` the processors and the bytes of this machine, and ``batch_rows`` the samples
    of a mini-batch rule's batch.
    """

    def settle(*, batch_rows: int | None = None, **values: int) -> None:
        places: list[tuple[Any, str, Any]] = []
        for name, value in values.items():
            module, constant = _PLACES[name]
            known = (lambda value=value: value) if name in ("threads", "usable") else value
            places.append((sys.modules[f"dpca.{module}"], constant, known))
        if batch_rows is not None:
            places.append((InBatches, "batch_rows", lambda rule, dtype: batch_rows))
        for place in places:
            monkeypatch.setattr(*place)

    return settle
