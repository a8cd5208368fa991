"""One more pass: what given components capture exactly, and one step of orthogonal iteration from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels import linalg
from dpca.rules.covariance_product import CovarianceProduct, next_iterate, rayleigh_ritz
from dpca.rules.state import Array, State


@dataclass(frozen=True, eq=False)
class Refinement(CovarianceProduct):
    """Multiply components V (k, d) by the covariance C of a stream (T 2.2.1; L 5.3; as a second pass T 3.4.5).

    The product of V C with V^T gives the Rayleigh-Ritz values of V, exact up to rounding, and the residuals
    C v - lambda v; its own orthonormal basis is the next iterate, which captures at least as much.

    Parameters
    ----------
    components : array (k, d), orthonormal rows
    mean, center
        As in `CovarianceProduct`.

    Results of ``finish``: ``mean``, ``components`` (the next iterate, ordered by the variances that it was made from),
    ``explained_variance`` (k,) of the components that were given, ``residual_norms`` (k,) and ``total_variance`` ().
    """

    def finish(self, state: State) -> dict[str, Array]:
        """Return the next iterate and what is known of the one before."""
        mean, product, total = self._product(state)
        values, given, product = rayleigh_ritz(self.components.astype(np.float64), product)
        residual = np.linalg.norm(product - values[:, None] * given, axis=1)
        rows = next_iterate(product, given)
        return {
            "mean": mean,
            "components": linalg.fix_signs(rows.astype(self.components.dtype)),
            "explained_variance": values,
            "residual_norms": residual,
            "total_variance": np.asarray(max(total, float(values.sum()))),
        }

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a result."""
        return n_features * (len(self.components) * self.components.dtype.itemsize + 8)
