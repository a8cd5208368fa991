"""Variances and order of a basis that a stream is projected on: a running Rayleigh-Ritz step."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from dpca.kernels import linalg
from dpca.kernels.types import Array
from dpca.rules import centering
from dpca.rules.orthonormal import gram, orthonormalize
from dpca.rules.state import State

# The average forgets what was projected on earlier bases: it covers this share of the samples seen, and at least so
# many samples a component.
_SHARE, LEAST = 0.1, 10


def observe(state: State, y: Array) -> None:
    """Average in the products of projections y of shape (n, k) on the current basis.

    A batch of n samples weighs n / min(N, w), N being all samples projected so far and w the larger of N / 10 and
    10 k. Costs O(n k^2).
    """
    exact = y.astype(np.float64, copy=False)
    observe_products(state, exact.T @ exact, len(y))


def observe_products(state: State, products: Array, n: int) -> None:
    """Average in y^T y, shape (k, k) float64, of the projections y of n samples: as :func:`observe`."""
    if n == 0:
        return
    total = state.counts["n_projected"] + n
    weight = min(1.0, n / min(total, max(_SHARE * total, LEAST * len(products))))
    projected = state.arrays["projected"]
    projected *= 1 - weight
    projected += products * (weight / n)
    state.counts["n_projected"] = total


def finish(state: State, rows: Array) -> dict[str, Array]:
    """Return the result of a rule whose basis is ``rows`` (k, d) and whose projections were y = x @ rows.T.

    The rows need not be orthonormal. No more components are returned than samples were seen. Costs O(k^2 d).

    Returns
    -------
    dict
        ``mean`` (d,), ``components`` (k', d) orthonormal and ordered by variance, ``explained_variance`` (k',)
        descending, ``total_variance`` (), all float64 but the components.
    """
    n = state.counts["n_samples"]
    basis = orthonormalize(rows)
    # rows = t @ basis, so projections on the basis are y @ inverse(t).T.
    inverse = np.linalg.pinv(gram(rows, basis))
    values, turn = scipy.linalg.eigh(inverse @ state.arrays["projected"] @ inverse.T, check_finite=False)
    k = min(len(rows), n)
    return result(state, turn[:, ::-1][:, :k].T.astype(basis.dtype) @ basis, values[::-1][:k] * (n / max(n - 1, 1)))


def result(state: State, components: Array, variances: Array) -> dict[str, Array]:
    """Return the named arrays of ``finish`` for orthonormal, ordered components, with their signs fixed."""
    return {
        "mean": state.arrays["mean"].copy(),
        "components": linalg.fix_signs(components),
        "explained_variance": np.maximum(variances, 0.0).astype(np.float64),
        "total_variance": centering.total_variance(state),
    }
