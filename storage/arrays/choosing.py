"""Finds the array of a Zarr group that holds the samples, for groups not created by dpca."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import zarr
from zarr.errors import BaseZarrError

from dpca.storage.arrays.coordinates import beside
from dpca.storage.arrays.layout import CHANNEL, PREFERRED, SAMPLE
from dpca.storage.arrays.ome import OMEAxes, highest_resolution
from dpca.storage.arrays.reading import array_in
from dpca.storage.errors import DataError, StoreError, one_line


def is_in_order(axes: Sequence[str], shape: Sequence[int]) -> bool:
    """Return whether samples are on the first axis, channels on the last, and no other OME-Zarr axis has length 1."""
    idle = any(n == 1 and axis not in ("y", "x") for axis, n in zip(axes[1:], shape[1:], strict=True))
    return axes[0] == SAMPLE and CHANNEL not in axes[:-1] and not idle


def chosen_array(where: str, group: zarr.Group) -> tuple[zarr.Array[Any], str, OMEAxes | None]:
    """Return the array with the samples, its path, and its axes if the group is an OME-Zarr image."""
    if (ome := highest_resolution(where, group)) is not None:
        return ome
    try:
        with warnings.catch_warnings():
            # Zarr warns of other files in the folder, which are irrelevant to a reader.
            warnings.simplefilter("ignore")
            known = dict(group.arrays())
            others = beside(array.attrs.asdict() for array in known.values())
            arrays = {name: array for name, array in known.items() if array.ndim >= 2 and name not in others}
    except (OSError, ValueError, TypeError, KeyError, BaseZarrError) as error:
        raise StoreError(
            f"'{where}' cannot be read as a Zarr group ({one_line(error)}): give the path of one array"
        ) from error
    found = [next(iter(arrays))] if len(arrays) == 1 else [name for name in PREFERRED if name in arrays]
    if not found:
        listed = ", ".join(sorted(arrays)) or "none"
        raise DataError(
            f"'{where}' is a Zarr group and it is unclear which array holds the samples (arrays of two or more axes: "
            f"{listed}): give '{where}/<array>'"
        )
    return array_in(group, found[0]), f"{where.rstrip('/')}/{found[0]}", None
