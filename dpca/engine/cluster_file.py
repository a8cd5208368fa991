"""Files that describe a cluster: which Dask class starts it, with which arguments, and how many workers it has.

::

    class = "dask_jobqueue.SLURMCluster"    import path of an installed class
    workers = 20                            or the table [adaptive]
    patience = "2 hours"                    how long there may be no worker

    [arguments]                             of the class
    cores = 4
    memory = "16GB"

    [adaptive]                              workers come and go with the work
    minimum = 1
    maximum = 20

    [tls]                                   for a class that takes Dask's "security"
    ca-file = "ca.pem"
    cert = "dask.pem"
    key = "dask.key"

Without ``[tls]`` such a class is given credentials made for this cluster, unless its arguments name a ``protocol``.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from dask.utils import parse_timedelta

from dpca.engine.tls import TlsFiles
from dpca.engine.worker_setup import SILENCE
from dpca.storage.clusters import first_cause
from dpca.storage.errors import ClusterError, DataError, one_line

_KEYS = {"class": str, "workers": int, "patience": str, "arguments": dict, "adaptive": dict, "tls": dict}
_ADAPTIVE = {"minimum": int, "maximum": int}
_TLS = {"ca-file": str, "cert": str, "key": str}
_KINDS = {str: "text", int: "a whole number", dict: "a table"}
# What is asked of a cluster here. Dask Gateway's can do it, too, and is no subclass of Dask's own.
_METHODS = ("scale", "adapt", "close", "get_client")
_PATIENCE = "10 minutes"
# Seconds that a cluster may take to end its workers.
_CLOSING = 60.0


@dataclass(frozen=True)
class ClusterFile:
    """A cluster as a file describes it.

    Parameters
    ----------
    path : str
        The file.
    class_path : str
        Import path of the class.
    arguments : dict
        Of the class.
    minimum, maximum : int
        Fewest and most workers; the cluster is adaptive where they differ.
    patience : float
        Seconds that there may be no worker.
    tls : TlsFiles or None
        What encrypts the connections of all its parts.
    """

    path: str
    class_path: str
    arguments: dict[str, Any]
    minimum: int
    maximum: int
    patience: float
    tls: TlsFiles | None

    def cluster_class(self) -> Any:
        """Import the class.

        That runs code of its package, which comes from where Python has packages installed, or from ``PYTHONPATH``,
        but never from the working directory.

        Raises
        ------
        DataError
            If it cannot be imported, or is no class of clusters.
        """
        module, _, name = self.class_path.rpartition(".")
        named = f"'{self.path}' names the class '{self.class_path}', which"
        if not module or not all(part.isidentifier() for part in self.class_path.split(".")):
            raise DataError(f"{named} is no import path: write it as dask_jobqueue.SLURMCluster")
        try:
            with _working_directory_left_out():
                found = getattr(importlib.import_module(module), name)
        except Exception as error:  # a module that is imported may raise anything
            raise DataError(f"{named} cannot be imported ({one_line(error)}): install its package") from error
        if not isinstance(found, type) or not all(callable(getattr(found, method, None)) for method in _METHODS):
            raise DataError(f"{named} is no class of Dask clusters: name one, as dask_jobqueue.SLURMCluster")
        return found

    def start(self) -> Any:
        """Start the cluster and ask it for its workers, without waiting for them.

        Returns
        -------
        object
            The cluster, to be closed by the caller.

        Raises
        ------
        DataError
            As `cluster_class`, and as `TlsFiles.security`.
        ClusterError
            If the class refuses its arguments, or cannot start.
        """
        from distributed.security import Security

        kind, arguments = self.cluster_class(), dict(self.arguments)
        if self.tls is not None:
            arguments["security"] = self.tls.security()
        elif _takes(kind, "security") and "protocol" not in arguments:
            arguments["security"] = Security.temporary()
        cluster = None
        try:
            # Classes that start with some would start too many; those that tell what happens would tell it twice.
            usual = {"n_workers": self.minimum, "silence_logs": SILENCE}
            arguments |= {name: usual[name] for name in usual.keys() & inspect.signature(kind).parameters.keys()}
            with warnings.catch_warnings():
                # dask_jobqueue puts them, for its user alone, into the working directory, which jobs share by default
                warnings.filterwarnings("ignore", "Using a temporary security object")
                cluster = kind(**arguments)
            if self.minimum == self.maximum:
                cluster.scale(self.maximum)
            _settle(cluster)
            if self.minimum < self.maximum:
                cluster.adapt(minimum=self.minimum, maximum=self.maximum)
        except Exception as error:
            with suppress(Exception):
                self.close(cluster)
            raise ClusterError(
                f"{self.class_path} could not be started as '{self.path}' describes it ({first_cause(error)}): see to "
                f"its arguments"
            ) from error
        return cluster

    def close(self, cluster: Any) -> None:
        """Close a cluster that `start` has started.

        Raises
        ------
        ClusterError
            If that fails: its workers may go on.
        """
        try:
            limited = "timeout" in inspect.signature(cluster.close).parameters
            cluster.close(**({"timeout": _CLOSING} if limited else {}))
        except Exception as error:
            raise ClusterError(
                f"the {self.class_path} of '{self.path}' could not be closed ({one_line(error)}): look whether its "
                f"workers still run"
            ) from error


def read_cluster_file(path: str | os.PathLike[str]) -> ClusterFile:
    """Read a file that describes a cluster. Nothing is imported or started.

    Raises
    ------
    DataError
        If it cannot be read, or says something that is not understood.
    """
    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            said = tomllib.load(file)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read ({error.strerror}): give a file that describes a cluster") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"'{path}' is no TOML ({one_line(error)}): see docs/guides/operators.md") from error
    _check(f"'{path}'", said, _KEYS)
    if "class" not in said:
        raise DataError(f"'{path}' names no class: begin it with class = \"dask_jobqueue.SLURMCluster\" or another")
    minimum, maximum = _workers(path, said)
    try:
        patience = parse_timedelta(said.get("patience", _PATIENCE))
    except (ValueError, KeyError) as error:
        raise DataError(f"'{path}': patience is '{said['patience']}', no time: write it as '2 hours'") from error
    if patience <= 0:
        raise DataError(f"'{path}': patience is '{said['patience']}', which is over at once: write it as '2 hours'")
    tls = None
    if "tls" in said:
        _check(f"[tls] of '{path}'", said["tls"], _TLS)
        here = os.path.dirname(path)
        files = {key: os.path.join(here, name) for key, name in said["tls"].items()}
        tls = TlsFiles(files.get("ca-file"), files.get("cert"), files.get("key"))
    return ClusterFile(path, said["class"], said.get("arguments", {}), minimum, maximum, patience, tls)


def _workers(path: str, said: Mapping[str, Any]) -> tuple[int, int]:
    """Return fewest and most workers."""
    if ("workers" in said) == ("adaptive" in said):
        raise DataError(f"'{path}' says how many workers either twice or not at all: give 'workers' or [adaptive]")
    if "workers" in said:
        minimum = maximum = said["workers"]
    else:
        _check(f"[adaptive] of '{path}'", said["adaptive"], _ADAPTIVE)
        minimum, maximum = said["adaptive"].get("minimum", 0), said["adaptive"].get("maximum", 0)
    if not 0 <= minimum <= maximum or maximum < 1:
        raise DataError(f"'{path}' asks for {minimum} to {maximum} workers: give at least 1, and the minimum first")
    return minimum, maximum


def _check(where: str, said: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Refuse keys that are not known, and values of another type."""
    for key, value in said.items():
        if key not in kinds:
            raise DataError(f"{where} says '{key}', which means nothing: choose from {', '.join(kinds)}")
        if type(value) is not kinds[key]:
            raise DataError(f"{where}: {key} is {value!r}, not {_KINDS[kinds[key]]}: correct it")


def _takes(kind: type, name: str) -> bool:
    """Tell whether a class, or one that it passes its arguments on to, has an argument of a name."""
    made = [vars(each)["__init__"] for each in kind.__mro__[:-1] if "__init__" in vars(each)]
    return any(name in inspect.signature(each).parameters for each in made)


@contextmanager
def _working_directory_left_out() -> Iterator[None]:
    """Keep imports from finding what lies where the program happens to be started."""
    before, here = sys.path[:], os.path.realpath(os.getcwd())
    sys.path[:] = [entry for entry in before if os.path.realpath(entry) != here]
    try:
        yield
    finally:
        sys.path[:] = before


def _settle(cluster: Any) -> None:
    """Raise what kept workers from being asked for: a cluster that is given work only logs that sbatch refused."""
    from distributed import SpecCluster

    async def settled() -> None:
        await cluster
        await asyncio.gather(*cluster.workers.values())  # those that have failed try again, and fail here

    if isinstance(cluster, SpecCluster):
        cluster.sync(settled)
