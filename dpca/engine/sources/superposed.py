"""Frames of a molecule that are superposed when they are read."""

from __future__ import annotations

import numpy as np

from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.superposition import Superposition


class SuperposedSource(ComputedSource):
    """Superposed frames (n_frames, n_atoms, 3) of another source, see `Superposition`. Nothing is copied to disk.

    Parameters
    ----------
    source : Source
        Frames (n_frames, n_atoms, 3).
    superposition : Superposition
    """

    def __init__(self, source: Source, superposition: Superposition) -> None:
        super().__init__(source, source.shape, working_dtype(source.dtype))
        self.superposition, self.axes = superposition, source.axes

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of rows. Any box depends on all atoms of its frames."""
        check_finite(values, first, self.name)
        fill = named_errors(self.superposition.rows, self.name, (first, first + len(values)))
        if out.shape[1:] == values.shape[1:]:
            fill(values, out)
            return
        fill(values, rows := np.empty(values.shape, self.dtype))
        np.copyto(out, rows[(slice(None), *(slice(*lengths) for lengths in region))])
