"""Analyse compressed stores without decoding them. There are about ten times fewer scores than values.

In every cell, a decoded sample is the mean plus a sum of components times scores. Where cells overlap, an orthogonal
filter maps it back. So the inner products of samples are those of scores, weighted by the inner products of the
components of a cell. These are not orthonormal, because they are quantized.

Every function here requires a store that `dpca.open_compressed` opened, at any ``level``. Results are those of the
decoded samples before rounding to integers and clipping to the data range, up to rounding error. Rounding to integers
moves a value by at most half a unit. Residuals, which stores with an error bound have, are left out: the results are
then those of the samples without their residuals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import dask.array as da
import numpy as np

from dpca.engine.folds.plan import PlanError
from dpca.kernels.algebra.linalg import add_lower, fix_signs, gram_lower, release_scratch, scratch, symmetrize
from dpca.kernels.algebra.types import Array
from dpca.models import PCA
from dpca.representation.compressed.compressed import Compressed
from dpca.representation.compressed.compressed_scores import (
    Cell,
    OrthonormalScores,
    Thumbnails,
    cells_of,
    joined,
    mean_codes,
    means_of,
)
from dpca.storage.disk import readable_size
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_whole, whole_number
from dpca.storage.remote.memory import usable_bytes

# Bytes of scores in memory at once, of all samples of some cells.
_BLOCK_BYTES = 2**26

__all__ = ["gram", "mean", "nearest", "outliers", "pca", "scores", "thumbnails"]


def __dir__() -> list[str]:
    # Only public names: completion shows nothing that was imported for this file.
    return [*__all__, *(name for name in globals() if name.startswith("__") and name.endswith("__"))]


def scores(store: Compressed) -> da.Array:
    """Return the scores of all samples along orthonormal components. They preserve inner products and distances.

    Parameters
    ----------
    store : Compressed

    Returns
    -------
    dask array (n_samples, n_scores), float32, or float64 if samples are decoded in float64
        Scores of the samples minus the mean that the store keeps. Each chunk has the samples of one chunk of codes.
        The array is lazy. Anything that fits arrays of samples can be fitted to it, such as `dpca.PCA` or a clustering
        of scikit-learn.
    """
    return OrthonormalScores(store).lazy()


def mean(store: Compressed) -> Array:
    """Return the mean of all samples.

    Returns
    -------
    array (*sample_shape,), float64
        Reads all codes once and decodes one sample.
    """
    codes = mean_codes(store)[None]
    added = [codes[:, cell.positions] @ cell.rows for cell in cells_of(store)]
    found: Array = joined(store, [a + b for a, b in zip(added, means_of(store), strict=True)])[0]
    return found


def thumbnails(store: Compressed, shape: Sequence[int]) -> da.Array:
    """Return small versions of all samples: means over equal parts of the spatial axes.

    Parameters
    ----------
    store : Compressed
    shape : sequence of int
        Length along each spatial axis, at most that of a sample.

    Returns
    -------
    dask array (n_samples, *shape, *channels) of the samples' dtype
        Each chunk has the samples of one chunk of codes. The array is lazy.

    Raises
    ------
    DataError
        If ``shape`` has another number of axes, or is larger than a sample.
    """
    grid = store.codec.components.grid
    whole = grid.sample_shape[: grid.n_spatial]
    fits = len(shape) == len(whole) and all(map(is_whole, shape))
    if not fits or not all(1 <= few <= n for few, n in zip(shape, whole, strict=True)):
        raise DataError(f"shape is {tuple(shape)}: give a length for each spatial axis, at most {whole}")
    return Thumbnails(store, tuple(map(int, shape))).lazy()


def gram(store: Compressed, *, center: bool = True) -> Array:
    """Return the inner products of all samples.

    Parameters
    ----------
    store : Compressed
    center : bool
        Whether to subtract the mean of the samples first.

    Returns
    -------
    array (n_samples, n_samples), float64
        Takes n^2 operations per score, and 12 n^2 (float32 scores) or 16 n^2 (float64) bytes. Errors are those of sums
        in the dtype of `scores`, relative to the product of the two norms.

    Raises
    ------
    PlanError
        If there is not enough memory.
    """
    n, dtype = store.shape[0], store.codec.dtype
    need, room = n * n * (8 + dtype.itemsize), usable_bytes()
    if need > room:
        raise PlanError(
            f"the inner products of {n:,} samples need {readable_size(need)} of memory, and {readable_size(room)} are "
            f"available: use dpca.analysis.pca or nearest, or dpca.analysis.scores of some samples"
        )
    total, constant = np.zeros((n, n)), 0.0
    cells, means = cells_of(store), means_of(store)
    for some in _blocks(cells, max(1, _BLOCK_BYTES // (n * dtype.itemsize))):
        positions = np.sort(np.concatenate([cells[c].positions for c in some]))
        codes = store.codes(positions, np.arange(n))
        x, end = scratch("scores", (sum(cells[c].into.shape[1] for c in some), n), dtype), 0
        for c in some:
            cell = cells[c]
            values = codes[np.searchsorted(positions, cell.positions)].astype(dtype)
            begin, end = end, end + cell.into.shape[1]
            np.matmul(cell.into.T.astype(dtype), values, out=x[begin:end])
            if not center:
                own = cell.back @ (cell.rows @ means[c])
                x[begin:end] += own[:, None].astype(dtype)
                constant += float(means[c] @ means[c] - own @ own)
        add_lower(total, gram_lower("gram", x))
    release_scratch()
    symmetrize(total)
    if center:
        means_of_rows = total.mean(axis=1)
        total -= means_of_rows[:, None]
        total -= means_of_rows - means_of_rows.mean()
    total += constant
    return total


def _blocks(cells: Sequence[Cell], most: int) -> Iterator[list[int]]:
    """Yield blocks of cells with adjacent codes, of about ``most`` rows of codes and at most twice as many."""
    block: list[int] = []
    size = reach = 0
    for c in sorted(range(len(cells)), key=lambda c: int(cells[c].positions.min(initial=0))):
        positions = cells[c].positions
        # The cells of a tile interleave their rows. A split tile would be read once for each of its blocks.
        apart, more = positions.min(initial=reach) >= reach, size + len(positions)
        if block and more > (most if apart else 2 * most):
            yield block
            block, more = [], len(positions)
        block, size, reach = [*block, c], more, max(reach, int(positions.max(initial=-1)) + 1)
    yield block


def pca(store: Compressed, n_components: int, *, random_state: Any = 0) -> PCA:
    """Fit principal components of whole samples, for any cells of the store.

    Parameters
    ----------
    store : Compressed
    n_components : int
    random_state : int, RandomState or None
        As for `dpca.PCA`.

    Returns
    -------
    PCA
        The fitted model. It equals a fit to the decoded samples up to rounding error. It costs a fit to `scores`, with
        ``n_scores`` instead of the number of values of a sample, and 8 bytes for each value of a component.
    """
    n_components, own = whole_number(n_components, "n_components", 1), scores(store)
    model = PCA(n_components, random_state=random_state).fit(own)
    found, end = [], 0
    for cell in cells_of(store):
        begin, end = end, end + cell.into.shape[1]
        found.append(model.components_[:, begin:end].astype(np.float64) @ cell.back @ cell.rows)
    components = joined(store, found).reshape(n_components, -1).astype(model.components_.dtype)
    learned = {
        "components": fix_signs(components),
        "mean": mean(store).ravel(),
        "explained_variance": model.explained_variance_,
        "total_variance": model.total_variance_,
        "residual_norms": getattr(model, "residual_norms_", None),
    }
    model._set_fitted(learned, store.shape[1:], store.shape[0])
    return model


def nearest(store: Compressed, sample: int, n: int = 10) -> tuple[Array, Array]:
    """Return the nearest neighbors of one sample.

    Parameters
    ----------
    store : Compressed
    sample : int
        Index of the sample.
    n : int
        How many to return, at most all others.

    Returns
    -------
    array (n,) of int, array (n,) of float
        Indices and Euclidean distances, in ascending order of distance. The sample itself is left out. Reads all codes
        once.

    Raises
    ------
    DataError
        If there is no such sample, or ``n`` is not positive.
    """
    if not is_whole(sample) or not -store.shape[0] <= sample < store.shape[0]:
        raise DataError(f"sample is {sample!r}: give an index below the number of samples, {store.shape[0]:,}")
    n, own = whole_number(n, "n", 1), scores(store)
    distances = _distances(own, own[sample].compute())
    distances[sample] = math.inf  # sorts last, and is cut off
    order = np.argsort(distances, kind="stable")[: min(n, len(distances) - 1)]
    return order, distances[order]


def outliers(store: Compressed, n: int = 10, *, n_components: int = 0) -> tuple[Array, Array]:
    """Return the samples that are least like the others.

    Parameters
    ----------
    store : Compressed
    n : int
        How many to return, at most all.
    n_components : int
        0: distances from the mean. Otherwise: distances from the subspace of this many principal components of whole
        samples, the residuals of Jackson & Mudholkar (1979).

    Returns
    -------
    array (n,) of int, array (n,) of float
        Indices and Euclidean distances, in descending order of distance. Reads all codes once for the mean, or once for
        each pass of the fit, and then once for the distances.

    Raises
    ------
    DataError
        If ``n`` is not positive, or there are fewer components than ``n_components``.
    """
    n, n_components, own = whole_number(n, "n", 1), whole_number(n_components, "n_components", 0), scores(store)
    if n_components:
        model = PCA(n_components, random_state=0).fit(own)
        distances = np.sqrt(np.maximum(-np.asarray(model.score_samples(own)), 0))
    else:
        codes = mean_codes(store)
        middle = np.concatenate([codes[cell.positions] @ cell.into for cell in cells_of(store)])
        distances = _distances(own, middle.astype(own.dtype))
    order = np.argsort(-distances, kind="stable")[:n]
    return order, distances[order]


def _distances(own: da.Array, point: Array) -> Array:
    """Return the distances (n,) of scores from a point."""
    distances: Array = np.sqrt(np.asarray(da.square(own - point).sum(axis=1, dtype=np.float64)))
    return distances
