"""States on disk: what lets a fold that was stopped go on where it was."""

from __future__ import annotations

import json
import os
import uuid
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_COUNTS = "counts.json"


@dataclass(frozen=True)
class Checkpoints:
    """Named bundles of arrays and counters in one folder, each whole or absent.

    Tasks write their own, so the folder must be visible to all workers. The folder belongs to one fold with one set of
    settings: its caller puts their fingerprint into the path.
    """

    folder: str

    def save(self, name: str, arrays: dict[str, Array], counts: dict[str, int]) -> None:
        """Write a bundle, atomically."""
        os.makedirs(self.folder, exist_ok=True)
        final = self._path(name)
        temporary = final.with_name(f".{uuid.uuid4().hex}.tmp")
        bundle: dict[str, Any] = {**arrays, _COUNTS: np.frombuffer(json.dumps(counts).encode(), np.uint8)}
        try:
            with open(temporary, "wb") as file:
                np.savez(file, allow_pickle=False, **bundle)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)

    def load(self, name: str) -> tuple[dict[str, Array], dict[str, int]] | None:
        """Read a bundle; None when it was never finished."""
        try:
            with np.load(self._path(name), allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            # A disk that lost the end of a file after a power cut: the piece is done again.
            return None
        return arrays, json.loads(bytes(arrays.pop(_COUNTS)))

    def has(self, name: str) -> bool:
        """Say whether the bundle is there."""
        return self._path(name).exists()

    def remove(self, name: str) -> None:
        """Forget a bundle."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return Path(self.folder) / f"{name}.npz"
