"""The list of codecs that are read: this package, not the store, decides what runs on its bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dpca.storage.errors import StoreError, one_line

# Codecs that this package and others use for numbers and text. "pickle" is left out: it executes what it reads.
_CODECS = frozenset(
    (
        *("bytes", "endian", "transpose", "sharding_indexed", "cast_value", "scale_offset", "vlen-utf8", "vlen-bytes"),
        *("gzip", "zlib", "bz2", "lzma", "lz4", "zstd", "blosc", "pcodec", "zfpy", "packbits", "shuffle", "delta"),
        *("astype", "bitround", "quantize", "fixedscaleoffset", "categorize", "vlen-array", "json2", "msgpack2"),
        *("base64", "crc32c", "crc32", "adler32", "fletcher32", "jenkins_lookup3"),
    )
)
_CODEC_KEYS = ("codecs", "index_codecs", "filters", "compressor")


def check_codecs(content: bytes, where: str) -> None:
    """Refuse metadata that names a codec or a filter that is not read here.

    Parameters
    ----------
    content : bytes
        A file of metadata of Zarr, of version 2 or 3, consolidated or not.
    where : str
        Path of the file, for the message.

    Raises
    ------
    StoreError
        Also where it is no metadata at all.
    """
    try:
        metadata = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"'{where}' is no metadata of a Zarr store ({one_line(error)}): get the store again"
        ) from error
    for name in _codecs_in(metadata):
        if name.removeprefix("numcodecs.") not in _CODECS:
            raise StoreError(
                f"'{where}' names the codec {name!r}, which is not read here: write the array with one of Zarr's own"
            )


def _codecs_in(metadata: Any) -> Iterator[str]:
    """Yield the names of all codecs and filters in a document of metadata, consolidated or not."""
    waiting = [metadata]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        if not isinstance(part, dict):
            continue
        for key, value in part.items():
            if key == "attributes" or key.endswith(".zattrs"):
                continue
            waiting.append(value)
            if key in _CODEC_KEYS:
                for codec in value if isinstance(value, list) else [value]:
                    if isinstance(codec, dict):
                        yield str(codec.get("name", codec.get("id")))
                    elif isinstance(codec, str):
                        yield codec
