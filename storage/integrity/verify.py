"""Reads all files of a store once and reports all damage."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import zarr

from dpca.storage.arrays.direct import codec_of
from dpca.storage.arrays.kept_jpegs import JPEGCodec
from dpca.storage.arrays.reading import (
    array_in,
    open_array,
    open_node,
)
from dpca.storage.disk import exists, read_file
from dpca.storage.errors import DataError, ReplacedError, StoreError, one_line
from dpca.storage.integrity.checked import CheckedStore, checked_store
from dpca.storage.integrity.checksums import compare_file, shard_grid
from dpca.storage.integrity.contents import check_axes, check_shard, check_stack, foreign_shards, wrong_values
from dpca.storage.integrity.manifest import CHECKSUMS, FOLDER_MANIFEST, METADATA, Manifest, digest_of, read_manifest
from dpca.storage.integrity.replaced import reopening
from dpca.storage.remote.network import is_url, use_storage_options
from dpca.storage.remote.objects import ObjectPath, place_of
from dpca.storage.remote.tasks import run_in_order
from dpca.storage.run import Run


def verify(
    path: str | os.PathLike[str],
    *,
    run: Run = Run(),
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Read every file of a store and return all problems.

    Parameters
    ----------
    path : path-like or URL
        A dpca store of any kind, an array in it, or the folder of a report. Other arrays and groups are checked as far
        as their format allows.
    run : Run
        Its cluster or threads read the store, and its progress counts files of chunks.
    storage_options : mapping, optional
        Options for a path in an object store, see `dpca.storage.use_storage_options`.

    Returns
    -------
    list of str
        One message for each problem, beginning with the name of the file; empty if there is none. The checks are:

        * Store with a manifest: every file is a regular file, is in the manifest, and is bit-identical to the file that
          was written at its place.
        * Any store: every chunk can be decoded and matches its checksum; values are finite (infinities are allowed in
          an array with the attribute ``may_be_infinite``, and NaN in one with ``may_be_missing``); axes of the same
          name in a group have the same length; a stack is complete. A missing chunk of an array not created by dpca is
          valid and means the fill value.
        * Synthetic stack: three samples are computed again and compared with those at its creation.

    Raises
    ------
    DataError, StoreError
        If there is no Zarr store and no report at `path`.
    ReplacedError
        If the store was replaced meanwhile.

    Notes
    -----
    The cost is one pass over the store. Memory per thread: 16 MiB of values, or one chunk.
    """
    use_storage_options(storage_options, path)
    where = os.fspath(path)
    if _is_report(where):
        return _check_folder(where)
    try:
        store, inside = reopening(checked_store)(where)
    except ReplacedError:
        raise
    except StoreError as error:
        if not is_url(where) and not os.path.lexists(where):
            raise
        return [f"{METADATA}: {error}"]
    if store.manifest is None and store.root is not None and any(store.root.glob(f"*/{CHECKSUMS}")):
        return [f"{METADATA}: the manifest of the store is missing or damaged, so its files cannot be verified"]
    if store.manifest is not None and not _is_known(store.manifest, inside):
        open_node(where)
        raise StoreError(f"'{where}' is not an array or group of '{store.where}': give the path of one, or the store")
    try:
        problems = _problems(where, store, inside, run)
    except (OSError, DataError, StoreError) as error:
        store.require_same(error)
        raise
    if problems:
        store.require_same()
    return problems


def _problems(where: str, store: CheckedStore, inside: str, run: Run) -> list[str]:
    """Return the problems of the store at a path, or of the part ``inside`` it."""
    problems: list[str] = []
    calls: list[tuple[Any, ...]] = []
    if store.manifest is not None and store.root is not None:
        calls += [(store.where, name) for name in _covered_files(store, inside, problems)]
    elif store.manifest is not None:
        calls += _covered_shards(store, inside, problems)
    else:
        calls += foreign_shards(where, problems)
    stage = run.progress("verify", len(calls), "shards")
    try:
        for problem in run_in_order(_check, calls, client=run.client, threads=run.threads, name="verify"):
            problems += problem
            stage.advance(1)
    finally:
        stage.close()
    if store.manifest is not None and not problems:
        store.require_same()
        problems += _check_content(where)
    return problems


# -- stores with a manifest


def _is_known(manifest: Manifest, inside: str) -> bool:
    """Return whether a path in a store is an array or a group, or is inside an inner store."""
    known = [*manifest.stores, *(name.rpartition("/")[0] for name in manifest.files)]
    known += ["samples"] * (manifest.synthetic is not None)
    in_a_store = any(inside.startswith(f"{name}/") for name in manifest.stores)
    return not inside or in_a_store or any(f"{name}/".startswith(f"{inside}/") for name in known)


def _covered_files(store: CheckedStore, inside: str, problems: list[str], above: str = "") -> Iterator[str]:
    """Yield the existing files of chunks by their paths in the outermost store; append problems to ``problems``.

    Only files below ``inside``, a path in the store, are checked.
    """
    manifest, root = store.manifest, store.root
    assert manifest is not None
    assert root is not None

    expected = {METADATA, *manifest.files}
    chunks: list[str] = []
    for array in sorted(manifest.arrays):
        if _overlap(array, inside):
            with suppress(StoreError):  # reported below, with the name of the file
                chunks += [f"{array}/{name}" for name in store.entries(array)]
    expected.update(chunks)
    found = dict(_entries(str(root), "", frozenset(manifest.stores)))
    for name in sorted(name for name in expected | found.keys() if _overlap(name, inside)):
        if (problem := _wrong_with(name, found.get(name), name in expected)) is not None:
            problems.append(f"{above}{name}: {problem}")
        elif name in manifest.files and digest_of(read_file(root / name)) != manifest.files[name]:
            problems.append(f"{above}{name}: is not the file that was written there")
    yield from (f"{above}{name}" for name in chunks if found.get(name) == "file")
    for name in sorted(manifest.stores):
        if _overlap(name, inside):
            yield from _inner_files(store, name, _below(name, inside), problems, above)


def _inner_files(store: CheckedStore, name: str, inside: str, problems: list[str], above: str) -> Iterator[str]:
    """Do the same as `_covered_files` for an inner store."""
    assert store.manifest is not None
    assert store.root is not None
    try:
        manifest = read_manifest(read_file(store.root / name / METADATA), f"{store.where}/{name}")
    except (OSError, StoreError):
        manifest = None
    if manifest is None or manifest.digest != store.manifest.stores[name]:
        problems.append(f"{above}{name}/{METADATA}: is not the file that was written there")
    if manifest is not None:
        inner = store.inner(name, manifest)
        yield from _covered_files(inner, inside, problems, f"{above}{name}/")


def _covered_shards(
    store: CheckedStore, inside: str, problems: list[str], above: str = ""
) -> Iterator[tuple[Any, ...]]:
    """Yield the shards to read of a remote store, and append problems to ``problems``; see `_covered_files`."""
    manifest = store.manifest
    assert manifest is not None
    for name in sorted(name for name in manifest.files if _overlap(name, inside)):
        try:
            manifest.check(name, store.content(name), store.where)
        except StoreError as error:
            problems.append(f"{above}{name}: {error}")
    for array in sorted(manifest.arrays):
        if _overlap(array, inside):
            with suppress(StoreError):  # reported above
                grid = shard_grid(open_array(f"{store.where}/{array}"))
                yield from ((f"{store.where}/{array}", f"{above}{array}", index) for index in np.ndindex(*grid))
    for name in sorted(manifest.stores):
        if _overlap(name, inside):
            try:
                inner, rest = checked_store(f"{store.where}/{name}")
                if rest or inner.manifest is None or inner.manifest.digest != manifest.stores[name]:
                    raise StoreError("is not the file that was written there")
            except StoreError as error:
                problems.append(f"{above}{name}/{METADATA}: {error}")
            else:
                yield from _covered_shards(inner, _below(name, inside), problems, f"{above}{name}/")


def _overlap(name: str, inside: str) -> bool:
    """Return whether two paths in a store are equal or one contains the other. An empty path is the whole store."""
    return not inside or f"{name}/".startswith(f"{inside}/") or inside.startswith(f"{name}/")


def _below(store: str, inside: str) -> str:
    """Return the part of a path below an inner store; empty if the path is this store or contains it."""
    return inside[len(store) + 1 :] if inside.startswith(f"{store}/") else ""


def _entries(root: str, folder: str, left_out: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the path and the kind of every entry, except non-empty folders."""
    if isinstance(place := place_of(root), ObjectPath):
        yield from ((name, "file") for name in place.files())
        return
    found = sorted(os.scandir(os.path.join(root, folder)), key=lambda entry: entry.name)
    for entry in found:
        name = f"{folder}/{entry.name}" if folder else entry.name
        if entry.is_symlink():
            yield name, "link"
        elif entry.is_dir():
            if name not in left_out:
                yield from _entries(root, name, left_out)
        else:
            yield name, "file" if stat.S_ISREG(entry.stat().st_mode) else "device or pipe"
    if folder and not found:
        yield folder, "empty folder"


def _wrong_with(name: str, nature: str | None, expected: bool) -> str | None:
    if nature is None:
        return "is missing"
    if nature == "empty folder" and not expected:
        return None  # a stack may have empty folders of shards after rejections
    if nature != "file":
        return (
            f"is a {nature}, not a file that was written there"
            if expected
            else f"is a {nature} that was not created by dpca"
        )
    # Hidden files of file managers are harmless. Metadata of Zarr version 2 is not, since Zarr could read it.
    harmless = (base := name.rpartition("/")[2]).startswith(".") and not base.startswith(".z")
    return None if expected or harmless else "was not written with this store"


def _is_report(where: str) -> bool:
    names = [f"{where}/{name}" for name in (FOLDER_MANIFEST, "report.json")]
    return not exists(f"{where}/{METADATA}") and any(map(exists, names))


def _check_folder(where: str) -> list[str]:
    """Check the folder of a report against its manifest."""
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(read_file(os.path.join(where, FOLDER_MANIFEST)), where)
    except (OSError, StoreError) as error:
        return [f"{FOLDER_MANIFEST}: {one_line(error)}"]
    if manifest is None:
        return [f"{FOLDER_MANIFEST}: has no manifest"]
    problems = []
    found = dict(_entries(where, "", frozenset()))
    if (problem := _wrong_with(FOLDER_MANIFEST, found.get(FOLDER_MANIFEST), True)) is not None:
        problems.append(f"{FOLDER_MANIFEST}: {problem}")
    for name, digest in sorted(manifest.files.items()):
        if (problem := _wrong_with(name, found.get(name), True)) is not None:
            problems.append(f"{name}: {problem}")
        elif digest_of(read_file(os.path.join(where, name))) != digest:
            problems.append(f"{name}: is not the file that was written there")
    return problems


def _check(path: str, name: str, index: tuple[int, ...] | None = None) -> list[str]:
    """Check one file of chunks; runs as a task."""
    return _check_file(path, name) if index is None else check_shard(path, name, index)


def _check_file(root: str, name: str) -> list[str]:
    """Compare every byte of a shard with its checksums, and check that all values are finite and JPEGs decode."""
    store, _ = checked_store(root)
    try:
        known = store.checksums(name)
        assert known is not None
        compare_file(os.path.join(root, name), known)
    except (OSError, ValueError, StoreError) as error:
        return [f"{name}: is damaged ({one_line(error)})"]
    array_name, _, place = name.rpartition("/c")
    try:
        array = open_array(f"{root}/{array_name}")
    except StoreError:
        return []  # reported with the name of its metadata
    if array.dtype.kind not in "fc" and codec_of(array) is not JPEGCodec:
        return []
    problem = wrong_values(array, tuple(int(i) for i in place.split("/")[1:]))
    return [] if problem is None else [f"{name}: {problem}"]


# -- any store


def _check_content(where: str) -> list[str]:
    """Check that the parts of a store are consistent, by their metadata."""
    try:
        root = open_node(where)
        if isinstance(root, zarr.Array):
            return []
        # All files were verified before.
        assert isinstance(root.store, CheckedStore)
        above = f"{root.path}/" if root.path else ""
        names = (name.removeprefix(above) for name in sorted(_arrays_in(root.store)) if name.startswith(above))
        return check_stack(where, root) + check_axes({name: array_in(root, name) for name in names})
    except (DataError, StoreError) as error:
        return [f"{METADATA}: {error}"]


def _arrays_in(store: CheckedStore, above: str = "") -> Iterator[str]:
    """Yield the paths of all arrays in a manifest, including those of inner stores."""
    assert store.manifest is not None
    yield from (f"{above}{name}" for name in store.manifest.arrays)
    for name in store.manifest.stores:
        yield from _arrays_in(store.home(f"{name}/")[0], f"{above}{name}/")
