"""Jobs from store to store, for the command line and the pipelines. They resume from checkpoints and are idempotent."""

from __future__ import annotations

from dpca.jobs.base.stages import StagePlan
from dpca.jobs.compressed.append import Appended, append_store
from dpca.jobs.compressed.encode import encode_store
from dpca.jobs.denoising.denoise import denoise_store
from dpca.jobs.denoising.fill import fill_store
from dpca.jobs.export.export import ExportResult, export_store
from dpca.jobs.models.fit import FitResult, fit_store
from dpca.jobs.models.live import read_live
from dpca.jobs.plans.denoising_plan import plan_denoising
from dpca.jobs.plans.plan import JobPlan, plan_job
from dpca.jobs.scores.compression import CompressionResult, compress, find_done
from dpca.jobs.scores.reconstruct import reconstruct_store
from dpca.jobs.scores.settings import CompressionSettings
from dpca.jobs.scores.transform import transform_store
from dpca.storage.input import open_input

__all__ = [
    "Appended",
    "CompressionResult",
    "CompressionSettings",
    "ExportResult",
    "FitResult",
    "JobPlan",
    "StagePlan",
    "append_store",
    "compress",
    "denoise_store",
    "encode_store",
    "export_store",
    "fill_store",
    "find_done",
    "fit_store",
    "open_input",
    "plan_denoising",
    "plan_job",
    "read_live",
    "reconstruct_store",
    "transform_store",
]
