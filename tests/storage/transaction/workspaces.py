"""Jobs of the tests of workspaces: one that finishes, one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpca.storage.arrays.arrays import create_root
from dpca.storage.transaction.workspace import Workspace


def finish(target: Path, fingerprint: str = "f", kind: str = "stack", **options: Any) -> str:
    with Workspace(target, kind=kind, fingerprint=fingerprint, **options) as work:
        state = work.state
        if state != "complete":
            create_root(work.store, kind=kind, fingerprint=fingerprint)
            work.publish()
    return state


def leave_unfinished(target: Path, fingerprint: str = "f", **options: Any) -> None:
    with Workspace(target, kind="stack", fingerprint=fingerprint, **options) as work:
        work.mark_done("a")
