"""Run many calls and take their results in order, on a Dask cluster or on local threads.

::

    calls:    0 1 2 3 4 5 6 7 8 9 ...
              | | [ window ]
    taken ----+ |  submitted, running or waiting to be taken
    being taken +

At most `window` calls are outstanding, so a slow consumer holds the producers back and memory stays bounded
however long the iterable is; calls are drawn from it only as they are submitted.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from threadpoolctl import ThreadpoolController

from dpca.storage.clusters import cluster_errors, for_workers, task_key, worker_threads
from dpca.storage.progress import Stage
from dpca.storage.sharing import share_storage_options

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")
K = TypeVar("K")


def run_in_order(
    function: Callable[..., T],
    calls: Iterable[tuple[Any, ...]],
    *,
    client: Client | None = None,
    threads: int | None = None,
    window: int | None = None,
    name: str = "call",
) -> Iterator[T]:
    """Yield ``function(*call)`` for every call, in the order of the calls.

    Parameters
    ----------
    function : callable
        With a `client` it must be picklable, as its arguments must be. It should have no effect but writing
        files atomically: a worker that dies has its tasks run again.
    calls : iterable of tuple
        Positional arguments, drawn lazily; with a `client` they may be futures.
    client : distributed.Client, optional
        Cluster to run on; without one, threads of this process.
    threads : int, optional
        Local threads, default the number of processors; 1 runs each call when its result is asked for.
    window : int, optional
        Most calls outstanding at a time, default twice the threads of the cluster or of this process.
    name : str
        What the tasks are called on the dashboard of the cluster.

    Yields
    ------
    object
        Results.

    Raises
    ------
    ValueError
        If `threads` or `window` is below 1.
    ClusterError
        If the cluster is lost, has no workers left, or cannot run this package.
    Exception
        What the first failing call (in order) raised, unchanged. Calls that wait are cancelled, local calls
        that run are waited for; the same happens when the iteration is given up early or interrupted.

    Notes
    -----
    BLAS is limited to one thread while calls run concurrently. The cluster costs 1-1.5 ms a call: make
    calls long.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}: give at least 1")
    if window is not None and window < 1:
        raise ValueError(f"window is {window}: give at least 1")
    if client is not None:
        with cluster_errors(client):
            share_storage_options(client)
        window = window or 2 * max(1, worker_threads(client))
        return _run(partial(_Cluster, client, name), function, calls, window)
    threads = threads or os.cpu_count() or 1
    if threads == 1:
        return (function(*call) for call in calls)
    return _run(partial(_Threads, threads), function, calls, window or 2 * threads)


def map_shards(
    function: Callable[..., T],
    shards: Iterable[tuple[K, int, tuple[Any, ...] | None]],
    finished: Callable[[K, T], None] = lambda shard, outcome: None,
    *,
    stage: Stage,
    client: Client | None = None,
    threads: int | None = None,
    window: int | None = None,
    name: str = "call",
) -> list[T]:
    """Call a function for each shard that is not done yet, and mark each as done, in order.

    Parameters
    ----------
    function : callable
        Writes one shard; see `run_in_order`.
    shards : iterable of (shard, n_samples, call)
        Drawn lazily. ``call`` is None for a shard whose done-marker is there, else the arguments of the function.
    finished : callable (shard, outcome)
        Called in this process once a shard is written: it leaves the done-marker. What it raises ends the loop.
    stage : Stage
        Told the samples of each shard that is done, and closed in the end.
    client, threads, window, name
        As in `run_in_order`.

    Returns
    -------
    list
        What the function returned for each shard that was not done yet.
    """
    submitted: deque[tuple[K, int]] = deque()

    def calls() -> Iterator[tuple[Any, ...]]:
        for shard, n_samples, call in shards:
            if call is None:
                stage.advance(n_samples)
            else:
                submitted.append((shard, n_samples))
                yield call

    outcomes = run_in_order(function, calls(), client=client, threads=threads, window=window, name=name)
    found = []
    try:
        for outcome in outcomes:
            shard, n_samples = submitted.popleft()
            finished(shard, outcome)
            stage.advance(n_samples)
            found.append(outcome)
    finally:
        cast("Generator[T]", outcomes).close()
        stage.close()
    return found


class _Pool(Protocol):
    def submit(self, function: Callable[..., Any], call: tuple[Any, ...]) -> Any: ...

    def result(self, submitted: Any) -> Any: ...

    def close(self, outstanding: list[Any]) -> None: ...


class _Threads:
    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="storage")
        # for as long as calls may run, so that the calls themselves find the limit set
        _hold_blas()

    def submit(self, function: Callable[..., Any], call: tuple[Any, ...]) -> Any:
        return self._pool.submit(_call, function, *call)

    def result(self, submitted: Any) -> Any:
        return submitted.result()

    def close(self, outstanding: list[Any]) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        _drop_blas()


class _Cluster:
    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name = client, name

    def submit(self, function: Callable[..., Any], call: tuple[Any, ...]) -> Any:
        # a key of its own: the call's effect is a file, so an equal call of an earlier run is no reason to skip it
        with cluster_errors(self._client):
            return self._client.submit(for_workers(_call), function, *call, key=task_key(self._name))

    def result(self, submitted: Any) -> Any:
        with cluster_errors(self._client):
            return submitted.result()

    def close(self, outstanding: list[Any]) -> None:
        # A cluster that is lost has forgotten them, and what is being raised says so.
        if outstanding and self._client.status == "running":
            self._client.cancel(outstanding)


def _run(
    make_pool: Callable[[], _Pool], function: Callable[..., T], calls: Iterable[tuple[Any, ...]], window: int
) -> Iterator[T]:
    outstanding: deque[Any] = deque()
    remaining = iter(calls)
    more = True
    pool = make_pool()
    try:
        while True:
            while more and len(outstanding) < window:
                try:
                    call = next(remaining)
                except StopIteration:
                    more = False
                else:
                    outstanding.append(pool.submit(function, call))
            if not outstanding:
                return
            # taken off the queue only when done: an interrupted wait leaves it among those to cancel
            result = pool.result(outstanding[0])
            outstanding.popleft()
            yield result
            del result
    finally:
        pool.close(list(outstanding))


def _call(function: Callable[..., T], *call: Any) -> T:
    with one_blas_thread():
        return function(*call)


@lru_cache(maxsize=1)
def _controller(_modules: int) -> ThreadpoolController:
    """Find the libraries of this process, again once more modules are imported: each search reads all it has mapped."""
    return ThreadpoolController()


class _Holder:
    """A thread that holds BLAS of this process to one thread until it is told to let go."""

    def __init__(self) -> None:
        self.controller = _controller(len(sys.modules))
        self._held, self._let_go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, name="one-blas-thread", daemon=True)
        self._thread.start()
        self._held.wait()

    def _hold(self) -> None:
        try:
            with self.controller.limit(limits=1, user_api="blas"):
                self._held.set()
                self._let_go.wait()
        finally:
            self._held.set()

    def let_go(self) -> None:
        self._let_go.set()
        self._thread.join()


_blas_lock = threading.Lock()
_blas_users = 0
_blas_holder: _Holder | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread while at least one such block is open in this process.

    Some libraries keep one limit for the process, others one for each thread. threadpoolctl restores what it found
    on entry, and for OpenBLAS obeys only the thread that set a limit first, so that blocks which overlap in several
    threads would lift each other's limit or leave one behind. So the limit of the process belongs to a thread of
    its own, from the first block in to the last one out, and each block sets that of its own thread besides.

    Notes
    -----
    Costs a tenth of a millisecond for the first block in, hardly anything for one that overlaps another.
    """
    controller = _hold_blas()
    try:
        with controller.limit(limits=1, user_api="blas"):
            yield
    finally:
        _drop_blas()


def _hold_blas() -> ThreadpoolController:
    global _blas_users, _blas_holder
    with _blas_lock:
        if _blas_holder is None:
            _blas_holder = _Holder()
        _blas_users += 1
        return _blas_holder.controller


def _drop_blas() -> None:
    global _blas_users, _blas_holder
    with _blas_lock:
        _blas_users -= 1
        if _blas_users == 0 and _blas_holder is not None:
            _blas_holder.let_go()
            _blas_holder = None
