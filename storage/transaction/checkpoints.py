"""Checkpoints: named arrays and counters on disk, from which an interrupted run resumes."""

from __future__ import annotations

import io
import json
import os
import threading
import uuid
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage.disk import make_below, writing_errors
from dpca.storage.remote.objects import ObjectPath, Place, place_of

# Numpy reads headers with Python's parser. Some versions count its depth over all threads, and then it fails.
_PARSER = threading.Lock()
_COUNTS = "counts.json"


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

    def save(self, name: str, arrays: dict[str, NDArray[Any]], counts: Mapping[str, Any]) -> None:
        """Write a bundle, atomically."""
        final = self._path(name)
        if isinstance(final, ObjectPath):
            return final.write_bytes(packed(arrays, counts))
        temporary = final.with_name(f".{uuid.uuid4().hex}.tmp")
        with writing_errors(self.folder):
            self._make()
            try:
                with open(temporary, "wb") as file:
                    _write_npz(file, arrays, counts)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, final)
            finally:
                temporary.unlink(missing_ok=True)
        return None

    def load(self, name: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        """Read a bundle; None if it is missing, unfinished or damaged. The caller then repeats the work."""
        return unpacked(self._path(name))

    def remove(self, name: str) -> None:
        """Remove a bundle."""
        self._path(name).unlink(missing_ok=True)

    def _make(self) -> None:
        if self.within is None:
            os.makedirs(self.folder, exist_ok=True)
        else:
            make_below(Path(self.within), Path(self.folder))

    def _path(self, name: str) -> Place:
        return place_of(self.folder) / f"{name}.npz"


def packed(arrays: Mapping[str, NDArray[Any]], counts: Mapping[str, Any]) -> bytes:
    """Return the content of the file of a bundle."""
    whole = io.BytesIO()
    _write_npz(whole, arrays, counts)
    return whole.getvalue()


def unpacked(path: Place) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Read the file of a bundle; None if it is missing, unfinished or damaged."""
    try:
        with _opened(path) as file, _PARSER, np.load(file, allow_pickle=False) as bundle:
            arrays = {key: bundle[key] for key in bundle.files}
        return arrays, json.loads(bytes(arrays.pop(_COUNTS)))
    except (OSError, ValueError, KeyError, AttributeError, EOFError, RuntimeError, zipfile.BadZipFile):
        # The file is missing, or a power cut truncated it. numpy and zipfile raise many types of errors then.
        return None


def _opened(path: Place) -> IO[bytes]:
    return io.BytesIO(path.read_bytes()) if isinstance(path, ObjectPath) else path.open("rb")


def _write_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]], counts: Mapping[str, Any]) -> None:
    """Write as ``np.savez`` does, but never pickle. Its ``allow_pickle`` is newer than the oldest supported numpy."""
    bundle = {**arrays, _COUNTS: np.frombuffer(json.dumps(counts).encode(), np.uint8)}
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in bundle.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
