"""What a disk says, in one sentence."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpca.storage import disk
from dpca.storage.arrays.arrays import create_root
from dpca.storage.disk import atomic_write_bytes, exchanged, require_free_space, reserve, writing_errors
from dpca.storage.errors import StoreError
from dpca.storage.transaction import growing
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.workspace import Workspace


@pytest.mark.parametrize(
    ("number", "match"),
    [
        (errno.ENOSPC, "disk is full.* 'out.zarr'"),
        (errno.EDQUOT, "disk is full"),
        (errno.EACCES, "permissions"),
        (errno.EROFS, "permissions"),
        (errno.ENOTDIR, "part of its path"),
    ],
)
def test_the_disk_says_no_in_one_sentence(number, match):
    with pytest.raises(StoreError, match=match), writing_errors("out.zarr"):
        raise OSError(number, os.strerror(number))


def test_what_the_job_takes_is_named():
    with pytest.raises(StoreError, match=r"2\.5.TB"), writing_errors("out.zarr", 2_500_000_000_000):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_other_errors_pass():
    with pytest.raises(FileNotFoundError), writing_errors("out.zarr"):
        os.stat("/nowhere/at/all")


def test_space_is_asked_for_before_starting(tmp_path):
    require_free_space(tmp_path / "not" / "yet.zarr", 1, "the stack")
    with pytest.raises(StoreError, match="1,000.PB"):
        require_free_space(tmp_path / "not" / "yet.zarr", 10**18, "the stack")


def test_room_for_a_file_is_reserved_or_the_disk_is_full(tmp_path: Path) -> None:
    size = 1 << 20
    with open(tmp_path / "shard", "xb") as file:
        reserve(file.fileno(), size)
        status = os.fstat(file.fileno())
        # a system without this leaves the file empty
        assert (status.st_size, status.st_blocks * 512 >= size) in ((size, True), (0, False))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * size, before[1]))
        try:
            if status.st_size:
                with pytest.raises(OSError, match="large"):
                    reserve(file.fileno(), 3 * size)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("system", [SimpleNamespace(), SimpleNamespace(fallocate=lambda *_: -1)])
def test_a_system_that_reserves_no_room_is_no_error(system: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: system)
    ctypes.set_errno(errno.EOPNOTSUPP)
    reserve(0, 1)


def test_folders_are_swapped_in_one_step_or_not_at_all(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"in-{name}").touch()
    done = exchanged(tmp_path / "a", tmp_path / "b")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["in-b" if done else "in-a"]
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["in-a" if done else "in-b"]
    assert not exchanged(tmp_path / "a", tmp_path / "none")
    assert (tmp_path / "a").exists()


# -- what a loss of power leaves


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The flushes and renames in order; other tests do not flush (`conftest.py`)."""
    steps: list[tuple[str, str]] = []
    flush = os.fsync

    def flushed(handle: int) -> None:
        size = os.fstat(handle).st_size
        steps.append(("flush", os.readlink(f"/proc/self/fd/{handle}") + ("" if size else " (empty)")))
        flush(handle)

    def renamed(how: Callable[..., object]) -> Callable[..., object]:
        def rename(*paths: Path) -> object:
            steps.append((os.fspath(paths[0]), os.fspath(paths[1])))
            return how(*paths)

        return rename

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed(os.replace))
    monkeypatch.setattr(os, "rename", renamed(os.rename))
    monkeypatch.setattr(growing, "exchanged", renamed(growing.exchanged))
    return steps


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, steps: list[tuple[str, str]]) -> None:
    atomic_write_bytes(tmp_path / "a", b"content")
    Checkpoints(str(tmp_path)).save("b", {}, {"n": 1})
    for name in ("a", "b.npz"):
        (flush, temporary), renamed = steps[:2]
        assert (flush, renamed) == ("flush", (temporary, str(tmp_path / name)))
        del steps[:2]
    assert steps == []


@pytest.mark.parametrize("swaps", [True, False])
def test_a_store_appears_once_what_vouches_for_it_is_on_the_disk(
    tmp_path: Path, steps: list[tuple[str, str]], swaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not swaps:
        monkeypatch.setattr(growing, "exchanged", lambda one, other: False)
    target = tmp_path / "out.zarr"
    for fingerprint in ("new", "another"):
        steps.clear()
        with Workspace(target, kind="stack", fingerprint=fingerprint, overwrite=True) as work:
            work.mark_done("a")
            create_root(work.store, kind="stack", fingerprint=fingerprint)
            work.publish()
        appears = steps.index((str(work.store), str(target)))
        for name in ("journal.json", "zarr.json", ".npz"):  # the journal, the manifest, the marker
            written = [
                i for i, (old, new) in enumerate(steps) if old.count(f".{name.lstrip('.')}.") and new.endswith(name)
            ]
            assert written
            assert all(steps[i - 1] == ("flush", steps[i][0]) for i in written)
            assert max(written) < appears
        assert steps[appears + 1] == ("flush", str(tmp_path))
        assert disk.exists(target)


@pytest.mark.parametrize("fails", ["write", "flush", "rename"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    (tmp_path / "a").write_text("old")
    if fails != "write":
        monkeypatch.setattr(os, {"flush": "fsync", "rename": "replace"}[fails], fail)
    with pytest.raises((OSError, TypeError)):
        atomic_write_bytes(tmp_path / "a", b"new" if fails != "write" else None)  # type: ignore[arg-type]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old"}


def test_nobody_can_put_a_link_where_a_file_is_written(tmp_path: Path) -> None:
    """The name of the process was that of the file that is renamed."""
    (tmp_path / "precious").write_text("precious")
    for number in range(os.getpid() - 2, os.getpid() + 3):
        (tmp_path / f".a.{number}").symlink_to("precious")
    atomic_write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "precious").read_text() == "precious"
