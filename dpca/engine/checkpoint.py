"""States on disk: what lets a fold that was stopped go on where it was."""

from __future__ import annotations

import json
import os
import uuid
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from dpca.kernels.types import Array
from dpca.rules.state import State
from storage.disk import writing_errors

_COUNTS, _LENGTH = "counts.json", "n_partitions"


@dataclass(frozen=True)
class Checkpoints:
    """Named bundles of arrays and counters in one folder, each whole or absent.

    Tasks write their own, so the folder must be visible to all workers. The folder belongs to one fold with one set of
    settings: its caller puts their fingerprint into the path.
    """

    folder: str

    def save(self, name: str, arrays: dict[str, Array], counts: dict[str, int]) -> None:
        """Write a bundle, atomically."""
        final = self._path(name)
        temporary = final.with_name(f".{uuid.uuid4().hex}.tmp")
        bundle = {**arrays, _COUNTS: np.frombuffer(json.dumps(counts).encode(), np.uint8)}
        with writing_errors(self.folder):
            os.makedirs(self.folder, exist_ok=True)
            try:
                with open(temporary, "wb") as file:
                    _write_npz(file, bundle)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, final)
            finally:
                temporary.unlink(missing_ok=True)

    def load(self, name: str) -> tuple[dict[str, Array], dict[str, int]] | None:
        """Read a bundle; None when it was never finished, or is damaged: the piece is done again."""
        try:
            with open(self._path(name), "rb") as file, np.load(file, allow_pickle=False) as bundle:
                arrays = {key: bundle[key] for key in bundle.files}
            return arrays, json.loads(bytes(arrays.pop(_COUNTS)))
        except (OSError, ValueError, KeyError, AttributeError, EOFError, RuntimeError, zipfile.BadZipFile):
            # Not there, or a disk that lost a part of the file after a power cut: numpy and zipfile raise many kinds.
            return None

    def save_states(self, name: str, states: Sequence[State]) -> None:
        """Write the states of a group of partitions."""
        here = [state.to_numpy() for state in states]
        arrays = {f"{i}.{key}": value for i, state in enumerate(here) for key, value in state.arrays.items()}
        counts = {f"{i}.{key}": value for i, state in enumerate(states) for key, value in state.counts.items()}
        self.save(name, arrays, {**counts, _LENGTH: len(states)})

    def load_states(self, name: str) -> list[State] | None:
        """Read what `save_states` wrote; None as in `load`."""
        kept = self.load(name)
        if kept is None:
            return None
        arrays, counts = kept
        states = [State() for _ in range(counts.pop(_LENGTH))]
        for key, array in arrays.items():
            index, _, field = key.partition(".")
            states[int(index)].arrays[field] = array
        for key, count in counts.items():
            index, _, field = key.partition(".")
            states[int(index)].counts[field] = count
        return states

    def save_results(self, name: str, results: Sequence[dict[str, Array]]) -> None:
        """Write the results of a group of partitions."""
        arrays = {f"{i}.{key}": value for i, result in enumerate(results) for key, value in result.items()}
        self.save(name, arrays, {_LENGTH: len(results)})

    def load_results(self, name: str) -> list[dict[str, Array]] | None:
        """Read what `save_results` wrote; None as in `load`."""
        kept = self.load(name)
        if kept is None:
            return None
        results: list[dict[str, Array]] = [{} for _ in range(kept[1][_LENGTH])]
        for key, value in kept[0].items():
            index, _, field = key.partition(".")
            results[int(index)][field] = value
        return results

    def remove(self, name: str) -> None:
        """Forget a bundle."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return Path(self.folder) / f"{name}.npz"


def _write_npz(file: IO[bytes], bundle: dict[str, Array]) -> None:
    """Do as ``np.savez``, but never pickle (its own switch for that is younger than the oldest numpy we run on)."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in bundle.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
