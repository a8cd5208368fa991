"""Components of cells that are put together on disk, because they are too large for memory."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dpca.engine.folds.fold_tasks import Results, ResultWriter
from dpca.engine.folds.rehearsal import rehearsal
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.models.base.convergence import check_result
from dpca.models.base.mapped import mapped_array, release
from dpca.models.base.parameters import no_values
from dpca.models.cells.partition_rule import joined_results, joined_variances, neighbors
from dpca.models.linear.component_store import MOST_BYTES, ComponentStore, folder_for
from dpca.partition.base import Partition
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.representation.cell_boxes import whole_cells, with_neighbors
from dpca.storage.arrays.layout import box_shape
from dpca.storage.remote.memory import usable_bytes
from dpca.storage.run import Run

# Bytes of the components of one block in the store.
_BLOCK_BYTES = 2**24


class CellsOnDisk(ResultWriter):
    """Receives the components and the means of cells, group by group, and makes a store of them.

    Groups are not aligned with chunks. Their results are copied into temporary files of whole samples, which the
    system writes to disk, and then from there into a `ComponentStore`.

    Parameters
    ----------
    partition : CellGrid
        The files hold values that are filtered if cells overlap.
    n_components : int
    source : Source
        The samples of the fit.
    run : Run
        The store is in the folder of its checkpoints, or in one for temporary files.
    """

    in_tasks: ClassVar[bool] = False

    def __init__(self, partition: CellGrid, n_components: int, source: Source, run: Run) -> None:
        self._partition, self._k, self._run, self._source = partition, n_components, run, source
        self._dtype = working_dtype(source.dtype)
        self._unfiltered = partition.plain if isinstance(partition, LappedGrid) else partition
        self._lock, self._files = threading.Lock(), dict[str, Array]()

    @classmethod
    def needed(cls, partition: Partition, n_components: int, source: Source, run: Run) -> CellsOnDisk | None:
        """Return a writer if the components are large, or memory is small; None if they are to remain in memory."""
        d = math.prod(partition.sample_shape)
        size = d * n_components * working_dtype(source.dtype).itemsize
        # With the results of all cells, from which they are copied, and the mean.
        if not isinstance(partition, CellGrid) or (size <= MOST_BYTES and 2 * size + 16 * d <= usable_bytes()):
            return None
        return cls(partition, n_components, source, run)

    @property
    def kept_bytes(self) -> int:
        """Bytes of a `summary`."""
        return 8 * self._k + 16

    def summary(self, result: dict[str, Array]) -> dict[str, Array]:
        """Return the variances of a cell, the largest entry of its mean, and components that take no memory."""
        return _summary(result, np.abs(result["mean"]).max())

    def write(self, part: int, result: dict[str, Array]) -> dict[str, Array]:
        """Copy the components and the mean of a cell, as `write_all`."""
        return self.write_all([part], [result])[0]

    def write_all(self, parts: Sequence[int], results: Results) -> Results:
        """Copy the components and the means of cells into the files.

        Raises
        ------
        DataError
            If they are not finite.
        StoreError
            If the disk has too little space.
        """
        largest = 0.0
        with self._lock:
            for name, whole in self._opened().items():
                rows = ((i, np.atleast_2d(result[name])) for i, result in zip(parts, results, strict=True))
                for first, stack in neighbors(rows):
                    check_result({name: stack}, "the analysis of a cell", (name,))
                    self._unfiltered.join([(first, stack)], whole)
                    largest = max(largest, float(np.abs(stack).max())) if name == "mean" else 0.0
                release(whole)
        return [_summary(result, largest) for result in results]

    def joined(self, k: int, results: Results) -> dict[str, Any]:
        """Return the joined results of all cells: `ArrayOnDisk` components and mean, and variances in memory.

        Results with components, which no task wrote, are copied into the files first, and replaced by summaries.
        """
        shape = self._partition.sample_shape
        variances = joined_variances(k, self._partition, results)
        if rehearsal() is not None:
            return {
                "components": no_values((k, *shape), self._dtype),
                "mean": no_values(shape, np.float64),
                **variances,
            }
        rows = max(1, _BLOCK_BYTES // (k * self._partition.max_features * self._dtype.itemsize))
        for some in blocks(len(results) if "mean" in results[0] else 0, rows):
            results[some] = self.write_all(range(some.start, some.stop), results[some])
        unit = [b for _, b in whole_cells(self._partition, tuple((0, 1) for _ in shape))]
        grid = CellGrid(shape, box_shape(shape, _BLOCK_BYTES // (k * self._dtype.itemsize), unit))
        folder, owner = folder_for(self._run, "cells", k, self._partition, self._source)
        store = ComponentStore(folder, grid, k, self._dtype)
        store.create()
        files = self._opened()
        for block in range(grid.n_parts):
            store.write_block(block, *(self._box(files[name], grid.box(block)) for name in ("components", "mean")))
            for whole in files.values():
                release(whole)
        return store.arrays(owner) | variances

    def _box(self, whole: Array, region: Region) -> Array:
        """Return a box of the components or of the mean, in the space of samples."""
        if not isinstance(self._partition, LappedGrid):
            return whole[(slice(None), *(slice(*ends) for ends in region))]
        around = with_neighbors(self._partition, region)
        filtered = whole[(slice(None), *(slice(*ends) for ends in around))].copy()
        self._partition.prefilter.apply(filtered, tuple(a for a, _ in around), inverse=True)
        return filtered[(slice(None), *(slice(a - o, b - o) for (a, b), (o, _) in zip(region, around, strict=True)))]

    def _opened(self) -> dict[str, Array]:
        """Return the arrays (rows, *sample_shape) of the components and of the mean in files."""
        if not self._files:
            shape, what = self._partition.sample_shape, f"{self._k:,} components and the mean"
            self._files["components"] = mapped_array((self._k, *shape), self._dtype, what)
            self._files["mean"] = mapped_array((1, *shape), np.float64, what)
        return self._files


def joined_cells(partition: Partition, source: Source, run: Run | None, k: int, results: Results) -> dict[str, Any]:
    """Return the joined results of all parts, as `joined_results`; on disk if they are large and a run is given."""
    writer = None if run is None else CellsOnDisk.needed(partition, k, source, run)
    return joined_results(partition, source.dtype, k, results) if writer is None else writer.joined(k, results)


def _summary(result: dict[str, Array], largest: float) -> dict[str, Array]:
    components = result["components"]
    return {
        "explained_variance": result["explained_variance"],
        "total_variance": result["total_variance"],
        "components": no_values(components.shape, components.dtype),
        "mean_largest": np.asarray(largest),
    }
