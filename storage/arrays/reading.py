"""Opens and reads Zarr arrays of any origin, and verifies every read as far as their stores allow.

Reads use a `dpca.storage.integrity.checked.CheckedStore`, or `dpca.storage.arrays.direct` for supported forms. Every
error names the
store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import product
from typing import Any, Literal, TypeVar

import numpy as np
import zarr
from zarr.abc.store import SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from dpca.storage.arrays.direct import codec_of, read_shards
from dpca.storage.arrays.kept_jpegs import JPEGCodec
from dpca.storage.arrays.plain import read_plain
from dpca.storage.disk import exists, read_file
from dpca.storage.errors import DataError, ReplacedError, StoreError, one_line
from dpca.storage.integrity.checked import DENSE_KEY, CheckedStore, checked_store
from dpca.storage.integrity.manifest import METADATA, ROOT_KEY, digest_of
from dpca.storage.integrity.replaced import reopening
from dpca.storage.integrity.unchecked import written_store
from dpca.storage.remote.network import is_url
from dpca.storage.remote.objects import place_of
from dpca.storage.synthetic.model import ImageModel
from dpca.storage.synthetic.store import SyntheticStore
from dpca.storage.transaction.claim import JOURNAL, WORK_SUFFIX

Node = TypeVar("Node")


@reopening
def open_node(path: str | os.PathLike[str]) -> zarr.Array[Any] | zarr.Group:
    """Open a Zarr array or group at a path or URL for reading. Every read is verified.

    Raises
    ------
    DataError
        If the path does not exist.
    StoreError
        If it is not a Zarr array or group, is damaged, or has an unsupported codec.
    """
    return _opened(os.fspath(path), _open_checked, DataError)


def _open_checked(where: str) -> zarr.Array[Any] | zarr.Group:
    store, inside = checked_store(where)
    # A store with a manifest has version 3, which saves the requests for metadata of version 2.
    node = zarr.open(store, path=inside, mode="r", zarr_format=None if store.manifest is None else 3)
    return StoredArray(node.async_array) if isinstance(node, zarr.Array) else node


def _open_for_writing(where: str) -> zarr.Array[Any]:
    if is_url(where):
        return zarr.open_array(written_store(where), mode="r+", zarr_format=3)
    return _opened_before(where, read_file(os.path.join(where, METADATA)))


@lru_cache(maxsize=16)
def _opened_before(where: str, metadata: bytes) -> zarr.Array[Any]:
    """Open an array for writing. Its tasks share it, since opening takes a millisecond, unless the metadata changes."""
    return zarr.open_array(where, mode="r+", zarr_format=3)


def _opened(where: str, opener: Callable[[str], Node], nothing: type[DataError | StoreError]) -> Node:
    """Open a Zarr node; raise ``nothing`` if the path or URL does not exist."""
    try:
        return opener(where)
    except StoreError:
        raise
    except DataError as error:
        raise nothing(str(error)) from error
    except FileNotFoundError as error:
        if exists(f"{where}{WORK_SUFFIX}/{JOURNAL}"):
            raise StoreError(
                f"the store at '{where}' is not finished: wait for the run that creates it, or run its command again"
            ) from error
        if is_url(where) or not os.path.lexists(where):
            raise nothing(f"there is nothing at '{where}': check the path") from error
        raise StoreError(f"'{where}' is not a Zarr array or group: convert images with `dpca ingest`") from error
    except Exception as error:  # Zarr raises arbitrary exceptions for broken metadata
        raise StoreError(
            f"'{where}' cannot be opened as a Zarr array or group ({one_line(error)}): convert images with "
            f"`dpca ingest`"
        ) from error


def array_in(group: zarr.Group, name: str) -> StoredArray:
    """Return an array of a group that `open_node` opened.

    Raises
    ------
    StoreError
        If the group has no array of this name, or its metadata is damaged.
    """
    node = _member_of(group, name, "array")
    assert isinstance(node, zarr.Array)
    return StoredArray(node.async_array)


def group_in(group: zarr.Group, name: str) -> zarr.Group:
    """Return a group in a group that `open_node` opened.

    Raises
    ------
    StoreError
        If the group has no group of this name, or its metadata is damaged.
    """
    node = _member_of(group, name, "group")
    assert isinstance(node, zarr.Group)
    return node


def _member_of(group: zarr.Group, name: str, what: Literal["array", "group"]) -> zarr.Array[Any] | zarr.Group:
    try:
        node = group[name]
        if isinstance(node, zarr.Array) != (what == "array"):
            raise TypeError(f"its type is not {what}")
    except StoreError:
        raise
    except Exception as error:  # Zarr raises arbitrary exceptions for broken metadata
        require_same(group, error)
        raise StoreError(
            f"'{group.store_path}' has no readable {what} {name!r} ({one_line(error)}): create the store again"
        ) from error
    return node


@reopening
def open_group(path: str | os.PathLike[str]) -> zarr.Group:
    """Open a Zarr group for reading. Every read of its arrays is verified.

    Raises
    ------
    StoreError
        If there is no group, or its metadata is damaged.
    """
    node = _opened(os.fspath(path), _open_checked, StoreError)
    if not isinstance(node, zarr.Group):
        raise StoreError(f"'{path}' is a Zarr array, not a group: give the path of the store")
    return node


@reopening
def open_array(path: str | os.PathLike[str], mode: Literal["r", "r+"] = "r") -> zarr.Array[Any]:
    """Open a Zarr array, version 2 or 3, for reading or for `write_shard`.

    Parameters
    ----------
    path : path-like or URL
        Path of the array itself, ``store/group/array`` for an array inside a group.
    mode : {"r", "r+"}
        Read-only, or read and write (version 3).

    Raises
    ------
    StoreError
        If the array is missing or is a group, or its metadata is invalid.
    """
    opener = _open_checked if mode == "r" else _open_for_writing
    node = _opened(os.fspath(path), opener, StoreError)
    if not isinstance(node, zarr.Array):
        raise StoreError(f"'{path}' is a Zarr group, not an array: give the path of one of its arrays")
    return node


def root_facts(group: zarr.Group) -> dict[str, Any]:
    """Return the dpca attributes of a store, see `create_root`; empty for a store not created by dpca."""
    facts = group.attrs.asdict().get(ROOT_KEY)
    return dict(facts) if isinstance(facts, Mapping) else {}


def read_into(array: zarr.Array[Any], selection: Any, out: np.ndarray[Any, Any]) -> None:
    """Read a selection into an existing buffer, a third faster than into new memory.

    Parameters
    ----------
    array : zarr.Array
        Array to read.
    selection : slice, int or tuple of these
        Integers must not be negative, and steps must be positive.
    out : ndarray
        Has the shape of the selection and the dtype of the array, in its byte order or the processor's. It is
        overwritten.

    Raises
    ------
    ValueError
        If the dtypes or the shapes differ.
    StoreError
        If a shard is damaged, or if a shard of an array created by dpca is missing or empty.
    """
    if out.dtype != array.dtype and out.dtype == array.dtype.newbyteorder("="):
        read_into(array, selection, out.view(array.dtype))
        out.byteswap(inplace=True)
        return
    if out.dtype != array.dtype:
        raise ValueError(f"the buffer has {out.dtype}, but '{array.store_path}' has {array.dtype}: they must be equal")
    parts = selection if isinstance(selection, tuple) else (selection,)
    parts += (slice(None),) * (array.ndim - len(parts))
    taken = [
        range(length)[part if isinstance(part, slice) else slice(part, part + 1)]
        for part, length in zip(parts, array.shape, strict=True)
    ]
    shape = tuple(len(rows) for part, rows in zip(parts, taken, strict=True) if isinstance(part, slice))
    if out.shape != shape:
        raise ValueError(f"the buffer has the shape {out.shape}, but the selection has {shape}: they must be equal")
    box = out.reshape([len(rows) for rows in taken])  # an axis selected by an integer has length 1
    with _damage_named(array):
        if is_dense(array) and not is_covered(array):
            _require_shards(array, taken)
        read = read_shards if is_dense(array) else read_plain
        if not (read(array, taken, box) or _make(array, taken, box)):
            buffer = default_buffer_prototype().nd_buffer.from_numpy_array(out)
            array.get_basic_selection(selection, out=buffer)


def model_of(array: zarr.Array[Any]) -> ImageModel | None:
    """Return the image model that computes the values of an array; None if the values are stored."""
    store = array.store_path.store
    held = store.home(f"{array.path}/")[0].held if isinstance(store, CheckedStore) else store
    return held.model if isinstance(held, SyntheticStore) else None


def _make(array: zarr.Array[Any], taken: Sequence[range], out: np.ndarray[Any, Any]) -> bool:
    """Compute a box of the samples of an image model; return False if the array or the box has another form."""
    model = model_of(array)
    if model is None or not all(rows.step == 1 for rows in taken):
        return False
    if out.size:
        (start, stop), *region = [(rows.start, rows.stop) for rows in taken]
        model.make(start, stop, region, out)
    return True


def _box_of(selection: Any, shape: Sequence[int]) -> tuple[int | slice, ...] | None:
    """Convert a selection of integers and slices without steps to non-negative indices; None for any other one."""
    parts = selection if isinstance(selection, tuple) else (selection,)
    if not all(part is Ellipsis or type(part) is int or isinstance(part, np.integer | slice) for part in parts):
        return None
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts = (*parts[:at], *[slice(None)] * (len(shape) - len(parts) + (at < len(parts))), *parts[at + 1 :])
    if len(parts) != len(shape) or any(part is Ellipsis for part in parts):
        return None
    box: list[int | slice] = []
    for part, n in zip(parts, shape, strict=True):
        start, stop, step = part.indices(n) if isinstance(part, slice) else (part, part + 1, 1)
        if step != 1 or not -n <= start <= n - isinstance(part, int | np.integer):
            return None
        box.append(slice(start, max(start, stop)) if isinstance(part, slice) else int(start) % n)
    return tuple(box)


class StoredArray(zarr.Array[Any]):
    """A Zarr array, opened for reading. Its errors name the damaged store."""

    def __getitem__(self, selection: Any) -> Any:
        """Return the values of a selection.

        Raises
        ------
        StoreError
            If a shard is missing or damaged.
        """
        # Zarr would compute a whole chunk of a synthetic stack, hundreds of samples, to read one of them. Its error for
        # a kept JPEG file does not name the sample.
        own = model_of(self) is not None or codec_of(self) is JPEGCodec
        if own and (box := _box_of(selection, self.shape)) is not None:
            lengths = [part.stop - part.start for part in box if isinstance(part, slice)]
            read_into(self, box, out := np.empty(lengths, self.dtype))
            return out
        with _damage_named(self):
            return super().__getitem__(selection)


@contextmanager
def _damage_named(array: zarr.Array[Any]) -> Iterator[None]:
    try:
        yield
    except IndexError:
        raise
    except StoreError as error:
        require_same(array, error)
        raise
    except MemoryError as error:
        raise StoreError(f"'{array.store_path}' has chunks that do not fit in memory: rechunk it") from error
    except Exception as error:  # foreign codecs raise arbitrary exceptions
        require_same(array, error)
        what, remedy = "is damaged", "run `dpca verify` to list the damage, and create the store again"
        if not is_dense(array):  # not created by dpca
            what, remedy = "cannot be read", "copy or create it again"
        raise StoreError(f"'{array.store_path}' {what} ({one_line(error)}): {remedy}") from error


def require_same(node: zarr.Array[Any] | zarr.Group, error: Exception | None = None) -> None:
    """Raise `ReplacedError` from ``error`` if the store of a node was replaced since it was opened."""
    if isinstance(store := node.store_path.store, CheckedStore):
        store.require_same(error)


def is_dense(array: zarr.Array[Any]) -> bool:
    """Return whether every shard of an array must exist, since `create_array` or `write_strings` created it."""
    return bool(array.attrs.get(DENSE_KEY, False))


def is_covered(array: zarr.Array[Any]) -> bool:
    """Return whether an array is in a manifest, so that every read of it is verified."""
    store = array.store_path.store
    return isinstance(store, CheckedStore) and store.covers(array.path)


def path_of(array: zarr.Array[Any] | zarr.Group) -> str | None:
    """Return the path or URL of an array or a group; None for one in memory or in an archive."""
    if isinstance(array.store, CheckedStore):
        return f"{array.store.where}/{array.path}".rstrip("/")
    root = getattr(array.store, "root", None)
    return None if root is None else os.path.normpath(os.path.join(root, array.path))


def group_facts(array: zarr.Array[Any]) -> dict[str, Any]:
    """Return the dpca attributes of the group of an array; empty if there are none."""
    path = path_of(array)
    folder = None if path is None else os.path.dirname(path)
    if folder is None or not place_of(os.path.join(folder, METADATA)).is_file():
        return {}
    try:
        facts = root_facts(open_group(folder))
    except StoreError:
        if is_covered(array):
            raise
        return {}  # the array is a store itself, in an unrelated folder
    require_same(array)
    return facts


def array_identity(array: zarr.Array[Any]) -> str:
    """Return a digest that changes when an array is replaced: of the manifest of its store, or else of its metadata."""
    path = path_of(array)
    if path is not None and not isinstance(array, StoredArray):
        array = open_array(path)  # opened without a manifest by another program
    store = array.store_path.store
    if isinstance(store, CheckedStore) and store.manifest is not None:
        return store.manifest.digest
    return digest_of("".join(text for _, text in metadata_texts(array)).encode())


def metadata_texts(array: zarr.Array[Any]) -> list[tuple[str, str]]:
    """Return names and texts of the metadata files of an array, independent of the setting "json_indent" of Zarr."""
    files = array.metadata.to_buffer_dict(default_buffer_prototype())
    return [(name, json.dumps(json.loads(text.to_bytes()), indent=2)) for name, text in sorted(files.items())]


def open_again(path: str, identity: str) -> zarr.Array[Any]:
    """Open an array again and check that it is still the same; see `array_identity`.

    Raises
    ------
    ReplacedError
        If the array was replaced.
    """
    array = open_array(path)
    if array_identity(array) != identity:
        raise ReplacedError(f"'{path}' was replaced since it was opened: open it again")
    return array


def what_is_wrong_with(array: zarr.Array[Any], index: Sequence[int]) -> Literal["missing", "empty"] | None:
    """Return whether a shard is missing or empty, without reading it. ``index`` is the index of the shard."""
    key = array.store_path / array.metadata.encode_chunk_key(tuple(index))
    if (root := getattr(key.store, "root", None)) is not None:
        path = root / key.path
        size = os.stat(path).st_size if os.path.isfile(path) else None
    else:
        last = sync(key.store.get(key.path, default_buffer_prototype(), SuffixByteRequest(1)))
        size = None if last is None else len(last)
    return "missing" if size is None else None if size else "empty"


def _require_shards(array: zarr.Array[Any], taken: Sequence[range]) -> None:
    """Raise `StoreError` for a missing or empty shard, which Zarr would decode as zeros."""
    edges = array.shards or array.chunks
    touched = (
        range(rows[0] // edge, rows[-1] // edge + 1) if rows else range(0)
        for rows, edge in zip(taken, edges, strict=True)
    )
    for index in product(*touched):
        if (wrong := what_is_wrong_with(array, index)) is not None:
            raise StoreError(f"shard {index} of '{array.store_path}' is {wrong}: create the store again")
