"""Kernel principal components in one pass, from the covariance of the kernels with landmarks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg, unlocked
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.namespace import to_numpy
from dpca.kernels.algebra.types import Array
from dpca.kernels.inner_products import KernelMap
from dpca.rules.base.rule import Wrapper
from dpca.rules.base.state import ALL, AttributeBlocks, State, StateLayout
from dpca.rules.certificates import certificate
from dpca.rules.covariance.moments import Moments

#: Eigenvalues of the kernels of landmarks below this share of the largest count as 0.
_RANK = 1e-6
# Rounding errors of kernels add eigenvalues of at most this multiple of these errors.
_ROUNDING = 4
# Safety margin of estimated bounds, in standard errors.
_ERRORS = 3.0


@dataclass(frozen=True)
class Mapped(Wrapper):
    """A rule that processes the kernels of samples with landmarks instead of the samples.

    Parameters
    ----------
    rule : Rule
        Processes batches of m attributes.
    to_landmarks : KernelMap
        Kernels with m landmarks.
    weighted : bool
        Whether the last attribute of a sample is a factor of its kernels.

    Costs 2 n m d operations in addition to the rule, and m d values in addition to its state.
    """

    to_landmarks: KernelMap
    weighted: bool = field(default=False, kw_only=True)

    def init(self, n_features: int, dtype: DTypeLike, blocks: AttributeBlocks = ALL) -> State:
        """Return the state of the rule and of the wrapper."""
        return super().init(*self._mapped(dtype), blocks)

    def update(self, state: State, batch: Array) -> State:
        """Process a batch (n_samples, n_features)."""
        if not batch.shape[0]:
            return state
        if not self.weighted:
            return self.rule.update(state, self.to_landmarks(batch))
        return self.rule.update(state, self.to_landmarks(batch[:, :-1]) * batch[:, -1:])

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of the state of the rule and of the wrapper."""
        return super().state_bytes(*self._mapped(dtype))

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of the rule and of the map, including the landmarks."""
        own = self.to_landmarks.points.nbytes + self.to_landmarks.scratch_bytes(n_rows, dtype)
        return own + int(self.rule.work_bytes(n_rows, *self._mapped(dtype)))

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        return int(self.rule.result_bytes(*self._mapped(dtype)))

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the best number of samples per update."""
        return int(self.rule.batch_rows(self._mapped(dtype)[1]))

    def _mapped(self, dtype: DTypeLike) -> tuple[int, np.dtype[Any]]:
        points = self.to_landmarks.points
        return len(points), np.result_type(points.dtype, working_dtype(dtype))


def degrees(to_landmarks: KernelMap, *, weighted: bool = False) -> Mapped:
    """Return the rule that computes the mean kernels with landmarks for `degree_weights`."""
    return Mapped(Moments(), to_landmarks, weighted=weighted)


def degree_weights(to_landmarks: KernelMap, mean: Array, n_samples: int) -> Array:
    """Return weights (m,), float64, that estimate degrees from kernels with landmarks; see `KernelMap`.

    The sum of the kernels of x with all samples is k(x, Z) K_ZZ^+ (sum over samples of k(Z, x_j)).
    """
    root, _ = root_of(to_landmarks.own(), to_landmarks.points.dtype)
    return root @ (root.T @ (n_samples * mean))


def likely_share(captured: float, beyond: float, rounding: float, to_landmarks: KernelMap) -> float:
    """Return a likely lower bound on the captured share of components from kernels with landmarks.

    The allowance for rounding is statistical, because the roots of K_ZZ^+ magnify rounding errors, and a worst-case
    bound would leave no certificate. Independent errors of d products grow like the root of d (Higham & Mary 2019,
    theorem 3.1). The allowance is three standard errors.

    Parameters
    ----------
    captured, beyond : float
        Computed sums of the eigenvalues of the components, and of the variance that the best components could capture
        in addition.
    rounding : float
        Rounding error of kernels.
    to_landmarks : KernelMap
    """
    slack = _ERRORS * math.sqrt(to_landmarks.points.shape[1]) * rounding
    return certificate.share(captured - slack, beyond + 2 * slack)


def root_of(kernels: Array, dtype: DTypeLike = np.float64) -> tuple[Array, float]:
    """Return W (m, r) with W W^T = K^+ of kernels (m, m), and the smallest eigenvalue relative to the largest one.

    The eigenvalues are those of the centered kernels. Without centering, a mean far from 0 in feature space would hide
    the differences of samples. Eigenvalues are retained if they exceed 1e-6 of the largest one and the rounding error
    of kernels of this dtype. The direction of the mean is added. W is a column of zeros if no eigenvalue is retained.
    Costs O(m^3) time.
    """
    m, mean = len(kernels), kernels.mean(axis=0)
    centered = kernels - mean
    centered -= centered.mean(axis=1)[:, None]
    values, vectors = unlocked.eigh(centered), centered.T  # which holds the eigenvectors then
    # Kernels have the rounding error of their dtype.
    rounding = _ROUNDING * float(np.finfo(dtype).eps) * float(np.abs(kernels.diagonal()).sum())
    least_kept, far = max(_RANK * values[-1], rounding), m * float(mean.mean())
    kept = values > least_kept
    root = vectors[:, kept] / np.sqrt(values[kept])
    root -= root.mean(axis=0)  # removes rounding errors, which a mean far from 0 would magnify
    # The part of the mean outside of the span. Two rounds make it orthogonal to the span in feature space.
    beside = 1 / m - root @ (root.T @ mean)
    beside -= root @ (root.T @ (kernels @ beside))
    square = float(beside @ kernels @ beside)
    if m * square > max(_RANK * far, least_kept):
        root = np.column_stack([root, beside / np.sqrt(square)])
    lowest = min(values[0], m * square)
    largest = max(values[-1], far, -lowest)
    least = float(lowest / largest) if largest > 0 else 0.0
    return root if root.shape[1] else np.zeros((m, 1)), least


@dataclass(frozen=True)
class KernelComponents(Mapped):
    """Leading principal components in the span of the landmarks in feature space (Nyström method).

    With c = k(x, Z) and W W^T = K_ZZ^+, the rows W^T c are coordinates of the projections of samples onto the span of
    the landmarks (Williams & Seeger 2001, equation 9). The eigenvectors of their covariance are those of the covariance
    operator on the span, orthonormal in feature space. An eigenvalue is exactly the captured variance of its component.
    States can be merged in any order. With all samples as landmarks, this is kernel PCA (Schölkopf, Smola & Müller
    1998, equation 1.13).

    Parameters
    ----------
    rule : Covariance
        With ``center``, or without for components about 0.
    to_landmarks : KernelMap
    n_components : int
    held_out : array (s, d), optional
        Randomly drawn samples that sharpen the bound. Not supported with degrees.
    weighted : bool
        Whether the last attribute of a sample says how often it counts.

    Results of ``finish``, float64, with k <= n_components if the span has fewer dimensions: ``eigenvalues`` (k,),
    descending, sums of squares of scores, as in scikit-learn; ``coefficients`` (m, k) and ``offset`` (k,): the scores
    are k(x, Z) coefficients - offset; ``mean_coefficients`` (m,): coefficients of the mean in the span;
    ``landmark_scores`` (m, k), the largest of each component is positive; ``total`` (): an upper bound on the sum of
    all eigenvalues; ``residual`` (): the part of it outside of the span; ``captured_bound`` (): a lower bound on the
    captured variance relative to the best components; ``least`` (): see `root_of`; ``rounding`` (): the rounding error
    of kernels relative to the total.
    """

    n_components: int
    held_out: Array | None = field(default=None, kw_only=True)

    def _own_layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return {"trace": ((), float)}

    def update(self, state: State, batch: Array) -> State:
        """Process a batch (n_samples, n_features)."""
        if self.weighted and batch.shape[0]:
            return self.weigh(state, batch[:, :-1], batch[:, -1])
        if batch.shape[0] and self.to_landmarks.kernel.name != "precomputed":
            state.arrays["trace"][...] += float(to_numpy(self.to_landmarks.diagonal(batch)).sum())
        return super().update(state, batch)

    def weigh(self, state: State, batch: Array, weights: Array) -> State:
        """Process samples with weights."""
        if self.to_landmarks.kernel.name != "precomputed":
            state.arrays["trace"][...] += float(weights @ self.to_landmarks.diagonal(batch))
        weighted: State = self.rule.weigh(state, self.to_landmarks(batch), weights)
        return weighted

    def merge(self, a: State, b: State) -> State:
        """Return the state of both streams."""
        a.arrays["trace"][...] += float(b.arrays["trace"])
        return super().merge(a, b)

    def finish(self, state: State) -> dict[str, Array]:
        """Return the result as named arrays. The state must not be used afterwards."""
        n, kernels = state.counts["n_samples"], self.to_landmarks.own()
        trace = float(kernels.trace() if self.to_landmarks.kernel.name == "precomputed" else state.arrays["trace"])
        found = self.rule.finish(State({name: to_numpy(a) for name, a in state.arrays.items()}, state.counts))
        root, least = root_of(kernels, self.to_landmarks.points.dtype)
        scatter = root.T @ found["covariance"] @ root * (n - 1)
        within = float(scatter.trace())
        # For a mean far from 0 in feature space, only its difference from the mean of the landmarks is accurate.
        middle = np.full(len(kernels), float(self.rule.center) / len(kernels))
        own = kernels @ middle
        moved, spread = root.T @ (found["mean"] - own), trace + n * float(middle @ (own - 2 * found["mean"]))
        residual = max(spread - n * float(moved @ moved) - within, 0.0)
        values, rows = linalg.leading_eigh(scatter, min(self.n_components, len(scatter)))
        # Signs are those of the landmarks: the columns of the root have arbitrary ones.
        coefficients = root @ rows.T
        scores = (kernels - found["mean"]) @ coefficients
        signs = 1 - 2.0 * (linalg.peaks(np.ascontiguousarray(scores.T))[:, 0] < 0)
        coefficients, scores = coefficients * signs, scores * signs
        rounding = float(np.finfo(self.to_landmarks.points.dtype).eps) * trace
        captured, bounded = float(values.sum()), self._largest_left(root, residual, len(values), n)
        return {
            "eigenvalues": values,
            "coefficients": coefficients,
            "offset": found["mean"] @ coefficients,
            "mean_coefficients": middle + root @ moved,
            "landmark_scores": scores,
            "total": np.asarray(within + residual),
            "residual": np.asarray(residual),
            "captured_bound": np.asarray(likely_share(captured, bounded, rounding, self.to_landmarks)),
            "least": np.asarray(least),
            "rounding": np.asarray(rounding / (within + residual) if within + residual > 0 else 0.0),
        }

    def _largest_left(self, root: Array, residual: float, k: int, n: int) -> float:
        """Bound the sum of the k largest eigenvalues of the residual outside of the span.

        The whole residual is a proven bound. For randomly drawn samples, the expected share of their k leading
        directions is at least the share of all samples, because the sum of leading eigenvalues is convex. Three
        standard errors, for s samples of n, are added.
        """
        x = self.held_out
        if x is None or residual == 0:
            return residual
        # In the dtype of the kernels, because their rounding error is far below the standard error.
        kernels = self.to_landmarks(x)
        along = kernels @ root.astype(kernels.dtype)
        among = KernelMap(self.to_landmarks.kernel, x.astype(self.to_landmarks.points.dtype, copy=False))(x)
        among -= along @ along.T
        each = np.maximum(among.diagonal(), 0.0, dtype=np.float64)
        if not (total := each.sum()) > 0:
            return residual
        last = len(x) - 1
        values, vectors = scipy.linalg.eigh(
            among, subset_by_index=(max(last + 1 - k, 0), last), check_finite=False, overwrite_a=True
        )
        held = (vectors * vectors) @ np.maximum(values, 0.0)
        share = float(held.sum() / total)
        error = float(np.std(held - share * each) / total) * math.sqrt(len(x) * max(1 - len(x) / n, 0.0))
        return residual * min(share + _ERRORS * error, 1.0)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: of an update, or of a dozen matrices (m, m) in ``finish``."""
        (m, d), s = self.to_landmarks.points.shape, 0 if self.held_out is None else len(self.held_out)
        converted = s * d * self.to_landmarks.points.itemsize
        held = 0 if self.held_out is None else self.held_out.nbytes + converted + 8 * s * (2 * m + 4 * s)
        finished = 8 * 8 * m * m + linalg.eigh_bytes(m, m) + held
        return self.to_landmarks.scratch_bytes(n_rows, dtype) + max(
            super().work_bytes(n_rows, n_features, dtype), finished
        )

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        return 8 * (2 * len(self.to_landmarks.points) + 2) * (self.n_components + 1)
