"""Stores in object stores have the bytes of those on disk, whatever happens on the way."""

from __future__ import annotations

import io
import itertools
import json
import os
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dpca.storage import StoreError, ingest, open_stack, use_storage_options, verify
from dpca.storage.arrays.arrays import create_array, create_root, write_shard
from dpca.storage.arrays.layout import Layout
from dpca.storage.arrays.reading import open_array
from dpca.storage.errors import BusyError, DataError
from dpca.storage.remote import network
from dpca.storage.remote.objects import ObjectPath, place_of
from dpca.storage.run import Run
from dpca.storage.transaction import lease as leases
from dpca.storage.transaction.inherited import Inherited
from dpca.storage.transaction.workspace import Workspace
from tests.conftest import smooth_images, write_images
from tests.helpers.s3_server import KEYS, FaultyProxy, content, options_at, upload
from tests.storage.transaction.workspaces import finish, leave_unfinished


@pytest.fixture
def proxy(s3: str):
    """A proxy through which this process reaches ``s3://faulty``."""
    with FaultyProxy(s3, share=0.0) as proxy:
        use_storage_options(options_at(proxy.address), "s3://faulty")
        yield proxy


@pytest.fixture
def soon(monkeypatch):
    """No pauses between attempts."""
    monkeypatch.setattr(network, "_PAUSE", 1e-4)


# -- paths


def test_paths_of_objects_are_made_and_taken_apart():
    path = ObjectPath("s3://bucket/a/b.zarr/")
    assert (str(path), path.name, path.stem, path.suffix) == ("s3://bucket/a/b.zarr", "b.zarr", "b", ".zarr")
    assert str(path / "c" / "d") == "s3://bucket/a/b.zarr/c/d"
    assert path.parent == ObjectPath("s3://bucket/a")
    assert [str(above) for above in path.parents] == ["s3://bucket/a", "s3://bucket"]
    assert str(path.with_name("b.report")) == "s3://bucket/a/b.report"
    assert place_of("file:///tmp/x") == Path("/tmp/x")


@pytest.mark.parametrize("protocol", ["memory", "s3"])
def test_objects_are_written_listed_and_removed(protocol, bucket):
    root = ObjectPath(bucket if protocol == "s3" else "memory://bucket/objects")
    (root / "a/one").write_bytes(b"12345")
    (root / "a/b/two").write_bytes(b"")
    assert root.files() == {"a/b/two": 0, "a/one": 5}
    assert root.entries() == [("a", True)]
    assert (root / "a").entries() == [("b", True), ("one", False)]
    assert ((root / "a").is_dir(), (root / "a").is_file(), (root / "a/one").is_file()) == (True, False, True)
    assert (root / "a/one").entries() == []
    assert (root / "a/one").read_ranges([(0, 2), (3, 5)]) == [b"12", b"45"]
    assert (root / "a").read_below(["one", "b/two"], 3) == [b"123", b""]
    assert isinstance((root / "a").read_below(["none"], 3)[0], FileNotFoundError)
    assert (root / "lock").create(b"mine")
    assert (root / "lock").create(b"mine"), "an attempt that failed had written it"
    assert not (root / "lock").create(b"another's")
    with (root / "a/one").open() as file:
        assert (file.seek(-2, io.SEEK_END), file.read(), file.seek(1), file.read(2)) == (3, b"45", 1, b"23")
    (root / "none").remove_tree()
    (root / "a/one").unlink()
    (root / "a/one").unlink(missing_ok=True)
    root.remove_tree()
    assert not root.exists()


# -- writing

shapes = npst.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=9)
dtypes = st.sampled_from(["u1", "i2", "f4", "f8", "?"])


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_any_array_has_the_bytes_of_one_on_disk(tmp_path_factory, data):
    values = data.draw(npst.arrays(data.draw(dtypes), data.draw(shapes)))
    chunks = tuple(data.draw(st.integers(1, n)) for n in values.shape)
    layout = Layout(chunks, tuple(c * data.draw(st.integers(1, 3)) for c in chunks))
    codec = data.draw(st.sampled_from(["raw", "blosc"]))
    axes = [f"axis{i}" for i in range(values.ndim)]
    disk, url = tmp_path_factory.mktemp("disk") / "a.zarr", "memory://bucket/any.zarr"
    ObjectPath(url).remove_tree()
    for target in (disk, url):
        with Workspace(target, kind="any", fingerprint="f") as work:
            group = create_root(work.store, kind="any", fingerprint="f")
            array = create_array(group, "x", values.shape, values.dtype, layout, axes, codec=codec)
            for index in np.ndindex(*(-(-n // s) for n, s in zip(values.shape, layout.shards, strict=True))):
                start = tuple(i * s for i, s in zip(index, layout.shards, strict=True))
                box = tuple(slice(b, b + s) for b, s in zip(start, layout.shards, strict=True))
                write_shard(array, start, values[box])
            work.publish()
    assert content(url) == content(disk)
    assert np.array_equal(np.asarray(open_array(f"{url}/x")[...]), values, equal_nan=values.dtype.kind == "f")
    assert not ObjectPath(f"{url}.partial").exists()


# -- outputs


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/a//b", "s3://bucket/../b"])
def test_an_output_needs_a_name_in_a_bucket(url):
    with pytest.raises(StoreError, match="bucket"):
        finish(url)


def test_an_output_on_the_web_is_refused():
    with pytest.raises(StoreError, match="URL"):
        finish("https://example.org/a.zarr")


def test_an_output_in_a_bucket_harms_nothing():
    url = "memory://bucket/harmless"
    (ObjectPath(url) / "photos/a.png").write_bytes(b"png")
    for target, says in (("photos", "is a folder that is not a Zarr store"), ("photos/a.png", "is a file")):
        with pytest.raises(StoreError, match=says):
            finish(f"{url}/{target}", overwrite=True)
    write = ObjectPath(f"{url}/new.zarr.partial/done/a.png")
    write.write_bytes(b"png")
    with pytest.raises(StoreError, match="created"):
        finish(f"{url}/new.zarr", overwrite=True)
    assert ObjectPath(url).files() == {"new.zarr.partial/done/a.png": 3, "photos/a.png": 3}
    finish(f"{url}/whole.zarr")
    with pytest.raises(StoreError, match="finished.store"):
        ingest(np_file(url), f"{url}/whole.zarr/inner.zarr")


def np_file(url: str) -> str:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((3, 4, 4), "u1"))
    ObjectPath(f"{url}/a.npy").write_bytes(buffer.getvalue())
    return f"{url}/a.npy"


def test_a_store_is_resumed_recognized_refused_and_replaced():
    url = "memory://bucket/states.zarr"
    leave_unfinished(url)
    with pytest.raises(StoreError, match="creates"):
        open_stack(url)
    with pytest.raises(StoreError, match="unfinished"):
        finish(url, "other")
    assert (finish(url), finish(url)) == ("resumed", "complete")
    with pytest.raises(StoreError, match="settings"):
        finish(url, "other")
    assert finish(url, "other", overwrite=True) == "new"
    assert finish(url, "other") == "complete"
    assert set(content(url)) == {"zarr.json"}
    assert not ObjectPath(f"{url}.partial").exists()


@pytest.mark.parametrize("died", ["clearing", "publishing"])
def test_a_run_that_died_at_its_beginning_or_its_end_is_tidied_up(died):
    url, beside = f"memory://bucket/{died}.zarr", ObjectPath(f"memory://bucket/{died}.zarr.partial")
    finish(url)
    if died == "clearing":
        (ObjectPath(url) / "zarr.json").unlink()
        (ObjectPath(url) / "x/c/0").write_bytes(b"of the old store")
        (beside / "clearing").write_bytes(b"")
        assert finish(url, "other") == "new"
    else:
        (beside / "journal.json").write_bytes(json.dumps({"kind": "stack", "fingerprint": "f"}).encode())
        (beside / "done-x/x.json").write_bytes(b"{}")
        (ObjectPath(url) / "stack/zarr.json").write_bytes(b"{}")
        assert finish(url, inherited=Inherited("stack", lambda path: False)) == "complete"
    assert set(content(url)) == {"zarr.json"}
    assert not beside.exists()


def test_an_inner_store_is_inherited_where_it_is_and_not_published(tmp_path):
    url = "memory://bucket/outer.zarr"
    stack = np_file("memory://bucket/inner")
    for settings_of, state in (("a", "new"), ("b", "new")):
        kept = Inherited("stack", lambda path: (path / "zarr.json").is_file())
        with Workspace(url, kind="outer", fingerprint=settings_of, overwrite=True, inherited=kept) as work:
            assert work.state == state
            before = (work.store / "stack" / "zarr.json").is_file()
            ingest(stack, work.store / "stack")
            create_root(work.store, kind="outer", fingerprint=settings_of)
            work.mark_done("a")
            if settings_of == "b":
                work.set_aside()
                work.publish()
    assert before
    assert set(content(url)) == {"zarr.json"}
    assert verify(url) == []


# -- one run at a time


def lock_of(url: str) -> ObjectPath:
    return ObjectPath(f"{url}.partial/lock")


def test_two_runs_of_one_output_do_not_meet(bucket):
    with Workspace(bucket, kind="stack", fingerprint="f") as work:
        with pytest.raises(StoreError, match="being"):
            finish(bucket)
        work.mark_done("a")
    assert finish(bucket) == "resumed"


def lock_by(url: str, machine: str, process: object, seconds: float) -> None:
    """Leave the lock of another run, written so many seconds ago by the server's clock."""
    content = {"run": "x", "machine": machine, "process": process}
    lock_of(url).write_bytes(json.dumps(content).encode())
    put_back(url, seconds)


def put_back(url: str, seconds: float) -> None:
    fs, path = network.file_system(str(lock_of(url)))
    fs.store[path].modified -= timedelta(seconds=seconds)


@pytest.fixture
def soon_sure(monkeypatch):
    """Locks that seem to be dead are watched for a moment only."""
    monkeypatch.setattr(leases, "REFRESH", 0.02)


NONE = 2**22 + 1  # above all numbers of processes


@pytest.mark.parametrize(
    ("process", "dead"),
    [
        ([NONE, "1"], True),
        ([os.getpid(), "1"], True),  # its number is another process's by now
        (leases._process(), False),
        ([os.getpid(), ""], False),  # it is not known when it began
        ([2**70, "1"], False),
        ("none", False),
    ],
)
def test_a_run_of_this_machine_is_dead_when_its_process_is(process, dead):
    url = f"memory://bucket/{json.dumps(process)}.zarr".replace("[", "").replace("]", "")
    leave_unfinished(url)
    lock_by(url, leases._machine(), process, 0)
    if dead:
        assert finish(url) == "resumed"
    else:
        with pytest.raises(BusyError):
            finish(url)


@pytest.mark.parametrize(
    ("seconds", "dead"), [(0, False), (100, False), (130, True), (10**9, True), (-1, True), (-(10**7), True)]
)
def test_a_run_of_another_machine_is_dead_when_it_is_silent(soon_sure, seconds, dead):
    url = f"memory://bucket/silent{seconds}.zarr"
    leave_unfinished(url)
    lock_by(url, "another", [1, "1"], seconds)
    if dead:
        assert finish(url) == "resumed"
        assert not ObjectPath(f"{url}.partial").exists()
    else:
        with pytest.raises(BusyError, match="being"):
            finish(url)


def test_an_old_lock_with_a_new_sign_of_life_is_held(soon_sure):
    url = "memory://bucket/alive.zarr"
    leave_unfinished(url)
    lock_by(url, "another", [1, "1"], 1000)
    lock_of(url).with_name("lock.alive-x").write_bytes(b"")
    with pytest.raises(BusyError):
        finish(url)


@pytest.mark.parametrize("hours", [1, -1, 10**4])
def test_a_clock_that_jumps_takes_no_output_from_a_run_that_lives(soon_sure, hours):
    url = f"memory://bucket/jumps{hours}.zarr"
    with Workspace(url, kind="stack", fingerprint="f") as work:
        put_back(url, hours * 3600)
        with pytest.raises(BusyError):
            finish(url)
        work.mark_done("a")
        create_root(work.store, kind="stack", fingerprint="f")
        work.publish()
    assert not ObjectPath(f"{url}.partial").exists()


def test_a_run_whose_lock_was_taken_away_does_not_publish(bucket):
    taken = pytest.raises(StoreError, match="taken")
    with taken, Workspace(bucket, kind="stack", fingerprint="f") as work:
        work.mark_done("a")
        lock_of(bucket).write_bytes(b"another's")
        create_root(work.store, kind="stack", fingerprint="f")
        work.publish()
    assert not (ObjectPath(bucket) / "zarr.json").exists()
    assert lock_of(bucket).read_bytes() == b"another's"


class _Stopped:
    """Runs something else before the n-th request of this thread, as if it had been stopped there for long."""

    def __init__(self, n, monkeypatch, meanwhile):
        self.left, self.writes, late = n, None, 0.0
        thread, ask = threading.get_ident(), network._ask_fences

        def asked(url, doing):
            nonlocal late
            if threading.get_ident() != thread:
                return
            ask(url, doing)
            if self.writes is not None and doing != "read" and "/lock" not in url:
                self.writes.append(url)
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    self.left, late = None, 1000.0
                    with monkeypatch.context() as patch:  # another process does not call this fence
                        patch.setattr(network, "fences", [])
                        patch.setattr(leases, "fences", network.fences)
                        meanwhile()
                    self.writes = []

        monkeypatch.setattr(network, "_ask_fences", asked)
        monkeypatch.setattr(leases, "_now", lambda: time.monotonic() + late)


def make(url: str, name: str, *, stops_at: int = 99) -> None:
    """Make a store of four shards, or be killed before one of them."""
    with Workspace(url, kind="any", fingerprint=name, overwrite=True) as work:
        if work.state == "complete":
            return
        group = create_root(work.store, kind="any", fingerprint=name)
        array = create_array(group, "x", (8, 4), "u1", Layout((1, 4), (2, 4)), ["sample", "x"])
        for i in range(4):
            if i == stops_at:
                raise KeyboardInterrupt
            if not work.is_done(f"shard {i}"):
                write_shard(array, (2 * i, 0), np.full((2, 4), ord(name), "u1"))
                work.mark_done(f"shard {i}")
        work.publish()


@pytest.mark.parametrize("ends", ["whole", "killed"])
def test_a_run_that_was_stopped_anywhere_leaves_what_another_took_over(monkeypatch, ends):
    monkeypatch.setattr(leases, "REFRESH", 1e4)  # nothing of a process that is stopped beats
    monkeypatch.setattr(leases, "_WATCHED", 1e-9)
    make("memory://bucket/undisturbed", "b")
    whole = content("memory://bucket/undisturbed")
    met, taken = [], 0
    for n in itertools.count(ends == "killed", 2):
        url = f"memory://bucket/stopped-{ends}-{n}"

        def meanwhile(url=url, n=n):
            if lock_of(url).exists():
                met.append(n)
                with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
                    patch.setattr(leases, "PATIENCE", -1.0)
                    make(url, "b", stops_at=99 if ends == "whole" else 2)

        with monkeypatch.context() as patch:
            run = _Stopped(n, patch, meanwhile)
            try:
                make(url, "a")
            except StoreError:
                taken += 1
                # The request that it was about to make when it was stopped, and nothing else.
                assert run.writes == []
        if run.left is not None:
            break
        left = content(url)  # a request to remove may have been on its way, too
        if ends == "whole" and n in met and "zarr.json" in left:
            assert len({name for name in whole if left.get(name) != whole[name]}) <= 1
    assert len(met) > 15
    assert taken >= len(met) - 4  # at the very end there is nothing left to write


# -- what goes wrong


def damages(text: bytes) -> dict[str, bytes | None]:
    return {"flipped": bytes([text[0] ^ 1]) + text[1:], "cut": text[:-9], "missing": None, "another": b"{}"}


@pytest.mark.parametrize(
    ("protocol", "name", "damage"),
    [
        ("s3", "samples/c/0/0/0", "cut"),
        *(("memory", "samples/c/0/0/0", damage) for damage in ("flipped", "cut", "missing")),
        *(("memory", name, "another") for name in ("zarr.json", "samples/zarr.json")),
    ],
)
def test_damage_in_a_bucket_is_named(tmp_path, bucket, protocol, name, damage):
    url = bucket if protocol == "s3" else f"memory://bucket/{damage}"
    np.save(tmp_path / "a.npy", smooth_images(12, (8, 9)))
    ingest(tmp_path / "a.npy", url, run=Run(overwrite=True))
    path = ObjectPath(url) / name
    damaged = damages(path.read_bytes())[damage]
    path.unlink() if damaged is None else path.write_bytes(damaged)
    assert verify(url)[0].startswith(name.rpartition("/c/")[0])
    with pytest.raises((StoreError, DataError)):
        np.asarray(open_stack(url).samples[...])


def test_a_store_made_through_faults_is_that_of_the_disk(tmp_path, proxy, bucket, soon):
    write_images(tmp_path / "photos", 9, (20, 16, 3))
    ours = ingest(tmp_path / "photos", tmp_path / "out.zarr")
    url = bucket.replace("//bucket", "//faulty")
    photos = upload(tmp_path / "photos", f"{url}/photos")
    proxy.share = 0.15
    ingest(photos, f"{url}/out.zarr", run=Run(threads=2))
    proxy.share = 0.0
    assert content(f"{url}/out.zarr") == content(ours.path)
    assert sum(proxy.met.values()) > proxy.met["passed"]


@pytest.mark.parametrize("faults", [("503",), ("cut upload",)])
def test_a_server_that_fails_for_good_is_reported_and_the_run_resumes(proxy, bucket, faults, soon):
    url = bucket.replace("//bucket", "//faulty")
    proxy._faults = faults
    fails = pytest.raises(StoreError, match=r"\b5\b")
    with fails, Workspace(url, kind="stack", fingerprint="f") as work:
        work.mark_done("a")
        proxy.share = 1.0
        work.mark_done("b")
    proxy.share = 0.0
    with Workspace(url, kind="stack", fingerprint="f") as work:
        assert work.is_done("a")
    assert finish(url) == "resumed"


def test_an_upload_that_is_cut_leaves_nothing_and_is_repeated(proxy, soon):
    path, text = ObjectPath("s3://faulty/large"), bytes(range(256)) * 2**14
    proxy.share, proxy._faults = 1.0, ("cut upload",)
    with pytest.raises(StoreError, match="endpoint"):
        path.write_bytes(text)
    proxy.share = 0.0
    assert not path.exists()
    proxy.share = 0.5
    for _ in range(3):
        path.write_bytes(text)
    proxy.share = 0.0
    assert path.read_bytes() == text


@pytest.mark.parametrize(
    ("options", "url", "says"),
    [
        ({}, "s3://no-such-bucket/a.zarr", "no such bucket"),
        ({"refused": True}, "s3://faulty/a.zarr", "credentials"),
        ({}, "s4://bucket/a.zarr", "cannot be opened"),
    ],
)
def test_permanent_errors_are_raised_at_once(proxy, s3, options, url, says):
    use_storage_options(options_at(s3), "s3://no-such-bucket")
    if options:
        proxy.share, proxy._faults = 1.0, ("403",)
    requests = sum(proxy.met.values())
    with pytest.raises((StoreError, DataError), match=says) as error:
        finish(url)
    assert sum(proxy.met.values()) - requests <= 2
    assert KEYS["secret"] not in str(error.value)


def test_options_are_shown_nowhere(bucket, s3):
    finish(bucket)
    text = "".join(map(repr, (open_array_at(bucket), ObjectPath(bucket), content(bucket))))
    assert not any(key in text for key in KEYS.values())
    with pytest.raises((DataError, StoreError)) as error:
        use_storage_options({"secret": "another-secret", "max_concurrency": "another-secret"}, "s3://wrong")
        ObjectPath("s3://wrong/a").read_bytes()
    assert "another-secret" not in str(error.value)


def open_array_at(url: str):
    from dpca.storage.arrays.reading import open_node

    return open_node(url).store


def test_workers_reach_what_the_program_reaches(cluster, bucket, tmp_path):
    write_images(tmp_path / "photos", 9, (20, 16, 3))
    ingest(upload(tmp_path / "photos", f"{bucket}/photos"), f"{bucket}/a.zarr", run=Run(client=cluster))
    ours = ingest(tmp_path / "photos", tmp_path / "a.zarr")
    assert content(f"{bucket}/a.zarr") == content(ours.path)
