"""A file system for fsspec that opens compressed stores and synthetic stacks as Zarr, by the URL ``dpca::PATH``.

Samples are decoded or generated when they are read. A synthetic stack has samples and names, but no coordinates.

::

    dpca::/data/photos.zarr
        .zarray  0.0.0.0  0.1.0.0  ...       the reconstruction, an array
        .zgroup  .zmetadata                  and a group:
        samples/ .zarray  0.0.0.0  ...         the same array, with the names of its axes,
        name/ psnr/ time/ ...                  coordinates, and the names and the quality of the samples

In Zarr version 2, an array and a group can have the same address. ``zarr.open_array`` and ``dask.array.from_zarr`` open
the array, ``xarray.open_zarr`` and ``zarr.open_group`` the group. PATH may be any path or URL, such as
``dpca::s3://bucket/photos.zarr``. ``dpca`` need not be imported: fsspec finds this file system by its entry point.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from fsspec.asyn import AsyncFileSystem

from dpca.kernels.algebra.types import Array
from dpca.representation.compressed.compressed import Compressed, open_compressed, opened_once
from dpca.storage.arrays.coordinates import BESIDE, Coordinate, fixed_width
from dpca.storage.errors import DataError, ReplacedError, StoreError, one_line
from dpca.storage.integrity.replaced import reopening
from dpca.storage.numbered import Numbered
from dpca.storage.remote.memory import thread_count
from dpca.storage.remote.network import use_storage_options
from dpca.storage.remote.tasks import one_blas_thread
from dpca.storage.stack import Stack, open_stack
from dpca.storage.synthetic.stack import is_synthetic

T = TypeVar("T")

# The attribute for names of axes that xarray uses in Zarr version 2.
_DIMS = "_ARRAY_DIMENSIONS"
# Bytes of the cache of decoded chunks, since a program that reads sample by sample requests a chunk many times.
_RECENT_BYTES = 2**27
# Names in a chunk of a synthetic stack.
_NAMES = 2**16


@dataclass(frozen=True, eq=False)
class _StoredFile:
    """An array of Zarr version 2. Its chunks are computed when they are read."""

    values: Any  #: supports NumPy's slices: a compressed store, synthetic samples, names, or an array
    chunks: tuple[int, ...]
    dims: tuple[str, ...]
    attributes: Mapping[str, str]

    @property
    def _dtype(self) -> np.dtype[Any]:
        stored: np.dtype[Any] = self.values.dtype
        return stored.newbyteorder("<")

    def metadata(self) -> dict[str, Any]:
        """Return the content of ``.zarray``."""
        return {
            "zarr_format": 2,
            "shape": self.values.shape,
            "chunks": self.chunks,
            "dtype": self._dtype.str,
            "compressor": None,
            "filters": None,
            "fill_value": None,
            "order": "C",
        }

    def places(self) -> list[str]:
        """Return the names of all chunks."""
        counts = [range(math.ceil(n / c)) for n, c in zip(self.values.shape, self.chunks, strict=True)]
        return [".".join(map(str, place)) or "0" for place in itertools.product(*counts)]

    @property
    def chunk_bytes(self) -> int:
        """Bytes of every chunk."""
        return math.prod(self.chunks) * self._dtype.itemsize

    def chunk(self, key: str) -> bytes | None:
        """Return a chunk, padded with zeros at the end of the array; None if there is no such chunk."""
        places = key.split(".") if self.chunks or key != "0" else []
        if len(places) != len(self.chunks) or not all(place.isdecimal() for place in places):
            return None
        starts = [int(place) * c for place, c in zip(places, self.chunks, strict=True)]
        if any(start >= n for start, n in zip(starts, self.values.shape, strict=True)):
            return None
        box = tuple(slice(start, start + c) for start, c in zip(starts, self.chunks, strict=True))
        with one_blas_thread():  # other threads decode at the same time
            values = np.asarray(self.values[box])
        if values.shape != self.chunks:
            whole = np.zeros(self.chunks, self._dtype)
            whole[tuple(map(slice, values.shape))] = values
            values = whole
        return values.astype(self._dtype, copy=False).tobytes()


@dataclass(frozen=True)
class _NumberedNames:
    """Indices of samples as an array of names, computed when they are read."""

    names: Numbered

    @property
    def shape(self) -> tuple[int]:
        return (len(self.names),)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"U{len(self.names[0])}")

    def __getitem__(self, box: tuple[slice]) -> Array:
        return np.array(self.names[box[0]], self.dtype)


class _Recent:
    """A cache of decoded chunks."""

    def __init__(self) -> None:
        self._lock, self._held = Lock(), OrderedDict[tuple[str, str], bytes]()

    def get(self, key: tuple[str, str], decode: Callable[[], bytes | None]) -> bytes | None:
        """Return a chunk from the cache, or decode it."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        if (found := decode()) is not None:
            with self._lock:
                self._held[key] = found
                while sum(map(len, self._held.values())) > _RECENT_BYTES:
                    self._held.popitem(last=False)
        return found


class CompressedFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """The file system of ``dpca::PATH``, as fsspec creates it; see the module.

    Parameters
    ----------
    fo : str
        Path of a compressed store.
    target_protocol, target_options
        Protocol and options of the file system of that path; see `dpca.storage.use_storage_options`.
    level : int, optional
        As for `dpca.open_compressed`: ``storage_options={"level": 3}`` reads a preview.
    asynchronous, loop, batch_size
        As for all file systems of fsspec.

    Raises
    ------
    StoreError
        By any read of a damaged store. For a missing file, Zarr would return fill values.
    """

    protocol = "dpca"
    cachable = False  # another store can replace this one at the same path

    def __init__(
        self,
        fo: str | None = None,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        level: int | None = None,
        asynchronous: bool = False,
        loop: Any = None,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(asynchronous=asynchronous, loop=loop, batch_size=batch_size)
        if fo is None:
            raise DataError("'dpca://' names no store: give dpca::PATH, such as dpca::/data/photos.zarr")
        local = target_protocol in (None, "file", "local") or "://" in fo
        self.url = fo if local else f"{target_protocol}://{fo.lstrip('/')}"
        self._level, self._lock, self._recent = level, Lock(), _Recent()
        self._fingerprint: str | None = None
        if target_options:
            use_storage_options(target_options, self.url)

    def __reduce__(self) -> Any:
        known = vars(self).get("_opened")
        fingerprint = self._fingerprint
        if known is not None:
            fingerprint = known.fingerprint if isinstance(known, Stack) else known.facts["fingerprint"]
        return _reopened, (self.storage_args, self.storage_options, fingerprint)

    # -- content

    @cached_property
    def _opened(self) -> Compressed | Stack:
        if is_synthetic(self.url):
            stack = open_stack(self.url)
            if self._level is not None:
                raise DataError(f"'{self.url}' is a synthetic stack without levels: leave out level={self._level}")
            if stack.fingerprint != (self._fingerprint or stack.fingerprint):
                raise ReplacedError(f"'{self.url}' was replaced since it was opened: open it again")
            return stack
        if self._fingerprint is not None:
            return opened_once(self.url, self._fingerprint, self._level)
        return open_compressed(self.url, level=self._level)

    @cached_property
    def _arrays(self) -> dict[str, _StoredFile]:
        """All arrays by name; "" is the reconstruction too."""
        store = self._opened
        if isinstance(store, Stack):
            found = {"samples": _StoredFile(store.samples, store.samples.chunks, store.axes, {BESIDE: "name"})}
            names = _NumberedNames(Numbered(store.n_samples))
            return {**found, "": found["samples"], "name": _StoredFile(names, (_NAMES,), store.axes[:1], {})}
        along = store.coordinates
        stated = {**along.stated, BESIDE: f"{along.stated.get(BESIDE, '')} name".strip()}
        found = {"": _StoredFile(store, store.chunks, along.dims, stated)}
        found["samples"] = found[""]
        of_samples = {"name": store.names, **store.quality}
        beside = {name: Coordinate(along.dims[:1], values, {}) for name, values in of_samples.items()}
        for name, one in {**along.arrays, **beside}.items():
            values = fixed_width(one.values)
            found[name] = _StoredFile(values, values.shape, one.dims, one.attributes)
        return found

    @cached_property
    def _metadata(self) -> dict[str, bytes]:
        """All files of metadata, from one opening of the store."""
        return self._described() if self._fingerprint is not None else reopening(self._described)()

    def _described(self) -> dict[str, bytes]:
        for name in ("_opened", "_arrays"):  # from an earlier attempt
            self.__dict__.pop(name, None)
        documents: dict[str, Any] = {".zgroup": {"zarr_format": 2}}
        for name, array in self._arrays.items():
            folder = f"{name}/" if name else ""
            documents[f"{folder}.zarray"] = array.metadata()
            documents[f"{folder}.zattrs"] = {_DIMS: array.dims, **array.attributes}
        along = self._opened.coordinates
        documents[".zattrs"] = {} if along is None else dict(along.attributes)  # for the group too
        of_group = {key: document for key, document in documents.items() if key != ".zarray"}
        documents[".zmetadata"] = {"zarr_consolidated_format": 1, "metadata": of_group}
        return {key: json.dumps(document).encode() for key, document in documents.items()}

    def _content(self, path: str) -> bytes | None:
        """Return the content of a file, None if there is no such file."""
        key = self._strip_protocol(path).lstrip("/")
        folder, _, name = key.rpartition("/")
        try:
            with self._lock:
                metadata, arrays = self._metadata, self._arrays
            if key in metadata or folder not in arrays:
                return metadata.get(key)
            return self._recent.get((folder, name), lambda: arrays[folder].chunk(name))
        except (OSError, KeyError) as error:  # Zarr would return fill values for these
            raise StoreError(f"'{self.url}' cannot be read ({one_line(error)}): make it again") from error

    def _sizes(self) -> dict[str, int]:
        """Return the bytes of all files, except for the chunks of the array at the root."""
        with self._lock:
            sizes = {key: len(content) for key, content in self._metadata.items()}
            for name, array in self._arrays.items():
                sizes |= {f"{name}/{key}": array.chunk_bytes for key in array.places() if name}
        return sizes

    # -- methods that fsspec calls

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        content = await _in_thread(self._content, path)
        if content is None:
            raise FileNotFoundError(f"'dpca::{self.url}' has no {path!r}")
        return content[start:end]

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        folder, sizes = self._strip_protocol(path).strip("/"), await _in_thread(self._sizes)
        if folder in sizes:
            return [_entry(folder, sizes[folder])] if detail else [folder]
        base, found = f"{folder}/" if folder else "", {}
        for key, size in sizes.items():
            if key.startswith(base):
                name, inside, _rest = key.removeprefix(base).partition("/")
                found[base + name] = _entry(base + name, None if inside else size)
        if not found:
            raise FileNotFoundError(f"'dpca::{self.url}' has no {path!r}")
        return list(found.values()) if detail else list(found)

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        key, sizes = self._strip_protocol(path).strip("/"), await _in_thread(self._sizes)
        if key not in sizes:
            await self._ls(key)
        return _entry(key, sizes.get(key))

    async def _refused(self, *_: Any, **__: Any) -> None:
        raise StoreError(
            f"'dpca::{self.url}' is computed when it is read, so it cannot be written or changed: copy it first"
        )

    _pipe_file = _put_file = _cp_file = _rm = _rm_file = _mkdir = _makedirs = _refused


def _entry(name: str, size: int | None) -> dict[str, Any]:
    return {"name": name, "size": size or 0, "type": "directory" if size is None else "file"}


def _reopened(args: tuple[Any, ...], options: dict[str, Any], fingerprint: str | None) -> CompressedFileSystem:
    """Return the file system in another process. It reads the same store or raises ReplacedError."""
    made = CompressedFileSystem(*args, **options)
    made._fingerprint = fingerprint
    return made


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_threads(), function, *args)


@cache
def _threads() -> ThreadPoolExecutor:
    # Not the threads of the event loop: decoding waits for other reads, which need those.
    return ThreadPoolExecutor(thread_count(), thread_name_prefix="dpca")
