"""The convergence of variants of the kernel Hebbian algorithm to the best reconstruction of a kernel matrix."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import KernelCenterer

from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.runner import Picture
from dpca.plots import convergence
from dpca.report.page import DataTable
from dpca.rules.base.rule import DivergedError
from dpca.rules.kernel.gains import Gains, gains_of
from dpca.rules.kernel.kha import KernelHebbian, begin

_NAMES = {"constant": "KHA", "smd*": "KHA-SMD*", "smd": "KHA-SMD"}
_EMPHASIZED = "KHA/et*"
# Kernel rows that are copied at once.
_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class Variant:
    """A variant with its parameters, as in table 1 of Günter, Schraudolph & Vishwanathan (2007).

    Attributes
    ----------
    name : str
        One of `dpca.rules.kernel.gains.VARIANTS`.
    eta : float
    tau : float
        In passes.
    meta : float
    each_step : bool
        Whether eigenvalues are estimated before every step, 'i' in the paper.
    """

    name: str
    eta: float
    tau: float = 1.0
    meta: float = 0.0
    each_step: bool = field(default=False, kw_only=True)

    @property
    def label(self) -> str:
        """Name in figures."""
        return _NAMES.get(self.name, f"KHA/{self.name}") + (" (i)" if self.each_step else "")

    @property
    def gain(self) -> float:
        """The parameter that is tuned last: mu, or eta if there is none."""
        return self.meta or self.eta

    def gains(self, n_samples: int) -> Gains:
        """Return its gains for ``n_samples`` samples a pass."""
        return gains_of(self.name, self.eta, self.tau * n_samples, self.meta)


#: Table 1 of the paper: experiment -> variant -> eta, tau in passes, mu. Constant gains are those of Kim et al. (2005).
_TABLE_1: dict[str, dict[str, tuple[float, ...]]] = {
    "usps linear": {"t": (0.002, 2), "et*": (5, 4), "et": (1e-3,), "smd*": (5, 4, 1e-5), "smd": (1e-3, 1, 1e-4)},
    "usps rbf": {"t": (1, 1), "et*": (5, 3), "et": (0.2,), "smd*": (5, 3, 0.05), "smd": (0.2, 1, 0.1)},
    # Footnote 3: tuned again for eigenvalues before every step.
    "usps rbf, each step": {"et*": (5, 4), "et": (0.2,), "smd*": (5, 4, 0.1), "smd": (0.2, 1, 0.05)},
    "clustering": {"t": (200,), "et*": (10, 1), "et": (50,), "smd*": (10, 1, 20), "smd": (50, 1, 1000)},
    "motion": {"t": (2,), "et*": (5, 3), "et": (0.1,), "smd*": (5, 3, 0.1), "smd": (0.1, 1, 1)},
    "patches": {
        **{"constant": (0.05,), "t": (2,), "et*": (5, 4), "et": (0.1,), "smd*": (5, 4, 1), "smd": (0.1, 1, 2)},
        # Figure 8, with letters for names.
        **{"s": (0.5, 1, 2), "ts": (2, 1, 1), "es": (1, 1, 2)},
    },
    "faces": {
        **{"constant": (0.05,), "t": (0.2,), "et*": (5, 4), "et": (0.02,), "smd*": (5, 4, 0.2), "smd": (0.02, 1, 5)},
    },
}


def variants_of(experiment: str) -> list[Variant]:
    """Return the variants of an experiment with the parameters of the paper."""
    each_step = experiment.endswith("each step")
    return [Variant(name, *map(float, numbers), each_step=each_step) for name, numbers in _TABLE_1[experiment].items()]


@dataclass(frozen=True, eq=False)
class KernelMatrix:
    """A kernel matrix (l, l), centered if required, and the number r of its requested eigenvectors.

    ``scale`` multiplies the random start, N(0, 1 / (r l)), which is too large for kernels far from 1.
    """

    kernel: Array
    n_components: int
    scale: float = 1.0

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Leading eigenvalues (r,), descending, and eigenvectors (r, l)."""
        n = len(self.kernel)
        values, vectors = scipy.linalg.eigh(self.kernel, subset_by_index=(n - self.n_components, n - 1))
        return values[::-1], vectors[:, ::-1].T

    @cached_property
    def minimum(self) -> float:
        """Least reconstruction error."""
        return float(np.sqrt(np.vdot(self.kernel, self.kernel) - np.sum(self.spectrum[0] ** 2)))

    def error(self, rows: Array) -> float:
        """|K' - (A K')^T (A K')|_F (equation 38), of rows A K' (r, l)."""
        products, squares = np.vdot(rows @ self.kernel, rows), np.sum((rows @ rows.T) ** 2)
        return float(np.sqrt(np.vdot(self.kernel, self.kernel) - 2 * products + squares))

    def start(self, seed: int) -> Array:
        """A_1."""
        n, r = len(self.kernel), self.n_components
        return np.random.default_rng(seed).normal(0, self.scale / np.sqrt(r * n), (r, n))

    def passes(self, variant: Variant, seed: int) -> Iterator[dict[str, Array]]:
        """Yield the result of a variant after each pass, from a random start and in random orders of samples."""
        gains = variant.gains(len(self.kernel))
        return passes(self.kernel, gains, self.start(seed), seed, each_step=variant.each_step)


@dataclass(frozen=True, eq=False)
class ErrorCurve:
    """Excess errors E / E_min - 1 (trial, pass) of a variant, nan once it diverged, and its processor seconds."""

    variant: Variant
    excess: Array
    seconds: float

    @cached_property
    def median(self) -> Array:
        """Median over trials, after each pass."""
        return np.median(self.excess, axis=0)


def run(
    problem: KernelMatrix,
    variant: Variant,
    trials: int,
    n_passes: int,
    note: Callable[[int, dict[str, Array]], None] = lambda number, found: None,
) -> ErrorCurve:
    """Run a variant from several starts, each with its own orders of samples.

    Parameters
    ----------
    note : callable
        Receives the number of each pass, from 1, and its result.
    """
    excess = np.full((trials, n_passes), np.nan)
    began = time.process_time()
    for seed in range(trials):
        try:
            for i, found in enumerate(itertools.islice(problem.passes(variant, seed), n_passes)):
                excess[seed, i] = problem.error(found["rows"]) / problem.minimum - 1
                note(i + 1, found)
        except DivergedError:
            continue
    return ErrorCurve(variant, excess, (time.process_time() - began) / trials)


def passes(
    kernel: Array, gains: Gains, expansion: Array, seed: int, *, each_step: bool = False
) -> Iterator[dict[str, Array]]:
    """Yield the result of `KernelHebbian` after each pass over a kernel matrix, endlessly.

    Parameters
    ----------
    kernel : array (l, l)
        Symmetric; centered, unless samples shall not be.
    gains : Gains
    expansion : array (r, l)
        A_1.
    seed : int
        Seed of the orders: each pass has a new permutation of the samples.
    each_step : bool
        As in `KernelHebbian`.

    Notes
    -----
    A pass costs O(l^2 (r + 64)) operations.
    """
    rng, found = np.random.default_rng(seed), begin(expansion, expansion @ kernel)
    while True:
        rule = KernelHebbian(gains, rng.permutation(len(kernel)), found, each_step=each_step)
        state = rule.init(len(kernel), float)
        for first in range(0, len(kernel), _ROWS_AT_ONCE):
            rule.update(state, kernel[rule.order[first : first + _ROWS_AT_ONCE]])
        found = rule.finish(state)
        yield found


def centered(kernel: Array) -> Array:
    """Return the kernel matrix of samples that are centered in feature space (equation 12)."""
    shifted: Array = KernelCenterer().fit_transform(kernel)
    return shifted


def gaussian(x: Array, sigma: float) -> Array:
    """Return exp(-|x - x'|^2 / (2 sigma^2)) of samples (l, d): equation 40, with the sign that is missing in print."""
    values: Array = rbf_kernel(x, gamma=1 / (2 * sigma**2))
    return values


def picture(courses: Sequence[ErrorCurve], heading: str, caption: str) -> Picture:
    """Draw the median excess error against passes, one line for each variant."""
    lines = []
    for course in courses:
        kept = np.isfinite(course.median)  # before it diverged
        lines.append((course.variant.label, np.flatnonzero(kept) + 1, np.log10(course.median[kept])))
    y_label = "log10 of the excess reconstruction error"
    return Picture(
        convergence(lines, "passes over the data", emphasized=_EMPHASIZED, y_label=y_label), heading, caption
    )


def table(heading: str, courses: Sequence[ErrorCurve], marks: Sequence[int], notes: Sequence[str]) -> DataTable:
    """Return a table of excess errors after some numbers of passes: median, least and largest of the trials."""
    shown = [mark for mark in marks if mark <= courses[0].excess.shape[1]]
    head = ("variant", "eta 0", "tau", "mu", *(f"{mark} passes" for mark in shown), "CPU s a run")
    rows = [
        (
            course.variant.label,
            f"{course.variant.eta:g}",
            f"{course.variant.tau:g} l",
            f"{course.variant.meta:g}",
            *(_spread(course.excess[:, mark - 1]) for mark in shown),
            f"{course.seconds:.1f}",
        )
        for course in courses
    ]
    return DataTable(heading, head, rows, notes)


def excess_of(courses: Sequence[ErrorCurve]) -> dict[str, Any]:
    """Return the excess errors by the labels of the variants."""
    return {course.variant.label: course.excess for course in courses}


def _spread(values: Array) -> str:
    if np.isnan(values).any():
        return f"{np.isnan(values).sum()} of {len(values)} diverged"
    return f"{np.median(values):.1e} ({values.min():.1e} to {values.max():.1e})"
