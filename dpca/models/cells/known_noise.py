"""Components above noise of known standard deviation.

In attributes divided by the standard deviation of their noise, the noise is white, and its largest eigenvalue is known
(Marchenko & Pastur 1967). The leading eigenvectors of their covariance span the signal. Multiplied by the deviations,
they span it in the units of the samples. The components are the principal axes of the samples within this span, so
that they are orthonormal, and their scores are uncorrelated.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.linalg import eigh

from dpca.engine.folds.fold_tasks import Results
from dpca.engine.sources.source import as_dense
from dpca.kernels.algebra.linalg import fix_signs
from dpca.kernels.algebra.types import Array
from dpca.models.cells.rank import noise_edge
from dpca.parameters.kinds import is_number
from dpca.storage.errors import DataError


def given_noise(sigma: Any) -> Any:
    """Return the standard deviation of the noise as a number, an array in memory, or None."""
    if sigma is None or is_number(sigma):
        return sigma
    try:
        return as_dense(sigma, "sigma")
    except DataError as error:
        raise DataError(f"sigma: {error}") from error


def check_noise(sigma: Any, shape: tuple[int, ...]) -> None:
    """Raise `DataError` unless this is a positive number, or a map of positive numbers for samples of a shape."""
    values = np.asarray(sigma)
    if values.shape not in ((), shape) or values.dtype.kind not in "uif":
        given = f"an array of {values.shape} {values.dtype}" if values.ndim else f"{sigma}"
        raise DataError(f"sigma is {given}: give a positive number, or a map of positive numbers of {shape}")
    if (wrong := ~((values > 0) & np.isfinite(values))).any():
        place = np.unravel_index(int(wrong.argmax()), values.shape)
        where = f" at {tuple(map(int, place))}" if values.ndim else ""
        raise DataError(
            f"sigma is {values[place]}{where}: give finite positive numbers, any of them where samples are constant"
        )


def keep_above_noise(
    sigma: Any, partition: Any, results: Results, n_samples: int, places: Array | None, most: int | None
) -> None:
    """Keep the components of each part that are above the noise, at most ``most``.

    Parameters
    ----------
    sigma : float or array (*sample_shape)
        Standard deviation of the noise.
    partition : Partition
    results : list of dict
        All components of each part. They are replaced.
    n_samples : int
    places : array (n_parts,), optional
        Number of parts that share the components of each, see `ranks_by_noise`.
    most : int, optional
    """
    scales = partition.all_parts(np.asarray(sigma, np.float64)[None]) if np.ndim(sigma) else [sigma] * len(results)
    for i, (result, scale) in enumerate(zip(results, scales, strict=True)):
        size, n = partition.n_features(i), (n_samples - 1) * (1 if places is None else int(places[i]))
        variances, rows = result["explained_variance"].astype(np.float64), result["components"]
        if np.ndim(scale):
            edge = noise_edge(1.0, min(size, n), max(size, n)) / n
            variances, found = _signal(variances, rows.astype(np.float64), scale[0], edge)
            rows = found.astype(rows.dtype)
        else:
            rows = rows[: int((variances * n > noise_edge(float(scale), min(size, n), max(size, n))).sum())]
        result["components"], result["explained_variance"] = rows[:most], variances[: len(rows)][:most]


def _signal(variances: Array, rows: Array, scale: Array, edge: float) -> tuple[Array, Array]:
    """Return the variances and the components of a part in the span of its signal."""
    scaled = rows * np.sqrt(variances)[:, None] / scale
    vectors = eigh(scaled.T @ scaled, subset_by_value=(edge, math.inf))[1]
    axes = np.linalg.qr(vectors * scale[:, None])[0]
    inside = np.sqrt(variances)[:, None] * (rows @ axes)
    values, turned = np.linalg.eigh(inside.T @ inside)
    return np.maximum(values[::-1], 0.0), fix_signs(np.ascontiguousarray((axes @ turned[:, ::-1]).T))
