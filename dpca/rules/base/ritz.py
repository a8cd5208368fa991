"""Running Rayleigh-Ritz step: variances and order of a basis, from the projections of a stream."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array
from dpca.rules.base import centering
from dpca.rules.base.orthonormal import gram, orthonormalize
from dpca.rules.base.state import State

# The average discards projections on old bases: it covers this share of the samples so far, and at least this number
# of samples per component.
_SHARE, LEAST = 0.1, 10


def observe(state: State, y: Array) -> None:
    """Add the products of projections y (n, k) on the current basis to the average.

    A batch of n samples has the weight n / min(N, w), with N samples projected so far and w = max(N / 10, 10 k). Costs
    O(n k^2).
    """
    exact = y.astype(np.float64, copy=False)
    observe_products(state, exact.T @ exact, len(y))


def observe_products(state: State, products: Array, n: int) -> None:
    """Add the products y^T y (k, k), float64, of n samples to the average, like :func:`observe`."""
    if n == 0:
        return
    total = state.counts["n_projected"] + n
    weight = min(1.0, n / min(total, max(_SHARE * total, LEAST * len(products))))
    projected = state.arrays["projected"]
    projected *= 1 - weight
    projected += products * (weight / n)
    state.counts["n_projected"] = total


def finish(state: State, rows: Array) -> dict[str, Array]:
    """Return the result of a rule with the basis ``rows`` (k, d) and projections y = x @ rows.T.

    The rows need not be orthonormal. The number of components is at most the number of samples. Costs O(k^2 d).

    Returns
    -------
    dict
        ``mean`` (d,), ``components`` (k', d) orthonormal and ordered by variance, ``explained_variance`` (k',)
        descending, ``total_variance`` (). All are float64 except the components.
    """
    n = state.counts["n_samples"]
    basis = orthonormalize(rows)
    # rows = t @ basis, so projections on the basis are y @ inverse(t).T.
    inverse = np.linalg.pinv(gram(rows, basis))
    values, turn = scipy.linalg.eigh(inverse @ state.arrays["projected"] @ inverse.T, check_finite=False)
    k = min(len(rows), n)
    return result(state, turn[:, ::-1][:, :k].T.astype(basis.dtype) @ basis, values[::-1][:k] * (n / max(n - 1, 1)))


def result(state: State, components: Array, variances: Array) -> dict[str, Array]:
    """Return the named arrays of ``finish`` for orthonormal, ordered components, with fixed signs."""
    return {
        "mean": state.arrays["mean"].copy(),
        "components": linalg.fix_signs(components),
        "explained_variance": np.maximum(variances, 0.0).astype(np.float64),
        "total_variance": centering.total_variance(state),
    }
