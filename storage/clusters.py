"""Converts the failures of a Dask cluster to `ClusterError`, here and nowhere else.

A task's own error passes as it is. A client that has lost its scheduler raises a dozen different things, depending on
what it was asked meanwhile; all of them are one `ClusterError` that names the address.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import dpca
from dpca.storage.errors import ClusterError, DataError, StoreError, one_line

T = TypeVar("T")

_GO_ON = "the same command goes on with what is finished"
# Messages of a process that lacks the function it should run.
_NOT_LOADED = ("deserialization of the task graph", "Can't get attribute")
# By the clients' numbers, since some here are asked for by something that stands for them until they are opened:
# why a client was closed, stated by the thread that closed it,
_lost: dict[str, str] = {}
# and the threads of all the workers that clusters will have which are watched.
_promised: dict[str, int | None] = {}


@contextmanager
def cluster_errors(client: Any | None) -> Iterator[None]:
    """Convert what a failing cluster raises inside the block to a `ClusterError`.

    Parameters
    ----------
    client : distributed.Client or None
        Asked inside the block; None changes nothing.

    Raises
    ------
    ClusterError
        In place of whatever Dask says when its scheduler or all workers are lost, a worker keeps dying, or a worker
        cannot import this package. Errors of tasks pass, and so does the `CancelledError` of a result that was lost
        with its worker, since it can be computed again.
    """
    if client is None:
        yield
        return
    where = _address(client)
    try:
        if client.status == "closed":
            raise ClusterError(_lost.get(client.id) or f"{where} was left: open a client again, {_GO_ON}")
        yield
    except (DataError, StoreError, ClusterError):
        raise
    except Exception as error:
        said = _sentence(error, client, where)
        if said is None:
            raise
        raise ClusterError(said) from error


@contextmanager
def watched(
    client: Any, patience: float, *, threads: int | None = None, interval: float = 2.0, answer: float = 10.0
) -> Iterator[None]:
    """Close a client, during a block, when its scheduler is silent or has had no workers for too long.

    Dask itself would wait for ever, for a scheduler that hangs as for workers that never come.

    Parameters
    ----------
    client : distributed.Client
        Of a running cluster. Closed when it is given up; `cluster_errors` then says why.
    patience : float
        Seconds that a cluster may be without workers.
    threads : int, optional
        Of all the workers that it will have; default those of the workers that are there whenever that is asked.
    interval : float
        Seconds between two questions to the scheduler.
    answer : float
        Seconds that it may take to answer one.
    """
    ended = threading.Event()
    asking = (client, patience, interval, answer, ended)
    watch = threading.Thread(target=_watch, args=asking, name="watch-cluster", daemon=True)
    _promised[client.id] = threads
    watch.start()
    try:
        yield
    finally:
        ended.set()
        _promised.pop(client.id, None)


def is_watched(client: Any) -> bool:
    """Say whether a client is closed when its cluster has no workers for too long, so that one can wait without end."""
    return client.id in _promised


def worker_threads(client: Any) -> int:
    """Return how many tasks the workers of a cluster run at once when all are there.

    How a stream is cut into segments must not depend on the moment. So the workers of a cluster on this machine count
    while they are dead and on their way back, and one that `watched` was told the size of has that size.

    Raises
    ------
    ClusterError
        If the cluster is lost.
    """
    with cluster_errors(client):
        if promised := _promised.get(client.id):
            return promised
        ours = [worker["options"] for worker in (getattr(client.cluster, "worker_spec", None) or {}).values()]
        if ours and all("nthreads" in options for options in ours):
            return sum(int(options["nthreads"] or 1) for options in ours)
        return sum(client.nthreads().values())


def require_version(version: str) -> None:
    """Refuse a process that has another version of this package than the program it works for.

    Raises
    ------
    ClusterError
    """
    if version != dpca.__version__:
        raise ClusterError(
            f"a worker on '{socket.gethostname()}' has version {dpca.__version__} of this package and this program "
            f"{version}: install the same version everywhere"
        )


def for_workers(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function for tasks, which is refused by a worker of another version, whenever that has joined."""
    return partial(_on_worker, dpca.__version__, function)


def _on_worker(version: str, function: Callable[..., T], *arguments: Any) -> T:
    require_version(version)
    return function(*arguments)


def task_key(name: str) -> str:
    """Return a new key for a task, which Dask's dashboard counts under the words of ``name``, without its numbers."""
    return "-".join([*re.findall("[A-Za-z]+", name), uuid4().hex])


def wait_for_worker(client: Any, seconds: float | None = None) -> bool:
    """Say whether a worker does something within so many seconds; None waits without end.

    An adaptive cluster has no workers before there is something to do.

    Raises
    ------
    ClusterError
        If the cluster is lost.
    """
    with cluster_errors(client):
        asked = client.submit(int, key=task_key("begin"))
        try:
            asked.result(timeout=seconds)
        except TimeoutError:
            return False
        finally:
            asked.cancel()
    return True


def _watch(client: Any, patience: float, interval: float, answer: float, ended: threading.Event) -> None:
    where, alone, why = _address(client), 0.0, ""
    while not why and not ended.wait(interval):
        try:
            workers = client.nthreads(callback_timeout=answer)
        except Exception as error:
            if ended.is_set():
                return
            why = f"{where} was lost ({one_line(error)}): start it again, {_GO_ON}"
        else:
            alone = 0.0 if workers else alone + interval
            if alone >= patience:
                why = f"{where} has had no workers for {alone:.0f} seconds: start some, {_GO_ON}"
    if why:
        _lost[client.id] = why
        with suppress(Exception):
            client.close(timeout=interval)


def _address(client: Any) -> str:
    if getattr(client.cluster, "worker_spec", None):
        return "the Dask cluster of this process"
    address = getattr(client.scheduler, "address", None)
    return "the Dask scheduler" if address is None else f"the Dask scheduler at '{address}'"


def _sentence(error: Exception, client: Any, where: str) -> str | None:
    """Return the sentence for an error of the cluster; None for an error of the task itself."""
    from distributed import KilledWorker
    from distributed.client import ClosedClientError
    from distributed.comm.core import CommClosedError
    from distributed.scheduler import NoValidWorkerError, NoWorkerError

    if client.id in _lost:
        return _lost[client.id]
    if isinstance(error, KilledWorker):
        return (
            f"{error.allowed_failures + 1} workers of {where.removeprefix('the ')} died at one task, as those do that "
            f"exceed their limit of memory: give each more (--memory, or --memory-limit of 'dask worker'), {_GO_ON}"
        )
    if isinstance(error, NoWorkerError | NoValidWorkerError):
        return f"{where} has no workers left: start some, {_GO_ON}"
    foreign = isinstance(error, ImportError) or any(words in str(error) for words in _NOT_LOADED)
    # An error that a worker raises outside of a task arrives as its text.
    foreign |= type(error) is Exception and str(error).startswith(("ModuleNotFoundError(", "ImportError("))
    if foreign and client.status == "running":
        return (
            f"a process of {where.removeprefix('the ')} cannot run this package ({first_cause(error)}): "
            f"install the same version of it for the scheduler and every worker"
        )
    lost = isinstance(error, CommClosedError | ClosedClientError) or client.status != "running"
    # Dask's own time-outs have no errno, unlike those of files that a task reads.
    lost |= isinstance(error, OSError) and error.errno is None and "timed out" in str(error).lower()
    lost |= isinstance(error, CancelledError) and str(getattr(error, "reason", "")).startswith("scheduler-")
    return f"{where} was lost: start it again, {_GO_ON}" if lost else None


def first_cause(error: BaseException) -> str:
    """Return what the error says, in one line, that others were raised from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(error)
