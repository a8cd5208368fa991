"""How the attributes of a sample are split into partitions and put back. Pure: indices and small matrices, no I/O."""

from __future__ import annotations

from dpca.partition.bands import Bands, map_at_random, map_by_moments, map_in_raster_order
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.partition.shared import SharedGrid
from dpca.partition.whole import Whole

__all__ = [
    "Bands",
    "CellGrid",
    "LappedGrid",
    "SharedGrid",
    "Whole",
    "map_at_random",
    "map_by_moments",
    "map_in_raster_order",
]
