"""A Zarr store that computes the array of samples when it is read, and reads everything else from another store."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from zarr.abc.store import ByteRequest, RangeByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from dpca.storage.arrays.layout import SAMPLE
from dpca.storage.integrity.manifest import Manifest
from dpca.storage.integrity.unchecked import ReadOnlyStore, start_of
from dpca.storage.synthetic.model import ImageModel
from dpca.storage.synthetic.models import stated_model

SAMPLES = "samples"
_METADATA = f"{SAMPLES}/zarr.json"
_CHUNK = re.compile(rf"{SAMPLES}/c((?:/(?:0|[1-9][0-9]{{0,18}}))+)")


class SyntheticStore(ReadOnlyStore):
    """Adds the array ``samples`` of an image model to a store.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The other files: the metadata of the group.
    model : ImageModel
        Computes the samples.
    """

    supports_listing = True

    def __init__(self, store: Store, model: ImageModel) -> None:
        super().__init__()
        self.beside, self.model = store, model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SyntheticStore) and (self.beside, self.model) == (other.beside, other.model)

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the content of a key; None if it does not exist."""
        prototype = prototype or default_buffer_prototype()
        if not key.startswith(f"{SAMPLES}/"):
            return await self.beside.get(key, prototype, byte_range)
        content = self._array() if key == _METADATA else self._chunk(key)
        if content is None:
            return None
        stop = byte_range.end if isinstance(byte_range, RangeByteRequest) else len(content)
        return prototype.buffer.from_array_like(content[start_of(byte_range, len(content)) : stop])

    def _array(self) -> np.ndarray[Any, Any]:
        model = self.model
        metadata = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [model.n_samples, *model.sample_shape],
            "data_type": model.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(model.chunks)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "attributes": {},
            "dimension_names": [SAMPLE, *model.axes],
        }
        return np.frombuffer(json.dumps(metadata).encode(), np.uint8)

    def _chunk(self, key: str) -> np.ndarray[Any, Any] | None:
        """Return a chunk, with zeros after the end of the array; None if the array has no such chunk."""
        found = _CHUNK.fullmatch(key)
        place = [int(i) for i in found[1].split("/")[1:]] if found else []
        shape, chunks = (self.model.n_samples, *self.model.sample_shape), self.model.chunks
        if len(place) != len(shape) or any(i * c >= n for i, c, n in zip(place, chunks, shape, strict=True)):
            return None
        (start, stop), *region = [(i * c, min(i * c + c, n)) for i, c, n in zip(place, chunks, shape, strict=True)]
        lengths = (stop - start, *(b - a for a, b in region))
        content = (np.empty if lengths == chunks else np.zeros)(chunks, self.model.dtype.newbyteorder("<"))
        self.model.make(start, stop, region, content[tuple(map(slice, lengths))])
        return content.reshape(-1).view(np.uint8)

    async def exists(self, key: str) -> bool:
        """Return whether a key exists."""
        if key.startswith(f"{SAMPLES}/"):
            return key == _METADATA or (_CHUNK.fullmatch(key) is not None and await self.get(key) is not None)
        return await self.beside.exists(key)

    async def list(self) -> AsyncIterator[str]:
        """Yield the keys of metadata, without those of the many chunks."""
        async for key in self.beside.list():
            yield key
        yield _METADATA

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys of metadata with a prefix."""
        async for key in self.list():
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the entries of a folder, without the many chunks."""
        if prefix.strip("/") == SAMPLES:
            yield "zarr.json"
            return
        async for key in self.beside.list_dir(prefix):
            yield key
        if not prefix.strip("/"):
            yield SAMPLES


def with_samples(store: Store, where: str, manifest: Manifest | None) -> Store:
    """Return a store with the samples of the image model in its manifest, or unchanged if there is none.

    Raises
    ------
    StoreError
        If the model is invalid.
    """
    stated = None if manifest is None else manifest.synthetic
    return store if stated is None else SyntheticStore(store, stated_model(stated, where))
