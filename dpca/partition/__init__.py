"""How the attributes of a sample are split into partitions and put back. Pure indices: no I/O, no arithmetic."""

from __future__ import annotations

from dpca.partition.bands import Bands, map_at_random, map_by_moments, map_in_raster_order
from dpca.partition.cells import CellGrid
from dpca.partition.whole import Whole

__all__ = ["Bands", "CellGrid", "Whole", "map_at_random", "map_by_moments", "map_in_raster_order"]
