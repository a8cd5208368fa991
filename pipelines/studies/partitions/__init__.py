"""Chapter 4 of Alakkari 2020 from any stack: cells, bands, whole samples and the cosine transform, side by side."""

from __future__ import annotations

from dpca.pipelines.studies.partitions.run import report_partitions
from dpca.pipelines.studies.partitions.settings import PartitionSettings

__all__ = ["PartitionSettings", "report_partitions"]
