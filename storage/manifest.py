"""The manifest of a finished store: a checksum of every file, which binds each to its place and to its store.

::

    out.zarr/
        zarr.json            attributes {"dpca": {..., "manifest": {"files": {"samples/zarr.json": <digest>,
                                                                             "samples/checksums.json": <digest>, ...},
                                                                   "stores": {"model": <digest of its zarr.json>},
                                                                   "checksum": <digest of this file>}}}
        samples/
            zarr.json
            checksums.json   {"c/0/0/0/0": [bytes, "<CRC-32C of each inner chunk><CRC-32C of the shard's index>"], ...}
            c/0/0/0/0
        model/               a store in a store has a manifest of its own

It is a tree: the root vouches for the metadata and for the checksums of each array, these vouch for its shards. Every
chunk that this package writes ends in a CRC-32C of its bytes, which a reader computes anyway: comparing it with the one
that belongs at this place costs nothing, and finds a shard that was swapped for another whole one, which its own
checksums cannot. The files lie where Zarr does not look, so that other programs read the store as before.

The manifest is written last, by `Workspace.publish`. It takes the checksums that the writer put into the shards, 4
bytes a chunk, and reads nothing else of them. Files that come from a finished store keep the entries that they have in
its manifest, see `Carried`: what was damaged there is damaged here. A store without one is unfinished, or older than
this form.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

from dpca.storage.checksums import Entry, compare_stored, stored_checksums
from dpca.storage.disk import atomic_write_bytes, entries_of, file_bytes, folder_bytes, read_file
from dpca.storage.errors import ReplacedError, StoreError
from dpca.storage.objects import Place

METADATA = "zarr.json"
CHECKSUMS = "checksums.json"
#: The manifest of a folder that is no Zarr store, such as a report's.
FOLDER_MANIFEST = "manifest.json"
#: What the manifest of a report's folder calls it.
REPORT = "report"

#: The key in the attributes of a root group for everything that this package states about a store.
ROOT_KEY = "dpca"
_KEY = "manifest"
#: The key below `ROOT_KEY` for the image model of a store whose samples are made when they are read.
VIRTUAL_KEY = "virtual"
# Placeholder for a file's own checksum while that is computed.
_BLANK = "0" * 32


def digest_of(content: bytes) -> str:
    """Return the digest by which a manifest knows a file (BLAKE2b, 16 bytes, hexadecimal)."""
    return blake2b(content, digest_size=16).hexdigest()


@dataclass(frozen=True, eq=False)
class Manifest:
    """The digests that a store states of its own files.

    Attributes
    ----------
    files : mapping of str to str
        Digests of metadata and of the files of checksums, by their paths inside the store.
    stores : mapping of str to str
        Digests of the metadata of the stores inside, by their paths.
    digest : str
        Digest of the file that holds the manifest: tells this store from every other one.
    virtual : optional
        What the store states of the image model that makes its samples, see `dpca.storage.virtual`.
    """

    files: Mapping[str, str]
    stores: Mapping[str, str]
    digest: str
    virtual: Any = None

    @cached_property
    def arrays(self) -> frozenset[str]:
        """Paths of the arrays."""
        return frozenset(name.rpartition("/")[0] for name in self.files if name.endswith(f"/{CHECKSUMS}"))

    def check(self, name: str, content: bytes | None, where: str) -> None:
        """Compare a file of metadata or of checksums with its digest; other files pass.

        Raises
        ------
        StoreError
        """
        expected = self.files.get(name)
        if expected is None:
            return
        if content is None:
            raise StoreError(f"'{where}' lacks its file {name}: make the store again")
        if digest_of(content) != expected:
            raise StoreError(f"{name} of '{where}' is not the file that was written there: make the store again")


def read_manifest(content: bytes, where: str) -> Manifest | None:
    """Return the manifest that a root's metadata, or a folder's manifest file, holds.

    Parameters
    ----------
    content : bytes
        The file, whole.
    where : str
        Path of the store, for the message.

    Returns
    -------
    Manifest or None
        None where the file holds none.

    Raises
    ------
    StoreError
        If the file was changed after it was written.
    """
    facts = facts_in(content)
    manifest = facts.get(_KEY)
    if manifest is None:
        return None
    try:
        checksum, files, stores = manifest["checksum"], manifest["files"], manifest["stores"]
        whole = content.count(checksum.encode()) == 1
        whole = whole and digest_of(content.replace(checksum.encode(), _BLANK.encode())) == checksum
        whole = whole and all(isinstance(value, str) for part in (files, stores) for value in part.values())
    except (KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise StoreError(f"the metadata of '{where}' was changed after it was written: make the store again")
    return Manifest(files, stores, digest_of(content), facts.get(VIRTUAL_KEY))


def has_manifest(content: bytes) -> bool:
    """Return whether a file of metadata holds a manifest, valid or not."""
    return _KEY.encode() in content and facts_in(content).get(_KEY) is not None


def facts_in(content: bytes) -> dict[str, Any]:
    """Return what this package states in a file of metadata; nothing where it states nothing."""
    try:
        metadata = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    for key in ("attributes", ROOT_KEY):
        metadata = metadata.get(key) if isinstance(metadata, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def check_metadata(store: Place) -> Manifest | None:
    """Compare all metadata and all files of checksums of a finished store with its manifest, which is returned.

    Raises
    ------
    StoreError
        If a file is missing or not the one that was written there.
    ReplacedError
        If another store stands there by now.
    """
    where = os.fspath(store)
    manifest = read_manifest(_content(store / METADATA) or b"", where)
    if manifest is None:
        return None
    try:
        for name in manifest.files:
            if name.endswith(".json"):
                manifest.check(name, _content(store / name), where)
        for name, digest in manifest.stores.items():
            if digest_of(_content(store / name / METADATA) or b"") != digest:
                raise StoreError(f"'{where}/{name}' is not the store that was written there: make '{where}' again")
    except StoreError as error:
        if digest_of(_content(store / METADATA) or b"") != manifest.digest:
            raise ReplacedError(f"'{where}' was replaced while it was read: run the same command again") from error
        raise
    return manifest


def _content(path: Place) -> bytes | None:
    try:
        return read_file(path)
    except OSError:
        return None


# -- what comes from another store


@dataclass(frozen=True)
class Carried:
    """Files that a store takes over from a finished one, with the entries of its manifest.

    Attributes
    ----------
    files : mapping of str to str
        Digests of metadata, by paths inside the store.
    shards : mapping of str to mapping of str to (int, str)
        Of each array the sizes and checksums of files of chunks, by their paths inside the array.
    stores : mapping of str to str
        Digests of the metadata of whole inner stores.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    shards: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)
    stores: Mapping[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        """Paths of all files but those of inner stores, and but lists of checksums."""
        return [*self.files, *(f"{array}/{key}" for array, entries in self.shards.items() for key in entries)]


#: Of a store that takes nothing over.
NOTHING_CARRIED = Carried()


def carried_over(store: Place, stays: Callable[[str], bool]) -> Carried:
    """Return those entries of the manifest of a finished store on a disk that another store takes over.

    All metadata, and the sizes and checksums inside the files of chunks that stay, are compared with the manifest.

    Parameters
    ----------
    store : Path
    stays : callable
        Tells of the path of a file, or of an inner store, whether it is taken over.

    Raises
    ------
    StoreError
        If the store has no manifest, or what is compared is damaged.
    """
    where = os.fspath(store)
    if (manifest := check_metadata(store)) is None:
        raise StoreError(f"nothing vouches for the files of '{where}', which has no manifest: make the store again")
    shards = {}
    for array in sorted(manifest.arrays):
        entries: Mapping[str, Entry] = json.loads(read_file(store / array / CHECKSUMS))
        shards[array] = {key: entry for key, entry in entries.items() if stays(f"{array}/{key}")}
        compare_stored(where, array, shards[array])
    files = {name: d for name, d in manifest.files.items() if not name.endswith(f"/{CHECKSUMS}") and stays(name)}
    return Carried(files, shards, {name: d for name, d in manifest.stores.items() if stays(name)})


# -- writing


def write_manifest(
    store: Place, root: Place | None = None, *, left_out: str | None = None, carried: Carried = NOTHING_CARRIED
) -> None:
    """Write the manifest of a complete store; replaces an existing one.

    Parameters
    ----------
    store : Path or ObjectPath
    root : Path or ObjectPath, optional
        File with the metadata of the store's root, by default that of the store.
    left_out : str, optional
        Name of an inner store that does not belong to this one.
    carried : Carried, optional
        What comes from another store.

    Raises
    ------
    StoreError
        If a file of the store is torn or cannot be read.

    Notes
    -----
    Reads the metadata, and of each shard that is not carried over its index and 4 bytes a chunk.
    """
    atomic_write_bytes(store / METADATA, _listed(store, root, left_out, carried, atomic_write_bytes))


def finished_bytes(
    store: Place, root: Place | None = None, *, left_out: str | None = None, carried: Carried = NOTHING_CARRIED
) -> int:
    """Return the bytes that all files of a complete store will have once `write_manifest` has written it."""
    checksums: list[int] = []
    listed = _listed(store, root, left_out, carried, lambda path, content: checksums.append(len(content)))
    inside = [(store / name, is_folder) for name, is_folder in entries_of(store) if name not in (METADATA, left_out)]
    written = (folder_bytes(path, besides=CHECKSUMS) if is_folder else file_bytes(path) for path, is_folder in inside)
    return len(listed) + sum(checksums) + sum(written)


def _listed(
    store: Place, root: Place | None, left_out: str | None, carried: Carried, keep: Callable[[Place, bytes], None]
) -> bytes:
    """Return the metadata of a store's root with the manifest of its files; ``keep`` takes the checksums of arrays."""
    metadata = json.loads(read_file(root or store / METADATA))
    facts = metadata["attributes"][ROOT_KEY]
    files = dict(carried.files)
    stores = {name: digest for name, digest in carried.stores.items() if name != left_out}
    for name, content in _described(store, "", carried, left_out):
        if name.endswith(f"/{CHECKSUMS}"):
            keep(store / name, content)
        if name.endswith(f"/{METADATA}") and has_manifest(content):
            stores[name.rpartition("/")[0]] = digest_of(content)
        elif name not in files:
            files[name] = digest_of(content)
    facts[_KEY] = {"files": files, "stores": stores, "checksum": _BLANK}
    return _signed(metadata)


def remove_manifest(store: Place) -> None:
    """Remove what `write_manifest` wrote, completely or in part; inner stores keep their manifests.

    A store that is being written again must not be compared with what it was.
    """
    root = store / METADATA
    if has_manifest(content := _content(root) or b""):
        metadata = json.loads(content)
        del metadata["attributes"][ROOT_KEY][_KEY]
        atomic_write_bytes(root, json.dumps(metadata, indent=2, allow_nan=False).encode())
    _remove_checksums(store)


def _remove_checksums(folder: Place) -> None:
    for name, is_folder in entries_of(folder):
        inner = folder / name
        if is_folder and not has_manifest(_content(inner / METADATA) or b""):
            (inner / CHECKSUMS).unlink(missing_ok=True)
            if not (inner / "c").is_dir():  # an array's, which may be many
                _remove_checksums(inner)


def write_folder_manifest(folder: Place, kind: str, contents: Mapping[str, bytes]) -> None:
    """Write the manifest of a folder of plain files, which says what the folder is; see `read_manifest`."""
    files = {name: digest_of(content) for name, content in contents.items()}
    facts = {"kind": kind, _KEY: {"files": files, "stores": {}, "checksum": _BLANK}}
    atomic_write_bytes(folder / FOLDER_MANIFEST, _signed({"attributes": {ROOT_KEY: facts}}))


def _signed(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, indent=2, allow_nan=False).encode()
    return text.replace(_BLANK.encode(), digest_of(text).encode())


def _described(folder: Place, name: str, carried: Carried, left_out: str | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the files that the root covers, those with the checksums of arrays as they will be."""
    own = f"{name}/" if name else ""
    for entry, is_folder in entries_of(folder):
        inside, path = own + entry, folder / entry
        if not is_folder:
            if inside != METADATA:
                yield inside, read_file(path)
            continue
        content = _content(path / METADATA) or b"{}"
        if inside == left_out or inside in carried.stores:
            continue
        if has_manifest(content):
            yield f"{inside}/{METADATA}", content
        elif json.loads(content).get("node_type") == "array":
            checksums = json.dumps(
                stored_checksums(path, carried.shards.get(inside, {})), separators=(",", ":")
            ).encode()
            yield f"{inside}/{METADATA}", content
            yield f"{inside}/{CHECKSUMS}", checksums
        else:
            yield from _described(path, inside, carried)
