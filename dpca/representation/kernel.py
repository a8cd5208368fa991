"""The kernel representation: scores along components of a feature space, and their pre-images."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array, blocks
from dpca.kernels.inner_products import Kernel, KernelMap
from dpca.kernels.pixels import Pixels
from dpca.representation.base import Representation, array_digest
from dpca.storage.errors import DataError
from dpca.storage.transaction.workspace import fingerprint_of

# Values of samples, or of kernels, that are mapped at a time.
_BLOCK_BYTES = 2**25
# Most steps of the fixed-point iteration, and the relative change at which it ends.
_STEPS, _SETTLED = 100, 1e-4


@dataclass(frozen=True, eq=False)
class KernelRepresentation(Representation):
    """Scores are k(x, Z) coefficients - offset, with landmarks Z. Decoded samples are estimated from scores.

    Parameters
    ----------
    sample_shape : tuple of int
    to_landmarks : KernelMap
    coefficients : array (m, k)
    offset : array (k,)
    mean_coefficients : array (m,)
        Coefficients of the mean in feature space.
    landmark_scores : array (m, k)
    pre_image : str
        "ridge": kernel ridge regression of the landmarks on their scores, with the kernel and its penalty ``alpha`` as
        in scikit-learn (Bakir, Weston & Scholkopf 2003, equation 9). "fixed-point": the iteration of Mika et al. 1999,
        equation 10, for "rbf", which starts at the ridge estimate.
    of_scores : Kernel
        The kernel of scores.
    alpha : float
    """

    sample_shape: tuple[int, ...]
    to_landmarks: KernelMap
    coefficients: Array
    offset: Array
    mean_coefficients: Array
    landmark_scores: Array
    pre_image: str
    of_scores: Kernel
    alpha: float

    scores_kind: ClassVar[str] = "kernel-scores"  # type: ignore[misc]
    keeps_units: ClassVar[bool] = False

    @property
    def score_shape(self) -> tuple[int, ...]:
        """Shape of one sample's scores."""
        return (self.coefficients.shape[1],)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the landmarks."""
        return self.to_landmarks.points.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, and of those that pre-images add."""
        points, others = self.to_landmarks.points, (self.coefficients, self.landmark_scores, self.mean_coefficients)
        return 3 * points.nbytes + 2 * sum(array.nbytes for array in others)

    def fingerprint(self) -> str:
        """Return the hash that identifies this representation in stores of its scores."""
        arrays = (self.to_landmarks.points, self.coefficients, self.offset, self.mean_coefficients)
        settings = [*vars(self.to_landmarks.kernel).values(), *vars(self.of_scores).values()]
        parts = [array_digest(array) for array in arrays]
        return fingerprint_of("kernel", list(self.sample_shape), self.pre_image, self.alpha, settings, parts)

    def work_bytes(self, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        """Bytes of temporary arrays for mapping samples, or for pre-images and their linear system."""
        (m, d), k = self.to_landmarks.points.shape, self.coefficients.shape[1]
        step = min(n_rows, self._step())
        solution = 8 * (2 * m * m + m * d)
        return int(self.to_landmarks.scratch_bytes(step, dtype) + 8 * n_rows * (d + k) + 16 * step * (m + d) + solution)

    def _leading(self, n_components: int) -> Self:
        coefficients, scores = (x[:, :n_components].copy() for x in (self.coefficients, self.landmark_scores))
        return replace(self, coefficients=coefficients, offset=self.offset[:n_components], landmark_scores=scores)

    def _encode(self, samples: Array) -> Array:
        x = samples.reshape(len(samples), math.prod(self.sample_shape))
        scores = np.empty((len(x), *self.score_shape), self.score_dtype(samples.dtype))
        for rows in blocks(len(x), self._step()):
            kernels = self.to_landmarks(x[rows])
            scores[rows] = kernels @ self.coefficients.astype(kernels.dtype, copy=False) - self.offset
        return scores

    def _decode(self, scores: Array, pixels: Pixels | None) -> Array:
        if self.to_landmarks.kernel.name == "precomputed":
            raise DataError("scores of a precomputed kernel cannot be decoded: fit another kernel to decode samples")
        samples = np.empty((len(scores), math.prod(self.sample_shape)), self.decoded_dtype(scores.dtype))
        points, solution = self._ridge
        for rows in blocks(len(scores), self._step()):
            some = scores[rows].astype(np.float64)
            samples[rows] = points(some) @ solution
            if self.pre_image == "fixed-point":
                samples[rows] = self._fixed_point(some, samples[rows])
        return samples.reshape(len(scores), *self.sample_shape)

    @cached_property
    def _ridge(self) -> tuple[KernelMap, Array]:
        """The map from scores to kernels with the landmarks, and the matrix (m, d) from these to samples."""
        points = KernelMap(self.of_scores, self.landmark_scores.astype(np.float64))
        kernels = points.own()
        kernels.flat[:: len(kernels) + 1] += self.alpha
        factor = scipy.linalg.cho_factor(kernels, lower=True, overwrite_a=True, check_finite=False)
        return points, scipy.linalg.cho_solve(factor, self.to_landmarks.points, check_finite=False)

    def _fixed_point(self, scores: Array, start: Array) -> Array:
        """Return pre-images of scores, by fixed-point iteration from a start.

        The image of x in feature space is nearest to the projection sum_i g_i phi(z_i) for
        x = sum_i g_i k(x, z_i) z_i / sum_i g_i k(x, z_i).
        """
        g = scores @ self.coefficients.T + self.mean_coefficients
        x, points = start.astype(np.float64), self.to_landmarks.points.astype(np.float64)
        for _ in range(_STEPS):
            weights = g * self.to_landmarks(x)
            total = weights.sum(axis=1, keepdims=True)
            # If the weights cancel, the iteration is not defined, so the sample does not change.
            able = total > 1e-6 * np.abs(weights).sum(axis=1, keepdims=True)
            moved = np.where(able, weights @ points / np.where(able, total, 1.0), x)
            change, x = float(np.abs(moved - x).max()), moved
            if change <= _SETTLED * float(np.abs(x).max()):
                break
        return x

    def _step(self) -> int:
        """Samples that are mapped at a time."""
        return max(1, _BLOCK_BYTES // (8 * sum(self.to_landmarks.points.shape)))
