"""The kernel representation: scores along components of a feature space, and pre-images of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.inner_products import Kernel, KernelMap
from dpca.kernels.pixels import Pixels
from dpca.kernels.types import Array
from dpca.representation.base import Representation, array_digest
from dpca.storage.workspace import fingerprint_of

# Values of samples, or of kernels, that are mapped at once.
_BLOCK_BYTES = 2**25
# Steps of the fixed point, and the relative change that ends them.
_STEPS, _SETTLED = 100, 1e-4
PRE_IMAGES = ("ridge", "fixed-point")


@dataclass(frozen=True, eq=False)
class KernelRepresentation(Representation):
    """Scores are k(x, Z) coefficients - offset, of landmarks Z; samples are estimated from scores.

    Parameters
    ----------
    sample_shape : tuple of int
    to_landmarks : KernelMap
    coefficients : array (m, k)
    offset : array (k,)
    mean_coefficients : array (m,)
        Of the mean in feature space.
    landmark_scores : array (m, k)
    pre_image : str
        "ridge": kernel ridge regression of the landmarks on their scores, with the kernel and its penalty ``alpha`` as
        in scikit-learn (Bakir, Weston & Scholkopf 2003, equation 9). "fixed-point": from there the iteration of Mika
        et al. 1999, equation 10, for "rbf".
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
        """Type of what was learned."""
        return self.to_landmarks.points.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of what was learned, and of what pre-images take beside."""
        points, others = self.to_landmarks.points, (self.coefficients, self.landmark_scores, self.mean_coefficients)
        return 3 * points.nbytes + 2 * sum(array.nbytes for array in others)

    def fingerprint(self) -> str:
        """Return the hash by which scores know what they were made with."""
        arrays = (self.to_landmarks.points, self.coefficients, self.offset, self.mean_coefficients)
        settings = [*vars(self.to_landmarks.kernel).values(), *vars(self.of_scores).values()]
        parts = [array_digest(array) for array in arrays]
        return fingerprint_of("kernel", list(self.sample_shape), self.pre_image, self.alpha, settings, parts)

    def work_bytes(self, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        """Bytes of temporary arrays of mapping samples, or of pre-images and the solution that they need."""
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
        for rows in self._blocks(len(x)):
            kernels = self.to_landmarks(x[rows])
            scores[rows] = kernels @ self.coefficients.astype(kernels.dtype, copy=False) - self.offset
        return scores

    def _decode(self, scores: Array, pixels: Pixels | None) -> Array:
        if self.to_landmarks.kernel.name == "precomputed":
            raise ValueError("a precomputed kernel has no samples to come back to, only scores")
        samples = np.empty((len(scores), math.prod(self.sample_shape)), self.decoded_dtype(scores.dtype))
        points, solution = self._ridge
        for rows in self._blocks(len(scores)):
            some = scores[rows].astype(np.float64)
            samples[rows] = points(some) @ solution
            if self.pre_image == "fixed-point":
                samples[rows] = self._fixed_point(some, samples[rows])
        return samples.reshape(len(scores), *self.sample_shape)

    @cached_property
    def _ridge(self) -> tuple[KernelMap, Array]:
        """The kernels of scores with those of the landmarks, and what turns them into samples (m, d)."""
        points = KernelMap(self.of_scores, self.landmark_scores.astype(np.float64))
        kernels = points.own()
        kernels.flat[:: len(kernels) + 1] += self.alpha
        factor = scipy.linalg.cho_factor(kernels, lower=True, overwrite_a=True, check_finite=False)
        return points, scipy.linalg.cho_solve(factor, self.to_landmarks.points, check_finite=False)

    def _fixed_point(self, scores: Array, start: Array) -> Array:
        """Return pre-images whose images in feature space are nearest to what scores stand for, from a start.

        x = sum_i g_i k(x, z_i) z_i / sum_i g_i k(x, z_i), where sum_i g_i phi(z_i) is the projection.
        """
        g = scores @ self.coefficients.T + self.mean_coefficients
        x, points = start.astype(np.float64), self.to_landmarks.points.astype(np.float64)
        for _ in range(_STEPS):
            weights = g * self.to_landmarks(x)
            total = weights.sum(axis=1, keepdims=True)
            # Where the weights cancel out, the iteration is not defined: the sample stays.
            able = total > 1e-6 * np.abs(weights).sum(axis=1, keepdims=True)
            moved = np.where(able, weights @ points / np.where(able, total, 1.0), x)
            change, x = float(np.abs(moved - x).max()), moved
            if change <= _SETTLED * float(np.abs(x).max()):
                break
        return x

    def _blocks(self, n: int) -> list[slice]:
        step = self._step()
        return [slice(start, start + step) for start in range(0, n, step)]

    def _step(self) -> int:
        """Samples that are mapped at once."""
        return max(1, _BLOCK_BYTES // (8 * sum(self.to_landmarks.points.shape)))
