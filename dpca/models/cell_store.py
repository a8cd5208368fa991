"""A cell PCA on disk: a Zarr group of arrays and plain attributes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpca.kernels.types import Region
from dpca.models.model_store import content_fingerprint, publish, read_arrays, read_facts, write_arrays
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.partition.shared import SharedGrid
from storage.errors import StoreError
from storage.layout import axes_for

if TYPE_CHECKING:
    from dpca.models.cell_pca import CellPCA

Array = NDArray[Any]

KIND = "cell-pca"
#: The newest that is read, that of models with an overlap or shared components: programs that know of none must not
#: read them as without. Models without are of version 1.
VERSION = 2


def save_model(
    model: CellPCA, path: str | os.PathLike[str], *, fingerprint: str | None = None, overwrite: bool = False
) -> None:
    """Write a fitted model; it appears under ``path`` only when it is whole.

    Parameters
    ----------
    model : CellPCA
    path : path-like
    fingerprint : str, optional
        Of the input and the settings; default from the model's own content.
    overwrite : bool
        Whether another store at ``path`` may be replaced.

    Raises
    ------
    StoreError
        If ``path`` exists and is something else.
    """
    version, facts = _stated_beside(model)
    arrays = {name: values for name, (values, _) in _arrays_of(model).items()}
    cell, n = list(model.grid_.cell_shape), model.n_samples_seen_
    own = content_fingerprint(KIND, version, arrays, cell, n, *facts.values())
    fingerprint = fingerprint or own
    publish(path, KIND, fingerprint, lambda store: write_model(model, store, fingerprint), overwrite=overwrite)


def write_model(model: CellPCA, store: str | os.PathLike[str], fingerprint: str) -> None:
    """Write a fitted model as a Zarr group, the content of a workspace that is about to be published."""
    version, facts = _stated_beside(model)
    write_arrays(
        store,
        _arrays_of(model),
        kind=KIND,
        version=version,
        fingerprint=fingerprint,
        sample_shape=list(model.sample_shape_),
        cell_shape=list(model.grid_.cell_shape),
        n_components=model.n_components_,
        n_samples_seen=model.n_samples_seen_,
        **facts,
    )


def load_model(path: str | os.PathLike[str]) -> CellPCA:
    """Read what `save_model` wrote.

    Raises
    ------
    StoreError
        If ``path`` holds no cell PCA, an incomplete one, or one of a newer version.
    """
    from dpca.models.cell_pca import CellPCA

    facts = read_facts(path, KIND, VERSION)
    try:
        shape, cell = tuple(map(int, facts["sample_shape"])), tuple(map(int, facts["cell_shape"]))
        overlap, shared = (0, False) if facts["version"] == 1 else (int(facts["overlap"]), facts.get("shared", False))
        grid = LappedGrid(shape, cell, overlap) if overlap else CellGrid(shape, cell)
        k, n = int(facts["n_components"]), int(facts["n_samples_seen"])
        if n < 2:
            raise ValueError(f"{n} samples")
        if not isinstance(shared, bool):
            raise ValueError(f"shared is {shared!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the model at '{path}' is damaged ({error}): fit it again") from error
    places = _places(grid, shared)
    expected = {
        "mean": grid.sample_shape,
        **{name: (k, *(stop - start for start, stop in boxes[0])) for name, boxes in places},
        "explained_variance": (*grid.grid_shape, k),
        "total_variance": grid.grid_shape,
    }
    arrays = read_arrays(path, tuple(expected), expected)
    components = arrays.get("components")
    if components is None:
        components = np.empty((k, *grid.sample_shape), arrays[places[0][0]].dtype)
        for name, boxes in places:
            for box in boxes:
                components[(slice(None), *(slice(*ends) for ends in box))] = arrays[name]
    # All components were asked for by None, which also fits where there are more of them than samples.
    model = CellPCA(None if k == grid.max_features else k, cell_shape=cell, overlap=overlap, shared=shared)
    model.restore(grid, components, arrays["mean"], arrays["explained_variance"], arrays["total_variance"], n)
    return model


def _stated_beside(model: CellPCA) -> tuple[int, dict[str, Any]]:
    """Return the version of a store of a model, and what it states beside."""
    overlap, shared = getattr(model.grid_, "overlap", 0), {"shared": True} if model.shared else {}
    return (VERSION, {"overlap": overlap, **shared}) if overlap or shared else (1, {})


def _arrays_of(model: CellPCA) -> dict[str, tuple[Array, Sequence[str]]]:
    """Return the arrays of a store and the names of their axes."""
    sample_axes = axes_for(model.sample_shape_)
    grid_axes = tuple(f"cell_{i}" for i in range(model.grid_.n_spatial))
    components = {
        name: model.components_[(slice(None), *(slice(*ends) for ends in boxes[0]))]
        for name, boxes in _places(model.grid_, bool(model.shared))
    }
    return {
        "mean": (model.mean_, sample_axes),
        **{name: (values, ("component", *sample_axes)) for name, values in components.items()},
        "explained_variance": (model.explained_variance_, (*grid_axes, "component")),
        "total_variance": (model.total_variance_, grid_axes),
    }


def _places(grid: CellGrid, shared: bool) -> list[tuple[str, list[Region]]]:
    """Return the names of the arrays of components, and where in a sample each is: at several places if it is shared.

    With an overlap components reach into each other, in ways that differ at edges, and are kept as they lie.
    """
    if not shared or isinstance(grid, LappedGrid):
        return [("components", [tuple((0, length) for length in grid.sample_shape)])]
    return [(f"components_{g}", [grid.box(i) for i in cells]) for g, cells in enumerate(SharedGrid(grid).cells)]
