"""One pass that measures a basis exactly: its best components, their residuals, and a bound on the optimum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.rules.covariance_product import CovarianceProduct, rayleigh_ritz
from dpca.rules.orthonormal import gram
from dpca.rules.state import Array, State


@dataclass(frozen=True, eq=False, kw_only=True)
class RayleighRitz(CovarianceProduct):
    """Rayleigh-Ritz on a basis V (q, d), of which ``n_components`` directions are wanted (T 2.2.1; Parlett 1998, 11.3).

    Unlike `Refinement`, whose components are one multiplication further than what it measured, what this returns has
    exactly the variances that it states.

    With R = C V^T - V^T diag(values) the covariance is, in a basis that begins with V, the matrix [[diag(values), R^T],
    [R, F]] where F is positive semi-definite and its trace is what V does not capture. So the k largest eigenvalues
    together exceed neither the total variance nor

        max(v_1 + ... + v_k, v_1 + ... + v_(k-1) + trace F) + (the k largest singular values of R)

    (Ky Fan's inequality for the sum of the block-diagonal and the off-diagonal part).

    Parameters
    ----------
    components : array (q, d), orthonormal rows
    mean, center
        As in `CovarianceProduct`.
    n_components : int
        Directions wanted, at most q.

    Results of ``finish``, float64: ``mean``; ``components`` (q, d), the Ritz vectors, and ``product`` (q, d), these
    times the covariance; ``explained_variance`` (q,), descending; ``residual_norms`` (q,); ``total_variance`` ();
    ``coupling`` (), the sum of the singular values of the wanted directions' residuals: by so much at most does their
    captured variance differ from the sum of some k eigenvalues; ``optimum`` (), the bound above.
    """

    n_components: int

    def __post_init__(self) -> None:
        if not 1 <= self.n_components <= len(self.components):
            raise ValueError(
                f"n_components is {self.n_components} of a basis of {len(self.components)} rows: ask for 1 to that many"
            )

    def finish(self, state: State) -> dict[str, Array]:
        """Return what the basis captures; the state is used up."""
        mean, product, total = self._product(state)
        values, rows, product = rayleigh_ritz(self.components.astype(np.float64), product)
        residual = product - values[:, None] * rows
        products = gram(residual)
        k = self.n_components
        total = max(total, float(values.sum()))
        missed = total - float(values.sum())
        best = float(max(values[:k].sum(), values[: k - 1].sum() + missed)) + float(_singular(products)[:k].sum())
        return {
            "mean": mean,
            "components": rows,
            "product": product,
            "explained_variance": values,
            "residual_norms": np.sqrt(np.maximum(products.diagonal(), 0)),
            "total_variance": np.asarray(total),
            "coupling": np.asarray(_singular(products[:k, :k]).sum()),
            "optimum": np.asarray(min(best, total)),
        }

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a result."""
        return 8 * n_features * (2 * len(self.components) + 1)


def _singular(products: Array) -> Array:
    """Singular values, descending, of rows whose Gram matrix this is."""
    found: Array = np.sqrt(np.maximum(scipy.linalg.eigvalsh(products)[::-1], 0))
    return found
