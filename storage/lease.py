"""Holds a work folder in an object store for one run: the counterpart of `dpca.storage.claim`, without locks.

::

    out.zarr.partial/
        lock          who works, while somebody does: made if there is none, and written again now and then
        lock.now-*    written, asked for the server's time, removed

Nobody removes the lock of a run that was killed. The next run takes it away at once if its process was on this machine
and is gone, else when it has not been written again for a while by the server's clock. A run whose lock was taken away
although it lives (it slept, or its network was cut) finds out before it publishes, and stops.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import uuid
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from dpca.storage.claim import JOURNAL, LOCK
from dpca.storage.errors import BusyError, StoreError
from dpca.storage.objects import ObjectPath

#: Seconds after which the lock is written again, and without which a run counts as dead.
REFRESH, PATIENCE = 20.0, 120.0
#: Stands beside the journal's place while everything below the output is being removed.
CLEARING = "clearing"

# Locks of runs of this process that have ended.
_ended: set[bytes] = set()


class Lease:
    """A work folder that this run alone may change, for as long as its lock is its own.

    Parameters
    ----------
    folder : ObjectPath
    shown : str
        What errors call the output.

    Attributes
    ----------
    created : bool
        Whether nothing was there before.

    Raises
    ------
    StoreError
        If another run holds the folder, or it is somebody else's.
    """

    def __init__(self, folder: ObjectPath, shown: str) -> None:
        self.folder, self._shown = folder, shown
        self._lock = folder / LOCK
        self._content = json.dumps({"run": uuid.uuid4().hex, "machine": _machine(), "process": _process()}).encode()
        self._ended = threading.Event()
        names = [name for name, _ in folder.entries()]
        self.created = not names
        others = [name for name in names if not name.startswith(LOCK)]
        if others and not {LOCK, JOURNAL, CLEARING} & set(names):
            raise StoreError(
                f"work folder '{shown}.partial' holds {others[0]!r}, which is none of ours: choose another output or "
                f"remove it"
            )
        if not self._lock.create(self._content):
            self._take_over()
        self._heart = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._heart.start()

    @property
    def held(self) -> bool:
        """Whether the folder has not been given back."""
        return not self._ended.is_set()

    def require(self) -> None:
        """Raise a StoreError if another run has taken the folder."""
        if self._read() != self._content:
            self._ended.set()
            raise StoreError(
                f"output '{self._shown}' was taken over by another run, as this one was silent for more than "
                f"{PATIENCE:.0f} seconds: leave it to that run"
            )

    def release(self) -> None:
        """Give the folder back and keep it."""
        if self.held:
            self._ended.set()
            self._heart.join()
            _ended.add(self._content)
            with suppress(StoreError):  # a lock that stays is one of a run that has ended
                if self._read() == self._content:
                    self._lock.unlink(missing_ok=True)

    def end(self) -> None:
        """Give back the folder, which holds nothing but the lock."""
        self.release()

    def _beat(self) -> None:
        # a request that fails is followed by the next one; a lock that was taken away stays so
        while not self._ended.wait(REFRESH):
            with suppress(StoreError):
                if self._read() != self._content:
                    return
                self._lock.write_bytes(self._content)

    def _read(self) -> bytes | None:
        try:
            return self._lock.read_bytes()
        except FileNotFoundError:
            return None

    def _take_over(self) -> None:
        found = self._read()
        if found is not None and not _is_dead(found) and self._silence() < PATIENCE:
            raise BusyError(
                f"output '{self._shown}' is being written by another run: wait for it, stop it, or choose another "
                f"output (a run that was killed on another machine counts as one for {PATIENCE:.0f} seconds)"
            )
        if self._read() == found:
            self._lock.unlink(missing_ok=True)
        if not self._lock.create(self._content):
            raise BusyError(f"output '{self._shown}' was begun by another run just now: wait for it")

    def _silence(self) -> float:
        """Return how long ago the lock was written, in seconds of the server."""
        now = self.folder / f"{LOCK}.now-{uuid.uuid4().hex}"
        now.write_bytes(b"")
        try:
            return now.modified() - self._lock.modified()
        except FileNotFoundError:
            return PATIENCE  # its run has just ended
        finally:
            now.unlink(missing_ok=True)


def _is_dead(content: bytes) -> bool:
    """Return whether the lock is that of a run which has ended, in this process or with another one of this machine."""
    if content in _ended:
        return True
    try:
        lock = json.loads(content)
        machine, process = lock["machine"], lock["process"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return bool(machine == _machine() and process != _process(process[0]))


@cache
def _machine() -> str:
    """Return what tells this machine, and this space of process numbers, from others, without naming it."""
    facts = [platform.node(), str(uuid.getnode())]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        facts.append(os.readlink("/proc/self/ns/pid"))
    return blake2b("\n".join(facts).encode(), digest_size=8).hexdigest()


def _process(number: int | None = None) -> list[Any] | None:
    """Return the number of a process, by default this one, and when it began; None if there is none."""
    number = os.getpid() if number is None else number
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # somebody else's
    with suppress(OSError):
        facts = Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2].split()
        return None if facts[0] == "Z" else [number, facts[19]]
    return [number, ""]
