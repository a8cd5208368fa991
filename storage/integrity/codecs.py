"""The list of supported codecs. A store cannot make dpca run any other codec."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dpca.storage.errors import StoreError, one_line

# Codecs for numbers and text. "pickle" is not supported, since it executes code from the store.
_CODECS = frozenset(
    (
        *("bytes", "endian", "transpose", "sharding_indexed", "cast_value", "scale_offset", "vlen-utf8", "vlen-bytes"),
        *("gzip", "zlib", "bz2", "lzma", "lz4", "zstd", "blosc", "pcodec", "zfpy", "packbits", "shuffle", "delta"),
        *("astype", "bitround", "quantize", "fixedscaleoffset", "categorize", "vlen-array", "json2", "msgpack2"),
        *("base64", "crc32c", "crc32", "adler32", "fletcher32", "jenkins_lookup3", "dpca.jpeg"),
    )
)
_CODEC_KEYS = ("codecs", "index_codecs", "filters", "compressor")


def check_codecs(content: bytes, where: str) -> None:
    """Check that metadata names only supported codecs and filters.

    Parameters
    ----------
    content : bytes
        A metadata file of Zarr version 2 or 3, consolidated or not.
    where : str
        Path of the file, for the error message.

    Raises
    ------
    StoreError
        If a codec is not supported, or the content is not JSON.
    """
    try:
        metadata = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"'{where}' is not Zarr metadata ({one_line(error)}): copy the store again from its origin"
        ) from error
    for name in _codecs_in(metadata):
        if name.removeprefix("numcodecs.") not in _CODECS:
            raise StoreError(
                f"'{where}' has the codec {name!r}, which is not supported: write the array with a codec of Zarr"
            )


def option_text(option: Any) -> Any:
    """Return an option of a codec as text. Before version 3.4, zarr has enums."""
    return getattr(option, "value", option)


def _codecs_in(metadata: Any) -> Iterator[str]:
    """Yield the names of all codecs and filters in a metadata document, consolidated or not."""
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
