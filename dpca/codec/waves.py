"""Waves: the cosine transform of runs of consecutive samples. Slow changes become few large coefficients.

The transform (type II) of `RUN` samples is orthonormal: squared errors of waves equal those of the samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike
from scipy.fft import dct

from dpca.kernels.algebra.types import Array, blocks

#: Samples of a run.
RUN = 16
# Waves pay if they reduce the sum of magnitudes to this share. Samples in random order have a share of 1, photographs
# sorted by person 0.98.
_WORTHWHILE = 0.9
# Values that are transformed together.
_VALUES = 2**17


def matrix() -> Array:
    """Return the orthonormal matrix (RUN, RUN), float64, of the transform. Each row is a wave."""
    return dct(np.eye(RUN), axis=0, norm="ortho")


def to_waves(scores: Array) -> Array:
    """Transform scores (..., n) to waves (..., n rounded up to whole runs), run after run, in the same dtype.

    The last sample pads an incomplete run.
    """
    n = scores.shape[-1]
    whole = np.concatenate([scores, np.repeat(scores[..., -1:], -n % RUN, axis=-1)], axis=-1)
    waves: Array = whole.reshape(-1, RUN) @ matrix().T.astype(scores.dtype)
    return waves.reshape(whole.shape)


def from_waves(waves: Array, dtype: DTypeLike) -> Array:
    """Transform stored waves (n_rows, RUN, n_runs) to scores (n_rows, n), run after run, in a floating-point dtype.

    The result of a run is bit-identical on all processors and does not depend on other runs.
    """
    from dpca.kernels.sweeps import transform_runs

    n_rows, _, n_runs = waves.shape
    scores = np.empty((n_rows, n_runs, RUN), dtype)
    transform_runs(waves, matrix().astype(dtype), scores)
    return scores.reshape(n_rows, n_runs * RUN)


def placed(samples: Array, breaks: Sequence[int]) -> Array:
    """Return the positions (n,) of samples in runs, if samples at the ``breaks`` (ascending) begin new runs."""
    found, shift = np.array(samples), 0
    for first in breaks:
        rest = -(first + shift) % RUN
        found[samples >= first] += rest
        shift += rest
    return found


def waves_pay(scores: Array) -> bool:
    """Return whether scores (n_cells, ..., n) of whole runs of consecutive samples are worth storing as waves."""
    sums = np.zeros(2)
    # Few cells at a time stay in the cache.
    for few in blocks(len(scores), max(1, _VALUES * len(scores) // max(1, scores.size))):
        sums += [np.abs(values).sum(dtype=float) for values in (to_waves(scores[few]), scores[few])]
    return bool(sums[0] < _WORTHWHILE * sums[1])


def stored(codes: Array) -> Array:
    """Reorder codes (n_positions, n), run after run, to the stored order (n_positions, RUN, n_runs), wave after wave.

    Codes of one wave are similar and compress better together.
    """
    return np.ascontiguousarray(codes.reshape(len(codes), codes.shape[1] // RUN, RUN).swapaxes(1, 2))


def restored(codes: Array) -> Array:
    """Invert `stored`."""
    return codes.swapaxes(1, 2).reshape(len(codes), codes.shape[1] * codes.shape[2])
