"""Bytes of masks of missing values in compressed stores, beside zstd of packed bits.

Run: python tests/benchmarks/quality/mask_bytes.py
"""

from __future__ import annotations

import time

import numpy as np
from numcodecs import Zstd  # type: ignore[import-untyped]
from scipy.ndimage import gaussian_filter

from dpca.codec.masks import coded_mask, decoded_mask
from dpca.kernels.algebra.types import Array

# Samples of a chunk, and the shape of a sample.
N, SHAPE, SHARE = 192, (100, 120), 0.3


def clouds(space: float, duration: float) -> Array:
    """Return the clouds of a smooth random field that moves, and covers 30 % of all values."""
    field = gaussian_filter(
        np.random.default_rng(0).standard_normal((N, *SHAPE)), (duration, space, space), mode="wrap"
    )
    for t, image in enumerate(field):
        image[...] = np.roll(image, 2 * t, axis=1)
    covered: Array = field < np.quantile(field, SHARE)
    return covered


def main() -> None:
    """Print bits of each value by both, and the time of one value."""
    land = np.broadcast_to(clouds(8, 0)[0], (N, *SHAPE))
    blocks = (np.random.default_rng(0).random((N, SHAPE[0] // 4, SHAPE[1] // 4)) < SHARE).repeat(4, 1).repeat(4, 2)
    given = {
        "land, the same in all samples": land,
        "large clouds": clouds(8, 6),
        "large clouds and land": clouds(8, 6) | land,
        "small clouds": clouds(4, 3),
        "slow clouds": clouds(5, 20),
        "other clouds in each sample": clouds(5, 0),
        "squares at random": blocks,
        "values at random": np.random.default_rng(0).random((N, *SHAPE)) < SHARE,
    }
    coded_mask(land[:1])
    print(f"{'mask':32}{'bits':>8}{'zstd 5':>8}{'zstd 19':>8}{'ns/value':>10}")
    for name, mask in given.items():
        start = time.process_time()
        coded = coded_mask(mask)
        decoded_mask(coded, mask.shape)
        spent = time.process_time() - start
        packed = np.packbits(mask, axis=-1)
        sizes = [len(Zstd(5).encode(coded)), *(len(Zstd(level).encode(packed)) for level in (5, 19))]
        bits = "".join(f"{8 * size / mask.size:8.4f}" for size in sizes)
        print(f"{name:32}{bits}{1e9 * spent / mask.size:10.0f}")


if __name__ == "__main__":
    main()
