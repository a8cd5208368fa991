"""Sends the options of object stores to the workers of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from dpca.storage.remote.network import replace_options, stated_options

# The last options that each client sent to its workers.
_sent: WeakKeyDictionary[Any, Mapping[str, Any]] = WeakKeyDictionary()


def share_storage_options(client: Any) -> None:
    """Send the options of `use_storage_options` to all workers of a client, including workers that join later.

    Parameters
    ----------
    client : distributed.Client
        Client of the cluster.

    Notes
    -----
    The options pass through the memory of the scheduler, as tasks do. If others can reach the cluster, it requires TLS.
    The options replace those of another client. All clients that use a cluster at the same time need the same options.
    """
    from distributed import WorkerPlugin

    options = stated_options()
    if not options or _sent.get(client) == options:
        return

    class StorageOptions(WorkerPlugin):
        """Sets the options when a worker starts."""

        def setup(self, worker: Any) -> None:
            replace_options(options)

    client.register_plugin(StorageOptions(), name="dpca-storage-options")
    _sent[client] = options
