"""Features of a cascade: the feature maps of each layer are rectified, pooled and passed to the next layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.kernels.pixels import Pixels
from dpca.representation.base import Representation
from dpca.representation.patches import PatchRepresentation
from dpca.storage.errors import DataError
from dpca.storage.transaction.workspace import fingerprint_of

# Bytes of the maps that are pooled at a time.
_BLOCK_BYTES = 2**24


@dataclass(frozen=True, eq=False)
class CascadeRepresentation(Representation):
    """The features of a cascade of layers. Each layer's maps are rectified to [y+, -y-] and averaged over blocks.

    Parameters
    ----------
    layers : sequence of PatchRepresentation
        At least one. The input of each layer are the features of the one before.
    rectify : bool
        Whether maps y become max(y, 0), followed by max(-y, 0).
    pool : int
        Side of the blocks for averaging. Incomplete blocks at the far edges are left out.
    kept : int, optional
        Number of maps of the last layer; default all.
    """

    layers: Sequence[PatchRepresentation]
    rectify: bool
    pool: int
    kept: int | None = None

    scores_kind: ClassVar[str] = "cascade-scores"  # type: ignore[misc]
    keeps_units: ClassVar[bool] = False
    decodes: ClassVar[bool] = False

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.layers[0].sample_shape

    @property
    def score_shape(self) -> tuple[int, ...]:
        """Shape of one sample's features: blocks along each spatial axis, maps."""
        *grid, k = self.layers[-1].score_shape
        return (*(length // self.pool for length in grid), self.kept or k * (2 if self.rectify else 1))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the filters."""
        return self.layers[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.nbytes for layer in self.layers)

    def score_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the axes of one sample's features, given those of a sample."""
        return self.layers[0].score_axes(axes)

    def n_spatial(self, axes: Sequence[str]) -> int:
        """Return the number of spatial axes of a sample."""
        return self.layers[0].n_spatial(axes)

    def fingerprint(self) -> str:
        """Return the hash of all layers."""
        return fingerprint_of(self.scores_kind, self.rectify, self.pool, *(one.fingerprint() for one in self.layers))

    def work_bytes(self, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        """Bytes of temporary arrays, as `Representation.work_bytes`."""
        work = self.score_dtype(dtype)
        rows = min(n_rows, self._step(work))
        # For a layer: its maps, the rectified maps and the pooled maps.
        inside = max(layer.work_bytes(rows, work) + 3 * rows * self._map_bytes(layer, work) for layer in self.layers)
        return inside + n_rows * math.prod(self.score_shape) * work.itemsize

    def _leading(self, n_components: int) -> Self:
        return replace(self, kept=n_components)

    def _encode(self, samples: Array) -> Array:
        dtype = self.score_dtype(samples.dtype)
        features = np.empty((len(samples), *self.score_shape), dtype)
        for few in blocks(len(samples), self._step(dtype)):
            values = samples[few]
            for layer in self.layers:
                values = self._pooled(layer._encode(values))
            features[few] = values[..., : features.shape[-1]]
        return features

    def _decode(self, scores: Array, pixels: Pixels | None) -> Array:
        raise DataError(
            "features of a cascade cannot be decoded, since pooling discards their positions: for decoding, use the "
            "scores of PatchPCA"
        )

    def _pooled(self, maps: Array) -> Array:
        """Return maps (n, *grid, k), rectified and averaged over blocks of the grid."""
        if self.rectify:
            maps = np.concatenate([np.maximum(maps, 0), np.maximum(-maps, 0)], axis=-1)
        p, (n, *grid, k) = self.pool, maps.shape
        whole = maps[(slice(None), *(slice(length // p * p) for length in grid))]
        blocks = whole.reshape(n, *(size for length in grid for size in (length // p, p)), k)
        return blocks.mean(axis=tuple(range(2, 2 * len(grid) + 1, 2)))

    def _step(self, dtype: np.dtype[Any]) -> int:
        """Number of samples that pass through all layers at a time."""
        return max(1, _BLOCK_BYTES // max(self._map_bytes(layer, dtype) for layer in self.layers))

    @staticmethod
    def _map_bytes(layer: PatchRepresentation, dtype: np.dtype[Any]) -> int:
        return math.prod(layer.score_shape) * dtype.itemsize


class EncodedSource(ComputedSource):
    """The scores of the samples of another source, computed when they are read; nothing is stored.

    Parameters
    ----------
    source : Source
    representation : Representation
    """

    def __init__(self, source: Source, representation: Representation) -> None:
        dtype = representation.score_dtype(source.dtype)
        super().__init__(source, (source.shape[0], *representation.score_shape), dtype)
        self.representation = representation

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of scores. Whole samples are encoded for any box."""
        scores = self.representation.encode(values, self.name, first)
        np.copyto(out, scores[(slice(None), *(slice(*lengths) for lengths in region))])

    def extra_bytes(self, region: Region) -> int:
        """Return the bytes that a reader needs in addition to its output, including those for encoding."""
        work = self.representation.work_bytes(self.read_rows(region), self.source.dtype)
        return super().extra_bytes(region) + work
