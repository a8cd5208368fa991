"""Stacks of samples in Zarr: ingest, the stack store, and how every store is written.

This package is independent of PCA. `ingest` copies a source, which `readers` read by documented rules, to a stack
store, and `stack` opens one. `arrays` has sharded Zarr arrays with checksums, and `integrity` verifies every read.
`transaction` has jobs that resume after they are killed, and stores that appear complete or not at all. `remote`
reaches object stores and clusters. `growth` writes and follows stacks that grow. `synthetic` computes samples
when they are read.
"""

from dpca.storage.errors import ClusterError, DataError, ReplacedError, StoreError
from dpca.storage.growth.appending import Appender
from dpca.storage.growth.arrivals import arrivals
from dpca.storage.ingest import ingest
from dpca.storage.integrity.verify import verify
from dpca.storage.remote.network import use_storage_options
from dpca.storage.run import Run
from dpca.storage.stack import Stack, open_stack
from dpca.storage.survey import ReadOptions
from dpca.storage.synthetic.stack import create_synthetic, open_synthetic

__all__ = [
    "Appender",
    "ClusterError",
    "DataError",
    "ReadOptions",
    "ReplacedError",
    "Run",
    "Stack",
    "StoreError",
    "arrivals",
    "create_synthetic",
    "ingest",
    "open_stack",
    "open_synthetic",
    "use_storage_options",
    "verify",
]
