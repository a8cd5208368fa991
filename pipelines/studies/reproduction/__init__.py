"""The published tables of streaming PCA, computed again: one file for each data set, and shared files."""

from __future__ import annotations

from dpca.pipelines.studies.reproduction.digits import default_table, digits_table, krasulina_table
from dpca.pipelines.studies.reproduction.faces import faces_table
from dpca.pipelines.studies.reproduction.margin import cifar_margin, faces_margin
from dpca.pipelines.studies.reproduction.spiked import spiked_table
from dpca.pipelines.studies.reproduction.tables import Entry, ReproductionTable, markdown

TABLES = {
    "krasulina": krasulina_table,
    "mnist": digits_table,
    "spiked": spiked_table,
    "default": default_table,
    "cifar": cifar_margin,
    "lfw": faces_table,
    "lfw-margin": faces_margin,
}
"""Name of each table -> function of a `Setting` that computes it."""

__all__ = ["TABLES", "Entry", "ReproductionTable", "markdown"]
