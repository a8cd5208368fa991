"""The Dask cluster that a program runs on: a running one, one that a file describes, or one of its own here."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
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
from dpca.engine.cluster_file import ClusterFile, read_cluster_file
from dpca.engine.memory import thread_count, usable_bytes
from dpca.engine.private import private_folder
from dpca.engine.stopping import unstopped
from dpca.engine.tls import TlsFiles
from dpca.engine.worker_setup import SILENCE, quiet
from dpca.storage.clusters import cluster_errors, require_version, wait_for_worker, watched
from dpca.storage.errors import ClusterError, DataError, one_line

if TYPE_CHECKING:
    from distributed.security import Security

# glibc returns large blocks to the system at once and so pays a page fault for every 4 KiB of every chunk read:
# keeping them makes reading a store a third faster. Threads that keep heaps of their own would keep too much.
_KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": 32 * 2**20,
    "MALLOC_TRIM_THRESHOLD_": 512 * 2**20,
    "MALLOC_ARENA_MAX": 2,
    "OMP_NUM_THREADS": 1,
    "OPENBLAS_NUM_THREADS": 1,
    "MKL_NUM_THREADS": 1,
}
# Numbers of these options in glibc's malloc.h.
_MALLOPT = {-1: "MALLOC_TRIM_THRESHOLD_", -3: "MALLOC_MMAP_THRESHOLD_", -8: "MALLOC_ARENA_MAX"}
_SETTINGS = {
    "distributed.nanny.pre-spawn-environ": _KEEP_FREED_MEMORY,
    # Workers are forked from one process that has imported their libraries, where forking is safe for these.
    "distributed.worker.multiprocessing-method": "forkserver" if sys.platform == "linux" else "spawn",
    # Dask's defaults, 20 and 10 ms, take a twentieth of a processor for each process, also for one with nothing to do.
    "distributed.admin.tick.interval": "500 ms",
    "distributed.worker.profile.interval": "100 ms",
}
_OUR_OWN = {
    # A nanny starts its dead worker again by itself; Dask would give the worker up if that takes more than 15 seconds,
    # which a busy machine does. Once there really is no worker left, tasks fail rather than wait for ever.
    "distributed.deploy.lost-worker-timeout": "1 hour",
    "distributed.scheduler.no-workers-timeout": "5 minutes",
    # Pages over HTTP have no password, and show data and code: there are none, until their ports are closed, too.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
# Seconds that a scheduler may take to answer its address, and that a given cluster may be without any worker. Dask's
# distributed.scheduler.no-workers-timeout, where it is set, says the latter: for workers that wait in a queue.
_ANSWER = 10.0
_ALONE = 15.0


def keep_freed_memory() -> None:
    """Have this process allocate as workers do, where its C library can be told: for what stands for their work."""
    with suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        for option, name in _MALLOPT.items():
            set_option(option, _KEEP_FREED_MEMORY[name])


@contextmanager
def open_client(
    scheduler: str | None = None,
    *,
    cluster: str | os.PathLike[str] | None = None,
    tls: TlsFiles | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
) -> Iterator[Any]:
    """Connect to a cluster for the length of a block.

    Parameters
    ----------
    scheduler : str, optional
        Address of a running scheduler, ``tcp://host:port`` or ``tls://host:port``. Its workers need this package and
        see the same files.
    cluster : path, optional
        TOML file that describes a cluster (see `dpca.engine.cluster_file`), in the place of an address. It starts and
        ends with the block, which begins when there is a worker.

        Without either, a cluster of single-threaded processes starts on this machine and ends with the block. It
        listens on the loopback interface only, encrypts its connections with credentials made for it, so that other
        users of the machine cannot join it, and has no dashboard. The process that its workers are forked from stays
        until this program ends.
    tls : TlsFiles, optional
        What to show to a scheduler at ``tls://``; default what Dask's own configuration says.
    workers : int, optional
        Processes of the cluster on this machine; default one a processor.
    memory : str or int, optional
        Limit of each of them ("2GB"); default an equal share of what the machine can give.

    Yields
    ------
    distributed.Client

    Raises
    ------
    ClusterError
        If no scheduler answers, a cluster does not start, or a worker has another version of this package or none.
    DataError
        If arguments contradict each other, a number makes no sense, or a file says something that is not understood.
    """
    if scheduler is not None and cluster is not None:
        raise DataError(f"'{scheduler}' and '{os.fspath(cluster)}' are two clusters: give one of them")
    if cluster is not None and (workers, memory) != (None, None):
        raise DataError(f"'{os.fspath(cluster)}' says which workers there are: leave their number and memory out here")
    if tls is not None and not (scheduler or "").startswith("tls://"):
        raise DataError("certificates are for a scheduler at tls://host:port, and [tls] in the file of a cluster")
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
        raise DataError(f"{n_workers} workers cannot do anything: give at least 1")
    limit = memory_limit(memory, n_workers)
    with dask.config.set(_SETTINGS | _OUR_OWN | {"temporary-directory": private_folder()}), ExitStack() as stack:
        stack.enter_context(quiet())
        _share_imports()
        # Half a cluster cannot be closed.
        with unstopped(), _workers_ignore(signal.SIGINT, signal.SIGHUP):
            try:
                cluster = LocalCluster(
                    n_workers=n_workers,
                    threads_per_worker=1,
                    processes=True,
                    preload=["dpca.engine.worker_setup"],
                    silence_logs=SILENCE,  # else Dask gives the logger of a worker's start a level of its own
                    memory_limit=limit,
                    host="127.0.0.1",
                    security=True,  # credentials that are made for it
                    dashboard_address="127.0.0.1:0",
                    scheduler_kwargs={"dashboard": False},
                )
                stack.callback(_close, cluster)
                cluster.sync(_close_pages, cluster.scheduler)
                client = Client(cluster)
                stack.callback(_close, client)
            except (OSError, RuntimeError) as error:
                raise ClusterError(
                    f"{n_workers} workers could not be started on this machine ({one_line(error)}): ask for fewer"
                ) from error
        yield client


async def _close_pages(scheduler: Any) -> None:
    scheduler.http_server.stop()


@contextmanager
def _described(file: ClusterFile) -> Iterator[Any]:
    """Start the cluster that a file describes, and wait for its first worker."""
    import distributed  # noqa: F401 - which sets levels of its loggers

    patience = {"distributed.scheduler.no-workers-timeout": file.patience}
    with dask.config.set(_SETTINGS | patience | {"temporary-directory": private_folder()}), ExitStack() as stack:
        stack.enter_context(quiet())
        _share_imports()
        with unstopped(), _workers_ignore(signal.SIGINT, signal.SIGHUP):
            cluster = file.start()
            stack.push(partial(_close_described, file, cluster))
            try:
                client = cluster.get_client()
            except Exception as error:  # whatever the class may raise
                raise ClusterError(
                    f"the {file.class_path} of '{file.path}' lets nobody in ({one_line(error)})"
                ) from error
            stack.callback(_close, client)
        if not wait_for_worker(client, file.patience):
            raise ClusterError(
                f"the {file.class_path} of '{file.path}' has had no workers for {file.patience:.0f} seconds: see why "
                f"none starts, or give it more patience"
            )
        with cluster_errors(client):
            threads = max(client.nthreads().values(), default=1) * file.maximum
        stack.enter_context(watched(client, file.patience, threads=threads))
        _require_same_package(client)
        yield client


def _close_described(file: ClusterFile, cluster: Any, kind: Any, error: BaseException | None, trace: Any) -> None:
    with unstopped():
        try:
            file.close(cluster)
        except ClusterError:
            if error is None:  # which says more
                raise


def _share_imports() -> None:
    """Have the process that workers are forked from import what this program has imported of this package to compute.

    Each worker would need seconds for that. Without an effect where that process is already running.
    """
    from distributed.utils import get_mp_context

    get_mp_context()  # the first call names modules of its own
    package = __name__.partition(".")[0]
    ours = sorted(name for name in sys.modules if name.partition(".")[0] == package and ".report" not in name)
    multiprocessing.set_forkserver_preload(["distributed", *ours, "dpca.engine.worker_setup"])


@contextmanager
def _joined(address: str, tls: TlsFiles | None) -> Iterator[Any]:
    """Connect to a running cluster that can do this package's work."""
    from distributed import Client

    patience = parse_timedelta(dask.config.get("distributed.scheduler.no-workers-timeout") or _ALONE)
    with dask.config.set({"distributed.comm.timeouts.connect": _ANSWER}), ExitStack() as stack:
        stack.enter_context(quiet())
        security = _security(address, tls)
        _greet(address, security)
        with unstopped():
            try:
                client = Client(address, timeout=_ANSWER, security=security)
            except (OSError, ImportError, ValueError) as error:
                raise _unreachable(address, error) from error
            stack.callback(_close, client)
        stack.enter_context(watched(client, patience))
        _require_same_package(client)
        yield client


def _security(address: str, tls: TlsFiles | None) -> Security:
    """Return what to show to a scheduler: the given certificates, or those of Dask's configuration."""
    from distributed.security import Security

    if tls is not None:
        return tls.security()
    security = Security()
    known = security.get_tls_config_for_role("client")
    if address.startswith("tls://") and None in (known["ca_file"], known["cert"]):
        raise DataError(
            f"the scheduler at '{address}' asks for certificates: give --tls-ca-file, --tls-cert, --tls-key"
        )
    return security


def _greet(address: str, security: Security) -> None:
    """Refuse an address that does not answer a handshake: Dask's own handshake has no time limit."""
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

    # A thread of its own, left behind where the name of a host takes longer to be looked up.
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(_ANSWER)
    if failure:
        raise _unreachable(address, failure[0]) from failure[0]


def _unreachable(address: str, error: BaseException) -> ClusterError:
    from distributed.comm.core import CommClosedError

    where, why = f"the Dask scheduler at '{address}'", one_line(error)
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return ClusterError(f"{where} shows a certificate of another authority than that of --tls-ca-file ({why})")
    if address.startswith("tls://") and isinstance(error, CommClosedError):
        return ClusterError(
            f"{where} refuses an encrypted connection ({why}): see that it takes such, and trusts the authority of "
            f"--tls-cert"
        )
    return ClusterError(
        f"no Dask scheduler answers at '{address}' ({why}): start one, write tls:// if it is encrypted, or leave "
        f"--scheduler out"
    )


def _require_same_package(client: Any) -> None:
    """Refuse a cluster one of whose workers has another version; those that join later are asked by each task."""
    with cluster_errors(client):
        client.run(require_version, dpca.__version__)


@contextmanager
def _workers_ignore(*signals: signal.Signals) -> Iterator[None]:
    """Keep these signals from processes that threads started in the block start.

    A terminal sends them to every process of a program, to workers in the middle of their imports, too. Those end with
    their cluster anyway.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _close(opened: Any) -> None:
    # The work is done or given up; workers that cannot be closed end with this process.
    with unstopped(), suppress(Exception):
        opened.close(timeout=_ANSWER)


def memory_limit(memory: str | int | None, n_workers: int) -> int:
    """Return the bytes that each worker on this machine may hold: those asked for, or an equal share.

    Raises
    ------
    DataError
        If that is no amount of bytes, or too few.
    """
    if memory is None:
        return usable_bytes() // n_workers
    try:
        limit = int(parse_bytes(memory))
    except ValueError as error:
        raise DataError(f"memory '{memory}' is no amount of bytes: write it as 2GB or 500MiB") from error
    if limit < 300e6:
        raise DataError(f"memory '{memory}' is less than a worker process itself takes: give each at least 500MB")
    return limit
