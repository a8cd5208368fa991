"""USPS digits, 100 of each: figures 2 to 4 of Günter, Schraudolph & Vishwanathan (2007), section 5.1.1."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.data import Setting
from dpca.pipelines.studies.kernel.courses import (
    ErrorCurve,
    KernelMatrix,
    Variant,
    centered,
    excess_of,
    gaussian,
    picture,
    run,
    table,
    variants_of,
)
from dpca.pipelines.studies.runner import Picture, Section
from dpca.plots import eigenimages

COMPONENTS, PASSES, SIGMA = 16, 200, 8.0
_EACH, _SHOWN, _MARKS = 100, 10, (1, 10, 50, 200)
_THEIRS = (
    "Theirs (figure 2, without numbers): et is ahead of et* for the first 6 passes and then behind; both clearly beat "
    "t; SMD clearly improves et, but not et*, so KHA-SMD is the best after 200."
)
_CHANCE = (
    "KHA/t depends on its start: of 20 starts beside these, it has 1.6e-3 to 9.1e-3 after 50 passes, and 9.5e-5 to "
    "6.0e-3 after 200."
)


def first_of_each(setting: Setting) -> Array:
    """Return the first 100 samples of each digit."""
    x, labels = setting.usps_digits()
    first: Array = x[np.concatenate([np.flatnonzero(labels == label)[:_EACH] for label in range(10)])]
    return first


def linear_section(setting: Setting, n_passes: int = PASSES) -> Section:
    """Figures 2 and 3, left: USPS digits, dot product."""
    x = first_of_each(setting)
    problem = KernelMatrix(centered(x @ x.T), COMPONENTS, 0.1)
    return _section("dot product", setting, problem, variants_of("usps linear"), n_passes, x - x.mean(axis=0), _CHANCE)


def rbf_section(setting: Setting, n_passes: int = PASSES) -> Section:
    """Figures 2 and 3, right: USPS digits, Gaussian kernel."""
    x = first_of_each(setting)
    problem = KernelMatrix(centered(gaussian(x, SIGMA)), COMPONENTS)
    return _section("RBF kernel, sigma 8", setting, problem, variants_of("usps rbf"), n_passes, x - x.mean(axis=0))


def steps_section(setting: Setting, n_passes: int = PASSES) -> Section:
    """Figure 4: eigenvalues once a pass, or before every step."""
    problem = KernelMatrix(centered(gaussian(first_of_each(setting), SIGMA)), COMPONENTS)
    variants = [*variants_of("usps rbf")[1:], *variants_of("usps rbf, each step")]
    courses = [run(problem, variant, setting.trials, n_passes) for variant in variants]
    note = "Theirs (figure 4): eigenvalues before every step help in the first passes and hardly matter in the end."
    heading = "Eigenvalues once a pass, or at each step (i)"
    return Section(
        [table("USPS: eigenvalues once a pass or at each step (i)", courses, _MARKS, [note])],
        {"usps-steps": picture(courses, heading, f"RBF kernel, sigma 8. {note}")},
        {"usps-steps": _numbers(problem, courses)},
    )


def _section(
    name: str,
    setting: Setting,
    problem: KernelMatrix,
    variants: Sequence[Variant],
    n_passes: int,
    x: Array,
    *notes: str,
) -> Section:
    key = f"usps-{name.split()[0].lower()}"
    courses = [run(problem, variant, setting.trials, n_passes) for variant in variants]
    least = f"The least error, of the exact eigenvectors, is {problem.minimum:.2f}."
    pictures = (_last_of_first_trial(problem, variants[1], n_passes) @ x).reshape(-1, 16, 16)
    return Section(
        [table(f"USPS, {name}: excess reconstruction error", courses, _MARKS, [least, *notes, _THEIRS])],
        {
            key: picture(courses, f"USPS, {name}", f"Median over {setting.trials} starts and orders. {_THEIRS}"),
            f"{key}-eigenvectors": Picture(
                eigenimages(pictures, len(pictures)),
                f"First eigenvectors, {name}",
                "By KHA/et*: sums of samples, weighted by their coefficients (figure 3 of the paper).",
            ),
        },
        {key: _numbers(problem, courses)},
    )


def _last_of_first_trial(problem: KernelMatrix, variant: Variant, n_passes: int) -> Array:
    """Return the coefficients of the shown eigenvectors after all passes."""
    found = next(islice(problem.passes(variant, 0), n_passes - 1, None))
    coefficients: Array = found["expansion"][:_SHOWN]
    return coefficients


def _numbers(problem: KernelMatrix, courses: Sequence[ErrorCurve]) -> dict[str, object]:
    return {"least_error": problem.minimum, "excess": excess_of(courses)}
