"""Kernel PCA by Hebbian steps: the experiments of Günter, Schraudolph & Vishwanathan (2007), computed again."""

from __future__ import annotations

from collections.abc import Callable

from dpca.pipelines.studies.kernel.clustering import clustering_section
from dpca.pipelines.studies.kernel.denoising import digits_section, patches_section
from dpca.pipelines.studies.kernel.faces import faces_section
from dpca.pipelines.studies.kernel.mnist import table_section
from dpca.pipelines.studies.kernel.motion import motion_section
from dpca.pipelines.studies.kernel.one_pass import methods_section
from dpca.pipelines.studies.kernel.usps import linear_section, rbf_section, steps_section
from dpca.pipelines.studies.runner import Section

SECTIONS: dict[str, Callable[..., Section]] = {
    "usps-linear": linear_section,
    "usps-rbf": rbf_section,
    "usps-steps": steps_section,
    "mnist": table_section,
    "mnist-methods": methods_section,
    "patches": patches_section,
    "faces": faces_section,
    "digits": digits_section,
    "clustering": clustering_section,
    "motion": motion_section,
}
"""Name of each section of the page -> function of a `Setting` and a number of passes that computes it."""

__all__ = ["SECTIONS"]
