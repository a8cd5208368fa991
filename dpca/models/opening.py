"""Opens a store of any kind with the function for its kind."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import zarr

from dpca.choices import COMPRESSED
from dpca.models.base.store import ESTIMATORS
from dpca.models.scores import Scores, open_scores
from dpca.representation.compressed.compressed import Compressed, open_compressed
from dpca.storage.arrays.reading import open_node, root_facts
from dpca.storage.errors import DataError, StoreError
from dpca.storage.integrity.replaced import reopening
from dpca.storage.remote.network import use_storage_options
from dpca.storage.stack import Stack, open_stack


def kind_of(path: str | os.PathLike[str]) -> str:
    """Return the kind that a store states; empty for an array, or a group that dpca did not create."""
    node = open_node(path)
    return str(root_facts(node).get("kind", "")) if isinstance(node, zarr.Group) else ""


@reopening
def open_store(
    path: str | os.PathLike[str],
    *,
    n_components: int | None = None,
    model: str | os.PathLike[str] | Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Compressed | Scores | Stack:
    """Open a store of samples of any kind: compressed, scores, or a stack.

    Parameters
    ----------
    path : path-like or URL
        A compressed store, a store of scores, or a stack: a store of dpca or any Zarr array.
    n_components : int, optional
        Use only this many of the first components, for a preview. The default is all. A stack has no components.
    model : path-like or fitted estimator, optional
        The model of scores; the default is the model inside their store.
    storage_options : mapping, optional
        Options for object storage, see `dpca.storage.use_storage_options`.

    Returns
    -------
    Compressed, Scores or Stack
        What `dpca.open_compressed`, `dpca.open_scores` or `dpca.storage.open_stack` returns.

    Raises
    ------
    DataError
        If there is nothing at ``path``, or an option does not apply to this kind of store.
    StoreError
        If the store is a model, which `dpca.load` opens, or it is damaged or of a newer version.

    Examples
    --------
    >>> import dpca
    >>> dpca.open("photos.zarr").shape
    (30, 40, 36, 3)
    """
    use_storage_options(storage_options, path)
    kind = kind_of(path)
    if kind in ESTIMATORS:
        raise StoreError(f"'{path}' is a model, not a store of samples: open it with dpca.load(path)")
    if kind.endswith("scores"):
        return open_scores(path, n_components, model=model)
    if model is not None:
        raise DataError(f"'{path}' has no scores, and only scores need a model: leave out the model")
    if kind == COMPRESSED:
        return open_compressed(path, level=n_components)
    if n_components is not None:
        raise DataError(f"'{path}' is a stack, which has no components: leave out their number, {n_components}")
    return open_stack(path)
