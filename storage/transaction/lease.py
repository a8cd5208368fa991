"""Leases a work folder in an object store to one run: like `dpca.storage.transaction.claim`, without locks.

::

    out.zarr.partial/
        lock             identifies the current run; created once, and never written again
        lock.alive-<run> written regularly by the run that holds the lock (heartbeat)
        lock.now-*       written to read the clock of the server, then removed

The lock of a killed run stays. The next run removes it immediately if it names a process of this machine that has
ended. Otherwise the lock and the heartbeat must be old by the clock of the server, and they must not change while the
next run watches them for longer than the interval of the heartbeat, since clocks can jump. A run can lose its lock
while it is suspended or offline. It cannot take the lock back, since it never writes the lock again. Its process checks
the lock before it writes or removes the next object, and ends. At most one object that was being sent at this moment
reaches the store. Workers of a cluster do not check the lock.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import uuid
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from dpca.storage.errors import BusyError, StoreError
from dpca.storage.remote.network import fences
from dpca.storage.remote.objects import ObjectPath
from dpca.storage.transaction.claim import JOURNAL, LOCK, WORK_SUFFIX

#: Seconds between two heartbeats, and seconds without a heartbeat after which a run counts as dead.
REFRESH, PATIENCE = 20.0, 120.0
# How long an old lock is watched, in multiples of the heartbeat interval, and the number of checks during this time.
_WATCHED, _CHECKS = 1.5, 15
_ALIVE = f"{LOCK}.alive-"
#: Exists in the work folder while everything below the output is being removed.
CLEARING = "clearing"

# Locks of finished runs of this process.
_ended: set[bytes] = set()


class Lease:
    """A work folder that only this run may change while it holds the lock.

    Parameters
    ----------
    folder : ObjectPath
        The work folder.
    shown : str
        Name of the output in error messages.

    Attributes
    ----------
    created : bool
        Whether the folder was empty before.

    Raises
    ------
    StoreError
        If another run holds the folder, or it was not created by dpca.
    """

    def __init__(self, folder: ObjectPath, shown: str) -> None:
        self.folder, self._shown = folder, shown
        self._lock, run = folder / LOCK, uuid.uuid4().hex
        self._alive = folder / f"{_ALIVE}{run}"
        self._content = json.dumps({"run": run, "machine": _machine(), "process": _process()}).encode()
        self._ended, self._taken = threading.Event(), False
        self._seen = _now()
        names = [name for name, _ in folder.entries()]
        self.created = not names
        others = [name for name in names if not name.startswith(LOCK)]
        if others and not {LOCK, JOURNAL, CLEARING} & set(names):
            raise StoreError(
                f"work folder '{shown}.partial' contains {others[0]!r}, which was not created by dpca: choose another "
                f"output or remove it"
            )
        if not self._lock.create(self._content):
            self._take_over()
        self._heart = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._heart.start()
        fences.append(self.fence)

    @property
    def held(self) -> bool:
        """Whether the folder is still held."""
        return not self._ended.is_set()

    def require(self) -> None:
        """Raise a `StoreError` if another run has taken over the folder."""
        self._taken = self._taken or not self._holds_lock()
        if self._taken:
            self._ended.set()
            with suppress(StoreError):
                self._alive.unlink(missing_ok=True)
            raise StoreError(
                f"output '{self._shown}' was taken over by another run, since this run did not reach the object store "
                f"for more than {PATIENCE:.0f} seconds: wait for the other run"
            )

    def fence(self, url: str) -> None:
        """Call `require` before this process changes a URL of the output, if the last check of the lock is old."""
        output, own = str(self.folder).removesuffix(WORK_SUFFIX), f"{self._lock}"
        if (url != output and not url.startswith((f"{output}/", f"{self.folder}/"))) or url.startswith(own):
            return
        if self._taken or _now() - self._seen > PATIENCE / 2:
            self.require()

    def release(self) -> None:
        """Release the lock and keep the folder."""
        with suppress(ValueError):
            fences.remove(self.fence)
        if self.held:
            self._ended.set()
            self._heart.join()
            _ended.add(self._content)
            with suppress(StoreError):  # a remaining lock is recognized as that of a finished run
                self._alive.unlink(missing_ok=True)
                if self._read() == self._content:
                    self._lock.unlink(missing_ok=True)

    def end(self) -> None:
        """Release the folder, which must contain only the lock."""
        self.release()

    def _beat(self) -> None:
        # A failed request is repeated at the next heartbeat. A lost lock is never regained.
        while not self._ended.wait(REFRESH):
            with suppress(StoreError):
                if not self._holds_lock():
                    self._taken = True
                    self._alive.unlink(missing_ok=True)  # this run may have written it after the takeover
                    return
                self._alive.write_bytes(b"")

    def _holds_lock(self) -> bool:
        """Return whether this run still holds the lock."""
        asked = _now()
        if self._read() != self._content:
            return False
        self._seen = asked
        return True

    def _read(self) -> bytes | None:
        try:
            return self._lock.read_bytes()
        except FileNotFoundError:
            return None

    def _take_over(self) -> None:
        found = self._read()
        alive = self.folder / f"{_ALIVE}{_run_of(found)}"
        if found is not None and not _is_dead(found) and not self._is_silent(alive):
            raise BusyError(
                f"output '{self._shown}' is being written by another run: wait for it, stop it, or choose another "
                f"output (a run that was killed on another machine blocks the output for {PATIENCE:.0f} seconds)"
            )
        if self._read() == found:
            self._lock.unlink(missing_ok=True)
        if not self._lock.create(self._content):
            raise BusyError(f"output '{self._shown}' was just claimed by another run: wait for it")
        alive.unlink(missing_ok=True)

    def _is_silent(self, alive: ObjectPath) -> bool:
        """Return whether the lock is old by the clock of the server, and does not change while it is watched."""
        now = self.folder / f"{LOCK}.now-{uuid.uuid4().hex}"
        now.write_bytes(b"")
        try:
            signs = self._signs(alive)
            # If the clock was set back, the lock is in the future, and its age is unknown.
            if signs and 0 <= now.modified() - max(signs) < PATIENCE:
                return False
        finally:
            now.unlink(missing_ok=True)
        for _ in range(_CHECKS if signs else 0):  # without signs, its run has just ended
            time.sleep(_WATCHED * REFRESH / _CHECKS)
            if self._signs(alive) != signs:
                return False
        return True

    def _signs(self, alive: ObjectPath) -> list[float]:
        """Return the times of the lock and of the heartbeat, by the clock of the server."""
        signs = []
        for path in (self._lock, alive):
            with suppress(FileNotFoundError):
                signs.append(path.modified())
        return signs


def _now() -> float:
    """Return the seconds of a clock that cannot be set, and that continues while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _run_of(content: bytes | None) -> str:
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        run = str(json.loads(content or b"")["run"])
        return run if run.isalnum() else ""
    return ""


def _is_dead(content: bytes) -> bool:
    """Return whether the lock belongs to a run that has ended, in this or another process of this machine."""
    if content in _ended:
        return True
    try:
        lock = json.loads(content)
        if lock["machine"] != _machine():
            return False
        number, began = lock["process"]
        now = _process(number)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return False
    # The start time of a process of another user may be hidden.
    return now is None or (now[1] != began and "" not in (now[1], began))


@cache
def _machine() -> str:
    """Return an anonymous identifier of this machine and of its PID namespace."""
    facts = [platform.node(), str(uuid.getnode())]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        facts.append(os.readlink("/proc/self/ns/pid"))
    return blake2b("\n".join(facts).encode(), digest_size=8).hexdigest()


def _process(number: int | None = None) -> list[Any] | None:
    """Return the PID and the start time of a process, by default of this one; None if it does not exist."""
    number = os.getpid() if number is None else number
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # the process belongs to another user
    with suppress(OSError):
        facts = Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2].split()
        return None if facts[0] == "Z" else [number, facts[19]]
    return [number, ""]
