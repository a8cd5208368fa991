"""Sources of reconstructions: a model and the sample itself, stored scores, or a compressed store."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dpca.explore.originals import WHOLE_SAMPLE, LargeSample, Originals, StoreGuard
from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import Pixels
from dpca.plots.numbers import counted
from dpca.storage.disk import folder_bytes
from dpca.storage.remote.network import is_url

if TYPE_CHECKING:  # these imports take seconds
    from dpca.models.scores import Scores
    from dpca.representation.base import Representation
    from dpca.representation.compressed.compressed import Compressed
    from dpca.representation.linear import LinearRepresentation

# Most scores that are read to find outliers, and most samples that are sorted.
_MOST_SCORES = 2**27
_QUALITY = ("mse", "psnr", "ssim")


@dataclass(frozen=True)
class Pictured:
    """The components to draw, with mean and variances.

    Attributes
    ----------
    vectors : array (count, *sample_shape), list of LargeSample, or None
        The first components; those of cells or bands are joined. Components of patches have the shape of a patch.
    cell_shape : tuple of int or None
        Shape of the cells. The signs of components differ from cell to cell.
    mean : array (*sample_shape,) or None
        Has the same shape.
    share : array (k,)
        Share of the variance of each component, the mean of all cells or bands; empty if unknown.
    description : str
        Of the components.
    """

    vectors: Array | list[LargeSample] | None
    cell_shape: tuple[int, ...] | None
    mean: Array | LargeSample | None
    share: Array
    description: str

    @classmethod
    def of_model(cls, model: Any, count: int) -> Pictured:
        """Return the components to draw of a fitted model: components, modes of fields, or patches."""
        from dpca.models.eof.eof import EOF
        from dpca.models.patches.patch_pca import PatchPCA

        words = f"{type(model).__name__} of {model.n_samples_seen_:,} samples"
        share = np.asarray(getattr(model, "explained_variance_ratio_", np.empty(0)), np.float64)
        share = share.reshape(-1, share.shape[-1]).mean(axis=0) if share.size else share.ravel()
        if isinstance(model, EOF):
            return cls(np.asarray(model.eofs())[:count], None, None, share, words)
        patches, shape, k = isinstance(model, PatchPCA), tuple(model.sample_shape_), model.basis_.score_shape[-1]
        divided = boxed(model.basis_, model.basis_.dtype)
        if divided is not None:
            maps = [LargeSample(shape, divided.dtype, partial(divided.component, i)) for i in range(min(count, k))]
            average = LargeSample(shape, divided.mean.dtype, divided.mean_box)
            return cls(maps, None, average, share, f"{words}, {counted(k, 'component')}")
        vectors = model.components_[:count] if patches else model.component_maps(count)
        mean = getattr(model, "mean_", None)
        mean = None if mean is None else np.asarray(mean).reshape(vectors.shape[1:] if patches else model.sample_shape_)
        words += f", {counted(k, 'component')}"
        return cls(vectors, model.basis_.cell_shape, mean, share, words)


class Decoder(ABC):
    """Makes reconstructions of samples from any number of leading components.

    Attributes
    ----------
    n_components : int
        Number of components.
    """

    n_components: int

    @abstractmethod
    def decode(self, index: int, k: int) -> Array | LargeSample:
        """Return the reconstruction from the first ``k`` components, with the stack's shape and dtype."""

    @abstractmethod
    def describe_size(self, k: int) -> str:
        """Describe the size of a sample with ``k`` components."""

    @property
    def quality(self) -> dict[str, Array]:
        """Quality (n_samples,) of all samples with all components, by name; empty if it is not stored."""
        return {}

    def pictured(self, count: int) -> Pictured | None:
        """Return the first components to draw if the store contains them; otherwise None."""
        return None

    @property
    def has_distances(self) -> bool:
        """Whether `distances` is available."""
        return False

    def distances(self) -> Array:
        """Return the distance (n_samples,) of each sample from the mean."""
        raise NotImplementedError


class OfBasis(Decoder):
    """Decodes scores of samples.

    Parameters
    ----------
    basis : Representation
    read : callable
        Returns the scores (1, *score_shape) of a sample.
    dtype : dtype
        Of the scores.
    pixels : Pixels or None
        Range and dtype of the stack's values; None if its data range is unknown.
    """

    def __init__(
        self, basis: Representation, read: Callable[[int], Array], dtype: np.dtype[Any], pixels: Pixels | None
    ) -> None:
        self._basis, self._dtype, self._pixels = basis, dtype, pixels
        self.n_components = basis.score_shape[-1]
        self._scores = lru_cache(16)(read)
        self._leading = lru_cache(8)(basis.leading)

    def decode(self, index: int, k: int) -> Array | LargeSample:
        """Return the sample by its first ``k`` components."""
        scores = self._scores(index)[..., :k]
        dtype = self._basis.decoded_dtype(scores.dtype) if self._pixels is None else self._pixels.dtype
        divided = boxed(self._basis, dtype)
        if divided is not None:
            from dpca.representation.reconstruction import decoded_box

            read = partial(decoded_box, divided, scores, 0, pixels=self._pixels)
            return LargeSample(divided.sample_shape, dtype, read)
        sample: Array = self._leading(k).decode(scores, "the scores", index, pixels=self._pixels)[0]
        return sample

    @cached_property
    def _ranks(self) -> Array | None:
        """Numbers of components of cells and bands, which may differ. Counting those of many cells takes a second."""
        return getattr(self._basis, "ranks", None)

    def describe_size(self, k: int) -> str:
        """Describe the size of the scores of a sample."""
        ranks = self._ranks
        numbers = math.prod(self._basis.score_shape[:-1]) * k if ranks is None else int(np.minimum(ranks, k).sum())
        return f"{counted(numbers, 'number')}, {numbers * self._dtype.itemsize:,} bytes"


def decoder_of_model(basis: Representation, originals: Originals, pixels: Pixels | None) -> Decoder:
    """Return a decoder that encodes each sample with a model first."""
    dtype = basis.score_dtype(originals.dtype)

    def read(index: int) -> Array:
        divided = boxed(basis, originals.dtype)
        if divided is None:
            return basis.encode(originals.whole(index)[None], "the sample", index)
        from dpca.representation.reconstruction import encoded_in_boxes

        return encoded_in_boxes(divided, partial(originals.box, index), originals.dtype)

    return OfBasis(basis, read, dtype, pixels)


def boxed(basis: Representation, dtype: np.dtype[Any]) -> LinearRepresentation | None:
    """Return a representation that decodes samples of a type in boxes; None if they are small, or decoded whole."""
    from dpca.representation.linear import in_boxes

    return in_boxes(basis) if math.prod(basis.sample_shape) * dtype.itemsize > WHOLE_SAMPLE else None


class OfScores(OfBasis):
    """Decodes stored scores.

    Parameters
    ----------
    scores : Scores
    """

    def __init__(self, scores: Scores) -> None:
        self._opened, guard = scores, StoreGuard(scores.path)

        def read(index: int) -> Array:
            guard.require()
            return np.asarray(scores.array[index : index + 1])

        super().__init__(scores.model.basis_, read, np.dtype(scores.array.dtype), scores.pixels)

    @cached_property
    def quality(self) -> dict[str, Array]:
        """The quality in the store."""
        return {} if self._opened.array.shape[0] > _MOST_SCORES else self._opened.quality

    @property
    def has_distances(self) -> bool:
        """Whether these are scores of whole samples with known variances, and few enough."""
        model, array = self._opened.model, self._opened.array
        known = hasattr(model, "explained_variance_") and not getattr(model, "whiten", False)
        return known and array.ndim == 2 and array.shape[0] <= _MOST_SCORES

    def distances(self) -> Array:
        """Return the length of each sample's scores in units of their deviations (Hotelling 1931)."""
        variance, array = self._opened.model.explained_variance_, self._opened.array
        k = max(1, min(self.n_components, _MOST_SCORES // max(1, array.shape[0])))
        weight = np.zeros(k)
        np.divide(1, variance[:k], out=weight, where=variance[:k] > variance[0] * 1e-12)
        found, rows = np.empty(array.shape[0]), max(array.chunks[0], 2**16)
        for start in range(0, len(found), rows):
            scores = np.asarray(array[start : start + rows, :k], np.float64)
            found[start : start + rows] = np.sqrt(scores**2 @ weight)
        return found


class OfCompressed(Decoder):
    """Decodes a compressed store.

    Parameters
    ----------
    store : Compressed
    """

    def __init__(self, store: Compressed) -> None:
        self._store, self._guard = store, StoreGuard(store.path)
        self.n_components = max(1, store.n_components)
        self._level = lru_cache(8)(lambda k: replace(store, level=None if k == self.n_components else k))
        self._bytes = math.nan if is_url(store.path) else folder_bytes(store.path) / max(1, len(store))

    def decode(self, index: int, k: int) -> Array | LargeSample:
        """Return the reconstruction from the first ``k`` components of each cell; with all, the store's own."""
        self._guard.require()
        shape, level = tuple(self._store.shape[1:]), self._level(k)
        if math.prod(shape) * self._store.dtype.itemsize > WHOLE_SAMPLE:
            return LargeSample(
                shape, self._store.dtype, lambda region: level[(index, *(slice(*ends) for ends in region))]
            )
        sample: Array = level[index]
        return sample

    def describe_size(self, k: int) -> str:
        """Describe the size of a sample on disk."""
        if math.isnan(self._bytes):
            return f"at most {self.n_components} components per cell"
        return f"{self._bytes:,.0f} bytes on disk" + ("" if k == self.n_components else ", all components")

    @cached_property
    def quality(self) -> dict[str, Array]:
        """The quality in the store."""
        return {name: values for name, values in self._store.quality.items() if name in _QUALITY}

    def pictured(self, count: int) -> Pictured | None:
        """Return components and mean of the store; None if it has residuals only, or tiles."""
        codec, k = self._store.codec, self._store.n_components
        if k == 0 or "tile_shape" in self._store.facts:
            return None
        grid = codec.components.grid
        words = f"components of {grid.n_parts:,} cells in the store, at most {k} per cell"
        found = codec.components.pictured(min(count, k)), grid.cell_shape, codec.components.offset
        return Pictured(*found, np.empty(0), words)

    @property
    def has_distances(self) -> bool:
        """Whether the store has components of whole samples."""
        return len(self._store.codec.cell) > 0 and "tile_shape" not in self._store.facts

    def distances(self) -> Array:
        """Return the Euclidean distances from the mean; reads all codes once."""
        from dpca.analysis import outliers

        order, distances = outliers(self._store, len(self._store))
        found = np.empty(len(order))
        found[order] = distances
        return found
