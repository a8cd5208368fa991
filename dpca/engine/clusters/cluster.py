"""The Dask cluster of a program: a running one, one described by a file, or a new one on this machine."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import dask
from dask.utils import parse_bytes, parse_timedelta

import dpca
from dpca.engine.clusters.cluster_file import ClusterFile, read_cluster_file
from dpca.engine.clusters.forking import CAN_FORK, KEEP_FREED_MEMORY, share_modules, workers_ignore
from dpca.engine.clusters.private import private_folder
from dpca.engine.clusters.tls import TlsFiles
from dpca.engine.clusters.worker_setup import SILENCE, quiet
from dpca.engine.folds.stopping import defer_signals
from dpca.storage.errors import ClusterError, DataError, one_line
from dpca.storage.remote.clusters import cluster_errors, require_version, run_on_first_worker, watched
from dpca.storage.remote.memory import thread_count, usable_bytes

if TYPE_CHECKING:
    from distributed.security import Security

# Values of these options in glibc's malloc.h.
_MALLOPT = {-1: "MALLOC_TRIM_THRESHOLD_", -3: "MALLOC_MMAP_THRESHOLD_", -8: "MALLOC_ARENA_MAX"}
_SETTINGS = {
    "distributed.nanny.pre-spawn-environ": KEEP_FREED_MEMORY,
    # On Linux, workers are forked from one process that has imported their libraries. Elsewhere forking is not safe.
    "distributed.worker.multiprocessing-method": "forkserver" if CAN_FORK else "spawn",
    # Dask's defaults, 20 and 10 ms, take a twentieth of a processor for each process, even an idle one.
    "distributed.admin.tick.interval": "500 ms",
    "distributed.worker.profile.interval": "100 ms",
}
_OUR_OWN = {
    # A worker keeps freed memory for its next tasks. If Dask paused it for its memory, it would wait forever.
    "distributed.worker.memory.pause": False,
    # A nanny restarts its dead worker. By default Dask drops the worker if that takes more than 15 seconds, and on a
    # busy machine it does. If no worker is left, tasks fail instead of waiting indefinitely.
    "distributed.deploy.lost-worker-timeout": "1 hour",
    "distributed.scheduler.no-workers-timeout": "5 minutes",
    # Dask's HTTP pages have no password and show data and code, so they have no routes until their ports are closed.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # Such a page would show the profiles of workers. Each worker keeps an hour of them, 2.6 MB for each minute.
    "distributed.worker.profile.enabled": False,
}
# Seconds that a scheduler may take to answer, and seconds that a given cluster may have no worker. The latter is the
# default of Dask's distributed.scheduler.no-workers-timeout, which is set if workers wait in a queue.
_ANSWER = 10.0
_ALONE = 15.0


def keep_freed_memory() -> None:
    """Configure the allocator of this process as in workers, if the C library supports it; for measurements."""
    with suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        for option, name in _MALLOPT.items():
            set_option(option, KEEP_FREED_MEMORY[name])


@contextmanager
def open_client(
    scheduler: str | None = None,
    *,
    cluster: str | os.PathLike[str] | None = None,
    tls: TlsFiles | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
) -> Iterator[Any]:
    """Connect to a cluster for the duration of a block.

    Parameters
    ----------
    scheduler : str, optional
        Address of a running scheduler, ``tcp://host:port`` or ``tls://host:port``. Its workers need this package and
        access to the same files.
    cluster : path, optional
        TOML file that describes a cluster (see `dpca.engine.clusters.cluster_file`), instead of an address. The
        cluster starts
        and ends with the block. The block begins when there is a worker.

        Without either, a cluster of single-threaded processes starts on this machine and ends with the block. It
        listens on the loopback interface only and has no dashboard. Its connections are encrypted with temporary
        credentials, so that other users of the machine cannot join it. The process from which its workers are forked
        stays until this program ends.
    tls : TlsFiles, optional
        Certificates for a scheduler at ``tls://``; the default is Dask's configuration.
    workers : int, optional
        Processes of the cluster on this machine; the default is one per processor.
    memory : str or int, optional
        Memory limit of each process ("2GB"); the default is an equal share of the machine's memory.

    Yields
    ------
    distributed.Client

    Raises
    ------
    ClusterError
        If no scheduler answers, a cluster does not start, or a worker has another version of this package or none.
    DataError
        If arguments contradict each other, a number is invalid, or a cluster file is invalid.
    """
    if scheduler is not None and cluster is not None:
        raise DataError(f"'{scheduler}' and '{os.fspath(cluster)}' are two clusters: give one of them")
    if cluster is not None and (workers, memory) != (None, None):
        raise DataError(f"'{os.fspath(cluster)}' sets the number and memory of workers: leave out these options")
    if tls is not None and not (scheduler or "").startswith("tls://"):
        raise DataError("certificates require a scheduler at tls://host:port: use [tls] in the file of a cluster")
    if scheduler is not None:
        opened = _joined(scheduler, tls)
    elif cluster is not None:
        opened = _described(read_cluster_file(cluster))
    else:
        opened = _own(workers, memory)
    with opened as client:
        yield client


@contextmanager
def _own(workers: int | None, memory: str | int | None) -> Iterator[Any]:
    """Start a cluster on this machine."""
    from distributed import Client, LocalCluster

    n_workers = thread_count() if workers is None else workers
    if n_workers < 1:
        raise DataError(f"the number of workers is {n_workers}: give at least 1")
    limit = memory_limit(memory, n_workers)
    with dask.config.set(_SETTINGS | _OUR_OWN | {"temporary-directory": private_folder()}), ExitStack() as stack:
        stack.enter_context(quiet())
        _share_imports()
        # A partly started cluster cannot be closed, so signals wait until it has started.
        with defer_signals(), workers_ignore(signal.SIGINT, signal.SIGHUP):
            try:
                cluster = LocalCluster(
                    n_workers=n_workers,
                    threads_per_worker=1,
                    processes=True,
                    preload=["dpca.engine.clusters.worker_setup"],
                    silence_logs=SILENCE,  # by default Dask changes the level of one of its loggers
                    memory_limit=limit,
                    host="127.0.0.1",
                    security=True,  # temporary credentials
                    dashboard_address="127.0.0.1:0",
                    scheduler_kwargs={"dashboard": False},
                )
                stack.callback(_close, cluster)
                cluster.sync(_close_pages, cluster.scheduler)
                client = Client(cluster)
                stack.callback(_close, client)
            except (OSError, RuntimeError) as error:
                fewer = f", or use fewer workers than {n_workers}" if n_workers > 1 else ""
                raise ClusterError(
                    f"the cluster on this machine could not be started ({one_line(error)}): start it from a program in "
                    f"a file, under 'if __name__ == \"__main__\":'{fewer}"
                ) from error
        yield client


async def _close_pages(scheduler: Any) -> None:
    scheduler.http_server.stop()


@contextmanager
def _described(file: ClusterFile) -> Iterator[Any]:
    """Start the cluster of a cluster file, and wait for its first worker."""
    import distributed  # noqa: F401 - sets the levels of its loggers, and must do so before `quiet`

    patience = {"distributed.scheduler.no-workers-timeout": file.patience}
    with dask.config.set(_SETTINGS | patience | {"temporary-directory": private_folder()}), ExitStack() as stack:
        stack.enter_context(quiet())
        _share_imports()
        with defer_signals(), workers_ignore(signal.SIGINT, signal.SIGHUP):
            cluster = file.start()
            stack.push(partial(_close_described, file, cluster))
            try:
                client = cluster.get_client()
            except Exception as error:  # the class may raise anything
                raise ClusterError(
                    f"the {file.class_path} of '{file.path}' has no client ({one_line(error)}): check its arguments"
                ) from error
            stack.callback(_close, client)
        if run_on_first_worker(client, int, file.patience) is None:
            raise ClusterError(
                f"the {file.class_path} of '{file.path}' has had no workers for {file.patience:.0f} seconds: check why "
                f"none starts, or increase patience"
            )
        with cluster_errors(client):
            threads = max(client.nthreads().values(), default=1) * file.maximum
        stack.enter_context(watched(client, file.patience, threads=threads))
        _require_same_package(client)
        yield client


def _close_described(file: ClusterFile, cluster: Any, kind: Any, error: BaseException | None, trace: Any) -> None:
    with defer_signals():
        try:
            file.close(cluster)
        except ClusterError:
            if error is None:  # an error of the block is more informative
                raise


def _share_imports() -> None:
    """Preload the modules of this package in the process from which workers are forked.

    Otherwise each worker would need seconds to import them. Has no effect if that process is already running.
    """
    from distributed.utils import get_mp_context

    get_mp_context()  # its first call sets a preload list of its own, which is replaced here
    package = __name__.partition(".")[0]
    share_modules(name for name in sys.modules if name.partition(".")[0] == package and ".report" not in name)


@contextmanager
def _joined(address: str, tls: TlsFiles | None) -> Iterator[Any]:
    """Connect to a running cluster and check that it can run this package."""
    from distributed import Client

    patience = parse_timedelta(dask.config.get("distributed.scheduler.no-workers-timeout") or _ALONE)
    with dask.config.set({"distributed.comm.timeouts.connect": _ANSWER}), ExitStack() as stack:
        stack.enter_context(quiet())
        security = _security(address, tls)
        _greet(address, security)
        with defer_signals():
            try:
                client = Client(address, timeout=_ANSWER, security=security)
            except (OSError, ImportError, ValueError) as error:
                raise _unreachable(address, error) from error
            stack.callback(_close, client)
        stack.enter_context(watched(client, patience))
        _require_same_package(client)
        yield client


def _security(address: str, tls: TlsFiles | None) -> Security:
    """Return the given certificates, or those of Dask's configuration."""
    from distributed.security import Security

    if tls is not None:
        return tls.security()
    security = Security()
    known = security.get_tls_config_for_role("client")
    if address.startswith("tls://") and None in (known["ca_file"], known["cert"]):
        raise DataError(
            f"the scheduler at '{address}' requires certificates: give --tls-ca-file, --tls-cert, --tls-key"
        )
    return security


def _greet(address: str, security: Security) -> None:
    """Raise if an address does not answer a handshake in time. Dask's own handshake has no time limit."""
    failure: list[BaseException] = [TimeoutError(f"no answer within {_ANSWER:.0f} seconds")]

    async def greet() -> None:
        from distributed.comm.core import connect

        arguments = security.get_connection_args("client")
        comm = await asyncio.wait_for(connect(address, timeout=_ANSWER / 2, **arguments), _ANSWER - 2)
        await comm.close()

    def attempt() -> None:
        try:
            asyncio.run(greet())
        except Exception as error:
            failure[0] = error
        else:
            failure.clear()

    # A separate thread, because a lookup of the host name cannot be interrupted; a slow one is abandoned.
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(_ANSWER)
    if failure:
        raise _unreachable(address, failure[0]) from failure[0]


def _unreachable(address: str, error: BaseException) -> ClusterError:
    from distributed.comm.core import CommClosedError

    where, why = f"the Dask scheduler at '{address}'", one_line(error)
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return ClusterError(
            f"{where} has a certificate that --tls-ca-file did not sign ({why}): give its CA certificate"
        )
    if address.startswith("tls://") and isinstance(error, CommClosedError):
        return ClusterError(
            f"{where} refuses an encrypted connection ({why}): check that it supports TLS and trusts the CA of "
            f"--tls-cert"
        )
    return ClusterError(
        f"no Dask scheduler answers at '{address}' ({why}): start one, use tls:// if it is encrypted, or leave out "
        f"--scheduler"
    )


def _require_same_package(client: Any) -> None:
    """Raise if a worker has another version of this package. Each task checks this for workers that join later."""
    with cluster_errors(client):
        client.run(require_version, dpca.__version__)


def _close(opened: Any) -> None:
    # Nothing depends on the workers any more. Those that cannot be closed end with this process.
    with defer_signals(), suppress(Exception):
        opened.close(timeout=_ANSWER)


def memory_limit(memory: str | int | None, n_workers: int) -> int:
    """Return the memory limit of each worker on this machine, in bytes; the default is an equal share.

    Raises
    ------
    DataError
        If ``memory`` is not a number of bytes, or is too small.
    """
    if memory is None:
        return usable_bytes() // n_workers
    try:
        limit = int(parse_bytes(memory))
    except ValueError as error:
        raise DataError(f"memory is '{memory}', not a number of bytes: write it as 2GB or 500MiB") from error
    if limit < 300e6:
        raise DataError(f"memory is '{memory}', less than a worker process itself needs: give each at least 500MB")
    return limit
