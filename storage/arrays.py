"""Zarr arrays as this package makes them: sharded, checksummed, and written one whole shard at a time.

Inner chunks are raw little-endian values, or lz4 behind a bit shuffle, and always end in a CRC-32C, as does
the index of every shard: a flipped bit or a torn file is an error on reading, never a wrong pixel. Empty
chunks are written too: that is three times faster (no comparison with the fill value) and lets `read_into`
tell a missing shard, which Zarr itself reads as zeros.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import zarr
from numcodecs import Blosc  # type: ignore[import-untyped]
from zarr.abc.store import SuffixByteRequest
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from storage.checked import DENSE_KEY, CheckedStore, checked_store
from storage.direct import read_raw_shards
from storage.errors import StoreError, one_line
from storage.layout import Layout
from storage.manifest import METADATA, digest_of

if TYPE_CHECKING:
    from zarr.core.array_spec import ArrayConfigParams

Codec = Literal["raw", "blosc", "sparse"]

# Blosc pays on reading only where there is much less to read: photographs shrink by 1.25 and then decode at
# a third of the speed of raw values.
_WORTHWHILE = 1.5
_SAMPLE_BYTES = 4 << 20
_ROOT_KEY = "dpca"
_STRING_CHUNK = 65536
_DENSE: ArrayConfigParams = {"write_empty_chunks": True}


def create_root(
    path: str | os.PathLike[str], *, kind: str, fingerprint: str, version: int = 1, **facts: Any
) -> zarr.Group:
    """Create the root group of a store, or open it to continue, and state what it is.

    Parameters
    ----------
    path : path-like
        Folder of the store, usually ``Workspace.store``.
    kind, fingerprint : str
        What the store is and the settings it was made with; `Workspace` recognizes a finished store by them.
    version : int
        Version of the store's form.
    **facts
        Further JSON-able attributes (axes, data range, source, ...).

    Returns
    -------
    zarr.Group
        Its attributes are ``{"dpca": {"kind": ..., "version": ..., "fingerprint": ..., **facts}}`` and
        nothing else.
    """
    group = zarr.open_group(os.fspath(path), mode="a", zarr_format=3)
    stated = {"kind": kind, "version": version, "fingerprint": fingerprint, **facts}
    # through JSON, so that what this process sees is what a later one reads
    group.attrs.put({_ROOT_KEY: json.loads(json.dumps(stated, allow_nan=False))})
    return group


def root_facts(group: zarr.Group) -> dict[str, Any]:
    """Return what `create_root` stated about a store; empty for a store of somebody else."""
    facts = group.attrs.asdict().get(_ROOT_KEY)
    return dict(facts) if isinstance(facts, Mapping) else {}


def create_array(
    group: zarr.Group,
    name: str,
    shape: Sequence[int],
    dtype: Any,
    layout: Layout,
    axes: Sequence[str],
    *,
    codec: Codec = "raw",
    attributes: Mapping[str, Any] | None = None,
) -> zarr.Array[Any]:
    """Create a sharded, checksummed array in a group, or return the one an interrupted run created.

    The array of an interrupted run may have another number of samples (bad samples were found since): it is
    resized and keeps the shards that still lie inside.

    Parameters
    ----------
    group : zarr.Group
        Open for writing.
    name : str
        Name of the array in the group.
    shape : sequence of int
        Shape of the array.
    dtype : numpy dtype
        Any byte order; values are stored in little-endian order.
    layout : Layout
        Chunks and shards.
    axes : sequence of str
        Stored as ``dimension_names``.
    codec : {"raw", "blosc", "sparse"}
        Inner codec: none; lz4 (level 5) behind a bit shuffle; or without one, for noise among many zeros, of which it
        leaves little (a shuffle would mix them: a third more bytes).
    attributes : mapping, optional
        JSON-able attributes of the array. ``{"may_be_infinite": True}`` tells `storage.verify` that an
        infinity is no fault here.

    Returns
    -------
    zarr.Array
        Writes every chunk, also empty ones.

    Raises
    ------
    ValueError
        If the lengths of `shape`, `layout` and `axes` differ or `codec` is unknown.
    StoreError
        If the group holds something else under that name.
    """
    if not len(shape) == len(axes) == len(layout.chunks) == len(layout.shards):
        raise ValueError(
            f"shape {tuple(shape)}, axes {tuple(axes)} and {layout} differ in length: give one entry an axis"
        )
    dtype = np.dtype(dtype).newbyteorder("=")
    if codec not in ("raw", "blosc", "sparse"):
        raise ValueError(f"codec {codec!r} is unknown: choose 'raw', 'blosc' or 'sparse'")
    shuffle: Literal["bitshuffle", "noshuffle"] = "bitshuffle" if codec == "blosc" else "noshuffle"
    blosc = BloscCodec(cname="lz4", clevel=5, shuffle=shuffle, typesize=dtype.itemsize)
    if name in group:
        found = group[name]
        if (
            not isinstance(found, zarr.Array)
            or (found.shape[1:], found.dtype) != (tuple(shape)[1:], dtype)
            or (found.chunks, found.shards) != (layout.chunks, layout.shards)
        ):
            raise StoreError(
                f"'{group.store_path}' already holds {name!r}, which is not {tuple(shape)} {dtype} in "
                f"{layout}: remove the store or choose another output"
            )
        if found.shape != tuple(shape):
            found.resize(tuple(shape))
        return found.with_config(_DENSE)
    return group.create_array(
        name,
        shape=tuple(shape),
        dtype=dtype,
        chunks=layout.chunks,
        shards=layout.shards,
        filters=None,
        compressors=(Crc32cCodec(),) if codec == "raw" else (blosc, Crc32cCodec()),
        fill_value=dtype.type(0),
        dimension_names=tuple(axes),
        attributes={DENSE_KEY: True, **(attributes or {})},
        config=_DENSE,
    )


def write_strings(group: zarr.Group, name: str, values: Sequence[str], axis: str = "sample") -> zarr.Array[Any]:
    """Write texts (names, labels, reasons) as a Zarr array of variable-length UTF-8.

    Parameters
    ----------
    group : zarr.Group
        Open for writing; an array of that name is replaced.
    name : str
        Name of the array.
    values : sequence of str
        One text an entry.
    axis : str
        Name of the only axis.

    Returns
    -------
    zarr.Array
        Chunks of 65536 texts, zstd and CRC-32C, not sharded: whole chunks are read at once anyway.
    """
    array = group.create_array(
        name,
        shape=(len(values),),
        dtype="string",
        chunks=(max(1, min(len(values), _STRING_CHUNK)),),
        compressors=(ZstdCodec(level=3), Crc32cCodec()),
        fill_value="",
        dimension_names=(axis,),
        attributes={DENSE_KEY: True},
        overwrite=True,
        config=_DENSE,
    )
    for start in range(0, len(values), _STRING_CHUNK):
        # a surrogate (an undecodable byte of a file name) has no UTF-8: it is written as its escape
        part = [
            text.encode("utf-8", "backslashreplace").decode("utf-8") for text in values[start : start + _STRING_CHUNK]
        ]
        array[start : start + len(part)] = np.array(part, dtype=np.dtypes.StringDType())
    return array


def choose_codec(sample: np.ndarray[Any, Any]) -> Codec:
    """Choose the inner codec by trying it on some samples.

    Parameters
    ----------
    sample : ndarray
        A few samples of the stack; the first 4 MiB are compressed.

    Returns
    -------
    {"raw", "blosc"}
        ``"blosc"`` where it shrinks the values by 1.5 or more, else ``"raw"``.
    """
    flat = sample.reshape(-1)[: max(1, _SAMPLE_BYTES // sample.dtype.itemsize)]
    values = np.ascontiguousarray(flat).view(np.uint8)
    if not values.size:
        return "raw"
    blosc = Blosc(cname="lz4", clevel=5, shuffle=Blosc.BITSHUFFLE, typesize=sample.dtype.itemsize)
    return "blosc" if values.nbytes >= _WORTHWHILE * len(blosc.encode(values)) else "raw"


def write_shard(
    array: zarr.Array[Any], start: int | np.integer[Any] | Sequence[int], values: np.ndarray[Any, Any]
) -> None:
    """Write one whole shard (or the clipped one at an end) in one go.

    Parameters
    ----------
    array : zarr.Array
        Open for writing.
    start : int or sequence of int
        Index of the shard's first value: one integer for the sample axis, or one for each axis.
    values : ndarray
        Exactly what the shard holds inside the array, in the array's dtype.

    Raises
    ------
    ValueError
        If `start` does not lie on a shard's edge, or `values` are not exactly one shard: a part of a shard
        would be read, changed and written back, and two tasks doing so lose data.

    Notes
    -----
    A full shard that holds these very values already is left alone: a task that outlived its program, or ran twice,
    must not touch what another one finished. Any other that exists is removed first: Zarr would read it to update
    it, and fail for ever on a torn one. (Of a clipped one, values do not tell what its unused rows hold.)
    """
    edges = array.shards or array.chunks
    first = (int(start),) if isinstance(start, (int, np.integer)) else tuple(start)
    first += (0,) * (array.ndim - len(first))
    whole = tuple(min(edge, n - s) for edge, n, s in zip(edges, array.shape, first, strict=True))
    inside = all(0 <= s < n for s, n in zip(first, array.shape, strict=True))
    if not inside or any(s % edge for s, edge in zip(first, edges, strict=True)):
        raise ValueError(
            f"a write at {first} of '{array.store_path}' does not start a shard of {edges} in {array.shape}"
        )
    if values.shape != whole or values.dtype.newbyteorder("=") != array.dtype:
        raise ValueError(
            f"a write of {values.shape} {values.dtype} at {first} of '{array.store_path}' is not the "
            f"whole shard: give {whole} {array.dtype}"
        )
    key = array.metadata.encode_chunk_key(tuple(s // edge for s, edge in zip(first, edges, strict=True)))
    region = tuple(slice(s, s + n) for s, n in zip(first, whole, strict=True))
    if sync((array.store_path / key).exists()):
        if whole[0] == edges[0] and _holds(array, region, values):
            return
        sync((array.store_path / key).delete())
    array.with_config(_DENSE).set_basic_selection(region, values)


def _holds(array: zarr.Array[Any], region: tuple[slice, ...], values: np.ndarray[Any, Any]) -> bool:
    try:
        return np.array_equal(np.asarray(array[region]), values)
    except (OSError, ValueError, RuntimeError):
        return False  # torn


def read_into(array: zarr.Array[Any], selection: Any, out: np.ndarray[Any, Any]) -> None:
    """Read a selection into an existing buffer (a third faster than into new memory).

    Parameters
    ----------
    array : zarr.Array
        What to read.
    selection : slice, int or tuple of these
        Integers are not negative and steps are positive.
    out : ndarray
        Of the selection's shape and the array's dtype; overwritten.

    Raises
    ------
    ValueError
        If the dtypes or the shapes differ.
    StoreError
        If a shard is missing or empty where `create_array` made the array, or is damaged.
    """
    if out.dtype != array.dtype:
        raise ValueError(f"the buffer is {out.dtype} and '{array.store_path}' is {array.dtype}: they must be equal")
    parts = selection if isinstance(selection, tuple) else (selection,)
    parts += (slice(None),) * (array.ndim - len(parts))
    taken = [
        range(length)[part if isinstance(part, slice) else slice(part, part + 1)]
        for part, length in zip(parts, array.shape, strict=True)
    ]
    shape = tuple(len(rows) for part, rows in zip(parts, taken, strict=True) if isinstance(part, slice))
    if out.shape != shape:
        raise ValueError(f"the buffer has shape {out.shape} and the selection {shape}: they must be equal")
    if is_dense(array) and not is_vouched(array):
        _require_shards(array, taken)
    box = out.reshape([len(rows) for rows in taken])  # axes that an integer took away are one long
    with _damage_named(array):
        if not (is_dense(array) and read_raw_shards(array, taken, box)):
            buffer = default_buffer_prototype().nd_buffer.from_numpy_array(out)
            array.get_basic_selection(selection, out=buffer)


class StoredArray(zarr.Array[Any]):
    """A Zarr array, opened for reading, that says which store is damaged where Zarr says what went wrong."""

    def __getitem__(self, selection: Any) -> Any:
        """Return the values of a selection.

        Raises
        ------
        StoreError
            If a shard is missing or damaged.
        """
        with _damage_named(self):
            return super().__getitem__(selection)


@contextmanager
def _damage_named(array: zarr.Array[Any]) -> Iterator[None]:
    try:
        yield
    except (StoreError, IndexError):
        raise
    except MemoryError as error:
        raise StoreError(
            f"'{array.store_path}' needs more memory than there is for what is read at once: rechunk it"
        ) from error
    except Exception as error:  # codecs of anyone's choice fail in ways of their own
        raise StoreError(
            f"'{array.store_path}' is damaged ({one_line(error)}): `dpca verify` tells where, make the store again"
        ) from error


def is_dense(array: zarr.Array[Any]) -> bool:
    """Tell whether every shard of an array must be there: `create_array` or `write_strings` made it."""
    return bool(array.attrs.get(DENSE_KEY, False))


def is_vouched(array: zarr.Array[Any]) -> bool:
    """Tell whether a manifest says what each shard of an array must be, so that any read of it is checked."""
    store = array.store_path.store
    return isinstance(store, CheckedStore) and store.vouches_for(array.path)


def local_path(array: zarr.Array[Any] | zarr.Group) -> str | None:
    """Return the path of an array or a group in a local store; those in memory or in archives have none."""
    root = getattr(array.store, "root", None)
    return None if root is None else os.path.normpath(os.path.join(root, array.path))


def group_facts(array: zarr.Array[Any]) -> dict[str, Any]:
    """Return what `create_root` stated about the local store that an array lies in; empty if there is none."""
    path = local_path(array)
    folder = None if path is None else os.path.dirname(path)
    if folder is None or not os.path.isfile(os.path.join(folder, METADATA)):
        return {}
    try:
        return root_facts(open_group(folder))
    except StoreError:
        if is_vouched(array):
            raise
        return {}  # the array is a store of its own that lies in somebody's folder


def array_identity(array: zarr.Array[Any]) -> str:
    """Return what tells an array from one that takes its place: its store's manifest, else its metadata alone."""
    store = array.store_path.store
    if isinstance(store, CheckedStore) and store.manifest is not None:
        return store.manifest.digest
    metadata = array.metadata.to_buffer_dict(default_buffer_prototype())
    return digest_of(b"".join(metadata[name].to_bytes() for name in sorted(metadata)))


def what_is_wrong_with(array: zarr.Array[Any], index: Sequence[int]) -> Literal["missing", "empty"] | None:
    """Say whether a shard is missing or empty, without reading it; `index` counts shards."""
    key = array.store_path / array.metadata.encode_chunk_key(tuple(index))
    if (root := getattr(key.store, "root", None)) is not None:
        path = root / key.path
        size = os.stat(path).st_size if os.path.isfile(path) else None
    else:
        last = sync(key.store.get(key.path, default_buffer_prototype(), SuffixByteRequest(1)))
        size = None if last is None else len(last)
    return "missing" if size is None else None if size else "empty"


def _require_shards(array: zarr.Array[Any], taken: Sequence[range]) -> None:
    """Raise for a missing or empty shard, which Zarr would read as zeros."""
    edges = array.shards or array.chunks
    touched = (
        range(rows[0] // edge, rows[-1] // edge + 1) if rows else range(0)
        for rows, edge in zip(taken, edges, strict=True)
    )
    for index in product(*touched):
        if (wrong := what_is_wrong_with(array, index)) is not None:
            raise StoreError(f"shard {index} of '{array.store_path}' is {wrong}: make the store again")


def open_checked(path: str) -> zarr.Array[Any] | zarr.Group:
    """Open whatever Zarr holds at a path or URL for reading, so that every read is checked.

    Raises
    ------
    FileNotFoundError
        If there is nothing that Zarr recognizes.
    StoreError
        If its metadata was changed, or names codecs that are not read.
    Exception
        Zarr's own, of many kinds, at metadata that is none.
    """
    store, inside = checked_store(path)
    node = zarr.open(store, path=inside, mode="r")
    return StoredArray(node.async_array) if isinstance(node, zarr.Array) else node


def array_in(group: zarr.Group, name: str) -> StoredArray:
    """Return an array of a group that `open_checked` opened.

    Raises
    ------
    StoreError
        If there is none of that name, or its metadata is damaged.
    """
    try:
        node = group[name]
        if not isinstance(node, zarr.Array):
            raise TypeError("it is a group")
    except StoreError:
        raise
    except Exception as error:  # metadata that is none makes Zarr fail in ways of its own
        raise StoreError(
            f"'{group.store_path}' has no readable array {name!r} ({one_line(error)}): make the store again"
        ) from error
    return StoredArray(node.async_array)


def open_group(path: str | os.PathLike[str]) -> zarr.Group:
    """Open a Zarr group for reading, so that every read of its arrays is checked.

    Raises
    ------
    StoreError
        If there is none, or its metadata is none.
    """
    try:
        node = open_checked(os.fspath(path))
    except StoreError:
        raise
    except Exception as error:  # metadata that is none makes Zarr fail in ways of its own
        raise StoreError(f"there is no Zarr group at '{path}' ({one_line(error)}): check the path") from error
    if not isinstance(node, zarr.Group):
        raise StoreError(f"'{path}' is a Zarr array, not a group: give the store that holds it")
    return node


def open_array(path: str | os.PathLike[str], mode: Literal["r", "r+"] = "r") -> zarr.Array[Any]:
    """Open a Zarr array, version 2 or 3, for reading or for `write_shard`.

    Parameters
    ----------
    path : path-like or URL
        The array itself, ``store/group/array`` for one inside a group.
    mode : {"r", "r+"}
        Read only, or read and write.

    Raises
    ------
    StoreError
        If there is nothing, a group, or metadata that Zarr does not understand.
    """
    try:
        if mode == "r":
            node = open_checked(os.fspath(path))
            if not isinstance(node, zarr.Array):
                raise TypeError("it is a group")
            return node
        return zarr.open_array(os.fspath(path), mode=mode)
    except FileNotFoundError as error:
        raise StoreError(f"there is no Zarr array at '{path}': check the path") from error
    except StoreError:
        raise
    except Exception as error:  # metadata that is none makes Zarr fail in ways of its own
        raise StoreError(
            f"'{path}' cannot be opened as a Zarr array ({one_line(error)}): give an array's path"
        ) from error
