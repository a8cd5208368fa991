"""Done-markers: which units of work of a job are finished, by this run or an interrupted one, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from numpy.typing import NDArray

from dpca.storage.disk import atomic_write_bytes, remove_tree, writing_errors
from dpca.storage.remote.objects import ObjectPath, Place
from dpca.storage.transaction.checkpoints import packed, unpacked


class DoneMarkers:
    """The done-markers of a job, in one folder. A marker is written after the files of its unit, so they are complete.

    Parameters
    ----------
    folder : Path or ObjectPath
    target : Path or ObjectPath
        The output, for errors.
    """

    def __init__(self, folder: Place, target: Place) -> None:
        self._done, self.target = folder, target
        self._marked: set[str] | None = None

    def is_done(self, unit: str, fingerprint: str = "") -> bool:
        """Return whether this or an earlier run finished a unit of work with this fingerprint."""
        marker = self._read_marker(unit)
        return marker is not None and marker[1]["fingerprint"] == fingerprint

    def mark_done(
        self,
        unit: str,
        fingerprint: str = "",
        record: Mapping[str, Any] | None = None,
        arrays: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Write the done-marker of a unit of work. Its files must be complete.

        Parameters
        ----------
        unit : str
            Name of the unit, any text.
        fingerprint : str
            Hash of the input of this unit, if the fingerprint of the job does not determine it.
        record, arrays : mapping, optional
            JSON-able results and arrays to keep, see `record` and `arrays`.
        """
        facts = {"unit": unit, "fingerprint": fingerprint, "record": dict(record or {})}
        with writing_errors(self.target):
            atomic_write_bytes(self._marker(unit), packed(dict(arrays or {}), facts))
        if self._marked is not None:
            self._marked.add(self._marker(unit).name)

    def record(self, unit: str) -> dict[str, Any]:
        """Return the record of a finished unit.

        Raises
        ------
        KeyError
            If the unit is not finished.
        """
        return dict(self._finished(unit)[1]["record"])

    def arrays(self, unit: str) -> dict[str, NDArray[Any]]:
        """Return the arrays of a finished unit; raises as `record` does."""
        return self._finished(unit)[0]

    def _marker(self, unit: str) -> Place:
        name = blake2b(unit.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return self._done / f"{name}.npz"

    def _finished(self, unit: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        if (marker := self._read_marker(unit)) is None:
            raise KeyError(unit)
        return marker

    def _read_marker(self, unit: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        if isinstance(self._done, ObjectPath) and self._marked is None:
            self._marked = {name for name, _ in self._done.entries()}  # one request instead of one for each marker
        if self._marked is not None and self._marker(unit).name not in self._marked:
            return None
        marker = unpacked(self._marker(unit))
        # A torn or invalid marker is ignored, and the unit is done again.
        return None if marker is None or marker[1].get("unit") != unit else marker

    def _forget(self, *others: Place) -> None:
        """Remove all done-markers, and everything in other folders."""
        for folder in (self._done, *others):
            remove_tree(folder)
            folder.mkdir()
        self._marked = None
