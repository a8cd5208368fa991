"""Partitions: split the attributes of a sample into parts, and join them. Indices and small matrices only, no I/O."""

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
