"""Converts the failures of a Dask cluster to `ClusterError`; no other module does this.

The errors of tasks are not converted. A client that lost its scheduler raises a dozen different exceptions, depending
on its current call. All of them become a `ClusterError` with the address of the scheduler.
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

_RESUME = "run the same command again to resume"
# Messages of a process that cannot import the function of its task.
_NOT_LOADED = ("deserialization of the task graph", "Can't get attribute")
# Both by the ids of clients, since a client may be represented by a proxy until it is opened.
# Why the watching thread closed a client.
_lost: dict[str, str] = {}
# The number of threads that a watched cluster will have when all of its workers are running.
_expected_threads: dict[str, int | None] = {}


@contextmanager
def cluster_errors(client: Any | None) -> Iterator[None]:
    """Convert the errors of a failing cluster inside the block to a `ClusterError`.

    Parameters
    ----------
    client : distributed.Client or None
        The client that the block uses. None converts nothing.

    Raises
    ------
    ClusterError
        Instead of the exceptions of Dask, if the scheduler or all workers are lost, a worker keeps dying, or a worker
        cannot import dpca. Errors of tasks are not converted. The `CancelledError` of a result that was lost with its
        worker is not converted either, since the result can be computed again.
    """
    if client is None:
        yield
        return
    where = _address(client)
    try:
        if client.status == "closed":
            raise ClusterError(
                _lost.get(client.id) or f"the client of {where} is closed: open a new client, and {_RESUME}"
            )
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
    """Close a client during the block if its scheduler does not answer or has no workers for too long.

    Dask itself waits indefinitely for a scheduler that hangs and for workers that never start.

    Parameters
    ----------
    client : distributed.Client
        Client of a running cluster. After it was closed, `cluster_errors` reports the reason.
    patience : float
        Seconds that a cluster may be without workers.
    threads : int, optional
        Number of threads of the complete cluster. The default is the number of threads of the current workers.
    interval : float
        Seconds between two requests to the scheduler.
    answer : float
        Seconds that the scheduler may take to answer a request.
    """
    ended = threading.Event()
    asking = (client, patience, interval, answer, ended)
    watch = threading.Thread(target=_watch, args=asking, name="watch-cluster", daemon=True)
    _expected_threads[client.id] = threads
    watch.start()
    try:
        yield
    finally:
        ended.set()
        _expected_threads.pop(client.id, None)


def is_watched(client: Any) -> bool:
    """Return whether a client is watched: it is closed if its cluster has no workers for too long."""
    return client.id in _expected_threads


def worker_threads(client: Any) -> int:
    """Return the number of tasks that a complete cluster runs at once.

    The division of a stream into segments must not depend on the current number of workers. Workers of a local cluster
    therefore count even while they restart, and ``threads`` of `watched` determines the size of a watched cluster.

    Raises
    ------
    ClusterError
        If the cluster is lost.
    """
    with cluster_errors(client):
        if expected := _expected_threads.get(client.id):
            return expected
        local = [worker["options"] for worker in (getattr(client.cluster, "worker_spec", None) or {}).values()]
        if local and all("nthreads" in options for options in local):
            return sum(int(options["nthreads"] or 1) for options in local)
        return sum(client.nthreads().values())


def require_version(version: str) -> None:
    """Check that this worker and the program that submits its tasks have the same version of dpca.

    Raises
    ------
    ClusterError
        If the versions differ.
    """
    if version != dpca.__version__:
        raise ClusterError(
            f"a worker on '{socket.gethostname()}' has version {dpca.__version__} of dpca, but this program has "
            f"version {version}: install the same version everywhere"
        )


def for_workers(function: Callable[..., T]) -> Callable[..., T]:
    """Wrap a function for tasks: a worker with another version of dpca raises `ClusterError` instead of running it."""
    return partial(_with_checked_version, dpca.__version__, function)


def _with_checked_version(version: str, function: Callable[..., T], *arguments: Any) -> T:
    require_version(version)
    return function(*arguments)


def task_key(name: str) -> str:
    """Return a new key for a task. The dashboard of Dask groups tasks by the words of ``name``, without its numbers."""
    return "-".join([*re.findall("[A-Za-z]+", name), uuid4().hex])


def run_on_first_worker(client: Any, function: Callable[[], T], seconds: float | None = None) -> T | None:
    """Return the result of a task that runs as soon as there is a worker, or None if there is none in time.

    An adaptive cluster starts a worker for the task. It may retire this worker when the task has ended.

    Parameters
    ----------
    client : distributed.Client
    function : callable
        Does not return None.
    seconds : float, optional
        How long to wait. The default is no limit.

    Raises
    ------
    ClusterError
        If the cluster is lost.
    """
    with cluster_errors(client):
        asked = client.submit(function, key=task_key("begin"))
        try:
            found: T = asked.result(timeout=seconds)
        except TimeoutError:
            return None
        finally:
            asked.cancel()
    return found


def _watch(client: Any, patience: float, interval: float, answer: float, ended: threading.Event) -> None:
    where, alone, why = _address(client), 0.0, ""
    while not why and not ended.wait(interval):
        try:
            workers = client.nthreads(callback_timeout=answer)
        except Exception as error:
            if ended.is_set():
                return
            why = f"{where} was lost ({one_line(error)}): start it again, and {_RESUME}"
        else:
            alone = 0.0 if workers else alone + interval
            if alone >= patience:
                why = f"{where} has had no workers for {alone:.0f} seconds: start workers, and {_RESUME}"
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
    """Return the message for an error of the cluster; None for an error of the task itself."""
    from distributed import KilledWorker
    from distributed.client import ClosedClientError
    from distributed.comm.core import CommClosedError
    from distributed.scheduler import NoValidWorkerError, NoWorkerError

    if client.id in _lost:
        return _lost[client.id]
    if isinstance(error, KilledWorker):
        return (
            f"{error.allowed_failures + 1} workers of {where} died running the same task, which usually means too "
            f"little memory: increase --memory, or --memory-limit of 'dask worker', and {_RESUME}"
        )
    if isinstance(error, NoWorkerError | NoValidWorkerError):
        return f"{where} has no workers left: start workers, and {_RESUME}"
    foreign = isinstance(error, ImportError) or any(words in str(error) for words in _NOT_LOADED)
    # An error outside of a task arrives from the worker as text.
    foreign |= type(error) is Exception and str(error).startswith(("ModuleNotFoundError(", "ImportError("))
    if foreign and client.status == "running":
        return (
            f"a process of {where} cannot import dpca ({first_cause(error)}): "
            f"install the same version of dpca for the scheduler and every worker"
        )
    lost = isinstance(error, CommClosedError | ClosedClientError) or client.status != "running"
    # Timeouts of Dask have no errno, unlike timeouts of files that a task reads.
    lost |= isinstance(error, OSError) and error.errno is None and "timed out" in str(error).lower()
    lost |= isinstance(error, CancelledError) and str(getattr(error, "reason", "")).startswith("scheduler-")
    return f"{where} was lost: start it again, and {_RESUME}" if lost else None


def lost_state(client: Any) -> ClusterError:
    """Return the error for a worker that was lost with a part of a state, which no other worker has."""
    where = _address(client)
    if client.status != "running":
        return ClusterError(_lost.get(client.id) or f"{where} was lost: start it again, and {_RESUME}")
    return ClusterError(f"a worker of {where} was lost with its part of a state: {_RESUME}")


def first_cause(error: BaseException) -> str:
    """Return the message of the root cause of an error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(error)
