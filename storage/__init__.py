"""Stacks of samples in Zarr: ingest, the stack store, and how every store is written.

This room knows no PCA. Its parts: `readers`, `images` and `ingest` (what people have, decoded by stated rules),
`stack` (opening), `coordinates` (names of axes, and what stands
along them), `verify`, and what every store is made with: `layout` (how a stack is cut), `arrays` (sharded, checksummed
Zarr), `workspace` (jobs that survive being killed), `appending` and `arrivals` (stacks that grow while others read
them), `virtual_stack` and `virtual` (stacks whose samples are made when they are read), `tasks` (calls in order on
Dask or threads), `clusters` (what a cluster says when it fails, as errors of ours).
"""

from dpca.storage.appending import Appender
from dpca.storage.arrivals import arrivals
from dpca.storage.errors import ClusterError, DataError, ReplacedError, StoreError
from dpca.storage.ingest import ingest
from dpca.storage.network import use_storage_options
from dpca.storage.stack import Stack, open_stack
from dpca.storage.verify import verify
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
