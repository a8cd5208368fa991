"""Patches: overlapping boxes of neighboring pixels or voxels at a stride. They can be extracted and added up again.

::

    sample (6, 7), patch (3, 3), stride 2      grid (2, 3)
    +-----+-+-+-+
    |  0 .|.1.|2|   patch 0 begins at pixel (0, 0), patch 1 at (0, 2), patch 3 at (2, 0);
    |. . .|. .|.|   the last row lies in no patch, because the next patch would exceed the sample
    +--3--+-4-+-5
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array

# Values of patches in one block: they and their products stay in the cache.
_BLOCK_VALUES = 2**18

Box = tuple[slice, ...]
"""A range of samples, and a range of patches along each axis of the grid."""


@dataclass(frozen=True)
class PatchGrid:
    """The patches of a sample: boxes over its leading (spatial) axes, with all channels (the further axes).

    Parameters
    ----------
    sample_shape : tuple of int
        Shape of one sample, spatial axes first.
    patch_shape : tuple of int
        Length of a patch along each spatial axis. The number of lengths is the number of spatial axes.
    stride : tuple of int
        Pixels from one patch to the next, along each spatial axis.

    Raises
    ------
    ValueError
        If a patch is empty, is larger than the sample or has more axes, or if a stride is less than 1.
    """

    sample_shape: tuple[int, ...]
    patch_shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        patch, n = self.patch_shape, len(self.patch_shape)
        if not 1 <= n <= len(self.sample_shape):
            raise ValueError(
                f"patch_shape is {patch}, but samples have shape {self.sample_shape}: give one length for each spatial "
                f"axis"
            )
        if any(not 1 <= p <= s for p, s in zip(patch, self.sample_shape, strict=False)):
            raise ValueError(
                f"patch_shape is {patch}, but samples have shape {self.sample_shape}: give lengths from 1 to "
                f"{self.sample_shape[:n]}"
            )
        if len(self.stride) != n or min(self.stride) < 1:
            raise ValueError(
                f"stride is {self.stride}: give one positive integer, or one for each of the {n} spatial axes"
            )

    @property
    def n_spatial(self) -> int:
        """Number of spatial axes."""
        return len(self.patch_shape)

    @property
    def channel_shape(self) -> tuple[int, ...]:
        """Lengths of the axes after the spatial ones."""
        return self.sample_shape[self.n_spatial :]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one patch with its channels."""
        return (*self.patch_shape, *self.channel_shape)

    @property
    def n_features(self) -> int:
        """Number of attributes of a patch."""
        return math.prod(self.shape)

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of patches along each spatial axis. All of them lie within the sample."""
        lengths = zip(self.sample_shape, self.patch_shape, self.stride, strict=False)
        return tuple((size - patch) // stride + 1 for size, patch, stride in lengths)

    @property
    def n_patches(self) -> int:
        """Number of patches of a sample."""
        return math.prod(self.grid_shape)

    @property
    def block_rows(self) -> int:
        """Largest number of patches in a box of `rows` and `boxes`."""
        return max(1, _BLOCK_VALUES // self.n_features)

    def boxes(self, n_samples: int) -> Iterator[Box]:
        """Yield boxes that cover every patch of the samples once, in order. A box has at most `block_rows` patches."""
        yield from _cut((n_samples, *self.grid_shape), self.block_rows)

    def rows(self, samples: Array) -> Iterator[tuple[Box, Array]]:
        """Yield each of `boxes` with its patches (n_patches, n_features), in a buffer that the next one overwrites.

        Parameters
        ----------
        samples : array (n_samples, *sample_shape)
        """
        axes, n = tuple(range(1, self.n_spatial + 1)), self.n_spatial
        windows = sliding_window_view(samples, self.patch_shape, axis=axes)
        windows = windows[(slice(None), *(slice(None, None, step) for step in self.stride))]
        # Channels come last, as in a sample.
        order = (*range(n + 1), *range(windows.ndim - n, windows.ndim), *range(n + 1, windows.ndim - n))
        windows = windows.transpose(order)
        for box in self.boxes(len(samples)):
            some = windows[box]
            rows = linalg.scratch("patches", (math.prod(some.shape[: n + 1]), self.n_features), samples.dtype)
            np.copyto(rows.reshape(some.shape), some)
            yield box, rows

    def add(self, rows: Array, box: Box, samples: Array) -> None:
        """Add the patches (n_patches, n_features) of a box to their pixels of samples (n_samples, *sample_shape)."""
        places = [range(*cut.indices(count)) for cut, count in zip(box[1:], self.grid_shape, strict=True)]
        patches = rows.reshape(-1, *map(len, places), *self.shape)
        for offset in itertools.product(*map(range, self.patch_shape)):
            starts = [o + p.start * step for o, p, step in zip(offset, places, self.stride, strict=True)]
            ends = zip(starts, places, self.stride, strict=True)
            here = tuple(slice(start, start + (len(p) - 1) * step + 1, step) for start, p, step in ends)
            pixel: tuple[Any, ...] = (..., *offset, *(slice(None),) * len(self.channel_shape))
            samples[(box[0], *here)] += patches[pixel]

    def counts(self) -> Array:
        """Return the number of patches over each pixel (*spatial axes,), integers."""
        count = np.ones((), np.int64)
        for size, patch, step in zip(self.sample_shape, self.patch_shape, self.stride, strict=False):
            along = np.zeros(size, np.int64)
            for start in range(0, size - patch + 1, step):
                along[start : start + patch] += 1
            count = np.multiply.outer(count, along)
        return count

    def work_bytes(self, n_samples: int, dtype: DTypeLike) -> int:
        """Return the bytes of the buffer of `rows`."""
        return min(self.block_rows, n_samples * self.n_patches) * self.n_features * np.dtype(dtype).itemsize


def _cut(shape: Sequence[int], most: int) -> Iterator[Box]:
    inner = math.prod(shape[1:])
    if len(shape) > 1 and inner > most:
        for i in range(shape[0]):
            yield from ((slice(i, i + 1), *rest) for rest in _cut(shape[1:], most))
        return
    step, rest = max(1, most // inner), tuple(slice(0, length) for length in shape[1:])
    for start in range(0, shape[0], step):
        yield (slice(start, min(start + step, shape[0])), *rest)
