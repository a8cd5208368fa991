"""Tells the workers of a cluster with which options object stores are reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from dpca.storage.network import replace_options, stated_options

# What the workers of each client were told last.
_told: WeakKeyDictionary[Any, Mapping[str, Any]] = WeakKeyDictionary()


def share_storage_options(client: Any) -> None:
    """Tell all workers of a client, also those that join later, what `use_storage_options` was told here.

    Parameters
    ----------
    client : distributed.Client

    Notes
    -----
    The options pass through the scheduler's memory, as tasks do: a cluster that others can reach needs TLS. What
    another client told the workers before is forgotten: all who use a cluster at the same time need the same options.
    """
    from distributed import WorkerPlugin

    options = stated_options()
    if not options or _told.get(client) == options:
        return

    class StorageOptions(WorkerPlugin):
        """Hands the options over when a worker starts."""

        def setup(self, worker: Any) -> None:
            replace_options(options)

    client.register_plugin(StorageOptions(), name="dpca-storage-options")
    _told[client] = options
