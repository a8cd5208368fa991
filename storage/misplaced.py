"""Refuses what does not lie where it was written: links, arrays without their store, a store in another one's place."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable

from zarr.storage import LocalStore

from dpca.storage.errors import StoreError
from dpca.storage.manifest import CHECKSUMS, METADATA, Manifest, read_manifest
from dpca.storage.unchecked import content_of

# Entries of a folder that are looked at for arrays of this package.
_MOST_MEMBERS = 64


def with_checksums(folder: str) -> str | None:
    """Return an array in a folder that has checksums; folders of this package's stores have few entries."""
    try:
        with os.scandir(folder) as entries:
            few = list(itertools.islice(entries, _MOST_MEMBERS))
    except OSError:  # no folder: opening it says so
        return None
    return next((entry.path for entry in few if os.path.lexists(os.path.join(entry.path, CHECKSUMS))), None)


def orphaned(where: str) -> StoreError:
    """Return the error for what belongs to a store that is not there."""
    return StoreError(f"'{where}' belongs to a store whose metadata is missing or damaged: make the store again")


def require_known_outside(root: str, manifest: Manifest) -> None:
    """Refuse a complete store that replaced the one written at this place inside another store."""
    outer, inside = os.path.dirname(root), os.path.basename(root)
    while outer != "/" and (content := content_of(LocalStore(outer), outer, METADATA)) is not None:
        above = read_manifest(content, outer)
        if above is not None:
            if above.stores.get(inside, manifest.digest) != manifest.digest:
                raise StoreError(f"'{root}' is not the store that was written there: make '{outer}' again")
            return
        outer, inside = os.path.dirname(outer), f"{os.path.basename(outer)}/{inside}"


def refuse_links(root: str, inside: Iterable[str]) -> None:
    """Raise StoreError for a link on the way from a store to what is inside, given from there outward."""
    path = root
    for name in reversed(list(inside)):
        path = os.path.join(path, name)
        if os.path.islink(path):
            raise StoreError(f"'{path}' is a link inside a store, which is not followed: make the store again")
