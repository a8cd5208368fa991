from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.storage.arrays.arrays import create_array, create_root, write_shard
from dpca.storage.arrays.layout import Layout
from dpca.storage.disk import writing_errors
from dpca.storage.errors import StoreError
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.workspace import Workspace, fingerprint_of
from tests.helpers.forked import ROOT
from tests.storage.transaction.jobs_to_kill import tree
from tests.storage.transaction.workspaces import finish, leave_unfinished

JOBS = Path(__file__).with_name("jobs_to_kill.py")


# -- fingerprints

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
@settings(max_examples=40, deadline=None)
def test_fingerprint_depends_on_the_value_alone(value):
    again = json.loads(json.dumps(value))
    assert fingerprint_of(value) == fingerprint_of(again)
    assert fingerprint_of(value) != fingerprint_of([value])
    assert len(fingerprint_of(value)) == 32


def test_fingerprint_order_and_kinds():
    assert fingerprint_of({"a": 1, "b": (2, 3)}) == fingerprint_of({"b": [2, 3], "a": 1})
    assert fingerprint_of("a", "b") != fingerprint_of("ab")
    assert fingerprint_of("file\udcff") != fingerprint_of("file")
    with pytest.raises(TypeError):
        fingerprint_of(b"bytes")
    with pytest.raises(ValueError):
        fingerprint_of(float("nan"))


# -- the course of a job


def test_new_then_complete(tmp_path):
    target = tmp_path / "deep" / "er" / "out.zarr"
    assert finish(target) == "new"
    assert os.listdir(target.parent) == ["out.zarr"]
    before = {path: path.stat().st_mtime_ns for path in target.parent.rglob("*")}
    assert finish(target) == "complete"
    assert {path: path.stat().st_mtime_ns for path in target.parent.rglob("*")} == before


def test_an_interrupted_job_is_resumed_with_its_markers(tmp_path):
    def interrupted():
        with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="f") as work:
            assert work.state == "new"
            work.mark_done("shard/0", "abc", {"rejected": ["b.jpg"], "sum": 1.5})
            (work.store / "c").mkdir()
            (work.store / "c" / "0").write_text("whole")
            (work.store / "c" / f"1.{'0' * 32}.partial").write_text("tor")
            (work.scratch / "state").write_text("checkpoint")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == ["out.zarr.partial"]

    with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="f") as work:
        assert work.state == "resumed"
        assert work.is_done("shard/0", "abc")
        assert not work.is_done("shard/0")
        assert not work.is_done("shard/0", "abd")
        assert not work.is_done("shard/1", "abc")
        assert work.record("shard/0") == {"rejected": ["b.jpg"], "sum": 1.5}
        with pytest.raises(KeyError):
            work.record("shard/1")
        assert (work.scratch / "state").read_text() == "checkpoint"
        assert os.listdir(work.store / "c") == ["0"]
        create_root(work.store, kind="stack", fingerprint="f")
        (work.store / "c" / f"0.{'a' * 32}.partial").write_text("of a worker that died")
        work.publish()
    assert sorted(tree(tmp_path)) == ["out.zarr/c/0", "out.zarr/zarr.json"]


@given(st.text(max_size=300))
@settings(max_examples=30, deadline=None)
def test_any_text_names_a_unit(tmp_path_factory, unit):
    with Workspace(tmp_path_factory.mktemp("w") / "o.zarr", kind="stack", fingerprint="f") as work:
        work.mark_done(unit)
        assert work.is_done(unit)
        assert not work.is_done(unit + "x")


@pytest.mark.parametrize("content", [b"", b'{"unit": "a"', b"[]", b'{"unit": "a", "fingerprint": ""}', b"\xff"])
def test_a_torn_marker_counts_as_not_done(tmp_path, content):
    with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="f") as work:
        work.mark_done("a")
        (marker,) = (tmp_path / "out.zarr.partial").glob("done-*/*")
        marker.write_bytes(content)
        assert not work.is_done("a")
        work.mark_done("a")
        assert work.is_done("a")


def test_a_failure_before_anything_was_finished_leaves_no_trace(tmp_path):
    def broken():
        with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="f") as work:
            (work.store / "c").write_text("something")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]"])
def test_an_unreadable_journal_means_starting_again(tmp_path, content):
    leave_unfinished(tmp_path / "out.zarr")
    (tmp_path / "out.zarr.partial" / "journal.json").write_bytes(content)
    with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="f") as work:
        assert work.state == "new"
        assert not work.is_done("a")


def test_publishing_needs_a_store_that_says_what_it_is(tmp_path):
    with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="f") as work:
        with pytest.raises(RuntimeError, match="create_root"):
            work.publish()
        create_root(work.store, kind="stack", fingerprint="g")
        with pytest.raises(RuntimeError, match="create_root"):
            work.publish()
    finish(tmp_path / "out.zarr")
    with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="f") as work, pytest.raises(RuntimeError):
        work.publish()


def test_a_link_is_followed(tmp_path):
    (tmp_path / "big disk").mkdir()
    (tmp_path / "out.zarr").symlink_to(tmp_path / "big disk" / "real.zarr")
    assert finish(tmp_path / "out.zarr") == "new"
    assert os.listdir(tmp_path / "big disk") == ["real.zarr"]
    assert finish(tmp_path / "out.zarr") == "complete"


# -- refusals


def make_file(path):
    path.write_text("photographs")


def make_folder(path):
    path.mkdir()
    (path / "a.jpg").write_text("photograph")


def make_foreign(path):
    zarr.create_array(path, shape=(4, 4), dtype="u1", zarr_format=2)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (make_file, "is a file"),
        (make_folder, "not a Zarr store"),
        (make_foreign, "not a stack store"),
        (lambda path: finish(path, kind="scores"), "kind 'scores', not 'stack'"),
        (lambda path: finish(path, fingerprint="g"), "other settings"),
    ],
)
def test_a_target_that_is_something_else_is_refused_untouched(tmp_path, make, match):
    target = tmp_path / "out.zarr"
    make(target)
    before = tree(tmp_path)
    with pytest.raises(StoreError, match=match) as caught:
        finish(target)
    assert "choose another output" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == before
    assert os.listdir(tmp_path) == ["out.zarr"]


@pytest.mark.parametrize("make", [make_file, make_folder])
def test_what_is_no_store_is_not_even_overwritten(tmp_path, make):
    make(tmp_path / "out.zarr")
    before = tree(tmp_path)
    with pytest.raises(StoreError, match="remove"):
        finish(tmp_path / "out.zarr", overwrite=True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("make", [make_foreign, lambda path: finish(path, fingerprint="g"), Path.mkdir])
def test_another_store_is_overwritten_on_request(tmp_path, make):
    make(tmp_path / "out.zarr")
    assert finish(tmp_path / "out.zarr", overwrite=True) == "new"
    assert list(tree(tmp_path)) == ["out.zarr/zarr.json"]
    assert finish(tmp_path / "out.zarr", overwrite=True) == "complete"


def test_the_old_store_stays_until_the_new_one_is_whole(tmp_path):
    finish(tmp_path / "out.zarr", fingerprint="old")
    before = tree(tmp_path / "out.zarr")
    leave_unfinished(tmp_path / "out.zarr", overwrite=True)
    assert tree(tmp_path / "out.zarr") == before
    assert finish(tmp_path / "out.zarr", overwrite=True) == "resumed"
    assert tree(tmp_path / "out.zarr") != before


def test_an_unfinished_job_of_other_settings_is_discarded_only_on_request(tmp_path):
    leave_unfinished(tmp_path / "out.zarr")
    before = tree(tmp_path)
    with pytest.raises(StoreError, match="unfinished.*--overwrite"):
        finish(tmp_path / "out.zarr", fingerprint="g")
    assert tree(tmp_path) == before
    assert finish(tmp_path / "out.zarr", fingerprint="g", overwrite=True) == "new"


def test_a_complete_store_is_recognized_beside_an_unfinished_replacement(tmp_path):
    finish(tmp_path / "out.zarr")
    leave_unfinished(tmp_path / "out.zarr", fingerprint="g", overwrite=True)
    assert finish(tmp_path / "out.zarr") == "complete"
    assert finish(tmp_path / "out.zarr", fingerprint="g", overwrite=True) == "resumed"


def test_two_runs_at_once_are_refused(tmp_path):
    with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="f") as work:
        work.mark_done("a")
        with pytest.raises(StoreError, match="being"):
            finish(tmp_path / "out.zarr", overwrite=True)
        assert work.is_done("a")
    assert finish(tmp_path / "out.zarr") == "resumed"


def test_a_parent_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "f").write_text("x")
    with pytest.raises(StoreError, match=r"\bpart\b"):
        finish(tmp_path / "f" / "out.zarr")


def test_a_target_that_appears_meanwhile_is_not_replaced(tmp_path):
    with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="f") as work:
        work.mark_done("a")
        create_root(work.store, kind="stack", fingerprint="f")
        make_folder(tmp_path / "out.zarr")
        with pytest.raises(StoreError, match="Zarr"):
            work.publish()
    shutil.rmtree(tmp_path / "out.zarr")
    assert finish(tmp_path / "out.zarr") == "resumed"


def test_a_straggler_that_still_writes_does_not_stop_the_next_job(tmp_path):
    leave_unfinished(tmp_path / "out.zarr")
    with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="f") as work:
        straggling = work.store
    stop = threading.Event()

    def straggle():
        while not stop.is_set():
            with suppress(OSError):
                straggling.mkdir(exist_ok=True)
                (straggling / "zarr.json").write_text("of another job")
                (straggling / "zarr.json").unlink()

    straggler = threading.Thread(target=straggle)
    straggler.start()
    threading.Timer(0.3, stop.set).start()
    with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="g", overwrite=True) as work:
        straggler.join()
        assert os.listdir(work.store) == []
        create_root(work.store, kind="stack", fingerprint="g")
        work.publish()
    assert os.listdir(tmp_path) == ["out.zarr"]


def test_what_a_straggler_of_other_settings_still_marks_is_not_done(tmp_path):
    leave_unfinished(tmp_path / "out.zarr")
    with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="f") as straggler:
        pass
    with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="g", overwrite=True) as work:
        for folder in (straggler.scratch, straggler._done):
            folder.mkdir(exist_ok=True)
        straggler.mark_done("a")
        Checkpoints(str(straggler.scratch)).save("shard-0", {}, {})
        assert not work.is_done("a")
        assert Checkpoints(str(work.scratch)).load("shard-0") is None
        create_root(work.store, kind="stack", fingerprint="g")
        work.publish()
    assert os.listdir(tmp_path) == ["out.zarr"]


# -- the disk


def test_a_real_write_that_fails_in_zarr_is_one_sentence_and_can_be_continued(tmp_path):
    # a limit on the size of files stands in for a full disk
    def write(work):
        group = create_root(work.store, kind="stack", fingerprint="f")
        layout = Layout((1, 1 << 16), (4, 1 << 16))
        array = create_array(group, "samples", (8, 1 << 16), "u1", layout, ("sample", "feature"))
        for start in (0, 4):
            write_shard(array, start, np.ones((4, 1 << 16), "u1"))

    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="f") as work:
            work.mark_done("a")
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, before[1]))
            with pytest.raises(StoreError, match="full"), writing_errors(tmp_path / "out.zarr"):
                write(work)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not (tmp_path / "out.zarr").exists()
    with Workspace(tmp_path / "out.zarr", kind="stack", fingerprint="f") as work:
        assert work.state == "resumed"
        write(work)
        work.publish()
    assert zarr.open_array(tmp_path / "out.zarr" / "samples", mode="r")[:].all()


# -- kill -9


@pytest.mark.kill
def test_killed_before_every_single_change_to_the_disk(tmp_path):
    # Started, not forked: a process that has imported little forks its hundreds of children faster.
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.check_output([sys.executable, str(JOBS), "points", str(tmp_path)], env=env, text=True)
    points = {scenario: int(n) for scenario, n in map(str.split, out.splitlines())}
    assert list(points) == ["new", "replace", "discard", "both", "take-over", "inherit", "inherit-and-discard"]
    assert min(points.values()) > 25  # deaths in each


def test_killed_at_random_moments_the_store_is_the_undisturbed_one(tmp_path, programs):
    def run(target, kill_after=None):
        with programs.start([sys.executable, str(JOBS), "zarr", str(target)]) as job:
            assert job.stdout.readline() == "ready\n"
            if kill_after is not None:
                time.sleep(kill_after)
                job.kill()
        return job.returncode

    begin = time.perf_counter()
    assert run(tmp_path / "undisturbed.zarr") == 0
    longest = time.perf_counter() - begin
    whole = tree(tmp_path / "undisturbed.zarr")
    assert len(whole) == 26  # 20 shards, one chunk of names, 3 zarr.json, 2 checksums.json

    moments, target, kills = random.Random(7), tmp_path / "killed.zarr", 0
    while kills < 6:
        if run(target, moments.uniform(0, longest / 8)) == -signal.SIGKILL:
            kills += 1
            assert not target.exists() or tree(target) == whole
        else:
            assert tree(target) == whole
            shutil.rmtree(target)
    assert run(target) == 0
    assert tree(target) == whole
    assert sorted(os.listdir(tmp_path)) == ["killed.zarr", "undisturbed.zarr"]
