"""The shift of the samples of a covariance: how far it is from their mean, and how it moves."""

from __future__ import annotations

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.namespace import any_of, namespace
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.state import State

# Squared distances from the center of a range of 8 bits are at most this.
_FAR = 2.0**14
# Places whose changes are added in one product.
_PLACES = 1024


def spread_of(state: State) -> Array:
    """Return the variance (..., d) of the samples of a state, with divisor n; 0 before the first sample."""
    n, squares = state.counts["n_samples"], linalg.diagonal(state.arrays["cross"])
    if not n:
        return namespace(squares).zeros_like(squares)
    return variance_of(squares, state.arrays["sum"], n, squares.ndim + 1)


def variance_of(squares: Array, total: Array, n: int, ndim: int) -> Array:
    """Return the variance of n samples about their mean, averaged over places if ``total`` has such an axis."""
    places = total.shape[-2] if total.ndim == ndim else 1
    mean_squares: Array = squares / (n * places)
    return mean_squares - squared_means(total, n, ndim)


def squared_means(total: Array, n: int, ndim: int) -> Array:
    """Return the square of the mean deviation of n samples, averaged over places if ``total`` has such an axis."""
    squares: Array = (total / n) ** 2
    return namespace(squares).mean(squares, axis=-2) if total.ndim == ndim else squares


def move_shift(state: State, shift: Array) -> None:
    """Change the shift of a state."""
    n, total = state.counts["n_samples"], state.arrays["sum"]
    total[...] = displace(state.arrays["cross"], total, n, state.arrays["shift"] - shift)
    state.arrays["shift"][...] = shift


def move_near_mean(state: State) -> None:
    """Move the shift of a state from the center of a range of 16 bits to integers near the mean, exactly."""
    n, total = state.counts["n_samples"], state.arrays["sum"]
    squared = squared_means(total, n, state.arrays["cross"].ndim)
    if any_of((squared > _FAR) & (squared > 100 * spread_of(state))):
        move_shift(state, state.arrays["shift"] + namespace(total).round(total / n))


def displace(cross: Array, total: Array, n: int, delta: Array) -> Array:
    """Move sums of products to another shift in place, and return the moved sum of the deviations.

    A deviation y is a sample minus the shift. If the shift decreases by delta, y becomes y + delta, and
    sum (y + delta)(y + delta)^T = sum y y^T + total delta^T + delta (total + n delta)^T.

    Parameters
    ----------
    cross : array (d, d)
        Sums of products y y^T of n deviations; only the lower triangle is updated.
    total : array (d,)
        Sum of the n deviations; (n_places, d) if ``cross`` sums the products of several places.
    n : int
    delta : array, shaped like ``total``
        The old shift minus the new one.
    """
    xp = namespace(cross)
    moved: Array = total + n * delta
    if any_of(delta):
        rows = [a if a.ndim == cross.ndim else a[..., None, :] for a in (total, delta, moved)]
        for places in blocks(rows[0].shape[-2], _PLACES):
            before, change, after = (a[..., places, :] for a in rows)
            left, right = xp.concat([before, change], axis=-2), xp.concat([change, after], axis=-2)
            linalg.add_outer_lower(cross, left, right)
    return moved
