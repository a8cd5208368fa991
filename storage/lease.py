"""Holds a work folder in an object store for one run: the counterpart of `dpca.storage.claim`, without locks.

::

    out.zarr.partial/
        lock             who works, while somebody does: made if there is none, and never written again
        lock.alive-<run> written now and then by the run that holds the lock
        lock.now-*       written, asked for the server's time, removed

Nobody removes the lock of a run that was killed. The next run takes it away at once if its process was on this machine
and is gone. Otherwise neither lock nor sign of life may have been written for a while by the server's clock, and then
not while the next run watches for longer than the time between two signs: clocks jump, and watching needs none. A run
that lives although its lock was taken away (it was stopped, or its network was cut) cannot take it back, as it never
writes the lock again. Its process finds out before the next object that it would write or remove, and ends: the one
that was on its way then is all that another run may find. Workers of a cluster ask nobody.
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

from dpca.storage.claim import JOURNAL, LOCK, WORK_SUFFIX
from dpca.storage.errors import BusyError, StoreError
from dpca.storage.network import fences
from dpca.storage.objects import ObjectPath

#: Seconds between two signs of life, and without one after which a run counts as dead.
REFRESH, PATIENCE = 20.0, 120.0
# What of the time between two signs a lock is watched that seems to be dead, and how often it is looked at meanwhile.
_WATCHED, _LOOKS = 1.5, 15
_ALIVE = f"{LOCK}.alive-"
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
                f"work folder '{shown}.partial' holds {others[0]!r}, which is not created by dpca: choose another "
                f"output or remove it"
            )
        if not self._lock.create(self._content):
            self._take_over()
        self._heart = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._heart.start()
        fences.append(self.fence)

    @property
    def held(self) -> bool:
        """Whether the folder has not been given back."""
        return not self._ended.is_set()

    def require(self) -> None:
        """Raise a StoreError if another run has taken the folder."""
        self._taken = self._taken or not self._look()
        if self._taken:
            self._ended.set()
            with suppress(StoreError):
                self._alive.unlink(missing_ok=True)
            raise StoreError(
                f"output '{self._shown}' was taken over by another run, as this one was silent for more than "
                f"{PATIENCE:.0f} seconds: leave it to that run"
            )

    def fence(self, url: str) -> None:
        """Do as `require` before this process changes something of the output; ask where the lock was long not seen."""
        output, own = str(self.folder).removesuffix(WORK_SUFFIX), f"{self._lock}"
        if (url != output and not url.startswith((f"{output}/", f"{self.folder}/"))) or url.startswith(own):
            return
        if self._taken or _now() - self._seen > PATIENCE / 2:
            self.require()

    def release(self) -> None:
        """Give the folder back and keep it."""
        with suppress(ValueError):
            fences.remove(self.fence)
        if self.held:
            self._ended.set()
            self._heart.join()
            _ended.add(self._content)
            with suppress(StoreError):  # a lock that stays is one of a run that has ended
                self._alive.unlink(missing_ok=True)
                if self._read() == self._content:
                    self._lock.unlink(missing_ok=True)

    def end(self) -> None:
        """Give back the folder, which holds nothing but the lock."""
        self.release()

    def _beat(self) -> None:
        # a request that fails is followed by the next one; a lock that was taken away stays so
        while not self._ended.wait(REFRESH):
            with suppress(StoreError):
                if not self._look():
                    self._taken = True
                    self._alive.unlink(missing_ok=True)  # as it may have been written once more
                    return
                self._alive.write_bytes(b"")

    def _look(self) -> bool:
        """Return whether the lock is still this run's."""
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
                f"output (a run that was killed on another machine counts as one for {PATIENCE:.0f} seconds)"
            )
        if self._read() == found:
            self._lock.unlink(missing_ok=True)
        if not self._lock.create(self._content):
            raise BusyError(f"output '{self._shown}' was begun by another run just now: wait for it")
        alive.unlink(missing_ok=True)

    def _is_silent(self, alive: ObjectPath) -> bool:
        """Return whether the lock is old by the server's clock, and stays as it is while it is watched."""
        now = self.folder / f"{LOCK}.now-{uuid.uuid4().hex}"
        now.write_bytes(b"")
        try:
            signs = self._signs(alive)
            # A clock that was put back tells nothing of a lock of the time to come.
            if signs and 0 <= now.modified() - max(signs) < PATIENCE:
                return False
        finally:
            now.unlink(missing_ok=True)
        for _ in range(_LOOKS if signs else 0):  # else its run has just ended
            time.sleep(_WATCHED * REFRESH / _LOOKS)
            if self._signs(alive) != signs:
                return False
        return True

    def _signs(self, alive: ObjectPath) -> list[float]:
        """Return when the lock and the sign of life were written, by the server's clock."""
        signs = []
        for path in (self._lock, alive):
            with suppress(FileNotFoundError):
                signs.append(path.modified())
        return signs


def _now() -> float:
    """Return seconds of a clock that nobody can set, and that runs while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _run_of(content: bytes | None) -> str:
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        run = str(json.loads(content or b"")["run"])
        return run if run.isalnum() else ""
    return ""


def _is_dead(content: bytes) -> bool:
    """Return whether the lock is that of a run which has ended, in this process or with another one of this machine."""
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
    # When a process began that another user runs may be hidden.
    return now is None or (now[1] != began and "" not in (now[1], began))


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
