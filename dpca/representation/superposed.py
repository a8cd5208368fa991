"""Scores of frames that are superposed on a reference before they are projected."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import DTypeLike

from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import Pixels
from dpca.kernels.superposition import Superposition
from dpca.representation.base import array_digest
from dpca.representation.whitened import Whitened
from dpca.storage.transaction.workspace import fingerprint_of


@dataclass(frozen=True, eq=False)
class Superposed(Whitened):
    """Scores of the superposed coordinates of frames; decoded frames are superposed on the reference.

    Parameters
    ----------
    partition, mean, components, scales
        As in `Whitened`, for superposed coordinates as rows.
    superposition : Superposition
    """

    superposition: Superposition

    @property
    def divides(self) -> bool:
        """False: superposing a frame requires all of its atoms."""
        return False

    @property
    def of_rows(self) -> Whitened:
        """The representation of superposed coordinates."""
        return Whitened(self.partition, self.mean, self.components, self.scales)

    def fingerprint(self) -> str:
        """Return the hash of the components, the scales and the superposition."""
        own = (self.superposition.reference, self.superposition.fit_weights, self.superposition.weights)
        return fingerprint_of("superposed", super().fingerprint(), *map(array_digest, own))

    def work_bytes(self, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        """Bytes of temporary arrays, as `Representation.work_bytes`, including those of the rows."""
        rows = n_rows * self.mean.size * working_dtype(dtype).itemsize
        return super().work_bytes(n_rows, dtype, pixels=pixels) + rows + 2**21 + 6 * self.mean.nbytes

    def _encode(self, samples: Array) -> Array:
        return super()._encode(self.superposition.rows_of(samples))

    def _decode(self, scores: Array, pixels: Pixels | None) -> Array:
        return self.superposition.frames(super()._decode(scores, None))
