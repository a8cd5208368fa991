"""Stacks of samples in Zarr: ingest, the stack store, and how every store is written.

This room knows no PCA. Its parts: `readers`, `images` and `ingest` (what people have, decoded by stated rules),
`spiked` (synthetic samples of known covariance), `stack` (opening), `verify`, and what every store is made with:
`layout` (how a stack is cut), `arrays` (sharded, checksummed Zarr), `workspace` (jobs that survive being killed),
`tasks` (calls in order on Dask or threads), `clusters` (what a cluster says when it fails, as errors of ours).
"""

from storage.errors import ClusterError, DataError, StoreError
from storage.ingest import ingest
from storage.spiked import Spiked, write_spiked
from storage.stack import Stack, open_stack
from storage.verify import verify

__all__ = [
    "ClusterError",
    "DataError",
    "Spiked",
    "Stack",
    "StoreError",
    "ingest",
    "open_stack",
    "verify",
    "write_spiked",
]
