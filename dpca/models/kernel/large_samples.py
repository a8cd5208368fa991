"""Kernel PCA of few large samples: kernels from inner products, which are summed over blocks of attributes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import dask.array as da
import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.lazy_boxes import TASK_BYTES, lazy_box
from dpca.engine.sources.source import Source
from dpca.kernels.algebra import integers, linalg
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.kernels.byte_points import BytePoints, moments
from dpca.kernels.inner_products import Kernel
from dpca.models.base.attribute_blocks import cuts, gram_blocks, gram_of
from dpca.models.base.passes import Passes
from dpca.partition.cells import CellGrid
from dpca.rules.dual.gram import float_gram, product_dtype
from dpca.storage.remote.memory import usable_bytes

# Bytes of the samples of a task of `transform`: those to transform, and all landmarks, at some attributes. A chunk is
# cut, and decoded several times, only beyond twice as many bytes.
_CUT_BYTES = 2 * TASK_BYTES
# Attributes that are converted to float64 at a time.
_COLUMNS = 8192
# Fewest samples to transform together. Each group of them reads all landmarks.
_ROWS = 256


@dataclass(frozen=True, eq=False)
class StoredLandmarks:
    """All samples of a fit as landmarks. They stay in their source.

    Attributes
    ----------
    source : Source
    squares : array (n,), float64
        Their squared lengths, after their mean is subtracted where `is_centered`.
    """

    source: Source
    squares: Array

    def rows(self) -> da.Array:
        """Return the landmarks (n, d), float64, lazily."""
        n, *shape = self.source.shape
        region, d = tuple((0, length) for length in shape), math.prod(shape)
        rows = max(1, TASK_BYTES // (8 * d))
        tiles = [_tile(self.source, (some.start, some.stop), region).astype(np.float64) for some in blocks(n, rows)]
        whole: da.Array = da.concatenate(tiles)
        return whole

    def kernels_of(self, source: Source, kernel: Kernel) -> da.Array:
        """Return the kernels (m, n), float64, of other samples with the landmarks, lazily.

        A task holds some samples and all landmarks at a block of attributes. If all samples are few, they and the
        landmarks are read once. Costs 2 m n d operations.
        """
        n, m, shape = self.source.shape[0], source.shape[0], tuple(source.shape[1:])
        step = max(1, source.chunks[0])
        rows = min(m, math.ceil(max(n, _ROWS) / step) * step)
        each, chunks = n * self.source.dtype.itemsize + rows * source.dtype.itemsize, self.source.chunks[1:]
        grid = CellGrid(shape, shape)
        for smaller in cuts(shape, chunks):
            size = each * math.prod(grid.cell_shape)
            is_cut = any(length < min(c, s) for length, c, s in zip(smaller.cell_shape, chunks, shape, strict=True))
            if size <= TASK_BYTES or (is_cut and size <= _CUT_BYTES):
                break
            grid = smaller
        regions = [grid.region(i) for i in range(grid.n_parts)]
        known = [_tile(self.source, (0, n), region) for region in regions]
        centered = is_centered(kernel.name, self.source.dtype)
        parts = []
        for some in blocks(m, rows):
            of_blocks = [
                da.map_blocks(
                    partial(_products, centered=centered),
                    _tile(source, (some.start, some.stop), region)[None],
                    landmarks[None],
                    dtype=np.float64,
                    chunks=(1, some.stop - some.start, n + 1),
                    meta=np.empty((0, 0, 0)),
                )
                for region, landmarks in zip(regions, known, strict=True)
            ]
            parts.append(da.concatenate(of_blocks).sum(axis=0))
        products = da.concatenate(parts)
        found: da.Array = products.map_blocks(
            partial(_kernels, kernel=kernel, squares=self.squares),
            chunks=(products.chunks[0], (n,)),
            dtype=np.float64,
            meta=np.empty((0, 0)),
        )
        return found


def _tile(source: Source, samples: tuple[int, int], region: Region) -> da.Array:
    """Return flattened samples at some attributes as one chunk of a Dask array."""
    return lazy_box(source, samples, region).reshape(samples[1] - samples[0], -1)


def is_centered(kernel: str, dtype: DTypeLike) -> bool:
    """Return whether distances of landmarks of a dtype come from centered values: those of bytes are exact without."""
    return kernel == "rbf" and not integers.is_byte(dtype)


def _products(x: Array, landmarks: Array, *, centered: bool) -> Array:
    """Return the inner products of samples (1, m, d) with landmarks (1, n, d) and themselves (1, m, n + 1)."""
    out = np.zeros((1, x.shape[1], landmarks.shape[1] + 1))
    is_exact = x.dtype == landmarks.dtype and integers.is_byte(x.dtype)
    for columns in blocks(x.shape[2], _COLUMNS):
        rows, points = (values[0, :, columns] for values in (x, landmarks))
        if is_exact:
            sums, squares = moments(rows)
            products = linalg.scratch("exact products", (len(rows), len(points)), np.float64)
            BytePoints(points).multiply(rows, sums, 0, 0, products)
            out[0, :, :-1] += products
            out[0, :, -1] += squares
            continue
        rows, points = rows.astype(np.float64), points.astype(np.float64)
        if centered:
            mean = points.mean(axis=0)
            rows -= mean
            points -= mean
        out[0, :, :-1] += rows @ points.T
        out[0, :, -1] += np.einsum("ij,ij->i", rows, rows)
    return out


def _kernels(products: Array, *, kernel: Kernel, squares: Array) -> Array:
    return kernel.of_products(products[:, :-1].copy(), products[:, -1], squares)


def planned_blocks(passes: Passes, kernel: str) -> CellGrid | None:
    """Return the blocks of attributes of the pass of `inner_products`.

    None if a task cannot hold all samples at a few attributes, or this process the kernel matrix and its eigenproblem.
    """
    n = passes.source.shape[0]
    try:
        grid = gram_blocks(passes, is_centered(kernel, passes.source.dtype), n)
    except PlanError:
        return None
    return grid if 16 * n * n + linalg.eigh_bytes(n, n) <= usable_bytes() else None


def inner_products(passes: Passes, grid: CellGrid, kernel: str) -> tuple[Array, float]:
    """Return the inner products (n, n), float64, of all samples, in one pass, and their relative rounding error.

    They are those of centered samples where `is_centered`. Integers of at most 16 bits have exact products.
    """
    source, centered = passes.source, is_centered(kernel, passes.source.dtype)
    total = float_gram(gram_of(passes, grid, centered), centered)
    return linalg.symmetrize(total), float(np.finfo(product_dtype(source.shape[0], source.dtype)).eps)
