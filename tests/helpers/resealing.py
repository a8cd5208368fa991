"""Stores that a test edits: their manifest is written anew, so that what is found is what the edit says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpca.storage.integrity.manifest import write_manifest


def edit_metadata(store: Path, change: Callable[[dict[str, Any]], None], name: str = "") -> None:
    """Change the metadata of a finished store, or of a node in it, as if the store had been written so."""
    path = store / name / "zarr.json"
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))
    write_manifest(store)


def edit_facts(store: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what a finished store states about itself."""
    edit_metadata(store, lambda metadata: change(metadata["attributes"]["dpca"]))
