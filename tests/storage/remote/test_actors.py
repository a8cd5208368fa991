"""Objects that stay on workers."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import pytest

from dpca.storage.errors import ClusterError, DataError
from dpca.storage.remote import actors
from dpca.storage.remote.actors import Actors, LocalObjects, threads_by_worker


class Tally:
    """Counts, and says in which process."""

    def __init__(self, first: int) -> None:
        self.n = first

    def add(self, more: int) -> tuple[int, int]:
        self.n += more
        return self.n, os.getpid()

    def fail(self) -> None:
        raise DataError(f"it is at {self.n}")


def test_objects_in_this_process() -> None:
    found = LocalObjects([Tally(1), Tally(5)])
    assert [n for n, _ in found.call("add", 2)] == [3, 7]
    assert found.call_one(1, "add", 1) == (8, os.getpid())
    found.close()
    assert found.call("add", 2) == []


def test_objects_on_workers(cluster: Any) -> None:
    addresses = threads_by_worker(cluster, 2)
    assert len(set(addresses)) == 2
    found = Actors(cluster, {at: partial(Tally, i) for i, at in enumerate(addresses)}, "tally")
    try:
        first, second = found.call("add", 10), found.call("add", 10)
        assert [n for n, _ in second] == [20, 21]
        assert [pid for _, pid in first] == [pid for _, pid in second]
        assert len({os.getpid(), *(pid for _, pid in first)}) == 3
        assert found.call_one(1, "add", 1)[0] == 22
        with pytest.raises(DataError, match="20"):
            found.call_one(0, "fail")
    finally:
        found.close()


def test_an_object_that_is_gone_is_an_error(cluster: Any) -> None:
    (address,) = threads_by_worker(cluster, 1)
    found = Actors(cluster, {address: partial(Tally, 1)}, "tally")
    cluster.cancel(found._futures, force=True)
    with pytest.raises(ClusterError, match="resume"):
        found.call("add", 1)
    found.close()


def test_an_object_on_another_worker_is_an_error(cluster: Any) -> None:
    with pytest.raises(ClusterError, match="resume"):
        Actors(cluster, {"tcp://127.0.0.1:1": partial(Tally, 1)}, "tally")
    assert_released(cluster)


def test_an_object_that_cannot_be_made_leaves_no_other(cluster: Any) -> None:
    first, second = threads_by_worker(cluster, 2)
    with pytest.raises(ZeroDivisionError):
        Actors(cluster, {first: partial(Tally, 1), second: partial(divmod, 1, 0)}, "tally")
    assert_released(cluster)


def assert_released(cluster: Any) -> None:
    for _ in range(100):
        if not any(cluster.run(lambda dask_worker: len(dask_worker.state.actors)).values()):
            return
        time.sleep(0.05)
    raise AssertionError("a worker has an object")


def test_workers_that_do_not_come(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PATIENCE", "_IN_QUEUE"):
        monkeypatch.setattr(actors, name, 0.3)
    with pytest.raises(ClusterError, match="99"):
        threads_by_worker(cluster, 99)


def test_the_current_client_does_not_matter(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask's own proxy binds itself to the current client, or to any worker in this process."""

    def bound(*_: Any) -> None:
        raise AssertionError("a proxy was made")

    monkeypatch.setattr("distributed.actor.Actor.__init__", bound)
    found = Actors(cluster, {at: partial(Tally, 1) for at in threads_by_worker(cluster, 2)}, "tally")
    assert [n for n, _ in found.call("add", 2)] == [3, 3]
    found.close()
