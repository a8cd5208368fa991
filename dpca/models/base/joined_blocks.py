"""Results of blocks of attributes that are copied into arrays of whole samples, one block after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dpca.engine.folds.fold_tasks import ResultWriter
from dpca.kernels.algebra.types import Array
from dpca.models.base.mapped import release
from dpca.partition.cells import CellGrid


class JoinedBlocks(ResultWriter):
    """Receives results of blocks of attributes, and joins them at once, so that they are in memory once, not twice.

    Parameters
    ----------
    grid : CellGrid
        The blocks.
    arrays : mapping of str to array (..., *sample_shape)
        Receive the results (..., d) of these names. Of a `mapped_array`, the pages are released.
    """

    in_tasks: ClassVar[bool] = False

    def __init__(self, grid: CellGrid, arrays: Mapping[str, Array]) -> None:
        self._grid, self._arrays = grid, arrays

    @property
    def kept_bytes(self) -> int:
        """Bytes of the arrays, for each block."""
        return sum(array.nbytes for array in self._arrays.values()) // self._grid.n_parts

    def write(self, part: int, result: dict[str, Array]) -> dict[str, Array]:
        """Copy the result of a block."""
        box = self._grid.region(part)
        lengths = tuple(stop - start for start, stop in box)
        for name, array in self._arrays.items():
            leading = (slice(None),) * (array.ndim - len(box))
            here = array[(*leading, *(slice(a, b) for a, b in box))]
            here[...] = result[name].reshape(*here.shape[: len(leading)], *lengths)
            release(array)
        return {}

    def summary(self, result: dict[str, Array]) -> dict[str, Array]:
        """Return nothing, as `write`."""
        return {}
