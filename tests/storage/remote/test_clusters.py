"""What a cluster that fails makes of calls that run on it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import dask
import pytest

from dpca.engine.clusters.cluster import open_client
from dpca.jobs.base.stages import held_by
from dpca.storage.errors import ClusterError, DataError
from dpca.storage.remote.clusters import cluster_errors, watched
from dpca.storage.remote.memory import parallel_tasks, task_budget
from dpca.storage.remote.tasks import run_in_order
from tests.helpers.forked import Programs
from tests.helpers.given_cluster import GivenCluster


@pytest.fixture
def given(tmp_path: Path, programs: Programs) -> Iterator[GivenCluster]:
    with GivenCluster(1, tmp_path / "log", programs) as cluster:
        yield cluster


def kill_scheduler(given: GivenCluster) -> None:
    given.scheduler.kill()


def freeze_scheduler(given: GivenCluster) -> None:
    given.scheduler.send_signal(signal.SIGSTOP)


def kill_workers(given: GivenCluster) -> None:
    given.workers[0].kill()


@pytest.mark.parametrize(
    ("fail", "says"),
    [(kill_scheduler, ".*lost"), (freeze_scheduler, ".*lost"), (kill_workers, ".*no workers")],
)
def test_every_way_of_asking_a_cluster_that_is_gone(
    fail: Callable[[GivenCluster], None], says: str, given: GivenCluster
) -> None:
    with open_client(given.address) as client, watched(client, 2.0, interval=0.3, answer=2.0):
        calls = run_in_order(time.sleep, ((0.1 * i,) for i in range(100)), client=client)
        next(calls)
        fail(given)
        with pytest.raises(ClusterError, match=f"{given.address}.*{says}"):
            list(calls)
        deadline = time.monotonic() + 20
        while client.status != "closed" and time.monotonic() < deadline:
            time.sleep(0.05)
        for ask in (
            lambda: parallel_tasks(client, 1),
            lambda: task_budget(client, 1),
            lambda: held_by(client),
            lambda: list(run_in_order(abs, [(1,)], client=client)),
        ):
            with pytest.raises(ClusterError):
                ask()


def test_a_cluster_that_never_has_workers(tmp_path: Path, programs: Programs) -> None:
    with (
        GivenCluster(0, tmp_path / "log", programs) as empty,
        dask.config.set({"distributed.scheduler.no-workers-timeout": "1 s"}),
        open_client(empty.address) as client,
        pytest.raises(ClusterError, match=r"\b2.seconds"),
    ):
        list(run_in_order(abs, [(1,)], client=client))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.long
def test_a_task_that_kills_its_worker_again_and_again() -> None:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        open_client(workers=1, memory="1GB") as client,
        pytest.raises(ClusterError, match="--memory"),
    ):
        list(run_in_order(die, [()], client=client))


def test_errors_of_tasks_pass_as_they_are(cluster: Any) -> None:
    for error in (DataError("a"), ValueError("b"), KeyError("c"), AttributeError("d"), OSError(5, "e"), MemoryError()):
        with pytest.raises(type(error)) as caught:
            list(run_in_order(fail, [(error,)], client=cluster))
        assert not isinstance(caught.value, ClusterError)
        assert str(caught.value) == str(error)


def fail(error: Exception) -> None:
    raise error


def test_a_result_that_was_lost_with_its_worker_can_be_asked_for_again(cluster: Any) -> None:
    with pytest.raises(CancelledError), cluster_errors(cluster):
        raise CancelledError("lost")


def test_without_a_cluster_nothing_changes() -> None:
    with pytest.raises(TimeoutError), cluster_errors(None):
        raise TimeoutError("timed out")
