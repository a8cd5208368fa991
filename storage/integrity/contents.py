"""Checks the values and the metadata of stores, with or without an integrity manifest."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import zarr
from zarr.errors import BaseZarrError

from dpca.storage.arrays.layout import box_shape, boxes_of
from dpca.storage.arrays.reading import is_covered, is_dense, open_array, open_node, root_facts, what_is_wrong_with
from dpca.storage.errors import DataError, StoreError, one_line
from dpca.storage.integrity.checksums import shard_grid
from dpca.storage.remote.objects import absolute
from dpca.storage.stack import STACK_KIND, open_stack
from dpca.storage.synthetic.stack import is_synthetic, wrong_samples

# Numbered arrays, such as "components_3", belong together.
_NUMBERED = re.compile(r"(^|_)\d+$")
# Bytes of values that are checked at a time, unless a chunk is larger.
_CHECKED_BYTES = 2**24


def foreign_shards(where: str, problems: list[str]) -> list[tuple[Any, ...]]:
    """Return the shards of a store without a manifest, and append problems of its metadata to ``problems``."""
    root = open_node(where)
    problems += check_stack(where, root) if isinstance(root, zarr.Group) else []
    arrays = members(where, root, problems)
    problems += check_axes(arrays)
    root_path = absolute(where.rstrip("/"))
    return [
        (f"{root_path}/{name}" if name else root_path, name or where, index)
        for name, array in arrays.items()
        for index in np.ndindex(*shard_grid(array))
    ]


def check_stack(where: str, root: zarr.Group) -> list[str]:
    """Check that a stack store opens and has sample names. `check_axes` compares the lengths."""
    if root_facts(root).get("kind") != STACK_KIND:
        return []
    try:
        if is_synthetic(stack := open_stack(where)):
            return wrong_samples(stack)
        return [] if "name" in root else ["name: the names of the samples are missing"]
    except (DataError, StoreError) as error:
        return [str(error)]


def members(where: str, root: zarr.Array[Any] | zarr.Group, problems: list[str]) -> dict[str, zarr.Array[Any]]:
    """Return every array by its path in the store, and append unreadable members of dpca stores to ``problems``."""
    if isinstance(root, zarr.Array):
        return {"": root}
    with warnings.catch_warnings(record=True) as strangers:
        warnings.simplefilter("always")
        try:
            members = dict(root.members(max_depth=None))
        except (OSError, ValueError, TypeError, KeyError, RuntimeError, BaseZarrError) as error:
            problems.append(f"the metadata of '{where}' is unreadable ({one_line(error)})")
            return {}
    if root_facts(root):
        problems += sorted(str(warning.message) for warning in strangers)
    return {name: node for name, node in sorted(members.items()) if isinstance(node, zarr.Array)}


def check_axes(arrays: dict[str, zarr.Array[Any]]) -> list[str]:
    """Check that an axis has one length in a group; numbered arrays, such as resolutions, may differ."""
    problems: list[str] = []
    first: dict[tuple[str, str], tuple[str, int]] = {}
    for name, array in arrays.items():
        if _NUMBERED.search(name):
            continue
        folder = name.rpartition("/")[0]
        for axis, length in zip(getattr(array.metadata, "dimension_names", None) or (), array.shape, strict=False):
            if axis is None:
                continue
            other, expected = first.setdefault((folder, axis), (name, length))
            if length != expected:
                problems.append(f"{name}: axis {axis!r} has the length {length}, but {expected} in {other}")
    return problems


def check_shard(path: str, name: str, index: tuple[int, ...]) -> list[str]:
    """Read a shard, or a chunk, of an array without a manifest, and return its problems."""
    try:
        array = open_array(path)
    except StoreError as error:
        return [f"{name}: {error}"]
    if is_dense(array) and not is_covered(array) and (wrong := what_is_wrong_with(array, index)) is not None:
        return [f"{name}: shard {index} is {wrong}"]
    problem = wrong_values(array, index)
    return [] if problem is None else [f"{name}: shard {index} {problem}"]


def wrong_values(array: zarr.Array[Any], index: tuple[int, ...]) -> str | None:
    """Decode a shard, a few chunks at a time to limit memory, and return its problem; None if there is none."""
    edges = array.shards or array.chunks
    start = [i * edge for i, edge in zip(index, edges, strict=True)]
    shape = [min(edge, length - s) for s, edge, length in zip(start, edges, array.shape, strict=True)]
    box = box_shape(shape, _CHECKED_BYTES // array.dtype.itemsize, array.chunks) if start else ()
    blocks = [
        tuple(slice(s + a, s + b) for s, (a, b) in zip(start, region, strict=True)) for region in boxes_of(shape, box)
    ]
    may_be_infinite = bool(array.attrs.get("may_be_infinite", False))
    may_be_missing = bool(array.attrs.get("may_be_missing", False))
    for block in blocks:
        try:
            values = np.asarray(array[block])
        except Exception as error:  # foreign codecs raise arbitrary exceptions
            return f"is damaged ({one_line(error.__cause__ or error)})"
        if values.dtype.kind in "fc":
            wrong = np.isnan(values) if may_be_infinite else ~np.isfinite(values)
            wrong &= ~(np.isnan(values) & may_be_missing)
            if wrong.any():
                within = np.unravel_index(int(wrong.argmax()), values.shape)
                at = [int(i) + part.start for i, part in zip(within, block, strict=True)]
                return f"has values that are not finite, the first at {at}"
    return None
