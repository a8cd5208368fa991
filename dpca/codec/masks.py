"""Masks of missing values as bytes.

Each bit is coded by its probability, given its neighbors in the sample and in the sample before. A mask that is the
same in all samples takes almost nothing, and moving clouds what their edges take. ``storage/FORMAT.md`` describes the
bytes, with a decoder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dpca.kernels.algebra.types import Array

# The first byte says whether the bits follow as they are, or coded.
_PLAIN, _CODED = 0, 1
# Bits without neighbors count as 0: a sample before, two rows above and one below, and two columns on each side.
_PADDING = (1, 0), (2, 1), (2, 2)


def mask_bytes(shape: tuple[int, ...]) -> int:
    """Return the number of bytes of a mask (n, *sample_shape)."""
    return 1 + -(-math.prod(shape) // 8)


def coded_mask(mask: Array) -> Array:
    """Return a mask (n, *sample_shape) as `mask_bytes` bytes. If it is predictable, most are zeros at the end."""
    from dpca.codec.mask_loops import encode

    out = np.zeros(mask_bytes(mask.shape), np.uint8)
    if encode(_padded(mask), out):
        out[0] = _CODED
    else:
        out[0], out[1:] = _PLAIN, np.packbits(mask)
    return out


def decoded_mask(coded: Array, shape: tuple[int, ...], count: int | None = None) -> Array:
    """Return the mask (n, *sample_shape) that bytes stand for, or that of the first ``count`` samples.

    Raises
    ------
    ValueError
        If the bytes are no mask of this shape.
    """
    from dpca.codec.mask_loops import decode

    if coded.shape != (mask_bytes(shape),) or coded[0] not in (_PLAIN, _CODED):
        raise ValueError(f"{coded.size} bytes are no mask of {shape}")
    if coded[0] == _PLAIN:
        return np.unpackbits(coded[1:], count=math.prod(shape)).astype(bool).reshape(shape)[:count]
    first = (shape[0] if count is None else count, *shape[1:])
    padded = _padded(np.zeros(first, bool))
    decode(coded, padded)
    bits: Array = padded[1:, 2:-1, 2:-2].astype(bool)
    return bits.reshape(first)


def of_values(measured: Mapping[str, Array], missing: Array) -> dict[str, Array]:
    """Return the quality of the values that are there, for samples (n, ...) without any error where values are missing.

    Errors are means over all values, so they are divided by the share of those that are there; SSIM is 1 minus such a
    mean.
    """
    return of_share(measured, 1 - missing.reshape(len(missing), -1).mean(axis=1))


def of_share(measured: Mapping[str, Array], there: Array) -> dict[str, Array]:
    """Return the quality of the values that are there, given their share (n,) of each sample, see `of_values`."""
    more = np.divide(1, there, out=np.ones(len(there)), where=there > 0)
    return {name: 1 - (1 - one) * more if name == "ssim" else one * more for name, one in measured.items()}


def _padded(mask: Array) -> Array:
    """Return a mask as images with a margin: rows are along the last axis."""
    images = mask.reshape(len(mask), -1, mask.shape[-1]) if mask.ndim > 2 else mask[:, None]
    return np.pad(images.astype(np.uint8), _PADDING)
