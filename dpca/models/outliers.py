"""How far samples lie from what components describe: by what the leading ones leave, and along the least ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.engine.source import check_finite
from dpca.kernels import linalg
from dpca.kernels.dtypes import working_dtype
from dpca.representation.linear_basis import LinearBasis

Array = NDArray[Any]

# Samples that are centered at once.
_BLOCK_BYTES = 2**22


@dataclass(frozen=True, eq=False)
class LeastComponents:
    """Components of the smallest variances: the directions in which the samples hardly differ.

    Parameters
    ----------
    mean : array (n_features,), float64
    components : array (n_least, n_features), orthonormal rows
    variances : array (n_least,), float64, positive
    """

    mean: Array
    components: Array
    variances: Array


def residual_scores(basis: LinearBasis, samples: Array) -> Array:
    """Return -|x - x^|^2 (n,), float64, x^ being the reconstruction from the components of a basis.

    The residual itself is squared: the difference of |x - mean|^2 and the squared scores would lose what they share.
    """
    scores = np.empty(len(samples))
    for rows, centered in _centered(basis.mean, samples, basis.components.dtype):
        components = basis.components.astype(centered.dtype, copy=False)
        centered -= (centered @ components.T) @ components
        scores[rows] = -np.einsum("ij,ij->i", centered, centered, dtype=np.float64)
    return scores


def least_scores(least: LeastComponents, samples: Array) -> Array:
    """Return -sum_j y_j^2 / lambda_j (n,), float64, over the least components (T 2.1.2; Jolliffe 2002, section 10.1).

    With all components this is minus the squared Mahalanobis distance. Its mean over the samples of the fit is
    -n_least (n - 1) / n.
    """
    scores = np.empty(len(samples))
    weights = 1 / np.sqrt(least.variances)
    for rows, centered in _centered(least.mean, samples, least.components.dtype):
        y = (centered @ least.components.T.astype(centered.dtype, copy=False)).astype(np.float64) * weights
        scores[rows] = -np.einsum("ij,ij->i", y, y)
    return scores


def _centered(mean: Array, samples: Array, least_dtype: np.dtype[Any]) -> Iterator[tuple[slice, Array]]:
    """Yield samples less the mean, a block at a time, in a buffer that is used again; NaN and infinity are refused."""
    if samples.dtype.kind == "f":
        check_finite(samples, 0, "a chunk")
    n, d = len(samples), len(mean)
    flat = samples.reshape(n, d)
    dtype = np.result_type(working_dtype(samples.dtype), least_dtype)
    shift = mean.astype(dtype)
    step = max(1, _BLOCK_BYTES // (d * dtype.itemsize))
    for start in range(0, n, step):
        block = flat[start : start + step]
        out = linalg.scratch("centered", block.shape, dtype)
        yield slice(start, start + len(block)), np.subtract(block, shift, out=out, dtype=dtype)
