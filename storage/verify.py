"""Reading a whole store once, to know that it is whole."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.errors import BaseZarrError

from storage.arrays import is_dense, open_array, root_facts, shard_bytes
from storage.errors import DataError, StoreError, one_line
from storage.progress import Progress, no_progress
from storage.stack import STACK_KIND, absolute, open_node, open_stack
from storage.tasks import run_in_order

if TYPE_CHECKING:
    from distributed import Client


def verify(
    path: str | os.PathLike[str],
    *,
    client: Client | None = None,
    progress: Progress = no_progress,
) -> list[str]:
    """Read every array of a store and report what is wrong.

    Parameters
    ----------
    path : path-like or URL
        A store of ours of any kind; a foreign array or group is checked as far as its format allows.
    client : distributed.Client, optional
        Cluster to read on; by default threads of this process.
    progress : Progress
        Counts shards.

    Returns
    -------
    list of str
        One sentence a problem, empty if there is none: a shard that is missing (in a foreign array that
        means the fill value and is right), a shard that cannot be decoded or fails its checksum, values
        that are not finite (an array whose attributes say ``may_be_infinite`` may hold infinities), axes of
        one name and several lengths in one group, a stack that lacks what a stack needs.

    Raises
    ------
    DataError, StoreError
        If there is no Zarr store at `path`.

    Notes
    -----
    Costs one pass over the store. A thread holds one row of chunks (at most 4 MiB for each tile of the
    sample).
    """
    where = os.fspath(path)
    root = open_node(where)
    problems = _check_stack(where, root) if isinstance(root, zarr.Group) else []
    arrays = _members(where, root, problems)
    problems += _check_axes(arrays)
    root_path = absolute(where.rstrip("/"))
    calls = [
        (f"{root_path}/{name}" if name else root_path, name or where, index)
        for name, array in arrays.items()
        for index in np.ndindex(*_grid(array))
    ]
    stage = progress("verify", len(calls), "shards")
    try:
        for problem in run_in_order(_check_shard, calls, client=client):
            problems += problem
            stage.advance(1)
    finally:
        stage.close()
    return problems


def _check_stack(where: str, root: zarr.Group) -> list[str]:
    """What a stack store must have; its lengths are compared with those of all arrays."""
    if root_facts(root).get("kind") != STACK_KIND:
        return []
    try:
        open_stack(where)
    except (DataError, StoreError) as error:
        return [str(error)]
    return [] if "name" in root else ["name: the names of the samples are missing"]


def _members(where: str, root: zarr.Array[Any] | zarr.Group, problems: list[str]) -> dict[str, zarr.Array[Any]]:
    """Every array by its path inside the store; what cannot be one is a problem in a store of ours."""
    if isinstance(root, zarr.Array):
        return {"": root}
    with warnings.catch_warnings(record=True) as strangers:
        warnings.simplefilter("always")
        try:
            members = dict(root.members(max_depth=None))
        except (OSError, ValueError, TypeError, KeyError, BaseZarrError) as error:
            problems.append(f"the metadata of '{where}' cannot be read ({one_line(error)})")
            return {}
    if root_facts(root):
        problems += sorted(str(warning.message) for warning in strangers)
    return {name: node for name, node in sorted(members.items()) if isinstance(node, zarr.Array)}


def _check_axes(arrays: dict[str, zarr.Array[Any]]) -> list[str]:
    """One name, one length within a group, as xarray demands too."""
    problems: list[str] = []
    first: dict[tuple[str, str], tuple[str, int]] = {}
    for name, array in arrays.items():
        folder = name.rpartition("/")[0]
        for axis, length in zip(getattr(array.metadata, "dimension_names", None) or (), array.shape, strict=False):
            if axis is None:
                continue
            other, expected = first.setdefault((folder, axis), (name, length))
            if length != expected:
                problems.append(f"{name}: axis {axis!r} has length {length}, and {expected} in {other}")
    return problems


def _grid(array: zarr.Array[Any]) -> tuple[int, ...]:
    edges = array.shards or array.chunks
    return tuple(-(-length // edge) for length, edge in zip(array.shape, edges, strict=True))


def _check_shard(path: str, name: str, index: tuple[int, ...]) -> list[str]:
    array = open_array(path)
    stored = shard_bytes(array, index)
    if not stored and is_dense(array):
        return [f"{name}: shard {index} is {'missing' if stored is None else 'empty'}"]
    edges = array.shards or array.chunks
    start = [i * edge for i, edge in zip(index, edges, strict=True)]
    stop = [min(s + edge, length) for s, edge, length in zip(start, edges, array.shape, strict=True)]
    rest = tuple(slice(s, e) for s, e in zip(start[1:], stop[1:], strict=True))
    # a row of chunks at a time, so that memory does not grow with the shard
    blocks = [
        (slice(row, min(row + array.chunks[0], stop[0])), *rest)
        for row in (range(start[0], stop[0], array.chunks[0]) if start else ())
    ]
    may_be_infinite = bool(array.attrs.get("may_be_infinite", False))
    for block in blocks or [()]:
        try:
            values = np.asarray(array[block])
        except Exception as error:  # codecs of anyone's choice fail in ways of their own
            return [f"{name}: shard {index} is damaged ({one_line(error)})"]
        if values.dtype.kind in "fc":
            wrong = np.isnan(values) if may_be_infinite else ~np.isfinite(values)
            if wrong.any():
                within = np.unravel_index(int(wrong.argmax()), values.shape)
                at = [int(i) + part.start for i, part in zip(within, block, strict=True)]
                return [f"{name}: shard {index} holds values that are not finite, the first at {at}"]
    return []
