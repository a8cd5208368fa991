"""Jobs that `test_workspace` runs in processes of their own, to kill them.

``python jobs_to_kill.py points FOLDER`` kills a small job before each of its changes to the file system, one
after the other, and exits with 0 if every next run repaired what was left. ``python jobs_to_kill.py zarr
TARGET`` makes a store for somebody else to interrupt.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dpca.storage.arrays.arrays import create_array, create_root, write_shard, write_strings
from dpca.storage.arrays.layout import Layout
from dpca.storage.arrays.reading import open_array
from dpca.storage.remote.tasks import run_in_order
from dpca.storage.transaction.claim import MARK
from dpca.storage.transaction.inherited import Inherited
from dpca.storage.transaction.workspace import Workspace

INNER = ("take over", "inherit", "inherit and discard")
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"}


def tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# -- a job of plain files, so that a process that runs no thread can be forked in the middle of it


def small_job(target: Path, fingerprint: str, overwrite: bool, inner: bool = False) -> None:
    inherited = Inherited("stack", is_whole) if inner else None
    with Workspace(target, kind="stack", fingerprint=fingerprint, overwrite=overwrite, inherited=inherited) as work:
        if work.state == "complete":
            return
        if inner and not (work.store / "stack").exists():
            ingest_small(work.store / "stack")
        root = {"attributes": {"dpca": {"kind": "stack", "fingerprint": fingerprint}}}
        put(work.store / "zarr.json", json.dumps(root))
        for unit in range(2):
            if not work.is_done(f"shard {unit}"):
                put(work.scratch / "checkpoint", str(unit))
                put(work.store / "c" / str(unit), fingerprint * (unit + 1))
                work.mark_done(f"shard {unit}", record={"unit": unit})
            assert work.record(f"shard {unit}") == {"unit": unit}
        work.publish()


def is_whole(stack: Path) -> bool:
    return tree(stack).keys() == {"zarr.json", "c"}


def ingest_small(stack: Path) -> None:
    growing = stack.with_name("stack.partial")
    shutil.rmtree(growing, ignore_errors=True)
    growing.mkdir()
    put(growing / "zarr.json", json.dumps({"attributes": {"dpca": {"kind": "stack", "fingerprint": "inner"}}}))
    put(growing / "c", "samples")
    growing.rename(stack)
    with open(os.environ["INGESTED"], "a") as file:
        file.write("once\n")


def put(path: Path, text: str) -> None:
    """Write as zarr's local store does."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix("." + "0123456789abcdef" * 2 + ".partial")
    temporary.write_text(text)
    temporary.replace(path)


def kill_before_change(n: int, folder: str) -> None:
    """Have this process killed right before its n-th change to files below a folder."""
    seen = 0

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal seen
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (event in CHANGES or writes) and str(args[0]).startswith(folder):
            seen += 1
            if seen == n:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)

    # Python calls no audit hook for this change.
    def pwrite(handle: int, text: bytes, offset: int, write: Callable[[int, bytes, int], int] = os.pwrite) -> int:
        hook("os.rename", (os.readlink(f"/proc/self/fd/{handle}"),))
        return write(handle, text, offset)

    os.pwrite = pwrite


def in_a_child(task: Callable[..., None], *args: object) -> bool:
    """Run in a fork; True if it ended by itself."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            task(*args)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"{args} failed")
    return os.WIFEXITED(status)


def killed_job(n: int, folder: Path, overwrite: bool, inner: bool) -> None:
    kill_before_change(n, str(folder))
    small_job(folder / "out.zarr", "new", overwrite, inner)


def prepare(scenario: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    if scenario in ("inherit", "inherit and discard"):
        small_job(folder / "out.zarr", "old", False, inner=True)
    if scenario in ("take over", "inherit and discard"):
        with Workspace(folder / "out.zarr", kind="stack", fingerprint="other", overwrite=True) as work:
            ingest_small(work.store / "stack")
            work.mark_done("stage ingest")
            if scenario == "inherit and discard":
                put(work.store / "c", "other")
    if scenario in ("replace", "both"):
        small_job(folder / "out.zarr", "old", False)
    if scenario in ("discard", "both"):
        with Workspace(folder / "out.zarr", kind="stack", fingerprint="other", overwrite=True) as work:
            put(work.store / "c", "other")
            work.mark_done("shard 0")


def is_ours_or_bare(work: Path) -> bool:
    """Return whether a work folder is marked, is empty, or does not exist."""
    if not work.exists():
        return True
    lock = work / "lock"
    return set(os.listdir(work)) <= {"lock"} or (lock.exists() and lock.read_bytes() == MARK)


def ingested(base: Path) -> int:
    """How often something was ingested so far."""
    return len((base / "ingested").read_text().splitlines()) if (base / "ingested").exists() else 0


def kill_at_every_point(scenario: str, base: Path) -> int:
    overwrite, inner = scenario not in ("new", "take over"), scenario in INNER
    os.environ["INGESTED"] = str(base / "ingested")
    prepare(scenario, base / "undisturbed")
    before = tree(base / "undisturbed" / "out.zarr")
    made = ingested(base)
    small_job(base / "undisturbed" / "out.zarr", "new", overwrite, inner)
    assert ingested(base) == made, f"{scenario}: ingested again"
    whole = tree(base / "undisturbed" / "out.zarr")
    n = 0
    while True:
        n += 1
        folder = base / str(n)
        prepare(scenario, folder)
        made = ingested(base)
        if in_a_child(killed_job, n, folder, overwrite, inner):
            return n - 1
        assert is_ours_or_bare(folder / "out.zarr.partial"), f"{scenario}, killed at {n}: a folder without its mark"
        target = folder / "out.zarr"
        if target.exists():
            assert tree(target) in (before, whole), f"{scenario}, killed at {n}: half a store at the target"
        elif before:
            aside = folder / "out.zarr.partial" / "replaced"
            assert tree(aside) == before, f"{scenario}, killed at {n}: the old store is lost"
        small_job(target, "new", overwrite, inner)
        assert ingested(base) == made, f"{scenario}, killed at {n}: ingested again"
        assert tree(target) == whole, f"{scenario}, killed at {n}: another store"
        assert os.listdir(folder) == ["out.zarr"], f"{scenario}, killed at {n}: {os.listdir(folder)} left"
        shutil.rmtree(folder)


# -- a job of real Zarr shards on threads


def zarr_job(target: str) -> None:
    shape, layout, axes = (40, 8, 8), Layout((1, 8, 8), (2, 8, 8)), ("sample", "y", "x")
    values = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    print("ready", flush=True)
    with Workspace(target, kind="stack", fingerprint="f") as work:
        if work.state == "complete":
            return
        group = create_root(work.store, kind="stack", fingerprint="f")
        create_array(group, "samples", shape, "u1", layout, axes)

        def shard(i: int) -> int:
            start, stop = layout.rows(i, shape[0])
            time.sleep(0.01)
            write_shard(open_array(work.store / "samples", "r+"), start, values[start:stop])
            return i

        left = [(i,) for i in range(layout.n_shards(shape[0])) if not work.is_done(f"samples/{i}")]
        for i in run_in_order(shard, left, threads=2):
            work.mark_done(f"samples/{i}")
        write_strings(group, "name", [f"{i}.jpg" for i in range(shape[0])])
        work.publish()


if __name__ == "__main__":
    if sys.argv[1] == "points":
        os.fsync = lambda handle: None  # no power is cut here, and a busy disk would make this slow
        for scenario in ("new", "replace", "discard", "both", *INNER):
            print(scenario.replace(" ", "-"), kill_at_every_point(scenario, Path(sys.argv[2]) / scenario))
    else:
        zarr_job(sys.argv[2])
