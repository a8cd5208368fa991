"""Estimators on disk: Zarr groups of plain arrays and attributes, without executable content."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import zarr

from dpca.kernels.algebra.types import Array
from dpca.models.base.labelled import Labels
from dpca.models.base.parameters import check_parameters, given_parameters
from dpca.models.streaming.streaming_methods import describe_option, restore_option
from dpca.parameters.declaration import StoragePolicy, declared_in
from dpca.representation.base import Representation, array_digest
from dpca.representation.on_disk import ArrayOnDisk
from dpca.storage.arrays.arrays import create_array, create_root, write_shard
from dpca.storage.arrays.coordinates import Coordinates, write_coordinates
from dpca.storage.arrays.layout import Layout
from dpca.storage.arrays.reading import array_in, group_in, open_array, open_group, read_into, root_facts
from dpca.storage.errors import DataError, ReplacedError, StoreError, one_line
from dpca.storage.integrity.replaced import reopening
from dpca.storage.remote.objects import place_of
from dpca.storage.transaction.inherited import link_or_copy
from dpca.storage.transaction.workspace import Workspace, fingerprint_of

#: All estimators by the kind of their stores. Setting ``store_kind`` in a class adds it.
ESTIMATORS: dict[str, type[Any]] = {}

# Name of the fact of a store with the names of dims, and of its group of coordinates.
_LABELS, _ALONG = "labels", "coordinates"


@dataclass(frozen=True)
class StoreContents:
    """The content of a store of a fitted estimator.

    Parameters
    ----------
    arrays : mapping of str to (array, sequence of str)
        Arrays with the names of their axes. Axes of one name must have one length, as other programs (xarray) require.
    facts : mapping
        JSON values, including ``sample_shape``, ``n_components`` and ``n_samples_seen``.
    version : int
        Version of the format.
    identity : sequence, optional
        The facts that distinguish two models with the same arrays; default all.
    beside : Coordinates, optional
        Coordinates that do not belong to an axis of a sample, such as the times of the fit.
    """

    arrays: Mapping[str, tuple[Any, Sequence[str]]]
    facts: Mapping[str, Any]
    version: int
    identity: Sequence[Any] | None = None
    beside: Coordinates | None = None


def count_of(n: Any) -> Any:
    """Return a number of samples: an integer, or a sum of weights that is not a whole number."""
    return int(n) if n == int(n) else float(n)


class StoredModel:
    """A store of a model, open for reading.

    Attributes
    ----------
    facts : dict
        Facts in its metadata.
    sample_shape : tuple of int
    n_components : int
    n_samples : int or float
        See `count_of`.
    """

    def __init__(self, path: str | os.PathLike[str], group: zarr.Group, facts: dict[str, Any]) -> None:
        self._path, self._group, self.facts = path, group, facts
        self.sample_shape = tuple(map(int, facts["sample_shape"]))
        self.n_components, self.n_samples = int(facts["n_components"]), count_of(facts["n_samples_seen"])

    def within(self, fact: str) -> StoredModel:
        """Return the inner model that a fact describes; its arrays are in the same group."""
        return StoredModel(self._path, self._group, self.facts[fact])

    def labels(self, fact: str, shape: Sequence[int]) -> Labels | None:
        """Return the labels in a fact, for axes of these lengths; None without such a fact."""
        if fact not in self.facts:
            return None
        return Labels.stored(self.facts[fact], group_in(self._group, _ALONG), shape)

    def parameters(self, cls: type[Any]) -> dict[str, Any]:
        """Return the parameters of an estimator that the store contains; see `stored_parameters`."""
        stored = self.facts.get("parameters", {})
        return {name: restore_option(stored[name]) for name in declared_in(cls) if name in stored}

    def arrays(self, shapes: Mapping[str, tuple[int, ...]], *, integers: Sequence[str] = ()) -> dict[str, Array]:
        """Read arrays of these shapes: of floating-point numbers, except ``integers``.

        Raises
        ------
        StoreError
            If an array is damaged, or has another shape or kind of numbers.
        """
        arrays = {}
        for name, shape in shapes.items():
            try:
                stored = array_in(self._group, name)
                # `read_into` reports a missing shard, which Zarr itself reads as zeros.
                read_into(stored, (slice(None),) * stored.ndim, values := np.empty(stored.shape, stored.dtype))
            except ReplacedError:
                raise
            except Exception as error:  # zarr raises many kinds for torn or altered chunks and metadata
                raise _damaged(self._path, f"{name}: {one_line(error)}") from error
            kinds, numbers = ("iub", "integers") if name in integers else ("f", "floating-point numbers")
            if values.shape != shape or values.dtype.kind not in kinds:
                raise _damaged(self._path, f"{name} is {values.shape} {values.dtype}, not {shape} of {numbers}")
            arrays[name] = values
        return arrays

    def array_on_disk(self, name: str, shape: tuple[int, ...]) -> ArrayOnDisk:
        """Return a floating-point array of this shape that is read where it is used.

        Raises
        ------
        StoreError
            As `arrays`.
        """
        try:
            array = ArrayOnDisk.of(array_in(self._group, name))
        except ReplacedError:
            raise
        except Exception as error:
            raise _damaged(self._path, f"{name}: {one_line(error)}") from error
        if array.shape != shape or array.dtype.kind != "f":
            raise _damaged(self._path, f"{name} is {array.shape} {array.dtype}, not {shape} of floating-point numbers")
        return array


def save_model(
    model: Any,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    stated: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write a fitted estimator, with the further facts ``stated``; it appears at ``path`` only when it is complete.

    Raises
    ------
    StoreError
        If ``path`` exists and holds other content.
    """
    contents: StoreContents = model._to_store()
    digests = {name: array_digest(values) for name, (values, _) in contents.arrays.items()}
    facts, along = _labels(model, contents)
    beside = [facts, *([name, c.values.tolist()] for name, c in along.arrays.items())] if along else []
    beside += [stated] if stated else []
    fingerprint = fingerprint_of(
        model.store_kind, contents.version, digests, *(contents.identity or [contents.facts]), *beside
    )
    with Workspace(path, kind=model.store_kind, fingerprint=fingerprint, overwrite=overwrite) as work:
        if work.state != "complete":
            write_model(model, work.store, fingerprint, stated)
            work.publish()


def write_model(
    model: Any, store: str | os.PathLike[str], fingerprint: str, stated: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Write a fitted estimator as a Zarr group, with the further facts ``stated``, in a workspace.

    If the first axis of an array counts components or groups, each of them is a chunk, and a shard has up to 64 MiB of
    chunks. A flat array of the state of a fit has chunks of 64 MiB.
    """
    contents: StoreContents = model._to_store()
    labels, along = _labels(model, contents)
    facts = {**contents.facts, **labels, **stated}
    group = create_root(store, kind=model.store_kind, version=contents.version, fingerprint=fingerprint, **facts)
    if along is not None:
        write_coordinates(group.require_group(_ALONG), along)
    for name, (values, axes) in contents.arrays.items():
        if isinstance(values, ArrayOnDisk):
            _copy_array(values, group, store, name, axes)
            continue
        chunks, shards = values.shape, values.shape
        if axes[0].endswith(("component", "group")) and values.ndim > 1:
            rows = max(1, min(len(values), 2**26 // max(1, values[0].nbytes)))
            chunks, shards = (1, *values.shape[1:]), (rows, *values.shape[1:])
        elif axes[0].endswith("_value"):
            chunks = shards = (min(len(values), 2**26 // values.itemsize),)
        array = create_array(group, name, values.shape, values.dtype, Layout(chunks, shards), axes)
        for start in range(0, len(values), shards[0]):
            write_shard(array, start, values[start : start + shards[0]])


def _copy_array(
    values: ArrayOnDisk, group: zarr.Group, store: str | os.PathLike[str], name: str, axes: Sequence[str]
) -> None:
    """Write an array on disk into a group, by hard links to its files if both are on one disk."""
    own = open_array(values.array)
    made = create_array(group, name, values.shape, values.dtype, Layout(own.chunks, values.edges), axes)
    for box in values.boxes():
        start = [part.start for part in box]
        key = made.metadata.encode_chunk_key(tuple(s // e for s, e in zip(start, values.edges, strict=True)))
        source, target = place_of(values.array) / key, place_of(store) / name / key
        if isinstance(source, Path) and isinstance(target, Path):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            link_or_copy(str(source), str(target))
        else:
            write_shard(made, start, values[box])


def load_any(path: str | os.PathLike[str], only: type[Any] | None = None) -> Any:
    """Read a stored estimator of any kind, or of the class ``only``.

    Raises
    ------
    StoreError
        If there is no such model, it is damaged, or its version is newer.
    """
    return load_stated(path, only)[0]


@reopening
def load_stated(path: str | os.PathLike[str], only: type[Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """Read a stored estimator as `load_any` does, and return it with the facts of its store."""
    estimator, group, facts = _found(path, only)
    try:
        model = estimator._from_store(stored := StoredModel(path, group, facts))
        check_parameters(model)
        if (labels := stored.labels(_LABELS, model.sample_shape_)) is not None:
            model._labels = labels
        return model, facts
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from error


def model_fingerprint(path: str | os.PathLike[str]) -> str:
    """Return the fingerprint of a stored estimator of any kind."""
    return str(_found(path)[2]["fingerprint"])


def stated_by(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the facts of the store of an estimator of any kind."""
    return _found(path)[2]


@lru_cache(maxsize=2)
def stored_basis(model: str, fingerprint: str, n_components: int | None = None) -> Representation:
    """Read the basis of a model once per worker; its fingerprint distinguishes it from earlier models at this path.

    Raises
    ------
    StoreError
        If the model at this path has been replaced.
    """
    if model_fingerprint(model) != fingerprint:
        raise ReplacedError(f"the model at '{model}' was replaced while it was used: run the same command again")
    return basis_of(load_any(model)).leading(n_components)


def basis_of(model: Any) -> Representation:
    """Return the basis of a model, which maps samples to scores and back.

    Raises
    ------
    DataError
        If the model does not support stores of scores.
    """
    basis: Representation | None = model.basis_ if hasattr(type(model), "basis_") else None
    if basis is None or not basis.decodes:
        raise DataError(
            f"a model of kind {model.store_kind} does not support stores of scores: load it, and call its methods"
        )
    return basis


def stored_parameters(model: Any) -> dict[str, Any]:
    """Return the parameters in the store of a model, as JSON values; see `StoredModel.parameters`."""
    values, given = model.get_params(deep=False), given_parameters(model)
    has_state = getattr(model, "keep_state", False) and model._states is not None
    with_state = StoragePolicy.WITH_STATE, StoragePolicy.LATER_WITH_STATE

    def is_kept(name: str, kept: StoragePolicy) -> bool:
        if name in model.stored_first or kept is StoragePolicy.ALWAYS:
            return True
        return name in given and (kept is StoragePolicy.GIVEN or (kept in with_state and has_state))

    declared = declared_in(type(model))
    names = dict.fromkeys((*model.stored_first, *(name for name, one in declared.items() if is_kept(name, one.kept))))
    return {name: _as_json(values[name]) for name in names}


def _as_json(value: Any) -> Any:
    if isinstance(value, np.random.RandomState):  # only a seed can be stored
        return None
    return value.tolist() if isinstance(value, np.ndarray) else describe_option(value)


def _labels(model: Any, contents: StoreContents) -> tuple[dict[str, Any], Coordinates | None]:
    """Return the facts of the labels of samples for a store, and its coordinates, empty and None without any."""
    labels: Labels | None = model._labels
    along = None if labels is None else labels.kept(model.sample_shape_)
    if labels is None or along is None:
        return {}, contents.beside
    beside = {} if contents.beside is None else contents.beside.arrays
    return {_LABELS: labels.facts(along)}, replace(along, arrays={**beside, **along.arrays})


def _found(path: str | os.PathLike[str], only: type[Any] | None = None) -> tuple[type[Any], zarr.Group, dict[str, Any]]:
    """Return the class of a stored model, its group, and its facts."""
    try:
        facts = root_facts(group := open_group(path))
    except ReplacedError:
        raise
    except (StoreError, TypeError) as error:
        called = f"'{path}'" if isinstance(path, str | os.PathLike) else f"an object of type {type(path).__name__}"
        raise StoreError(f"there is no model at {called}, or it is unreadable ({error}): use another path") from error
    kind = str(facts.get("kind") or "foreign")
    if kind not in ESTIMATORS or (only is not None and kind != only.store_kind):
        wanted = "" if only is None else f" of kind {only.store_kind}"
        raise StoreError(
            f"'{path}' is a {kind} store, not a model{wanted}: use the path of a store that 'dpca fit' or save() made"
        )
    estimator = only or ESTIMATORS[kind]
    newest = max(estimator.store_version, estimator.weighted_version)
    if facts.get("version") not in range(1, newest + 1):
        raise StoreError(
            f"the model at '{path}' has version {facts.get('version')}, but this program supports versions up to "
            f"{newest}: update dask-dpca, or fit the model again"
        )
    if "fingerprint" not in facts:
        raise _damaged(path, "it has no fingerprint")
    return estimator, group, facts


def _damaged(path: str | os.PathLike[str], how: str) -> StoreError:
    return StoreError(f"the model at '{path}' is damaged ({how}): fit it again")
