"""Zarr arrays as dpca writes them: sharded, with checksums, and one complete shard at a time.

Inner chunks are raw little-endian values, values compressed by lz4 after a bit shuffle, or integers packed by pcodec.
Each chunk and each shard index ends in a CRC-32C. A flipped bit or a torn file is therefore an error on reading, never
a wrong pixel. Empty chunks are written, too. This is three times faster, since no chunk is compared with the fill
value, and it lets `read_into` detect a missing shard, which Zarr itself decodes as zeros.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import version as installed
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import zarr
from numcodecs import BZ2, Blosc, Shuffle  # type: ignore[import-untyped]
from numcodecs.pcodec import PCodec as NumcodecsPCodec  # type: ignore[import-untyped]
from zarr.abc.codec import BytesBytesCodec
from zarr.abc.store import Store
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec
from zarr.codecs import numcodecs as packers
from zarr.core.sync import sync

from dpca import __version__
from dpca.storage.arrays.direct import PACKED
from dpca.storage.arrays.kept_jpegs import JPEGCodec
from dpca.storage.arrays.layout import Layout
from dpca.storage.arrays.reading import open_group, what_is_wrong_with
from dpca.storage.arrays.shards import ShardRows, whole, write_raw_shard
from dpca.storage.disk import exists, read_file
from dpca.storage.errors import StoreError
from dpca.storage.integrity.checked import DENSE_KEY
from dpca.storage.integrity.checksums import CRC_BYTES, PLACE_BYTES
from dpca.storage.integrity.manifest import METADATA, ROOT_KEY
from dpca.storage.integrity.unchecked import written_store
from dpca.storage.remote.object_store import ObjectStore
from dpca.storage.remote.objects import ObjectPath, Place, place_of
from dpca.storage.transaction.claim import WORK_SUFFIX

if TYPE_CHECKING:
    from zarr.core.array_spec import ArrayConfigParams

Codec = Literal["raw", "blosc", "sparse", "packed", "zstd", "shuffled", "bzip2", "jpeg"]

# Blosc speeds up reading only at high compression ratios: photographs have a ratio of 1.25 and decode at a third of
# the speed of raw values.
_WORTHWHILE = 1.5
_SAMPLE_BYTES = 4 << 20
_STRING_CHUNK = 65536
# Level 8 is the default of pcodec, and higher levels gain nothing. The values are integers without common factors.
_PACKING: dict[str, Any] = {"level": 8, "mode_spec": "classic", "delta_spec": "auto"}
_ZSTD, _BZIP2 = 5, 9
# For all other codecs, "auto" is the default of Zarr.
_SERIALIZERS: dict[str, Callable[[], Any]] = {"packed": partial(PACKED, **_PACKING), "jpeg": JPEGCodec}
_DENSE: ArrayConfigParams = {"write_empty_chunks": True}


def create_root(
    path: str | os.PathLike[str], *, kind: str, fingerprint: str, version: int = 1, **facts: Any
) -> zarr.Group:
    """Create the root group of a store, or open that of an interrupted run, and write its attributes.

    Parameters
    ----------
    path : path-like or URL
        Folder of the store, usually ``Workspace.store``.
    kind, fingerprint : str
        Kind of the store, and a digest of its settings. `Workspace` recognizes a finished store by both.
    version : int
        Version of the store format.
    **facts
        Further JSON-able attributes (axes, data range, source, settings, ...).

    Returns
    -------
    zarr.Group
        Its only attributes are
        ``{"dpca": {"kind": ..., "version": ..., "fingerprint": ..., **facts, "made_with": ...}}``, with
        `library_versions` as the last entry.
    """
    group = zarr.open_group(growing_store(os.fspath(path)), mode="a", zarr_format=3)
    stated = {"kind": kind, "version": version, "fingerprint": fingerprint, **facts, "made_with": library_versions()}
    # A round trip through JSON gives this process the same values that a later process reads.
    group.attrs.put({ROOT_KEY: json.loads(json.dumps(stated, allow_nan=False))})
    return group


@cache
def library_versions() -> dict[str, str]:
    """Return the versions of dpca and of the libraries that affect the stored values and bytes."""
    return {"dpca": __version__, **{name: installed(name) for name in ("dask", "numpy", "scipy", "zarr")}}


def growing_store(where: str) -> Store:
    """Return a Zarr store for writing below a path or URL. In a bucket, the root metadata is stored beside it."""
    return written_store(where, f"{where}{WORK_SUFFIX}")


def open_written(path: str | os.PathLike[str]) -> zarr.Group:
    """Open the group of a complete store for reading, even if it is not published under its name yet."""
    place = place_of(path)
    if isinstance(place, ObjectPath) and not (place / METADATA).is_file():
        return zarr.open_group(growing_store(os.fspath(place)), mode="r", zarr_format=3)
    return open_group(path)


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
    """Create a sharded array with checksums in a group, or return the array of an interrupted run.

    The array of an interrupted run may have another number of samples, if bad samples were found since. It is then
    resized and keeps the shards inside its new shape.

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
    codec : {"raw", "blosc", "sparse", "packed", "zstd", "shuffled", "bzip2", "jpeg"}
        Inner codec. "raw": none. "blosc": lz4 (level 5) after a bit shuffle. "sparse": lz4 without a shuffle, for noise
        among many zeros (a shuffle costs a third more bytes). "packed": pcodec, for integers of 16 bits or more; its
        size is close to the entropy of the values or of their differences, whichever is smaller. "zstd": for small
        repetitive tables. "shuffled": zstd after a byte shuffle, for repetitive values. "bzip2": after a byte shuffle,
        for small, correlated integers that are mostly zero. "jpeg": files as they came, see
        `dpca.storage.arrays.kept_jpegs`; a chunk is a sample.
    attributes : mapping, optional
        JSON-able attributes of the array. With ``{"may_be_infinite": True}``, `dpca.storage.verify` accepts
        infinities, and with ``{"may_be_missing": True}`` NaN.

    Returns
    -------
    zarr.Array
        Configured to write every chunk, including empty ones.

    Raises
    ------
    ValueError
        If the lengths of `shape`, `layout` and `axes` differ, or `codec` is unknown.
    StoreError
        If the group has another node of this name.
    """
    if not len(shape) == len(axes) == len(layout.chunks) == len(layout.shards):
        raise ValueError(
            f"shape {tuple(shape)}, axes {tuple(axes)} and {layout} differ in length: give one entry for each axis"
        )
    dtype = np.dtype(dtype).newbyteorder("=")
    if codec not in get_args(Codec):
        raise ValueError(f"codec {codec!r} is unknown: choose one of {', '.join(get_args(Codec))}")
    if name in group:
        found = group[name]
        if (
            not isinstance(found, zarr.Array)
            or (found.shape[1:], found.dtype) != (tuple(shape)[1:], dtype)
            or (found.chunks, found.shards) != (layout.chunks, layout.shards)
        ):
            raise StoreError(
                f"'{group.store_path}' has another array {name!r}, expected {tuple(shape)} {dtype} in {layout}: remove "
                f"the store or choose another output"
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
        serializer=_SERIALIZERS.get(codec, lambda: "auto")(),
        compressors=(*_compressors(codec, dtype.itemsize), Crc32cCodec()),
        fill_value=dtype.type(0),
        dimension_names=tuple(axes),
        attributes={DENSE_KEY: True, **(attributes or {})},
        config=_DENSE,
    )


def kept_layout(store: Place, name: str) -> Layout | None:
    """Return the layout of an array of an interrupted run, which another memory limit does not change, or None."""
    if not exists(store / name / METADATA):
        return None
    metadata = json.loads(read_file(store / name / METADATA))
    shards, chunks = (one["configuration"]["chunk_shape"] for one in (metadata["chunk_grid"], metadata["codecs"][0]))
    return Layout(tuple(chunks), tuple(shards))


def _compressors(codec: Codec, itemsize: int) -> tuple[BytesBytesCodec, ...]:
    """Return the compressors of chunks for an inner codec of `create_array`, without the checksum."""
    if codec in ("raw", "packed", "jpeg"):
        return ()
    if codec == "zstd":
        return (ZstdCodec(level=9),)
    if codec == "bzip2":
        return (packers.Shuffle(elementsize=itemsize), packers.BZ2(level=_BZIP2))
    blosc = {
        "blosc": partial(BloscCodec, cname="lz4", clevel=5, shuffle="bitshuffle"),
        "sparse": partial(BloscCodec, cname="lz4", clevel=5, shuffle="noshuffle"),
        "shuffled": partial(BloscCodec, cname="zstd", clevel=_ZSTD, shuffle="shuffle"),
    }[codec]
    return (blosc(typesize=itemsize),)


def write_strings(
    group: zarr.Group,
    name: str,
    values: Sequence[str],
    axis: str = "sample",
    attributes: Mapping[str, Any] | None = None,
) -> zarr.Array[Any]:
    """Write texts (names, labels, reasons) as a Zarr array of variable-length UTF-8.

    Parameters
    ----------
    group : zarr.Group
        Open for writing; an array of that name is replaced.
    name : str
        Name of the array.
    values : sequence of str
        The texts.
    axis : str
        Name of the only axis.
    attributes : mapping, optional
        As for `create_array`.

    Returns
    -------
    zarr.Array
        Chunks of 65536 texts, with zstd and CRC-32C. It is not sharded, since texts are read in complete chunks.
    """
    array = group.create_array(
        name,
        shape=(len(values),),
        dtype="string",
        chunks=(max(1, min(len(values), _STRING_CHUNK)),),
        compressors=(ZstdCodec(level=3), Crc32cCodec()),
        fill_value="",
        dimension_names=(axis,),
        attributes={DENSE_KEY: True, **(attributes or {})},
        overwrite=True,
        config=_DENSE,
    )
    for start in range(0, len(values), _STRING_CHUNK):
        # A surrogate, from an undecodable byte of a file name, has no UTF-8 encoding and is stored as its escape.
        part = [
            text.encode("utf-8", "backslashreplace").decode("utf-8") for text in values[start : start + _STRING_CHUNK]
        ]
        array[start : start + len(part)] = np.array(part, dtype=np.dtypes.StringDType())
    return array


def choose_codec(sample: np.ndarray[Any, Any]) -> Codec:
    """Choose the inner codec by compressing some samples.

    Parameters
    ----------
    sample : ndarray
        A few samples of the stack. The first 4 MiB are compressed.

    Returns
    -------
    {"raw", "blosc"}
        ``"blosc"`` if its compression ratio is at least 1.5, else ``"raw"``.
    """
    return "blosc" if sample.size and _WORTHWHILE * blosc_share(sample) <= 1 else "raw"


def blosc_share(sample: np.ndarray[Any, Any]) -> float:
    """Return the bytes of the first 4 MiB of some samples with the codec "blosc", as a share of those without."""
    flat = sample.reshape(-1)[: max(1, _SAMPLE_BYTES // sample.dtype.itemsize)]
    values = np.ascontiguousarray(flat).view(np.uint8)
    blosc = Blosc(cname="lz4", clevel=5, shuffle=Blosc.BITSHUFFLE, typesize=sample.dtype.itemsize)
    return len(blosc.encode(values)) / max(1, values.nbytes)


def packed_bytes(values: np.ndarray[Any, Any], chunks: Sequence[int], codec: str = "packed") -> int:
    """Return the stored bytes of integers with these chunks and the codec "packed", "shuffled" or "bzip2".

    Metadata and file names are not counted.
    """
    values = np.asarray(values, np.uint32 if values.dtype.kind == "u" else np.int32)
    pack: Callable[[Any], bytes] = {
        "packed": NumcodecsPCodec(**_PACKING).encode,
        "shuffled": Blosc(cname="zstd", clevel=_ZSTD, shuffle=Blosc.SHUFFLE).encode,
        "bzip2": lambda chunk: BZ2(_BZIP2).encode(Shuffle(4).encode(chunk)),
    }[codec]
    size = 0
    for corner in product(*(range(0, n, c) for n, c in zip(values.shape, chunks, strict=True))):
        chunk = values[tuple(slice(i, i + c) for i, c in zip(corner, chunks, strict=True))]
        size += (
            len(pack(np.ascontiguousarray(chunk))) + PLACE_BYTES + 3 * CRC_BYTES
        )  # one CRC-32C in the chunk, and one as hexadecimal text in the manifest
    return size


def write_shard(
    array: zarr.Array[Any], start: int | np.integer[Any] | Sequence[int], values: np.ndarray[Any, Any] | ShardRows
) -> None:
    """Write one complete shard, or the clipped shard at an end, in one call.

    Parameters
    ----------
    array : zarr.Array
        Open for writing.
    start : int or sequence of int
        Index of the shard's first value: one integer for the sample axis, or one for each axis.
    values : ndarray or ShardRows
        All values of the shard inside the array, in the dtype of the array.

    Raises
    ------
    ValueError
        If `start` is not on the edge of a shard, or `values` are not exactly one shard. Two tasks that update parts of
        the same shard would lose data.
    FileNotFoundError
        If the array is gone. No folder is made again: the task outlived its program, and its output is published.

    Notes
    -----
    A full shard that already has these values is left unchanged: a task that outlives its program, or runs twice, must
    not touch the finished work of another task. Any other existing shard is removed first, since Zarr would read it to
    update it, and would fail on a torn shard each time. A clipped shard is always rewritten, since its unused rows are
    unknown.
    """
    edges = array.shards or array.chunks
    first = (int(start),) if isinstance(start, (int, np.integer)) else tuple(start)
    first += (0,) * (array.ndim - len(first))
    expected = tuple(min(edge, n - s) for edge, n, s in zip(edges, array.shape, first, strict=True))
    inside = all(0 <= s < n for s, n in zip(first, array.shape, strict=True))
    if not inside or any(s % edge for s, edge in zip(first, edges, strict=True)):
        raise ValueError(
            f"a write at {first} of '{array.store_path}' is not at the start of a shard of {edges} in {array.shape}"
        )
    if values.shape != expected or values.dtype.newbyteorder("=") != array.dtype:
        raise ValueError(
            f"a write of {values.shape} {values.dtype} at {first} of '{array.store_path}' is not a complete shard: "
            f"give {expected} {array.dtype}"
        )
    shard = tuple(s // edge for s, edge in zip(first, edges, strict=True))
    key = array.metadata.encode_chunk_key(shard)
    region = tuple(slice(s, s + n) for s, n in zip(first, expected, strict=True))
    if isinstance(array.store_path.store, ObjectStore) and write_raw_shard(array, shard, values):
        return  # an object is replaced as a whole
    if what_is_wrong_with(array, shard) != "missing":
        if expected[0] == edges[0] and _holds(array, region, whole(values)):
            return
        sync((array.store_path / key).delete())
    if not write_raw_shard(array, shard, values):
        if not sync((array.store_path / METADATA).exists()):
            raise FileNotFoundError(f"'{array.store_path}' was removed or published while a task wrote to it")
        array.with_config(_DENSE).set_basic_selection(region, whole(values))


def _holds(array: zarr.Array[Any], region: tuple[slice, ...], values: np.ndarray[Any, Any]) -> bool:
    try:
        return np.array_equal(np.asarray(array[region]), values)
    except (OSError, ValueError, RuntimeError):
        return False  # torn
