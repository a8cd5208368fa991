"""Cluster files: the Dask class that starts a cluster, its arguments, and the number of workers.

::

    class = "dask_jobqueue.SLURMCluster"    import path of an installed class
    workers = 20                            or the table [adaptive]
    patience = "2 hours"                    longest time without any worker

    [arguments]                             of the class
    cores = 4
    memory = "16GB"

    [adaptive]                              workers start and stop with the load
    minimum = 1
    maximum = 20

    [tls]                                   for a class with a parameter "security"
    ca-file = "ca.pem"
    cert = "dask.pem"
    key = "dask.key"

Without ``[tls]`` such a class receives temporary credentials, unless its arguments contain a ``protocol``.
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

from dpca.engine.clusters.tls import TlsFiles
from dpca.engine.clusters.worker_setup import SILENCE
from dpca.storage.errors import ClusterError, DataError, one_line
from dpca.storage.remote.clusters import first_cause

_KEYS = {"class": str, "workers": int, "patience": str, "arguments": dict, "adaptive": dict, "tls": dict}
_ADAPTIVE = {"minimum": int, "maximum": int}
_TLS = {"ca-file": str, "cert": str, "key": str}
_KINDS = {str: "text", int: "a whole number", dict: "a table"}
# Methods that a cluster needs here. Dask Gateway's cluster has them, too, without being a subclass of Dask's own.
_METHODS = ("scale", "adapt", "close", "get_client")
_PATIENCE = "10 minutes"
# Seconds that a cluster may take to stop its workers.
_CLOSING = 60.0


@dataclass(frozen=True)
class ClusterFile:
    """A cluster, as its file describes it.

    Parameters
    ----------
    path : str
        The cluster file.
    class_path : str
        Import path of the class.
    arguments : dict
        Arguments of the class.
    minimum, maximum : int
        Fewest and most workers; the cluster is adaptive if they differ.
    patience : float
        Longest time without any worker, in seconds.
    tls : TlsFiles or None
        Certificates for all connections of the cluster.
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

        The import runs code of its package. The package is installed in Python or in ``PYTHONPATH``; the working
        directory is never searched.

        Raises
        ------
        DataError
            If the class cannot be imported, or is not a class of clusters.
        """
        module, _, name = self.class_path.rpartition(".")
        named = f"'{self.path}': the class '{self.class_path}'"
        if not module or not all(part.isidentifier() for part in self.class_path.split(".")):
            raise DataError(f"{named} is not an import path: write it as dask_jobqueue.SLURMCluster")
        try:
            with _working_directory_left_out():
                found = getattr(importlib.import_module(module), name)
        except Exception as error:  # an import may raise anything
            raise DataError(f"{named} cannot be imported ({one_line(error)}): install its package") from error
        if not isinstance(found, type) or not all(callable(getattr(found, method, None)) for method in _METHODS):
            raise DataError(f"{named} is not a Dask cluster class: give one, for example dask_jobqueue.SLURMCluster")
        return found

    def start(self) -> Any:
        """Start the cluster and request its workers, without waiting for them.

        Returns
        -------
        object
            The cluster. The caller closes it.

        Raises
        ------
        DataError
            Errors of `cluster_class` and of `TlsFiles.security`.
        ClusterError
            If the class rejects its arguments, or cannot start.
        """
        from distributed.security import Security

        kind, arguments = self.cluster_class(), dict(self.arguments)
        if self.tls is not None:
            arguments["security"] = self.tls.security()
        elif _takes(kind, "security") and "protocol" not in arguments:
            arguments["security"] = Security.temporary()
        cluster = None
        try:
            # Some classes start workers by default, which would be too many. Some log errors that are also raised.
            usual = {"n_workers": self.minimum, "silence_logs": SILENCE}
            arguments |= {name: usual[name] for name in usual.keys() & inspect.signature(kind).parameters.keys()}
            with warnings.catch_warnings():
                # dask_jobqueue writes credentials to the working directory, which jobs share, readable by its user only
                warnings.filterwarnings("ignore", "Using a temporary security object")
                cluster = kind(**arguments)
            if self.minimum == self.maximum:
                cluster.scale(self.maximum)
            _raise_failed_requests(cluster)
            if self.minimum < self.maximum:
                cluster.adapt(minimum=self.minimum, maximum=self.maximum)
        except Exception as error:
            with suppress(Exception):
                self.close(cluster)
            raise ClusterError(
                f"{self.class_path} of '{self.path}' could not be started ({first_cause(error)}): check its arguments"
            ) from error
        return cluster

    def close(self, cluster: Any) -> None:
        """Close a cluster of `start`.

        Raises
        ------
        ClusterError
            If it cannot be closed. Its workers may still run.
        """
        try:
            limited = "timeout" in inspect.signature(cluster.close).parameters
            cluster.close(**({"timeout": _CLOSING} if limited else {}))
        except Exception as error:
            raise ClusterError(
                f"the {self.class_path} of '{self.path}' could not be closed ({one_line(error)}): check whether its "
                f"workers still run"
            ) from error


def read_cluster_file(path: str | os.PathLike[str]) -> ClusterFile:
    """Read a cluster file. Nothing is imported or started.

    Raises
    ------
    DataError
        If the file cannot be read, or a key is missing, unknown or invalid.
    """
    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            keys = tomllib.load(file)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read ({error.strerror}): give a cluster file") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"'{path}' is not valid TOML ({one_line(error)}): see docs/guides/operators.md") from error
    _check(f"'{path}'", keys, _KEYS)
    if "class" not in keys:
        raise DataError(f"'{path}': missing key: class: give one, for example class = \"dask_jobqueue.SLURMCluster\"")
    minimum, maximum = _workers(path, keys)
    try:
        patience = parse_timedelta(keys.get("patience", _PATIENCE))
    except (ValueError, KeyError) as error:
        raise DataError(f"'{path}': patience is '{keys['patience']}', not a time: write it as '2 hours'") from error
    if patience <= 0:
        raise DataError(f"'{path}': patience is '{keys['patience']}': give a time above 0, for example '2 hours'")
    tls = None
    if "tls" in keys:
        _check(f"[tls] of '{path}'", keys["tls"], _TLS)
        here = os.path.dirname(path)
        files = {key: os.path.join(here, name) for key, name in keys["tls"].items()}
        tls = TlsFiles(files.get("ca-file"), files.get("cert"), files.get("key"))
    return ClusterFile(path, keys["class"], keys.get("arguments", {}), minimum, maximum, patience, tls)


def _workers(path: str, keys: Mapping[str, Any]) -> tuple[int, int]:
    """Return fewest and most workers."""
    if ("workers" in keys) == ("adaptive" in keys):
        raise DataError(f"'{path}' needs exactly one of two keys: give either 'workers' or [adaptive]")
    if "workers" in keys:
        minimum = maximum = keys["workers"]
    else:
        _check(f"[adaptive] of '{path}'", keys["adaptive"], _ADAPTIVE)
        minimum, maximum = keys["adaptive"].get("minimum", 0), keys["adaptive"].get("maximum", 0)
    if not 0 <= minimum <= maximum or maximum < 1:
        raise DataError(
            f"'{path}': minimum is {minimum} and maximum is {maximum}: give 0 <= minimum <= maximum, and maximum >= 1"
        )
    return minimum, maximum


def _check(where: str, keys: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Reject unknown keys and values of another type."""
    for key, value in keys.items():
        if key not in kinds:
            raise DataError(f"{where}: unknown key: {key}: choose from {', '.join(kinds)}")
        if type(value) is not kinds[key]:
            raise DataError(f"{where}: {key} is {value!r}: give {_KINDS[kinds[key]]}")


def _takes(kind: type, name: str) -> bool:
    """Return whether a class or one of its base classes has a parameter of this name."""
    made = [vars(each)["__init__"] for each in kind.__mro__[:-1] if "__init__" in vars(each)]
    return any(name in inspect.signature(each).parameters for each in made)


@contextmanager
def _working_directory_left_out() -> Iterator[None]:
    """Exclude the working directory from imports."""
    before, here = sys.path[:], os.path.realpath(os.getcwd())
    sys.path[:] = [entry for entry in before if os.path.realpath(entry) != here]
    try:
        yield
    finally:
        sys.path[:] = before


def _raise_failed_requests(cluster: Any) -> None:
    """Raise the error of a failed request for workers. Otherwise the cluster only logs that, say, sbatch failed."""
    from distributed import SpecCluster

    async def requested() -> None:
        await cluster
        await asyncio.gather(*cluster.workers.values())  # failed requests are repeated, and raise here

    if isinstance(cluster, SpecCluster):
        cluster.sync(requested)
