"""Power iteration with deflation: one component after the other, one pass over the stream per step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.rules.base.state import State
from dpca.rules.covariance.covariance_product import CovarianceProduct


@dataclass(frozen=True, eq=False, kw_only=True)
class PowerIteration(CovarianceProduct):
    """One step w <- A w / |A w| with A = C - sum_j lambda_j v_j v_j^T.

    Alakkari 2020, equation 2.10; Hotelling's deflation as in Arora 2015, section 5.2.

    Parameters
    ----------
    components : array (1, d)
        The vector w, of unit length.
    mean, center
        See `CovarianceProduct`.
    found : array (j, d)
        Components v_j that are removed from the covariance; j may be 0.
    variances : array (j,)
        Their variances lambda_j.

    Results of ``finish``, float64: ``mean``; ``components`` (1, d), the next w (unchanged if A w is 0);
    ``explained_variance`` (1,), the Rayleigh quotient w^T A w of the given w; ``residual_norms`` (1,), its
    |A w - (w^T A w) w|; ``total_variance`` () of C.
    """

    found: Array
    variances: Array

    def __post_init__(self) -> None:
        if len(self.components) != 1 or len(self.found) != len(self.variances):
            raise ValueError(
                f"got {len(self.components)} vectors, {len(self.found)} found components and {len(self.variances)} "
                f"variances: give one vector, and one variance for each found component"
            )

    def _finish(self, state: State) -> dict[str, Array]:
        mean, product, total = self._product(state)
        w, found = self.components[0].astype(np.float64), self.found.astype(np.float64, copy=False)
        image = product[0] - (self.variances * (found @ w)) @ found
        value, length = max(float(w @ image), 0.0), float(np.linalg.norm(image))
        return {
            "mean": mean,
            "components": (image / length if length else w)[None],
            "explained_variance": np.array([value]),
            "residual_norms": np.array([np.linalg.norm(image - value * w)]),
            "total_variance": np.asarray(total),
        }
