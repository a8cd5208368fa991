"""Jobs from store to store, for the command line and the pipelines. They resume from checkpoints and are idempotent."""

from __future__ import annotations

from dpca.jobs.append import Appended, append_store
from dpca.jobs.compression import Compressed, compress, find_done
from dpca.jobs.encode import encode_store
from dpca.jobs.fit import Fitted, fit_store
from dpca.jobs.live import read_live
from dpca.jobs.plan import JobPlan, plan_job
from dpca.jobs.reconstruct import reconstruct_store
from dpca.jobs.settings import CompressionSettings
from dpca.jobs.stages import StagePlan
from dpca.jobs.transform import transform_store
from dpca.storage.input import open_input

__all__ = [
    "Appended",
    "Compressed",
    "CompressionSettings",
    "Fitted",
    "JobPlan",
    "StagePlan",
    "append_store",
    "compress",
    "encode_store",
    "find_done",
    "fit_store",
    "open_input",
    "plan_job",
    "read_live",
    "reconstruct_store",
    "transform_store",
]
