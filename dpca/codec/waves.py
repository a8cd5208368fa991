"""Runs of consecutive samples as waves: what changes slowly from sample to sample becomes few large numbers.

The cosine transform of type II, orthonormal, of `RUN` samples each: errors of waves are those of the samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike
from scipy.fft import dct

from dpca.kernels.types import Array

#: Samples of a run.
RUN = 16
# Sum of absolute scores as waves, in that of the scores as they are, from which waves are worth their trouble. Samples
# in any order come to 1, photographs sorted by person to .98.
_WORTHWHILE = 0.9


def matrix() -> Array:
    """Return the waves (RUN, RUN), float64, a wave a row: their orthonormal matrix."""
    waves: Array = dct(np.eye(RUN), axis=0, norm="ortho")
    return waves


def to_waves(scores: Array) -> Array:
    """Return scores (..., n) as waves (..., n rounded up to whole runs), run after run, in the same type.

    A run that ends early goes on with its last sample.
    """
    n = scores.shape[-1]
    whole = np.concatenate([scores, np.repeat(scores[..., -1:], -n % RUN, axis=-1)], axis=-1)
    waves: Array = whole.reshape(-1, RUN) @ matrix().T.astype(scores.dtype)
    return waves.reshape(whole.shape)


def from_waves(waves: Array, dtype: DTypeLike) -> Array:
    """Return the scores (n_rows, n), run after run, in a floating-point type, of waves (n_rows, RUN, runs) as stored.

    Each run is computed alike, whatever others there are, and on any processor.
    """
    from dpca.kernels.sweeps import turn_runs

    n_rows, _, n_runs = waves.shape
    scores = np.empty((n_rows, n_runs, RUN), dtype)
    turn_runs(waves, matrix().astype(dtype), scores)
    return scores.reshape(n_rows, n_runs * RUN)


def placed(samples: Array, breaks: Sequence[int]) -> Array:
    """Return where samples lie in runs when those at the ``breaks``, ascending, begin a new one: (n,) integers."""
    found, shift = np.array(samples), 0
    for first in breaks:
        rest = -(first + shift) % RUN
        found[samples >= first] += rest
        shift += rest
    return found


def waves_pay(scores: Array) -> bool:
    """Say whether scores (..., n) of whole runs of consecutive samples are worth storing as waves."""
    return bool(np.abs(to_waves(scores)).sum(dtype=float) < _WORTHWHILE * np.abs(scores).sum(dtype=float))


def stored(codes: Array) -> Array:
    """Return codes (n_positions, n), run after run, as they are stored (n_positions, RUN, runs): wave after wave.

    Codes of one wave are alike: they are packed together.
    """
    return np.ascontiguousarray(codes.reshape(len(codes), codes.shape[1] // RUN, RUN).swapaxes(1, 2))


def restored(codes: Array) -> Array:
    """Return what `stored` was given."""
    return codes.swapaxes(1, 2).reshape(len(codes), codes.shape[1] * codes.shape[2])
