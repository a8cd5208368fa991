"""The method "kha" of `KernelPCA`: Hebbian steps in the span of landmarks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.engine.sources.sampling import first_samples
from dpca.engine.sources.shuffled import shuffle
from dpca.kernels.algebra.types import Array
from dpca.models.base.parameters import no_values
from dpca.models.base.passes import Passes
from dpca.models.kernel.kernel_methods import Found, KernelProblem, check_found, choose_landmarks
from dpca.partition.whole import Whole
from dpca.rules.base.orthonormal import orthonormalize
from dpca.rules.base.schedules import Constant
from dpca.rules.base.state import State
from dpca.rules.kernel.gains import Gains, gains_of, tune
from dpca.rules.kernel.kernel_covariance import Mapped, likely_share
from dpca.rules.kernel.kha import KernelHebbian, begin

# The step falls to a twentieth over a pass (Günter, Schraudolph & Vishwanathan 2007, section 5.2).
_DECAY = 0.05
# Number of steps in which too large a gain diverges, and the most bytes of their samples.
_TUNED_STEPS, _TUNED_BYTES = 1280, 2**26


@dataclass(frozen=True)
class InFeatures(Mapped):
    """A rule on kernel features: kernels with landmarks times ``coefficients`` (m, q), minus ``offset`` (q,)."""

    coefficients: Array
    offset: Array

    def update(self, state: State, batch: Array) -> State:
        """Update the state with a batch of shape (n_samples, n_features)."""
        if batch.shape[0]:
            self.rule.update(state, self.features(batch))
        return state

    def features(self, batch: Array) -> Array:
        """Return the features (n_samples, q) of samples."""
        kernels = self.to_landmarks(batch)
        found: Array = kernels @ self.coefficients.astype(kernels.dtype, copy=False) - self.offset
        return found

    def _mapped(self, dtype: DTypeLike) -> tuple[int, np.dtype[Any]]:
        return len(self.offset), np.dtype(float)


def hebbian(problem: KernelProblem, passes: Passes) -> Found:
    """Find components by Hebbian steps: one pass for the features, and one or more passes of steps in random order.

    The features are the scores along all components in the span of the landmarks, so they are uncorrelated. The result
    of the steps is orthonormalized and rotated so that its scores are uncorrelated.
    """
    to_landmarks, rng = choose_landmarks(problem, passes)
    (m, d), k, n = to_landmarks.points.shape, problem.k, passes.source.shape[0]
    order = np.arange(n)
    # Plan the steps before the first pass: a plan that fails later would waste that pass.
    sizes = begin(no_values((k, n), np.float64), no_values((k, m), np.float64))
    planned = KernelHebbian(Gains(Constant(1.0)), order, sizes, no_values((m,), np.float64), each_step=True)
    nothing = no_values((m, m), np.float64), no_values((m,), np.float64)
    passes.plan(Whole(tuple(passes.source.shape[1:])), InFeatures(planned, to_landmarks, *nothing))
    found = passes(replace(problem.rule(to_landmarks), n_components=m))
    check_found({**found, "eigenvalues": found["eigenvalues"][:k]}, k)
    values = found["eigenvalues"]
    # Draw A_1 Phi' from its distribution: computing the product would take another pass.
    rows = rng.normal(0, np.sqrt(values / (k * n)), (k, len(values)))
    start = begin(rng.normal(0, 1 / np.sqrt(k * n), (k, n)), rows)
    passes.source = shuffle(passes.source, problem.seed)

    def steps(gains: Gains) -> InFeatures:
        rule = KernelHebbian(gains, order, start, values, each_step=True)
        return InFeatures(rule, to_landmarks, found["coefficients"], found["offset"])

    gains = problem.gains
    if gains is None:
        each = passes.source.dtype.itemsize * d
        first = first_samples(passes.source, min(_TUNED_STEPS * each, _TUNED_BYTES)).reshape(-1, d)
        tau = max(_DECAY * n, 1.0)
        eta = tune(lambda eta: (rule := steps(gains_of("et*", eta, tau))).update(rule.init(d, first.dtype), first))
        gains = gains_of("et*", eta, tau)

    def turned(rows: Array) -> Found:
        basis = orthonormalize(rows)
        captured, turn = scipy.linalg.eigh((basis * values) @ basis.T)
        basis = turn[:, ::-1].T @ basis
        further = {name: found[name] @ basis.T for name in ("coefficients", "offset", "landmark_scores")}
        missed = max(float(values[:k].sum() - captured.sum()), 0.0) + float(found["residual"])
        rounding = float(found["rounding"]) * float(found["total"])
        bound = np.asarray(likely_share(float(captured.sum()), missed, rounding, to_landmarks))
        return Found(to_landmarks, {**found, **further, "eigenvalues": captured[::-1], "captured_bound": bound})

    for turn in range(problem.n_passes):
        if turn:
            passes.show(turned(start["rows"]))
        start = passes(steps(gains), result_so_far=lambda states: turned(steps(gains).finish(states[0])["rows"]))
    return turned(start["rows"])
