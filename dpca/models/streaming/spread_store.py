"""The store of the components of a spread basis, for fits whose components do not remain in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.models.linear.component_store import MOST_BYTES, ComponentStore, TemporaryFolder, folder_for
from dpca.partition.cells import CellGrid
from dpca.storage.remote.memory import usable_bytes
from dpca.storage.run import Run


@dataclass(frozen=True)
class SpreadStore:
    """Makes the store of the components of a fit, see `StoreOfBlocks`.

    Parameters
    ----------
    rule : Rule
    source : Source
    run : Run
        The store is in the folder of its checkpoints, if it has one.
    """

    rule: Any
    source: Source
    run: Run

    @classmethod
    def needed(cls, rule: Any, source: Source, run: Run, n_components: int) -> SpreadStore | None:
        """Return it if the components are large, or memory is small; None if they remain in memory.

        They do so with a state to continue from, or directions for a further pass, which this process holds as well.
        """
        if not set(rule.results_by_attribute) <= {"components", "mean"}:
            return None
        d = math.prod(source.shape[1:])
        size = d * n_components * working_dtype(source.dtype).itemsize
        # One row of a block is in transit, and the mean is in float64.
        is_small = size <= MOST_BYTES and size + 16 * d <= usable_bytes()
        return None if is_small else cls(rule, source, run)

    def __call__(self, grid: CellGrid, n_components: int, so_far: bool) -> tuple[ComponentStore, Any]:
        """Return the store, and its owner. Each result so far has its own, as its model may be kept."""
        if so_far:
            owner: Any = TemporaryFolder()
            folder = owner.path
        else:
            folder, owner = folder_for(self.run, self.rule, grid, self.source)
        return ComponentStore(folder, grid, n_components, working_dtype(self.source.dtype)), owner
