"""The Zarr codec of stacks that keep JPEG files: a chunk is a sample, as the bytes of its file.

The first byte of a chunk states its form:

* 0xFF begins a JPEG file, unchanged. Its pixels are those of libjpeg-turbo with its default settings (accurate integer
  transform, smooth upsampling), as gray or RGB; a gray file in color is repeated over the channels.
* 0 is followed by the values of the chunk, in C order. Images that require more than decoding have this form, and all
  values that are written by Zarr.

The codec has the name ``dpca.jpeg`` and no configuration. Zarr finds it if dpca is installed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from zarr.abc.codec import ArrayBytesCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer
from zarr.registry import register_codec

from dpca.storage.errors import DataError
from dpca.storage.images import DecodeOptions, decode, shape_of_jpeg
from dpca.storage.jpegs import JPEG, decode_jpeg, header_of_jpeg, upright_shape

#: Name of the codec in the metadata of arrays.
NAME = "dpca.jpeg"
_EXACT = b"\0"
_END = b"\xff\xd9"


def kept_sample(payload: bytes, rules: DecodeOptions) -> bytes:
    """Return the chunk of a sample: the bytes of its JPEG file, or its pixels if it requires more than decoding.

    Parameters
    ----------
    payload : bytes
        The complete content of a file in a format of `dpca.storage.pictures`.
    rules : DecodeOptions
        With the sample shape of the stack.

    Returns
    -------
    bytes
        A complete JPEG without an orientation, as it is. Only its header is read: whether its pixels are intact is
        found out when they are decoded. A file that does not end as a JPEG may be cut off, and is decoded here.

    Raises
    ------
    DataError
        As `dpca.storage.images.decode`.
    """
    wanted, shape = rules.sample_shape or (), shape_of_jpeg(payload, rules)
    # A gray image is repeated over the channels of a stack in color.
    fits = shape in (wanted, wanted[:2])
    if fits and (payload.endswith(_END) or decode_jpeg(payload, wanted) is not None):
        return payload
    return exact_chunk(decode(payload, rules))


def exact_chunk(values: NDArray[Any]) -> bytes:
    """Return a chunk with exact values."""
    return _EXACT + values.tobytes()


def decode_chunk(content: bytes, out: NDArray[Any]) -> None:
    """Decode a chunk.

    Parameters
    ----------
    content : bytes
    out : ndarray of uint8
        All values of the chunk, in C order. A JPEG has the shape (1, height, width) or (1, height, width, 3).

    Raises
    ------
    ValueError
        If the content is neither a JPEG of this shape nor the right number of values. The size is read from the header
        before anything is decoded.
    """
    if content.startswith(_EXACT):
        if len(content) != 1 + out.size:
            raise ValueError(f"it has {len(content) - 1:,} values, expected {out.size:,}")
        out.reshape(-1)[:] = np.frombuffer(content, np.uint8, offset=1)
        return
    if not content.startswith(JPEG) or len(out) != 1 or out.shape[3:] not in ((), (3,)) or out.ndim < 3:
        raise ValueError(f"it begins with {content[:3]!r}, and is neither a JPEG nor exact values of shape {out.shape}")
    sample, shape = out[0], upright_shape(content) or header_of_jpeg(content)
    fits = shape in (sample.shape, sample.shape[:2])
    if fits and decode_jpeg(content, sample.shape, sample) is not None:
        return
    try:
        # As an ingest decodes damaged files, and with its reasons.
        decode(content, DecodeOptions(sample_shape=sample.shape, dtype="uint8", first="the stack"), sample)
    except DataError as error:
        raise ValueError(f"its JPEG {error}") from error


@dataclass(frozen=True)
class JPEGCodec(ArrayBytesCodec):
    """The Zarr codec ``dpca.jpeg``. It decodes kept JPEG files, and writes exact values."""

    is_fixed_size = False

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the codec from its metadata."""
        if data.get("name") != NAME or data.get("configuration"):
            raise ValueError(f"the codec {data!r} is not {NAME!r} without a configuration")
        return cls()

    def to_dict(self) -> dict[str, Any]:
        """Return the metadata of the codec."""
        return {"name": NAME}

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Raise `ValueError` for values that are not bytes."""
        if dtype.to_native_dtype() != np.uint8:
            raise ValueError(f"the codec {NAME!r} stores uint8, not {dtype.to_native_dtype()}: choose another codec")

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Raise an error, since the size depends on the values."""
        raise NotImplementedError

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        values = np.empty(chunk_spec.shape, np.uint8)
        await asyncio.to_thread(decode_chunk, chunk_data.to_bytes(), values)
        return chunk_spec.prototype.nd_buffer.from_numpy_array(values)

    async def _encode_single(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        return chunk_spec.prototype.buffer.from_bytes(exact_chunk(chunk_data.as_numpy_array()))


register_codec(NAME, JPEGCodec)
