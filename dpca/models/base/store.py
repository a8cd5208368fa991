"""Estimators on disk: Zarr groups of plain arrays and attributes; nothing in them is ever executed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import zarr

from dpca.kernels.algebra.types import Array
from dpca.models.base.labelled import Labels
from dpca.representation.base import Representation, array_digest
from dpca.storage.arrays.arrays import create_array, create_root, write_shard
from dpca.storage.arrays.coordinates import Coordinates, write_coordinates
from dpca.storage.arrays.layout import Layout
from dpca.storage.arrays.reading import array_in, group_in, open_group, read_into, root_facts
from dpca.storage.errors import DataError, ReplacedError, StoreError, one_line
from dpca.storage.integrity.replaced import reopening
from dpca.storage.transaction.workspace import Workspace, fingerprint_of

#: Every estimator by the kind that its stores state; a class that states a ``store_kind`` is entered by its base.
ESTIMATORS: dict[str, type[Any]] = {}

# Under these names a store states what the dims of samples are called, and keeps a group of coordinates.
_LABELS, _ALONG = "labels", "coordinates"


@dataclass(frozen=True)
class Kept:
    """What a store holds of a fitted estimator.

    Parameters
    ----------
    arrays : mapping of str to (array, sequence of str)
        Each with the names of its axes; axes of one name have one length, or others could not open the store.
    facts : mapping
        Values that JSON holds, among them ``sample_shape``, ``n_components`` and ``n_samples_seen``.
    version : int
        Of the format.
    identity : sequence, optional
        Which of the facts tell two models apart that have the same arrays; default all.
    beside : Coordinates, optional
        Those of what is no axis of a sample, such as the times of the fit.
    """

    arrays: Mapping[str, tuple[Array, Sequence[str]]]
    facts: Mapping[str, Any]
    version: int
    identity: Sequence[Any] | None = None
    beside: Coordinates | None = None


class StoredModel:
    """A stored model that is being read.

    Attributes
    ----------
    facts : dict
        What it states about itself.
    sample_shape : tuple of int
    n_components, n_samples : int
    """

    def __init__(self, path: str | os.PathLike[str], group: zarr.Group, facts: dict[str, Any]) -> None:
        self._path, self._group, self.facts = path, group, facts
        self.sample_shape = tuple(map(int, facts["sample_shape"]))
        self.n_components, self.n_samples = int(facts["n_components"]), int(facts["n_samples_seen"])

    def within(self, fact: str) -> StoredModel:
        """Return the model that a fact describes, whose arrays lie among those of this one."""
        return StoredModel(self._path, self._group, self.facts[fact])

    def labels(self, fact: str, shape: Sequence[int]) -> Labels | None:
        """Return the labels of axes of these lengths that a fact states, None where there is no such fact."""
        if fact not in self.facts:
            return None
        return Labels.stored(self.facts[fact], group_in(self._group, _ALONG), shape)

    def arrays(self, shapes: Mapping[str, tuple[int, ...]], *, integers: Sequence[str] = ()) -> dict[str, Array]:
        """Read arrays of these shapes: of floating-point numbers, but for ``integers``.

        Raises
        ------
        StoreError
            If one is damaged, or has another shape, or other numbers.
        """
        arrays = {}
        for name, shape in shapes.items():
            try:
                stored = array_in(self._group, name)
                # Zarr itself takes a missing shard for zeros.
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


def save_model(
    model: Any,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    stated: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write a fitted estimator; it appears under ``path`` only when it is whole. Its group states ``stated``, too.

    Raises
    ------
    StoreError
        If ``path`` exists and is something else.
    """
    kept: Kept = model._kept()
    digests = {name: array_digest(values) for name, (values, _) in kept.arrays.items()}
    facts, along = _labels(model, kept)
    beside = [facts, *([name, c.values.tolist()] for name, c in along.arrays.items())] if along else []
    beside += [stated] if stated else []
    fingerprint = fingerprint_of(model.store_kind, kept.version, digests, *(kept.identity or [kept.facts]), *beside)
    with Workspace(path, kind=model.store_kind, fingerprint=fingerprint, overwrite=overwrite) as work:
        if work.state != "complete":
            write_model(model, work.store, fingerprint, stated)
            work.publish()


def write_model(
    model: Any, store: str | os.PathLike[str], fingerprint: str, stated: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Write a fitted estimator as a Zarr group, the content of a workspace that is about to be published.

    The group states ``stated``, too.

    An array whose first axis counts components or groups is cut into chunks of one of these, as many a shard as fit
    64 MiB. One of values in a row, of the state of a fit, is cut into chunks of 64 MiB.
    """
    kept: Kept = model._kept()
    labels, along = _labels(model, kept)
    facts = {**kept.facts, **labels, **stated}
    group = create_root(store, kind=model.store_kind, version=kept.version, fingerprint=fingerprint, **facts)
    if along is not None:
        write_coordinates(group.require_group(_ALONG), along)
    for name, (values, axes) in kept.arrays.items():
        chunks, shards = values.shape, values.shape
        if axes[0].endswith(("component", "group")) and values.ndim > 1:
            rows = max(1, min(len(values), 2**26 // max(1, values[0].nbytes)))
            chunks, shards = (1, *values.shape[1:]), (rows, *values.shape[1:])
        elif axes[0].endswith("_value"):
            chunks = shards = (min(len(values), 2**26 // values.itemsize),)
        array = create_array(group, name, values.shape, values.dtype, Layout(chunks, shards), axes)
        for start in range(0, len(values), shards[0]):
            write_shard(array, start, values[start : start + shards[0]])


def load_any(path: str | os.PathLike[str], only: type[Any] | None = None) -> Any:
    """Read a stored estimator of any kind, or ``only`` of one class.

    Raises
    ------
    StoreError
        If there is no such model, or it is damaged or of a newer version.
    """
    return load_stated(path, only)[0]


@reopening
def load_stated(path: str | os.PathLike[str], only: type[Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """Do as `load_any`, and return what the store states about itself, too."""
    estimator, group, facts = _found(path, only)
    try:
        model = estimator._from_store(stored := StoredModel(path, group, facts))
        if (labels := stored.labels(_LABELS, model.sample_shape_)) is not None:
            model._labels = labels
        return model, facts
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from error


def model_fingerprint(path: str | os.PathLike[str]) -> str:
    """Return the fingerprint that a stored estimator of any kind states."""
    return str(_found(path)[2]["fingerprint"])


def stated_by(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a stored estimator of any kind states about itself."""
    return _found(path)[2]


@lru_cache(maxsize=2)
def stored_basis(model: str, fingerprint: str, n_components: int | None = None) -> Representation:
    """Read a model once a worker; its fingerprint tells it from one that stood at this path before.

    Raises
    ------
    StoreError
        If another model stands at this path by now.
    """
    if model_fingerprint(model) != fingerprint:
        raise ReplacedError(f"the model at '{model}' was replaced while it was used: run the same command again")
    return basis_of(load_any(model)).leading(n_components)


def basis_of(model: Any) -> Representation:
    """Return what maps samples to scores and back.

    Raises
    ------
    DataError
        For a model of which stores of scores cannot be made.
    """
    basis: Representation | None = model.basis_ if hasattr(type(model), "basis_") else None
    if basis is None or not basis.decodes:
        raise DataError(f"a model of kind {model.store_kind} makes no stores of scores: load it, and call its methods")
    return basis


def plain(value: Any) -> Any:
    """Return the value of a parameter as JSON holds it; a random generator in the place of a seed becomes None."""
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, str | int | float | bool) else None


def _labels(model: Any, kept: Kept) -> tuple[dict[str, Any], Coordinates | None]:
    """Return what a store states of the labels of samples, and the coordinates that it keeps; nothing without any."""
    labels: Labels | None = model._labels
    along = None if labels is None else labels.kept(model.sample_shape_)
    if labels is None or along is None:
        return {}, kept.beside
    beside = {} if kept.beside is None else kept.beside.arrays
    return {_LABELS: labels.facts(along)}, replace(along, arrays={**beside, **along.arrays})


def _found(path: str | os.PathLike[str], only: type[Any] | None = None) -> tuple[type[Any], zarr.Group, dict[str, Any]]:
    """Return the class of a stored model, its group, and what it states about itself."""
    try:
        facts = root_facts(group := open_group(path))
    except ReplacedError:
        raise
    except (StoreError, TypeError) as error:
        called = f"'{path}'" if isinstance(path, str | os.PathLike) else f"an object of type {type(path).__name__}"
        raise StoreError(f"there is no model at {called} that can be read ({error}): give the path of one") from error
    kind = str(facts.get("kind") or "foreign")
    if kind not in ESTIMATORS or (only is not None and kind != only.store_kind):
        wanted = "" if only is None else f" of kind {only.store_kind}"
        raise StoreError(
            f"'{path}' is a {kind} store, not a model{wanted}: give the path of a store that 'dpca fit' or save() made"
        )
    estimator = only or ESTIMATORS[kind]
    if facts.get("version") not in range(1, estimator.store_version + 1):
        raise StoreError(
            f"the model at '{path}' has version {facts.get('version')} and this program reads version "
            f"{estimator.store_version}: update dask-dpca, or fit the model again"
        )
    if "fingerprint" not in facts:
        raise _damaged(path, "it states no fingerprint")
    return estimator, group, facts


def _damaged(path: str | os.PathLike[str], how: str) -> StoreError:
    return StoreError(f"the model at '{path}' is damaged ({how}): fit it again")
