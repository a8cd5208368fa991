"""Processes that hand one work folder over while they are killed, for `test_work_folder`.

``python locks_to_hand_over.py FOLDER TIMES`` has four of them claim it so many times; each ends it, keeps it, or is
killed (SIGKILL) before a change that it makes to the disk on the way. Prints how many were killed. Exit code 9: two of
them held it at once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path

from dpca.storage.errors import BusyError
from dpca.storage.transaction.claim import Claim

_CHANGES = ("open", "os.mkdir", "os.remove", "os.rmdir")


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    return False


def compete(folder: Path, seed: int) -> None:
    """Claim the folder until killed, or once."""
    chance, left = random.Random(seed), -1

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal left
        if event in _CHANGES and str(args[0]).startswith(str(folder)):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    left = chance.choice([-1, *range(1, 12)])
    while True:
        try:
            claim = Claim(folder, "out")
        except BusyError:
            continue
        holder = folder.with_name("holder")
        before = int(holder.read_text() or 0) if holder.exists() else 0
        if before and alive(before):
            os._exit(9)
        holder.write_text(str(os.getpid()))
        for _ in range(chance.randrange(3)):
            os.sched_yield()
        if holder.read_text() != str(os.getpid()):
            os._exit(9)
        holder.write_text("")
        claim.end() if chance.random() < 0.8 else claim.release()
        os._exit(0)


def main(folder: Path, times: int) -> int:
    running: set[int] = set()
    killed = 0
    for seed in range(times):
        if (pid := os.fork()) == 0:
            compete(folder, seed)
        running.add(pid)
        while len(running) == 4 or (seed == times - 1 and running):
            ended, status = os.wait()
            running.remove(ended)
            if (code := os.waitstatus_to_exitcode(status)) == 9:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                return 9
            killed += code == -signal.SIGKILL
            assert code in (0, -signal.SIGKILL), code
    Claim(folder, "out").end()
    assert not folder.exists()
    print(killed)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) / "out.partial", int(sys.argv[2])))
