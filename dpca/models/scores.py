"""Stores of scores, opened for reading: scores, reconstructions with any number of components, batches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import zarr

from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import Pixels
from dpca.models.base.store import basis_of, load_any
from dpca.representation.base import Representation
from dpca.representation.reconstruction import check_stated_model, leading_scores, samples_of
from dpca.storage.arrays.coordinates import BESIDE, Coordinates, coordinates_in, dims_of
from dpca.storage.arrays.reading import array_in, open_group, require_same, root_facts
from dpca.storage.arrays.training_batches import Batches, BatchOrder, batches_of
from dpca.storage.disk import exists
from dpca.storage.errors import DataError, ReplacedError, StoreError
from dpca.storage.integrity.replaced import reopening
from dpca.storage.remote.network import use_storage_options
from dpca.storage.stack import VARIABLES

SCORES_VERSION = 1
_QUALITY = ("mse", "psnr", "ssim")


@dataclass(frozen=True, eq=False)
class Scores:
    """A store of scores, opened for reading.

    Attributes
    ----------
    path : str
    model : fitted estimator
        The model of the scores.
    n_components : int
        Default number of components.
    pixels : Pixels
        Type of the original stack, and its smallest and largest possible value.
    array : zarr.Array
        Scores (n_samples, ..., k) as they are stored.
    facts : dict
        The attributes of the store.
    """

    path: str
    model: Any
    n_components: int
    pixels: Pixels
    array: zarr.Array[Any]
    facts: dict[str, Any]

    @property
    def scores(self) -> da.Array:
        """Scores (n_samples, ..., n_components), lazy."""
        return leading_scores(self.array, self.n_components)

    @property
    def quality(self) -> dict[str, Array]:
        """Quality of each sample, arrays (n_samples,): mse, psnr in dB, for images ssim; empty if not measured."""
        group, n = open_group(self.path), self.array.shape[0]
        stored = {name: array_in(group, name) for name in _QUALITY if name in group}
        found = {name: np.asarray(array[...]) for name, array in stored.items() if array.shape == (n,)}
        require_same(self.array)
        return found

    @property
    def names(self) -> Array:
        """Names (n_samples,) of the samples."""
        return np.asarray(array_in(open_group(self.path), "name")[...])

    @property
    def coordinates(self) -> Coordinates:
        """Names of the axes of the reconstructions, and the coordinates along them."""
        return sample_coordinates(self.path, self.array, self.model.basis_.sample_shape)

    def stack(self, n_components: int | None = None) -> da.Array:
        """Return the reconstructions in the dtype of the original stack, rounded and clipped.

        Parameters
        ----------
        n_components : int, optional
            Number of leading components to use; default that of this object.

        Returns
        -------
        dask.array.Array (n_samples, *sample_shape)
            Reads and computes chunk by chunk, and only the chunks of scores with these components. For floating-point
            reconstructions of an integer stack, pass ``scores`` to ``model.inverse_transform``.

        Raises
        ------
        DataError
            If the store has fewer components, or scores of several variables, see `check_one_variable`.
        """
        check_one_variable(self.path, self.facts)
        level = self.n_components if n_components is None else n_components
        lazy: da.Array = samples_of(self.model.basis_, self.array, level, self.pixels)
        return lazy

    def batches(
        self,
        batch_size: int,
        *,
        n_components: int | None = None,
        labels: Any = None,
        shuffle: int | None = None,
        epoch: int = 0,
        part: tuple[int, int] = (0, 1),
        start: int = 0,
        standardize: bool | tuple[Any, Any] = False,
    ) -> Batches:
        """Return the scores in batches, for training; they are read when they are iterated.

        Scores of cells are small images (rows, columns, components), with components instead of channels.

        Parameters
        ----------
        batch_size, labels, shuffle, epoch, part, start
            As in `dpca.storage.Stack.batches`.
        n_components : int, optional
            Number of leading components to use; default that of this object. Chunks of other components are not read.
        standardize : bool or (mean, deviation)
            Whether to divide each score by its standard deviation among the samples of the fit
            (``explained_variance_`` of the model; their mean is 0). This requires no pass, and is the same for other
            samples. Shared components have one deviation for all cells of a shape. A pair gives the values to subtract
            and to divide by.

        Returns
        -------
        Batches
            An iterable of new arrays (m, ..., n_components), or of (array, labels).

        Raises
        ------
        DataError
            If arguments do not fit the scores, or the model has no variances.
        """
        level = self.model.basis_.leading(self.n_components if n_components is None else n_components).score_shape[-1]
        moments = None if isinstance(standardize, bool) else standardize
        if standardize is True:
            moments = 0.0, self._deviations()[..., :level]
        return batches_of(
            self.array,
            batch_size,
            n_components=level,
            channels_last=self.array.ndim > 2,
            labels=labels,
            order=BatchOrder(shuffle, epoch, part, start),
            standardize=moments,
        )

    def _deviations(self) -> Array:
        """Return the standard deviation of each score among the samples of the fit."""
        shape, variances = self.array.shape[1:], getattr(self.model, "explained_variance_", None)
        if variances is None:
            raise DataError(
                f"standardize is True, but a model of kind {self.model.store_kind} has no variances of its scores: use "
                f"standardize=(mean, deviation)"
            )
        if getattr(self.model, "whiten", False):
            return np.ones(shape)
        return np.broadcast_to(np.sqrt(np.maximum(variances, 0)), shape)  # patches have one variance for all places


@reopening
def open_scores(
    path: str | os.PathLike[str],
    n_components: int | None = None,
    *,
    model: str | os.PathLike[str] | Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Scores:
    """Open a complete store of scores, written by ``dpca transform`` or a job.

    Parameters
    ----------
    path : path-like
        The store.
    n_components : int, optional
        Number of leading components to use; default all.
    model : path-like or fitted estimator, optional
        The model of the scores; default the model inside the store, written by jobs.
    storage_options : mapping, optional
        Options for object storage, see `dpca.storage.use_storage_options`.

    Returns
    -------
    Scores
        Only the model and metadata are read.

    Raises
    ------
    StoreError
        If ``path`` is not a store of scores, or there is no model.
    DataError
        If the model does not match the scores, or the store has fewer components.

    Examples
    --------
    >>> import dpca
    >>> preview = dpca.open_scores("out.zarr").stack(n_components=3)
    >>> preview[17].compute().shape  # reads 3 components of one chunk of samples
    (40, 36, 3)
    """
    use_storage_options(storage_options, path)
    group, facts = _opened(path)
    if model is None:
        model = model_inside(path, group)
    estimator = load_any(model) if isinstance(model, str | os.PathLike) else model
    array, basis = array_in(group, "scores"), basis_of(estimator)
    require_same(group)
    check_match(path, facts, array.shape, basis)
    low, high = map(float, facts["data_range"])
    level = basis.leading(n_components).score_shape[-1]
    return Scores(os.fspath(path), estimator, level, Pixels(np.dtype(facts["dtype"]), (low, high)), array, facts)


def model_inside(path: str | os.PathLike[str], group: zarr.Group) -> str:
    """Return the path of the model inside a store of scores with this group.

    Raises
    ------
    StoreError
        If there is none.
    """
    if not exists(model := os.path.join(path, "model")):
        require_same(group)
        raise StoreError(f"'{path}' holds no model: pass the model of its scores, open_scores(path, model=...)")
    return model


def read_scores_facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the facts in the metadata of a store of scores.

    Raises
    ------
    StoreError
        If there is no such store, or it has another version.
    """
    return _opened(path)[1]


def check_one_variable(path: str | os.PathLike[str], facts: Mapping[str, Any]) -> None:
    """Raise `DataError` if scores with these facts are of several variables, which are not one array of samples."""
    if VARIABLES in facts:
        raise DataError(
            f"'{path}' has scores of the variables {', '.join(facts[VARIABLES])}, which are not one array: use "
            f"inverse_transform of their model in Python"
        )


def sample_coordinates(
    path: str | os.PathLike[str], scores: zarr.Array[Any], sample_shape: tuple[int, ...]
) -> Coordinates:
    """Return the names of the axes of the samples of a store of scores, and the coordinates along them."""
    group, facts = _opened(path)
    axes = tuple(facts["axes"])
    dims = ((dims_of(scores) or axes)[0], *axes[1:])
    stated = {**facts.get("attributes", {}), BESIDE: scores.attrs.get(BESIDE, "")}
    return coordinates_in(group, dims, (scores.shape[0], *sample_shape), stated) or Coordinates(axes, {}, {})


def _opened(path: str | os.PathLike[str]) -> tuple[zarr.Group, dict[str, Any]]:
    try:
        facts = root_facts(group := open_group(path))
    except ReplacedError:
        raise
    except StoreError as error:
        raise StoreError(f"there is no readable scores store at '{path}' ({error})") from error
    # Each representation defines its own kind of scores.
    if not str(facts.get("kind")).endswith("scores"):
        raise StoreError(f"'{path}' is not a scores store: use a store that 'dpca transform' made")
    if facts.get("version") != SCORES_VERSION:
        raise StoreError(
            f"'{path}' is a scores store of version {facts.get('version')}, but this program reads version "
            f"{SCORES_VERSION}: update dask-dpca, or create the store again"
        )
    return group, facts


def check_match(
    path: str | os.PathLike[str], facts: Mapping[str, Any], shape: tuple[int, ...], basis: Representation
) -> None:
    """Raise `DataError` if a model did not make the scores of a store."""
    same_kind = facts["kind"] == basis.scores_kind
    if not same_kind or tuple(shape[1:]) != basis.score_shape or facts["sample_shape"] != list(basis.sample_shape):
        raise DataError(
            f"'{path}' holds {facts['kind']} of {tuple(shape[1:])} for samples of {facts['sample_shape']}, but the "
            f"model makes {basis.scores_kind} of {basis.score_shape} for {basis.sample_shape}: use the model that made "
            f"the scores"
        )
    check_stated_model(facts, f"'{path}'", basis)
