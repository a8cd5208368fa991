"""The covariance as a streaming rule: exact in one pass, for samples with few attributes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.namespace import beside, dtype_of
from dpca.kernels.algebra.types import Array
from dpca.rules.base.basis import StreamingRule
from dpca.rules.base.state import State, StateLayout
from dpca.rules.covariance.covariance import CERTIFIED, Covariance


@dataclass(frozen=True)
class StreamingCovariance(StreamingRule, Covariance):
    """Leading principal components from the whole covariance matrix (Alakkari 2020, section 2.1).

    Parameters
    ----------
    n_components, center
        See `StreamingRule`.

    Notes
    -----
    Exact up to rounding error, for any order of samples and merges; see `Covariance`. Costs n d^2 operations (8-bit
    integers take half the time or less), and O(d^3) in ``finish``; state: 8 d^2 bytes.

    Results of ``finish``: those of `StreamingRule` and of `Sampled`. ``captured_bound`` is below 1 only by possible
    rounding errors, see `dpca.rules.certificates.certificate`. ``captured_estimate`` is 1, ``captured_estimate_error``
    0.
    """

    random_order = False
    least_samples: ClassVar[int] = 1

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        # Memory for the result, in the working dtype of the samples.
        rows = {"components": ((self.rank(n_features), n_features), working_dtype(dtype))}
        return {**super()._layout(n_features, dtype), **CERTIFIED, **rows}

    def _finish(self, state: State) -> dict[str, Array]:
        room, dtype = state.arrays["components"], dtype_of(state.arrays["components"])
        k = min(room.shape[-2], math.ceil(state.counts["n_samples"]))
        found = self._bounded(state, k, 0, dtype)
        found |= {
            "components": found["components"].astype(dtype),
            "captured_estimate": np.asarray(1.0),
            "captured_estimate_error": np.asarray(0.0),
        }
        return {name: beside(array, room) for name, array in found.items()}

    def components_of(self, state: State) -> Array:
        """Return the components, without the bound, which costs as much as they do."""
        room = state.arrays["components"]
        k = min(room.shape[-2], math.ceil(state.counts["n_samples"]))
        _, covariance = self._covariance_lower(state.copy().to_numpy())
        return beside(linalg.leading_eigh(covariance, k)[1].astype(dtype_of(room)), room)

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the samples per update. For 8-bit integers, so many take half the time of 1,024."""
        return 4096

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of an update and of the eigensolver."""
        return Covariance.work_bytes(self, n_rows, n_features, dtype) + linalg.eigh_bytes(
            n_features, self.rank(n_features)
        )
