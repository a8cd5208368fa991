"""What a state of incremental SVD allows in a step, and its basis made orthonormal again."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.namespace import cast, dtype_of, namespace, to_numpy
from dpca.kernels.algebra.rounding import unit_roundoff
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.state import State
from dpca.rules.base.turning import change_of, products, rotate
from dpca.rules.certificates import certificate
from dpca.rules.incremental.nystrom import COLUMNS
from dpca.rules.incremental.rows import group_rows, whole_rows
from dpca.rules.incremental.truncation import truncate

# Bounds for groups of noise are larger than the scatter of a row: 1.43 times for 192 rows of 196,608 attributes, by the
# formula of `largest_sum`.
_MARGIN = 1.5


def rank_of(state: State) -> int:
    """Return the number of directions in a state."""
    return int(np.count_nonzero(state.arrays["energy"]))


def n_features_of(state: State) -> int:
    """Return the number of attributes of all blocks."""
    return state.blocks.whole(state.arrays["mean"].shape[0])


def safe_rows(state: State, k: int) -> int:
    """Return the rows of a step with bounds of groups that would probably discard nothing important.

    A group has at least the scatter outside of the basis of one of its rows in one direction, or that of the last
    direction of the basis for all of its rows.
    """
    energy, n = state.arrays["energy"], state.counts["n_samples"]
    rest = max(float(state.arrays["scatter"] - energy.sum()), 0.0)
    share = float(energy[k - 1] / (_MARGIN * rest / group_rows(k) + energy[-1]))
    return max(whole_rows(len(energy)), int(n * min(1.0, share)))


def weighted_state(about_0: Any, batch: Array, weights: Array, *, center: bool) -> State:
    """Return the state of samples (n, d) with weights (n,), from the rule without centering.

    Rows sqrt(w) (x - mean) about 0 have the scatter of the samples. The divisor of variances is sum w - 1.
    """
    total = float(weights.sum())
    mean = weights @ batch / total if center else np.zeros(batch.shape[1])
    rows = (batch - mean) * np.sqrt(weights)[:, None]
    state: State = about_0.update(about_0.init(batch.shape[1], batch.dtype), rows.astype(working_dtype(batch.dtype)))
    return _about(state, mean, total)


def of_weights(state: State, mean: Array, total: float) -> State:
    """Change the state of rows about 0 to that of samples with weights and the same variances, and return it."""
    scale_scatter(state, (total - 1) / (state.counts["n_samples"] - 1))
    return _about(state, mean, total)


def _about(state: State, mean: Array, total: float) -> State:
    """Set the mean of a state about 0, and the sum of the weights of its samples, and return it."""
    state.arrays["mean"], state.arrays["weights"] = mean, np.array([total, total])
    state.counts["n_samples"] = total
    return state


def stacked(state: State, apart: Array, distance: float, weight: float) -> tuple[Array, Array, Array]:
    """Return the scatter of a state about a point as rows, their gains, and the Gram matrix of the rows.

    Parameters
    ----------
    apart : array (d,)
        The mean of the state minus the point.
    distance : float
        Its length.
    weight : float
        Weight of the square of the distance.
    """
    basis, rank = state.arrays["basis"], rank_of(state)
    rows = linalg.workspace("rows", (rank + 1, apart.shape[0]), dtype_of(basis), basis)
    rows[:rank, :] = basis[:rank, :]
    linalg.copy_into(rows[rank, :], apart / (distance or 1.0))
    gram = np.eye(rank + 1)
    gram[rank] = gram[:, rank] = products(rows, rows[rank:, :])[:, 0]
    return rows, np.append(np.sqrt(state.arrays["energy"][:rank]), distance * math.sqrt(weight)), gram


def scale_scatter(state: State, factor: float) -> None:
    """Multiply the scatter of a state, and the bounds on what it discarded, in place."""
    for name in ("energy", "scatter", "discarded", "outside"):
        state.arrays[name] *= factor
    state.arrays["rounding"][:2] *= factor


def orthonormalize(state: State) -> None:
    """Make the basis orthonormal again.

    Rounding errors add up like a random walk, to 4e-6 after 6,000 steps in float32. It suffices to do this at the end.
    """
    basis, energy = state.arrays["basis"], state.arrays["energy"]
    xp, rank = namespace(basis), rank_of(state)
    gram = np.zeros((rank, rank))
    for columns in blocks(basis.shape[1], COLUMNS):
        part = cast(basis[:rank, columns], np.float64)
        gram += to_numpy(xp.matmul(part, xp.matrix_transpose(part)))
    (gram,), scale = state.blocks.summed(gram), np.sqrt(energy[:rank])
    small = gram * np.outer(scale, scale)
    floor = len(small) * float(np.finfo(np.float64).eps) * float(np.trace(small))
    values, vectors, *_ = state.blocks.once(partial(truncate, small, rank, n_counted=0, floor=floor))
    change = change_of((vectors * scale[:, None] / np.sqrt(values)).T, rank)
    rounding = state.arrays["rounding"]
    known = float(np.abs(small.diagonal() / energy[:rank] - 1).max(initial=0.0)) * energy[:rank]
    error = certificate.turning(change, energy[:rank], np.empty(0), values, known, unit_roundoff(dtype_of(basis)))
    slack, rounding[1] = certificate.turned(values, error, floor)
    rounding[0] += slack + len(small) * floor
    rotate(basis, change, basis[:0, :])
    energy[: len(values)], energy[len(values) :] = values, 0
