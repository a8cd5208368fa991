"""Fitted models on disk: Zarr groups of plain arrays and attributes; nothing in them is ever executed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.representation.base import array_digest
from storage.arrays import create_array, create_root, write_shard
from storage.errors import StoreError, one_line
from storage.layout import Layout
from storage.reading import open_array, open_group, read_into, root_facts
from storage.workspace import Workspace, fingerprint_of

Array = NDArray[Any]


def publish(
    path: str | os.PathLike[str], kind: str, fingerprint: str, write: Callable[[Path], None], *, overwrite: bool
) -> None:
    """Let a function write a model, which appears under ``path`` only when it is whole.

    Raises
    ------
    StoreError
        If ``path`` exists and is something else.
    """
    with Workspace(path, kind=kind, fingerprint=fingerprint, overwrite=overwrite) as work:
        if work.state != "complete":
            write(Path(work.store))
            work.publish()


def write_arrays(
    store: str | os.PathLike[str],
    arrays: Mapping[str, tuple[Array, Sequence[str]]],
    *,
    kind: str,
    version: int,
    fingerprint: str,
    **facts: Any,
) -> None:
    """Write arrays, each with the names of its axes, and facts as a Zarr group.

    An array whose first axis is "component" is cut into chunks of one component, as many a shard as fit 64 MiB.
    """
    group = create_root(store, kind=kind, version=version, fingerprint=fingerprint, **facts)
    for name, (values, axes) in arrays.items():
        layout = _by_component(values) if axes[0] == "component" and values.ndim > 1 else _whole(values)
        array = create_array(group, name, values.shape, values.dtype, layout, axes)
        for start in range(0, len(values), layout.shards[0]):
            write_shard(array, start, values[start : start + layout.shards[0]])


def read_facts(path: str | os.PathLike[str], kind: str, version: int) -> dict[str, Any]:
    """Return what a stored model of at most this version states about itself.

    Raises
    ------
    StoreError
        If there is no such model, or one of a newer version.
    """
    facts = _stated_facts(path)
    if facts.get("kind") != kind:
        raise StoreError(
            f"'{path}' is a {facts.get('kind') or 'foreign'} store, not a model of kind {kind}: give the path of a "
            f"store that 'dpca fit' or save() made"
        )
    if facts.get("version") not in range(1, version + 1):
        raise StoreError(
            f"the model at '{path}' has version {facts.get('version')} and this program reads version {version}: "
            f"update dask-dpca, or fit the model again"
        )
    if "fingerprint" not in facts:
        raise StoreError(f"the model at '{path}' is damaged (it states no fingerprint): fit it again")
    return facts


def stated_kind(path: str | os.PathLike[str]) -> str:
    """Return what a store says it is, nothing if it does not say.

    Raises
    ------
    StoreError
        If there is no store.
    """
    return str(_stated_facts(path).get("kind") or "")


def _stated_facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return root_facts(open_group(path))
    except (StoreError, TypeError) as error:
        called = f"'{path}'" if isinstance(path, str | os.PathLike) else f"an object of type {type(path).__name__}"
        raise StoreError(f"there is no model at {called} that can be read ({error}): give the path of one") from error


def read_arrays(
    path: str | os.PathLike[str],
    names: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    integers: Sequence[str] = (),
) -> dict[str, Array]:
    """Read arrays of a stored model: of floating-point numbers, but for ``integers``.

    Raises
    ------
    StoreError
        If one is damaged, or has another shape than its entry in ``shapes``, or other numbers.
    """
    arrays = {}
    for name in names:
        try:
            stored = open_array(os.path.join(os.fspath(path), name))
            # Zarr itself takes a missing shard for zeros.
            read_into(stored, (slice(None),) * stored.ndim, values := np.empty(stored.shape, stored.dtype))
        except Exception as error:  # zarr raises many kinds for torn or altered chunks and metadata
            raise StoreError(f"the model at '{path}' is damaged ({name}: {one_line(error)}): fit it again") from error
        kind, numbers = ("i", "integers") if name in integers else ("f", "floating-point numbers")
        if values.shape != shapes[name] or values.dtype.kind != kind:
            raise StoreError(
                f"the model at '{path}' is damaged ({name} is {values.shape} {values.dtype}, not {shapes[name]} of "
                f"{numbers}): fit it again"
            )
        arrays[name] = values
    return arrays


def content_fingerprint(kind: str, version: int, arrays: Mapping[str, Array], *facts: Any) -> str:
    """Return a fingerprint of a model's own content."""
    return fingerprint_of(kind, version, {name: array_digest(values) for name, values in arrays.items()}, *facts)


def _by_component(values: Array) -> Layout:
    one = max(1, values[0].nbytes)
    return Layout((1, *values.shape[1:]), (max(1, min(len(values), 2**26 // one)), *values.shape[1:]))


def _whole(values: Array) -> Layout:
    return Layout(values.shape, values.shape)
