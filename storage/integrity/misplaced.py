"""Detects links, arrays without their store, and inner stores that were replaced."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable

from zarr.storage import LocalStore

from dpca.storage.errors import StoreError
from dpca.storage.integrity.manifest import CHECKSUMS, METADATA, Manifest, read_manifest
from dpca.storage.integrity.unchecked import content_of

# Number of entries of a folder that are checked for arrays created by dpca.
_MOST_MEMBERS = 64


def with_checksums(folder: str) -> str | None:
    """Return the path of an array with checksums in a folder, among its first entries; None if there is none."""
    try:
        with os.scandir(folder) as entries:
            few = list(itertools.islice(entries, _MOST_MEMBERS))
    except OSError:  # not a folder: opening it raises the error
        return None
    return next((entry.path for entry in few if os.path.lexists(os.path.join(entry.path, CHECKSUMS))), None)


def orphaned(where: str) -> StoreError:
    """Return the error for an array or group without the store that it belongs to."""
    return StoreError(f"'{where}' belongs to a store with missing or damaged metadata: create the store again")


def require_known_outside(root: str, manifest: Manifest) -> None:
    """Raise `StoreError` if an inner store is not the one in the manifest of the outer store."""
    outer, inside = os.path.dirname(root), os.path.basename(root)
    while outer != "/" and (content := content_of(LocalStore(outer), outer, METADATA)) is not None:
        above = read_manifest(content, outer)
        if above is not None:
            if above.stores.get(inside, manifest.digest) != manifest.digest:
                raise StoreError(f"'{root}' is not the store that was written there: create '{outer}' again")
            return
        outer, inside = os.path.dirname(outer), f"{os.path.basename(outer)}/{inside}"


def refuse_links(root: str, inside: Iterable[str]) -> None:
    """Raise `StoreError` for a link in a path inside a store; ``inside`` has the names from the innermost outward."""
    path = root
    for name in reversed(list(inside)):
        path = os.path.join(path, name)
        if os.path.islink(path):
            raise StoreError(f"'{path}' is a link inside a store, which is not followed: create the store again")
