"""The key of a fold's checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from typing import Any

import dask.array as da
import numpy as np
import zarr

from dpca.engine.sources.source import Source

# Bytes of an array in memory that are hashed at once.
_AT_ONCE = 16 * 2**20


def digest(*things: Any) -> str:
    """Return the key of a fold from its plan, its rule with all parameters, its source and its partition.

    Arrays in memory are hashed by value, files and stores by path and modification time, Dask arrays by name. The
    modification time of a store is that of its metadata, so a later change of chunks in place is not detected. Fields
    that are excluded from comparison are not hashed.
    """
    sink = blake2b(digest_size=8)
    for thing in things:
        for part in _parts(thing):
            sink.update(len(part).to_bytes(8, "little"))
            sink.update(part)
    return sink.hexdigest()


def _parts(thing: Any) -> Iterator[bytes]:
    """Yield the bytes that identify a thing among others of its kind."""
    if isinstance(thing, Source):
        yield from (type(thing).__qualname__.encode(), *_parts(thing.identity()))
    elif isinstance(thing, np.ndarray | zarr.Array):
        yield from _values(thing)
    elif isinstance(thing, da.Array):
        yield thing.name.encode()
    elif isinstance(thing, Mapping):
        for key in sorted(thing):
            yield from (repr(key).encode(), *_parts(thing[key]))
    elif isinstance(thing, list | tuple):
        yield f"{len(thing)} of".encode()
        for item in thing:
            yield from _parts(item)
    elif is_dataclass(thing) and not isinstance(thing, type):
        yield type(thing).__qualname__.encode()
        for field in fields(thing):
            if field.compare:
                yield from (field.name.encode(), *_parts(getattr(thing, field.name)))
    elif hasattr(thing, "__dict__") and not callable(thing):
        yield type(thing).__qualname__.encode()
        yield from _parts(vars(thing))
    else:
        yield repr(thing).encode()


def _values(array: Any) -> Iterator[bytes]:
    yield f"{array.dtype.str} {tuple(array.shape)}".encode()
    if not array.ndim:
        yield np.asarray(array).tobytes()
        return
    row = max(1, int(np.prod(array.shape[1:])) * array.dtype.itemsize)
    rows = max(1, _AT_ONCE // row)
    for start in range(0, array.shape[0], rows):
        yield np.ascontiguousarray(array[start : start + rows]).tobytes()
