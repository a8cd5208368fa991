"""A client that is the default one only within a block.

`fit` and Dask compute on the cluster of the default client. Where samples are few, that takes ten times the processor
time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
from distributed.client import _del_global_client, _set_global_client


@contextmanager
def not_the_default(client: Any) -> Iterator[None]:
    """Hide a client, which Dask made the default one when it connected."""
    _del_global_client(client)
    with dask.config.set(scheduler=None):
        yield


@contextmanager
def the_default(client: Any) -> Iterator[None]:
    """Make a hidden client the default one."""
    _set_global_client(client)
    with dask.config.set(scheduler="dask.distributed"):
        try:
            yield
        finally:
            _del_global_client(client)
