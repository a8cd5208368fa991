"""Runs many calls on a Dask cluster or on local threads, and returns their results in order.

::

    calls:       0 1 2 3 4 5 6 7 8 9 ...
                 | | [ window ]
    consumed ----+ |  submitted, running or waiting to be consumed
    being consumed +

At most `window` calls are outstanding, so a slow consumer limits the producers. Calls are drawn from the iterable only
when they are submitted, so memory is bounded for any length of the iterable.
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

from dpca.storage.progress import Stage
from dpca.storage.remote.clusters import cluster_errors, for_workers, task_key, worker_threads
from dpca.storage.remote.memory import thread_count
from dpca.storage.remote.sharing import share_storage_options

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
        With a `client`, the function and its arguments must be picklable. The function must be idempotent, such as one
        that writes files atomically, since tasks of a worker that dies run again.
    calls : iterable of tuple
        Positional arguments, drawn lazily. With a `client`, they may be futures.
    client : distributed.Client, optional
        Client of a Dask cluster. The default is threads of this process.
    threads : int, optional
        Number of local threads. The default is the number of processors. With 1, each call runs when its result is
        requested.
    window : int, optional
        Most outstanding calls. The default is twice the number of threads of the cluster or of this process.
    name : str
        Name of the tasks on the dashboard of the cluster.

    Yields
    ------
    object
        Results.

    Raises
    ------
    ValueError
        If `threads` or `window` is below 1.
    ClusterError
        If the cluster is lost, has no workers left, or cannot import dpca.
    Exception
        The exception of the first failing call (in order), unchanged. Waiting calls are cancelled, and running local
        calls are completed. The same happens when the iteration ends early or is interrupted.

    Notes
    -----
    BLAS is limited to one thread while calls run concurrently. A cluster has an overhead of 1-1.5 ms per call, so calls
    should be much longer.
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


def run_in_blocks(function: Callable[[slice], T], n: int, size: int) -> list[T]:
    """Return the results of a function for slices of ``size`` that cover ``n`` rows, computed in threads.

    The slices do not depend on the number of threads.
    """
    calls = [(slice(start, min(start + size, n)),) for start in range(0, n, size)]
    return list(run_in_order(function, calls, threads=max(1, min(len(calls), thread_count()))))


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
    """Call a function for each unfinished shard, and mark each finished shard, in order.

    Parameters
    ----------
    function : callable
        Writes one shard; see `run_in_order`.
    shards : iterable of (shard, n_samples, call)
        Drawn lazily. ``call`` has the arguments of the function; it is None for a shard with a done-marker.
    finished : callable (shard, outcome)
        Called in this process after a shard was written, to write its done-marker. Its exceptions end the loop.
    stage : Stage
        Receives the number of samples of each finished shard, and is closed at the end.
    client, threads, window, name
        As in `run_in_order`.

    Returns
    -------
    list
        Return values of the function for the shards without a done-marker.
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
        # Held as long as calls may run, so that each call finds the limit already set.
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
        # Each call has a unique key, since Dask must not skip a call that equals one of an earlier run.
        with cluster_errors(self._client):
            return self._client.submit(for_workers(_call), function, *call, key=task_key(self._name))

    def result(self, submitted: Any) -> Any:
        with cluster_errors(self._client):
            return submitted.result()

    def close(self, outstanding: list[Any]) -> None:
        # A lost cluster has no tasks to cancel, and its error is already being raised.
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
            # A call is removed from the queue after its result, so that an interrupted wait still cancels it.
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
    """Find the BLAS libraries of this process. A search is slow and is repeated only after imports of modules."""
    return ThreadpoolController()


class _Holder:
    """A thread that limits BLAS of this process to one thread until it is released."""

    def __init__(self) -> None:
        self.controller = _controller(len(sys.modules))
        self._held, self._released = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, name="one-blas-thread", daemon=True)
        self._thread.start()
        self._held.wait()

    def _hold(self) -> None:
        try:
            with self.controller.limit(limits=1, user_api="blas"):
                self._held.set()
                self._released.wait()
        finally:
            self._held.set()

    def release(self) -> None:
        self._released.set()
        self._thread.join()


_blas_lock = threading.Lock()
_blas_users = 0
_blas_holder: _Holder | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread while at least one such block is active in this process.

    Some libraries have one limit per process, others one per thread. threadpoolctl restores the limit that it found on
    entry, and with OpenBLAS only for the thread that set a limit first. Overlapping blocks in several threads would
    therefore remove the limit of another block, or leave a limit behind. For this reason a separate thread holds the
    limit of the process from the first block to the last one, and each block also sets the limit of its own thread.

    Notes
    -----
    The first block costs a tenth of a millisecond, and overlapping blocks cost almost nothing.
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
            _blas_holder.release()
            _blas_holder = None
