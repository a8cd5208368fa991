"""Work folders not created by dpca are not changed, and links in work folders are not followed."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from dpca.storage.errors import StoreError
from dpca.storage.transaction.claim import MARK, Claim
from tests.storage.transaction.jobs_to_kill import tree
from tests.storage.transaction.workspaces import finish, leave_unfinished


def test_a_work_folder_that_is_none_of_ours_is_refused(tmp_path):
    (tmp_path / "out.zarr.partial").mkdir()
    (tmp_path / "out.zarr.partial" / "diary.txt").write_text("dear")
    with pytest.raises(StoreError, match=r"diary\.txt"):
        finish(tmp_path / "out.zarr", overwrite=True)
    assert "out.zarr.partial/diary.txt" in tree(tmp_path)


#: What a user's own folder may look like that happens to have the name of a work folder.
FOREIGN = {
    "nothing of ours": {"diary.txt": "dear"},
    "scratch": {"scratch-0/notes.txt": "x"},
    "done": {"done-0/photo.jpg": "x"},
    "store": {"store-front/photo.jpg": "x"},
    "replaced": {"replaced/photo.jpg": "x"},
    "an empty lock": {"lock": "", "scratch-0/notes.txt": "x"},
    "another's lock": {"lock": "pid 17", "done-0/photo.jpg": "x"},
    "only another's lock": {"lock": "pid 17"},
    "another's journal": {"journal.json": '{"title": "my days"}', "scratch-0/notes.txt": "x"},
    "a journal with more in it": {"journal.json": '{"kind": "a", "fingerprint": "b", "c": 1}', "scratch-0/x": ""},
    "a journal of other types": {"journal.json": '{"kind": 1, "fingerprint": "b"}', "scratch-0/x": ""},
    "part of a journal": {"lock": "", "journal.json": '{"kind": "a", "fing', "scratch-0/x": ""},
    "a mark that goes on": {"lock": MARK.decode() + "and more", "done-0/x": ""},
}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("what", FOREIGN)
def test_a_folder_that_is_not_marked_as_ours_is_left_as_it_is(tmp_path, what, complete, overwrite):
    if complete:
        finish(tmp_path / "out.zarr")
    for name, text in FOREIGN[what].items():
        (tmp_path / "out.zarr.partial" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out.zarr.partial" / name).write_text(text)
    before = tree(tmp_path)
    with pytest.raises(StoreError, match=r"out\.zarr\.partial.*created") as error:
        finish(tmp_path / "out.zarr", fingerprint="g", overwrite=overwrite or complete)
    assert "\n" not in str(error.value)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "place", ["", "lock", "journal.json", "scratch", "done", "store", "replaced", "store/c", "done/x"]
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_in_a_work_folder_is_refused_and_never_followed(tmp_path, place, overwrite):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "photo.jpg").write_text("x")
    leave_unfinished(tmp_path / "out.zarr")
    work = tmp_path / "out.zarr.partial"
    first = place.partition("/")[0]
    named = next((path.name for path in work.glob(f"{first}-*")), first)
    link = work / place.replace(first, named) if place else work
    if link.is_dir():
        shutil.rmtree(link)
    elif link.exists():
        link.unlink()
    link.symlink_to(tmp_path / "precious")
    before = tree(tmp_path / "precious")
    for fingerprint in ("f", "g"):
        with pytest.raises(StoreError, match="followed"):
            finish(tmp_path / "out.zarr", fingerprint=fingerprint, overwrite=overwrite)
    assert tree(tmp_path / "precious") == before


def test_a_folder_that_killed_runs_hand_over_is_one_run_s_at_a_time(tmp_path):
    # Started, not forked: a process that has imported little forks its hundreds of children faster.
    command = [sys.executable, str(Path(__file__).with_name("locks_to_hand_over.py")), str(tmp_path), "150"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    assert int(subprocess.check_output(command, env=env)) > 60


@pytest.mark.parametrize("left", [None, b"", MARK])
def test_a_folder_that_another_run_removes_until_it_is_locked_is_claimed(tmp_path, monkeypatch, left):
    folder, lock = tmp_path / "out.partial", fcntl.flock
    for n in range(100):
        calls = itertools.count()

        def asked(*args, _call, calls=calls, n=n, **options):
            if args and str(args[0]).startswith(str(folder)) and next(calls) == n:
                monkeypatch.undo()
                shutil.rmtree(folder, ignore_errors=True)
            return _call(*args, **options)

        def locked(*args):
            monkeypatch.undo()
            lock(*args)

        folder.mkdir()
        if left is not None:
            (folder / "lock").write_bytes(left)
        for name in ("stat", "lstat", "mkdir", "open", "scandir"):
            monkeypatch.setattr(os, name, partial(asked, _call=getattr(os, name)))
        monkeypatch.setattr(fcntl, "flock", locked)
        claim = Claim(folder, "out")
        assert os.path.samestat(os.fstat(claim._handle), os.stat(folder / "lock"))
        claim.end()
        assert not folder.exists()
        if next(calls) < n:
            break
    assert n > 4


def test_a_work_folder_below_a_link_that_leads_nowhere_is_refused(tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        Claim(tmp_path / "link" / "out.partial", "out")


def test_a_work_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out.zarr.partial").write_text("photographs")
    with pytest.raises(StoreError, match="work.folder.*file"):
        finish(tmp_path / "out.zarr", overwrite=True)
    assert (tmp_path / "out.zarr.partial").read_text() == "photographs"


@pytest.mark.parametrize("lock", [None, b"", MARK[:1], MARK[:20], MARK])
def test_an_empty_folder_or_one_whose_mark_was_being_written_is_taken_over(tmp_path, lock):
    (tmp_path / "out.zarr.partial").mkdir()
    if lock is not None:
        (tmp_path / "out.zarr.partial" / "lock").write_bytes(lock)
    assert finish(tmp_path / "out.zarr") == "new"
    assert os.listdir(tmp_path) == ["out.zarr"]
