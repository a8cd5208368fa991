"""Checkpoints: states on disk, from which an interrupted fold resumes."""

from __future__ import annotations

import io
import json
import os
import threading
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.rules.base.state import State
from dpca.storage.disk import writing_errors
from dpca.storage.remote.objects import ObjectPath, Place, place_of

T = TypeVar("T")
# Numpy reads headers with Python's parser. Some versions count its depth over all threads, and then it fails.
_PARSER = threading.Lock()
_COUNTS, _LENGTH = "counts.json", "n_partitions"


@dataclass(frozen=True)
class Checkpoints:
    """Named bundles of arrays and counters in one folder. Each bundle is complete or absent.

    Tasks write their own bundles, so the folder must be visible to all workers. The folder belongs to one fold with one
    set of settings: the caller puts a fingerprint of the settings into the path.

    Parameters
    ----------
    folder : str
        Created with the first bundle.
    within : str, optional
        A parent folder that is never created. An interrupted run removes it, and tasks that end later must not create
        it again.
    """

    folder: str
    within: str | None = None

    def save(self, name: str, arrays: dict[str, Array], counts: Mapping[str, Any]) -> None:
        """Write a bundle, atomically."""
        final = self._path(name)
        bundle = {**arrays, _COUNTS: np.frombuffer(json.dumps(counts).encode(), np.uint8)}
        if isinstance(final, ObjectPath):
            whole = io.BytesIO()
            _write_npz(whole, bundle)
            return final.write_bytes(whole.getvalue())
        temporary = final.with_name(f".{uuid.uuid4().hex}.tmp")
        with writing_errors(self.folder):
            self._make()
            try:
                with open(temporary, "wb") as file:
                    _write_npz(file, bundle)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, final)
            finally:
                temporary.unlink(missing_ok=True)
        return None

    def load(self, name: str) -> tuple[dict[str, Array], dict[str, Any]] | None:
        """Read a bundle; None if it is missing, unfinished or damaged. The caller then repeats the work."""
        try:
            with _opened(self._path(name)) as file, _PARSER, np.load(file, allow_pickle=False) as bundle:
                arrays = {key: bundle[key] for key in bundle.files}
            return arrays, json.loads(bytes(arrays.pop(_COUNTS)))
        except (OSError, ValueError, KeyError, AttributeError, EOFError, RuntimeError, zipfile.BadZipFile):
            # The file is missing, or a power cut truncated it. numpy and zipfile raise many types of errors then.
            return None

    def save_states(self, name: str, states: Sequence[State]) -> None:
        """Write the states of a group of partitions."""
        arrays = _flat([state.to_numpy().arrays for state in states])
        self.save(name, arrays, {**_flat([state.counts for state in states]), _LENGTH: len(states)})

    def load_states(self, name: str) -> list[State] | None:
        """Read the states that `save_states` wrote; None as in `load`."""
        kept = self.load(name)
        if kept is None:
            return None
        arrays, counts = kept
        n = counts.pop(_LENGTH)
        return [State(*both) for both in zip(_nested(arrays, n), _nested(counts, n), strict=True)]

    def save_results(self, name: str, results: Sequence[dict[str, Array]]) -> None:
        """Write the results of a group of partitions."""
        self.save(name, _flat(results), {_LENGTH: len(results)})

    def load_results(self, name: str) -> list[dict[str, Array]] | None:
        """Read the results that `save_results` wrote; None as in `load`."""
        kept = self.load(name)
        return None if kept is None else _nested(kept[0], kept[1][_LENGTH])

    def remove(self, name: str) -> None:
        """Remove a bundle."""
        self._path(name).unlink(missing_ok=True)

    def _make(self) -> None:
        if self.within is None:
            os.makedirs(self.folder, exist_ok=True)
            return
        path = Path(self.within)
        for name in Path(self.folder).relative_to(path).parts:
            path /= name
            path.mkdir(exist_ok=True)

    def _path(self, name: str) -> Place:
        return place_of(self.folder) / f"{name}.npz"


def _opened(path: Place) -> IO[bytes]:
    return io.BytesIO(path.read_bytes()) if isinstance(path, ObjectPath) else path.open("rb")


def _flat(bundles: Sequence[Mapping[str, T]]) -> dict[str, T]:
    """Flatten a sequence of bundles to one dictionary, with numbered keys."""
    return {f"{i}.{key}": value for i, bundle in enumerate(bundles) for key, value in bundle.items()}


def _nested(flat: Mapping[str, T], n: int) -> list[dict[str, T]]:
    """Return n bundles: the inverse of `_flat`."""
    bundles: list[dict[str, T]] = [{} for _ in range(n)]
    for name, value in flat.items():
        index, _, key = name.partition(".")
        bundles[int(index)][key] = value
    return bundles


def _write_npz(file: IO[bytes], bundle: dict[str, Array]) -> None:
    """Write as ``np.savez`` does, but never pickle. Its ``allow_pickle`` is newer than the oldest supported numpy."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in bundle.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
