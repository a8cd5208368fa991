"""Decode samples from scores, with all components or only the first ones, in memory or lazily."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import zarr
from numpy.typing import DTypeLike

from dpca.engine.sources.source import as_samples
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.pixels import Pixels
from dpca.representation.base import MODEL_FACT, Representation
from dpca.representation.by_blocks import BasisBlocks, decoded_by_boxes, is_by_boxes
from dpca.representation.lazy import is_lazy, lazily_opened, lazy_chunks, map_samples, rows_of_a_task
from dpca.representation.linear import LinearRepresentation
from dpca.storage.arrays.layout import box_shape, boxes_of
from dpca.storage.arrays.reading import group_facts
from dpca.storage.errors import DataError

# Attributes of a box in which one sample is encoded.
_BOX_ATTRIBUTES = 2**21


def samples_of(basis: Representation, x: Any, n_components: int | None = None, pixels: Pixels | None = None) -> Any:
    """Return the samples (n, *sample_shape) decoded from scores.

    Parameters
    ----------
    basis : Representation
    x : array (n, *score_shape), numpy, Dask or Zarr; or the path of a Zarr array
        Scores of all components, or of the first ``n_components``. NumPy and Dask arrays can also be flat, (n, scores).
    n_components : int, optional
        Use only this many of the first components; default all.
    pixels : Pixels, optional
        Type and range that samples are rounded and clipped to; default neither.

    Returns
    -------
    array
        A Dask array if the scores are lazy. Chunks of a store with other components are not read.

    Raises
    ------
    DataError
        If the scores have another shape, or there are fewer components.
    """
    used = basis.leading(n_components)
    level = used.score_shape[-1]
    scores = lazily_opened(x) if is_lazy(x) else as_samples(x, "X")
    grid = basis.score_shape[:-1]
    if grid and scores.ndim == 2 and not isinstance(scores, zarr.Array) and scores.shape[1] % math.prod(grid) == 0:
        scores = scores.reshape(scores.shape[0], *grid, scores.shape[1] // math.prod(grid))
    if isinstance(scores, zarr.Array):
        check_stated_model(group_facts(scores), f"'{scores.store_path}'", basis)
    if tuple(scores.shape[1:]) not in (basis.score_shape, used.score_shape):
        raise DataError(f"scores have shape {scores.shape} but this model needs (n_samples, *{basis.score_shape})")
    if isinstance(used, LinearRepresentation) and used.is_by_blocks:
        lazy = da.from_array(scores[:, :level]) if isinstance(scores, np.ndarray) else leading_scores(scores, level)
        decoded = BasisBlocks(used).decode(lazy, pixels)
        return decoded.compute() if isinstance(scores, np.ndarray) else decoded
    if isinstance(scores, np.ndarray):
        return used.decode(scores[..., :level], pixels=pixels)
    if is_by_boxes(used, scores.dtype):
        return decoded_by_boxes(used, scores, pixels)
    dtype = used.decoded_dtype(scores.dtype)
    lazy = leading_scores(scores, level, math.prod(used.sample_shape) * dtype.itemsize)
    dtype = dtype if pixels is None else pixels.dtype
    return map_samples(lazy, partial(Representation.decode, pixels=pixels), used, used.sample_shape, dtype)


def decoded_box(basis: LinearRepresentation, scores: Any, index: int, region: Region, pixels: Pixels | None) -> Array:
    """Return a box of one decoded sample.

    Parameters
    ----------
    basis : LinearRepresentation
        One with boxes, see `in_boxes`.
    scores : array (n, *score_shape) or zarr.Array
        Scores of the first components.
    index : int
        Index of the sample.
    region, pixels
        The box; as for `samples_of`.
    """
    around = basis.aligned(region)
    some = np.asarray(scores[(slice(index, index + 1), *basis.score_places(around))])
    values = basis.box(around, some.shape[-1]).decode(some, "the scores", index, pixels=pixels)[0]
    box: Array = values[tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(region, around, strict=True))]
    return box


def encoded_in_boxes(basis: LinearRepresentation, read: Callable[[Region], Array], dtype: DTypeLike) -> Array:
    """Return the scores (1, *score_shape) of one sample of a type, given a function that returns a box of it."""
    shape, total = basis.sample_shape, np.zeros((1, *basis.summand_shape))
    for region in boxes_of(shape, box_shape(shape, _BOX_ATTRIBUTES, basis.unit)):
        around = basis.aligned(region)
        scores = basis.box(around).summands(read(around)[None], "the sample")
        total[(slice(None), *basis.score_places(region))] += basis.own_scores(scores, region, around)
    return basis.scores_of_sums(total, dtype)


def check_stated_model(facts: Mapping[str, Any], where: str, basis: Representation) -> None:
    """Raise DataError if a store of scores states that they were made with another model."""
    if facts.get(MODEL_FACT, fingerprint := basis.fingerprint()) != fingerprint:
        raise DataError(f"{where} holds scores of another model: use the model that made them")


def leading_scores(scores: zarr.Array[Any] | da.Array, n_components: int, sample_bytes: int = 0) -> da.Array:
    """Return the first components of scores as a Dask array of whole samples. Of a store, nothing else is read.

    Parameters
    ----------
    scores : zarr.Array or dask.array.Array (n, ..., k)
    n_components : int
    sample_bytes : int
        Bytes of one decoded sample, if chunks will be decoded. Tasks are then small enough to hold the samples too.
    """
    if isinstance(scores, da.Array):
        return scores[..., :n_components]
    *grid, k = scores.shape[1:]
    score_bytes = math.prod(grid) * n_components * np.dtype(scores.dtype).itemsize
    # The first components are chunks of their own, so that Dask drops all others from the graph.
    levels = (n_components, k - n_components) if n_components < k else k
    rows = rows_of_a_task(scores, max(score_bytes, sample_bytes))
    first = lazy_chunks(scores, (rows, *grid, levels))[..., :n_components]
    return first
