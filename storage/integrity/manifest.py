"""The integrity manifest of a finished store: checksums that bind every file to its place and its store.

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
        model/               an inner store has its own manifest

The manifest is a tree. The root has the digests of the metadata and of the file of checksums of each array, and this
file has the checksums of its shards. Every chunk that dpca writes ends in a CRC-32C of its bytes, which a reader
computes anyway. Comparing it with the expected CRC-32C costs nothing. It detects a shard that was replaced by another
intact shard, which checksums inside the shard cannot detect. Zarr ignores these files, so other programs can still
read the store.

`Workspace.publish` writes the manifest last. It copies the checksums that the writer stored in the shards, 4 bytes per
chunk, and reads nothing else of them. Files that come from a finished store keep their entries in its manifest, see
`Carried`, so that earlier damage is still detected. A store without a manifest is unfinished.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

from dpca.storage.disk import atomic_write_bytes, content_of_file, entries_of, file_bytes, folder_bytes, read_file
from dpca.storage.errors import ReplacedError, StoreError
from dpca.storage.integrity.checksums import Entry, compare_stored, stored_checksums
from dpca.storage.remote.objects import Place

METADATA = "zarr.json"
#: Metadata files of arrays and groups, in Zarr versions 3 and 2.
ZARR_METADATA = (METADATA, ".zarray", ".zgroup")
CHECKSUMS = "checksums.json"
#: File name of the manifest of a folder that is not a Zarr store, such as a report.
FOLDER_MANIFEST = "manifest.json"
#: The kinds of a report and of exported samples in their manifests.
REPORT, EXPORT = "report", "export"

#: The key of all dpca attributes in the root group of a store.
ROOT_KEY = "dpca"
_KEY = "manifest"
#: The key below `ROOT_KEY` of the image model of a synthetic stack.
SYNTHETIC_KEY = "synthetic"
# Placeholder for the checksum of a file inside the file, while this checksum is computed.
_BLANK = "0" * 32


def digest_of(content: bytes) -> str:
    """Return the digest of a file in a manifest (BLAKE2b, 16 bytes, hexadecimal)."""
    return blake2b(content, digest_size=16).hexdigest()


@dataclass(frozen=True, eq=False)
class Manifest:
    """The digests of the files of a store.

    Attributes
    ----------
    files : mapping of str to str
        Digests of metadata and of files of checksums, by their paths inside the store.
    stores : mapping of str to str
        Digests of the metadata of inner stores, by their paths.
    digest : str
        Digest of the file with the manifest, which identifies the store.
    synthetic : optional
        The image model of a synthetic stack, see `dpca.storage.synthetic`.
    """

    files: Mapping[str, str]
    stores: Mapping[str, str]
    digest: str
    synthetic: Any = None

    @cached_property
    def arrays(self) -> frozenset[str]:
        """Paths of the arrays."""
        return frozenset(name.rpartition("/")[0] for name in self.files if name.endswith(f"/{CHECKSUMS}"))

    def check(self, name: str, content: bytes | None, where: str) -> None:
        """Compare a file of metadata or of checksums with its digest. Other files are not checked.

        Raises
        ------
        StoreError
            If the file is missing or was changed.
        """
        expected = self.files.get(name)
        if expected is None:
            return
        if not content:
            raise StoreError(f"{name} of '{where}' is missing or empty: create the store again")
        if digest_of(content) != expected:
            raise StoreError(f"{name} of '{where}' is not the file that was written there: create the store again")


def read_manifest(content: bytes, where: str) -> Manifest | None:
    """Return the manifest in the root metadata of a store, or in the manifest file of a folder.

    Parameters
    ----------
    content : bytes
        The complete content of the file.
    where : str
        Path of the store, for the error message.

    Returns
    -------
    Manifest or None
        None if the file has no manifest.

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
        valid = content.count(checksum.encode()) == 1
        valid = valid and digest_of(content.replace(checksum.encode(), _BLANK.encode())) == checksum
        valid = valid and all(isinstance(value, str) for part in (files, stores) for value in part.values())
    except (KeyError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise StoreError(f"the metadata of '{where}' was changed after it was written: create the store again")
    return Manifest(files, stores, digest_of(content), facts.get(SYNTHETIC_KEY))


def has_manifest(content: bytes) -> bool:
    """Return whether a metadata file has a manifest, valid or not."""
    return _KEY.encode() in content and facts_in(content).get(_KEY) is not None


def facts_in(content: bytes) -> dict[str, Any]:
    """Return the dpca attributes in a metadata file; an empty dict if there are none."""
    try:
        metadata = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    for key in ("attributes", ROOT_KEY):
        metadata = metadata.get(key) if isinstance(metadata, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def check_metadata(store: Place) -> Manifest | None:
    """Compare all metadata and all files of checksums of a finished store with its manifest, and return the manifest.

    Raises
    ------
    StoreError
        If a file is missing, or is not the file that was written there.
    ReplacedError
        If the store was replaced meanwhile.
    """
    where = os.fspath(store)
    manifest = read_manifest(content_of_file(store / METADATA), where)
    if manifest is None:
        return None
    try:
        for name in manifest.files:
            if name.endswith(".json"):
                manifest.check(name, content_of_file(store / name), where)
        for name, digest in manifest.stores.items():
            if digest_of(content_of_file(store / name / METADATA)) != digest:
                raise StoreError(f"'{where}/{name}' is not the store that was written there: create '{where}' again")
    except StoreError as error:
        if digest_of(content_of_file(store / METADATA)) != manifest.digest:
            raise ReplacedError(f"'{where}' was replaced while it was read: run the same command again") from error
        raise
    return manifest


# -- files from another store


@dataclass(frozen=True)
class Carried:
    """Files that a store reuses from a finished store, with their entries in the manifest of the finished store.

    Attributes
    ----------
    files : mapping of str to str
        Digests of metadata, by paths inside the store.
    shards : mapping of str to mapping of str to (int, str)
        For each array, the sizes and checksums of files of chunks, by their paths inside the array.
    stores : mapping of str to str
        Digests of the metadata of complete inner stores.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    shards: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)
    stores: Mapping[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        """Paths of all files, without those of inner stores and without files of checksums."""
        return [*self.files, *(f"{array}/{key}" for array, entries in self.shards.items() for key in entries)]


#: For a store that reuses no files.
NOTHING_CARRIED = Carried()


def carried_over(store: Place, stays: Callable[[str], bool]) -> Carried:
    """Return the manifest entries of the files that another store reuses from a finished store on a disk.

    All metadata is compared with the manifest, and so are the sizes and the stored checksums of the reused chunks.

    Parameters
    ----------
    store : Path
        The finished store.
    stays : callable
        Returns whether the file or the inner store at a path is reused.

    Raises
    ------
    StoreError
        If the store has no manifest or is damaged.
    """
    where = os.fspath(store)
    if (manifest := check_metadata(store)) is None:
        raise StoreError(f"'{where}' has no manifest, so its files cannot be verified: create the store again")
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
    """Write the manifest of a complete store, or replace an existing manifest.

    Parameters
    ----------
    store : Path or ObjectPath
        The complete store.
    root : Path or ObjectPath, optional
        File with the metadata of the root. The default is the one in the store.
    left_out : str, optional
        Name of an inner store that is not part of this store.
    carried : Carried, optional
        Files from another store.

    Raises
    ------
    StoreError
        If a file of the store is torn or cannot be read.

    Notes
    -----
    Reads the metadata, and the index and 4 bytes per chunk of each shard that is not carried over.
    """
    atomic_write_bytes(store / METADATA, _listed(store, root, left_out, carried, atomic_write_bytes))


def finished_bytes(
    store: Place, root: Place | None = None, *, left_out: str | None = None, carried: Carried = NOTHING_CARRIED
) -> int:
    """Return the bytes of all files of a complete store after `write_manifest`."""
    checksums: list[int] = []
    listed = _listed(store, root, left_out, carried, lambda path, content: checksums.append(len(content)))
    inside = [(store / name, is_folder) for name, is_folder in entries_of(store) if name not in (METADATA, left_out)]
    written = (folder_bytes(path, besides=CHECKSUMS) if is_folder else file_bytes(path) for path, is_folder in inside)
    return len(listed) + sum(checksums) + sum(written)


def _listed(
    store: Place, root: Place | None, left_out: str | None, carried: Carried, keep: Callable[[Place, bytes], None]
) -> bytes:
    """Return the metadata of the root with the manifest; ``keep`` is called with each file of checksums."""
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
    """Remove a complete or partial manifest. Inner stores keep their manifests.

    A store that is written again must not be compared with its previous manifest.
    """
    root = store / METADATA
    if has_manifest(content := content_of_file(root)):
        metadata = json.loads(content)
        del metadata["attributes"][ROOT_KEY][_KEY]
        atomic_write_bytes(root, json.dumps(metadata, indent=2, allow_nan=False).encode())
    _remove_checksums(store)


def _remove_checksums(folder: Place) -> None:
    for name, is_folder in entries_of(folder):
        inner = folder / name
        if is_folder and not has_manifest(content_of_file(inner / METADATA)):
            (inner / CHECKSUMS).unlink(missing_ok=True)
            if not (inner / "c").is_dir():  # an array may have many folders of chunks
                _remove_checksums(inner)


def write_folder_manifest(folder: Place, kind: str, contents: Mapping[str, bytes], **stated: Any) -> None:
    """Write the manifest of a folder of plain files, with the kind of the folder and more; see `read_manifest`."""
    files = {name: digest_of(content) for name, content in contents.items()}
    facts = {"kind": kind, **stated, _KEY: {"files": files, "stores": {}, "checksum": _BLANK}}
    atomic_write_bytes(folder / FOLDER_MANIFEST, _signed({"attributes": {ROOT_KEY: facts}}))


def _signed(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, indent=2, allow_nan=False).encode()
    return text.replace(_BLANK.encode(), digest_of(text).encode())


def _described(folder: Place, name: str, carried: Carried, left_out: str | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the content of each file in the manifest, including files of checksums not written yet."""
    own = f"{name}/" if name else ""
    for entry, is_folder in entries_of(folder):
        inside, path = own + entry, folder / entry
        if not is_folder:
            if inside != METADATA:
                yield inside, read_file(path)
            continue
        content = content_of_file(path / METADATA) or b"{}"
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
