"""Whole jobs from store to store, resumable and idempotent: what the command line and the pipelines call."""

from __future__ import annotations

from dpca.jobs.cell_compression import CompressionSettings, partitioned_model
from dpca.jobs.compression import Outcome, compress, find_done, open_input
from dpca.jobs.fit import Fitted, fit_store
from dpca.jobs.reconstruct import reconstruct_store
from dpca.jobs.stream_compression import StreamingSettings
from dpca.jobs.transform import transform_store

__all__ = [
    "CompressionSettings",
    "Fitted",
    "Outcome",
    "StreamingSettings",
    "compress",
    "find_done",
    "fit_store",
    "open_input",
    "partitioned_model",
    "reconstruct_store",
    "transform_store",
]
