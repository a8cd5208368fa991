"""Where reconstructions come from: a model and the sample itself, stored scores, or a compressed store."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dpca.explore.originals import Originals, require_store
from dpca.kernels.pixels import Pixels
from dpca.kernels.types import Array
from dpca.storage.disk import folder_bytes
from dpca.storage.network import is_url

if TYPE_CHECKING:  # they take seconds to import
    from dpca.models.scores import Scores
    from dpca.representation.base import Representation
    from dpca.representation.compressed import Compressed

# Values of scores that are read to find samples far from the others.
_MOST_SCORES = 2**27
_QUALITY = ("mse", "psnr", "ssim")


class Decoder(ABC):
    """Makes reconstructions of samples, by any number of the first components.

    Attributes
    ----------
    n_components : int
        There are so many.
    """

    n_components: int

    @abstractmethod
    def decode(self, index: int, k: int) -> Array:
        """Return the sample by its first ``k`` components, of the stack's shape and type."""

    @abstractmethod
    def words(self, k: int) -> str:
        """Say what a sample takes that is kept by ``k`` components."""

    def quality(self) -> dict[str, Array]:
        """Return the quality (n_samples,) of all samples by all components, by name; empty where it is not stored."""
        return {}

    @property
    def knows_distances(self) -> bool:
        """Whether there are `distances`."""
        return False

    def distances(self) -> Array:
        """Return how far each sample is from the mean (n_samples,)."""
        raise NotImplementedError


class OfModel(Decoder):
    """Encodes the sample itself and decodes it again.

    Parameters
    ----------
    basis : Representation
    originals : Originals
    pixels : Pixels or None
        What the stack can hold; None where its range is not known.
    """

    def __init__(self, basis: Representation, originals: Originals, pixels: Pixels | None) -> None:
        self._basis, self._originals, self._pixels = basis, originals, pixels
        self.n_components = basis.score_shape[-1]
        self._scores = lru_cache(16)(self._encoded)
        self._leading = lru_cache(8)(basis.leading)

    def decode(self, index: int, k: int) -> Array:
        """Return the sample by its first ``k`` components."""
        return _decoded(self._leading(k), self._scores(index)[..., :k], index, self._pixels)

    def words(self, k: int) -> str:
        """Say what the scores of a sample take."""
        return _words_of_scores(self._basis, k, self._basis.score_dtype(self._originals.stack.dtype))

    def _encoded(self, index: int) -> Array:
        return self._basis.encode(self._originals.read(index)[None], "the sample", index)


class OfScores(Decoder):
    """Decodes stored scores.

    Parameters
    ----------
    scores : Scores
    """

    def __init__(self, scores: Scores) -> None:
        self._opened, self._basis = scores, scores.model.basis_
        self.n_components = scores.n_components
        self._scores = lru_cache(16)(self._read)
        self._leading = lru_cache(8)(self._basis.leading)

    def decode(self, index: int, k: int) -> Array:
        """Return the sample by its first ``k`` components."""
        return _decoded(self._leading(k), self._scores(index)[..., :k], index, self._opened.pixels)

    def words(self, k: int) -> str:
        """Say what the scores of a sample take."""
        return _words_of_scores(self._basis, k, np.dtype(self._opened.array.dtype))

    def quality(self) -> dict[str, Array]:
        """Return the quality that the store states."""
        return self._opened.quality

    @property
    def knows_distances(self) -> bool:
        """Whether these are scores of whole samples whose variances are known."""
        model = self._opened.model
        known = hasattr(model, "explained_variance_") and not getattr(model, "whiten", False)
        return known and self._opened.array.ndim == 2

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

    def _read(self, index: int) -> Array:
        require_store(self._opened.path)
        return np.asarray(self._opened.array[index : index + 1])


class OfCompressed(Decoder):
    """Reads a compressed store.

    Parameters
    ----------
    store : Compressed
    """

    def __init__(self, store: Compressed) -> None:
        self._store = store
        self.n_components = int(store.codec.component.max(initial=0)) + 1
        self._level = lru_cache(8)(lambda k: replace(store, level=None if k == self.n_components else k))
        self._bytes = math.nan if is_url(store.path) else folder_bytes(store.path) / max(1, len(store))

    def decode(self, index: int, k: int) -> Array:
        """Return the sample by the first ``k`` components of each cell; by all, as the store promises it."""
        require_store(self._store.path)
        sample: Array = self._level(k)[index]
        return sample

    def words(self, k: int) -> str:
        """Say how many bytes of the store a sample takes."""
        if math.isnan(self._bytes):
            return f"{self.n_components} components a cell at most"
        return f"{self._bytes:,.0f} bytes on disk" + ("" if k == self.n_components else ", all components")

    def quality(self) -> dict[str, Array]:
        """Return the quality that the store states."""
        return {name: values for name, values in self._store.quality.items() if name in _QUALITY}

    @property
    def knows_distances(self) -> bool:
        """Whether there are components."""
        return len(self._store.codec.cell) > 0

    def distances(self) -> Array:
        """Return the Euclidean distances from the mean; reads all codes once."""
        from dpca.analysis import outliers

        order, distances = outliers(self._store, len(self._store))
        found = np.empty(len(order))
        found[order] = distances
        return found


def _decoded(basis: Representation, scores: Array, index: int, pixels: Pixels | None) -> Array:
    sample: Array = basis.decode(scores, "the scores", index, pixels=pixels)[0]
    return sample


def _words_of_scores(basis: Representation, k: int, dtype: np.dtype[Any]) -> str:
    numbers = math.prod(basis.score_shape[:-1]) * k
    return f"{numbers:,} numbers, {numbers * dtype.itemsize:,} bytes"
