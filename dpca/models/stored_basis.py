"""Reading a fitted model of any kind back from disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from dpca.models import band_store, cell_store, pca_store, streaming_store
from dpca.models.model_store import read_facts, stated_kind
from dpca.representation.base import Representation
from storage.errors import StoreError


class _Kind(NamedTuple):
    version: int
    load: Callable[[str], Any]


_KINDS = {
    band_store.KIND: _Kind(band_store.VERSION, band_store.load_model),
    cell_store.KIND: _Kind(cell_store.VERSION, cell_store.load_model),
    pca_store.KIND: _Kind(pca_store.VERSION, pca_store.load_model),
    streaming_store.KIND: _Kind(streaming_store.VERSION, streaming_store.load_model),
}


def load_any(path: str | os.PathLike[str]) -> Any:
    """Read a stored `BandPCA`, `CellPCA`, `PCA` or `StreamingPCA`, whichever it is.

    Raises
    ------
    StoreError
        If there is no such model, or it is damaged or of a newer version.
    """
    return _kind_of(path).load(os.fspath(path))


def model_fingerprint(path: str | os.PathLike[str]) -> str:
    """Return the fingerprint that a stored model states."""
    return str(read_facts(path, stated_kind(path), _kind_of(path).version)["fingerprint"])


@lru_cache(maxsize=2)
def stored_basis(model: str, fingerprint: str, n_components: int | None = None) -> Representation:
    """Read a model once a worker; its fingerprint tells it from one that stood at this path before.

    Raises
    ------
    StoreError
        If another model stands at this path by now.
    """
    if model_fingerprint(model) != fingerprint:
        raise StoreError(f"the model at '{model}' was replaced while it was used: run the same command again")
    basis: Representation = load_any(model).basis_
    return basis.leading(n_components)


def _kind_of(path: str | os.PathLike[str]) -> _Kind:
    kind = stated_kind(path)
    if kind not in _KINDS:
        raise StoreError(
            f"'{path}' is a {kind or 'foreign'} store, not a model: give the path of a store that 'dpca fit' or save() "
            f"made"
        )
    return _KINDS[kind]
