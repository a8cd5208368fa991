"""Stacks of samples in Zarr: ingest, the stack store, and how every store is written.

This package is independent of PCA. `readers`, `images` and `ingest` decode files by documented rules. `stack` opens
stacks, `coordinates` handles the names and the coordinates of axes, and `verify` checks stores. Every store is written
with `layout` (chunks and shards), `arrays` (sharded Zarr with checksums) and `workspace` (jobs that resume after they
are killed). `appending` and `arrivals` write and follow stacks that grow. `virtual_stack` and `virtual` compute the
samples of synthetic stacks when they are read. `tasks` runs calls in order on Dask or threads, and `clusters` converts
the failures of a Dask cluster to `ClusterError`.
"""

from dpca.storage.errors import ClusterError, DataError, ReplacedError, StoreError
from dpca.storage.growth.appending import Appender
from dpca.storage.growth.arrivals import arrivals
from dpca.storage.ingest import ingest
from dpca.storage.integrity.verify import verify
from dpca.storage.remote.network import use_storage_options
from dpca.storage.stack import Stack, open_stack
from dpca.storage.virtual_stack import create_virtual, open_virtual

__all__ = [
    "Appender",
    "ClusterError",
    "DataError",
    "ReplacedError",
    "Stack",
    "StoreError",
    "arrivals",
    "create_virtual",
    "ingest",
    "open_stack",
    "open_virtual",
    "use_storage_options",
    "verify",
]
