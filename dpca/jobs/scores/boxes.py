"""Boxes of large samples: which ones a pass takes, and how their scores and values are read and written."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import zarr

from dpca.engine.sources.source import Source
from dpca.jobs.scores.score_write import TRIED_BYTES, require_memory
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region
from dpca.representation.by_blocks import LARGE_SAMPLE
from dpca.representation.divided import DividedRepresentation
from dpca.representation.score_layout import boxed_score_layout, score_chunk, score_layout
from dpca.storage.arrays.arrays import write_shard
from dpca.storage.arrays.layout import Layout, box_shape, choose_layout
from dpca.storage.arrays.reading import read_into

#: What the progress of a pass over boxes counts.
BOXES = "boxes of samples"
# Bytes of the components and the temporary arrays of a box: enough for few large boxes, and several fit into a worker.
_BOX_BYTES = 2**29
# Boxes of fewer attributes than this are not worth their tasks.
_LEAST_BOX = 2**16
# Bytes of a block of boxes in floating point: several samples share a read of the components.
_BLOCK_BYTES = 48 * 2**20
# Most samples of a unit of work, and most bytes of their scores in this process.
_UNIT_ROWS, _UNIT_BYTES = 256, 64 * 2**20


class Spanned(Protocol):
    """The data of a job, which knows the samples of each of its units."""

    def span(self, shard: int) -> tuple[int, int]:
        """Return the first sample of a unit, and the one behind the last."""


class OfModel(Spanned, Protocol):
    """The data of a job that applies a stored model to a source."""

    @property
    def source(self) -> Source:
        """The samples."""

    @property
    def model(self) -> str:
        """Path of the model."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the model at that path."""

    @property
    def store(self) -> str:
        """Group for the arrays to write."""


J = TypeVar("J", bound=Spanned)


@dataclass(frozen=True)
class Boxes:
    """How large samples are divided.

    Parameters
    ----------
    layout : Layout
        Chunks and shards of the reconstructions. A shard is a box of one sample.
    shape : tuple of int
        Shape of a sample.
    rows : int
        Samples of a unit of work, and of a shard of scores.
    """

    layout: Layout
    shape: tuple[int, ...]
    rows: int

    @property
    def decoded(self) -> list[Region]:
        """Boxes of the second pass: shards of the reconstructions."""
        return self.layout.boxes(self.shape)

    def encoded(self, basis: DividedRepresentation) -> list[tuple[Region, Region]]:
        """Return the boxes of the first pass, each with the `aligned` box that is encoded for its scores.

        They do not divide cells. Those of patches are shards of scores.
        """
        found, most = self.decoded, math.prod(self.layout.shards[1:])
        if basis.large_scores:
            return basis.scored_boxes(most, score_chunk(basis.score_shape))
        if all(a % c == 0 for region in found for (a, _), c in zip(region, basis.unit, strict=True)):
            return [(region, basis.aligned(region)) for region in found]
        return basis.scored_boxes(most)

    def scores(self, basis: DividedRepresentation, dtype: np.dtype[Any]) -> Layout:
        """Return the layout of the scores of samples of a type: shards of some samples, or boxes of `large_scores`."""
        if not basis.large_scores:
            return score_layout(self.rows, basis.score_shape, basis.score_dtype(dtype).itemsize)
        first, _ = self.encoded(basis)[0]
        return boxed_score_layout(basis.score_shape, [place.stop for place in basis.score_places(first)])

    def units(self, n_samples: int, boxes: Sequence[object]) -> Iterator[tuple[int, int]]:
        """Return the units of work: a number of rows of samples, and the number of a box."""
        return itertools.product(range(math.ceil(n_samples / self.rows)), range(len(boxes)))


@dataclass(frozen=True)
class BoxPass(Generic[J]):
    """A pass over large samples, box by box: its units are a group of samples and a box."""

    job: J
    boxes: Boxes

    def span(self, group: int) -> tuple[int, int]:
        """Return the first sample of a group, and the one behind the last."""
        return self.job.span(group)


def choose_boxes(
    basis: DividedRepresentation,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    axes: Sequence[str],
    needs: tuple[Layout, int, Callable[[Boxes], int]],
    budget: int,
    kept: Layout | None,
) -> Boxes | None:
    """Return the first boxes that fit a budget; None if samples fit whole, and are small or cannot be divided.

    ``needs`` are the layout of whole samples, the bytes of a task for them, and the function of those for boxes.
    """
    whole, need, box_bytes = needs
    small = decoded_bytes(shape, dtype) <= LARGE_SAMPLE
    if kept is None and small and need <= budget:
        return None
    what, rows = f"{whole.shards[0]:,} samples", unit_rows(basis, shape[0], dtype)
    found = possible_boxes(basis, shape, dtype, axes) if kept is None else [Boxes(kept, tuple(shape[1:]), rows)]
    for boxes in found:
        if (each := box_bytes(boxes)) <= budget:
            return boxes
        if not small:
            what, need = f"a box of {math.prod(boxes.layout.shards[1:]):,} attributes", each
    require_memory(what, need, budget)
    return None


def decoded_bytes(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Return the bytes of one sample of a stack in floating point."""
    return math.prod(shape[1:]) * working_dtype(dtype).itemsize


def possible_boxes(
    basis: DividedRepresentation, shape: tuple[int, ...], dtype: np.dtype[Any], axes: Sequence[str]
) -> Iterator[Boxes]:
    """Yield boxes of decreasing size, at least two for a sample."""
    most = max(_LEAST_BOX, basis.box_features(_BOX_BYTES, basis.score_dtype(dtype).itemsize))
    rows = unit_rows(basis, shape[0], dtype)
    previous = None
    while most >= _LEAST_BOX:
        part = most * dtype.itemsize
        layout = choose_layout(shape, dtype.itemsize, axes, basis.cell_shape, part, part)
        boxes = Boxes(Layout((1, *layout.chunks[1:]), (1, *layout.shards[1:])), tuple(shape[1:]), rows)
        if boxes != previous and len(boxes.decoded) > 1:
            yield boxes
        previous, most = boxes, most // 2


def unit_rows(basis: DividedRepresentation, n_samples: int, dtype: np.dtype[Any]) -> int:
    """Return the number of samples of a unit of work."""
    return max(1, min(n_samples, _UNIT_ROWS, _UNIT_BYTES // basis.score_bytes(dtype)))


def cells_in(basis: DividedRepresentation, region: Region) -> tuple[int, ...]:
    """Return the number of cells in a box along each axis of the grid, none if cells do not divide samples."""
    return tuple(place.stop - place.start for place in basis.score_places(region))


def together(region: Region, dtype: np.dtype[Any]) -> int:
    """Return the number of samples of which a box is encoded or decoded at a time."""
    return max(1, _BLOCK_BYTES // (working_dtype(dtype).itemsize * math.prod(b - a for a, b in region)))


def read_scores(
    scores: zarr.Array[Any],
    samples: tuple[int, int],
    basis: DividedRepresentation,
    region: Region,
    n_components: int | None = None,
) -> Array:
    """Read the scores of an aligned box of some samples, or those of the first components."""
    k = basis.score_shape[-1] if n_components is None else n_components
    box = (slice(*samples), *basis.score_places(region), slice(k))
    out = np.empty((samples[1] - samples[0], *cells_in(basis, region), k), scores.dtype)
    read_into(scores, box, out)
    return out


def write_boxes(out: zarr.Array[Any], first: int, core: Region, values: Array) -> None:
    """Write a box of some samples, one shard for each."""
    for i, one in enumerate(values):
        write_shard(out, (first + i, *(a for a, _ in core)), one[None])


def tried_box(basis: DividedRepresentation, dtype: np.dtype[Any]) -> Region:
    """Return a small box of whole cells, on which codecs are tried."""
    shape = basis.sample_shape
    box = box_shape(shape, TRIED_BYTES // dtype.itemsize, (1,) * len(shape))
    return basis.aligned(tuple((0, b) for b in box))
