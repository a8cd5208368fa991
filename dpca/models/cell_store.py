"""A cell PCA on disk: a Zarr group of arrays and plain attributes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from dpca.models.model_store import content_fingerprint, publish, read_arrays, read_facts, write_arrays
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from storage.errors import StoreError
from storage.layout import axes_for

if TYPE_CHECKING:
    from dpca.models.cell_pca import CellPCA

Array = NDArray[Any]

KIND = "cell-pca"
#: The newest that is read, that of models with an overlap: programs that know of none must not read them as without.
#: Models without are of version 1.
VERSION = 2
_ARRAYS = ("mean", "components", "explained_variance", "total_variance")


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
    version, facts = _stated_beside(model.grid_)
    cell, n = list(model.grid_.cell_shape), model.n_samples_seen_
    own = content_fingerprint(KIND, version, _arrays_of(model), cell, n, *facts.values())
    fingerprint = fingerprint or own
    publish(path, KIND, fingerprint, lambda store: write_model(model, store, fingerprint), overwrite=overwrite)


def write_model(model: CellPCA, store: str | os.PathLike[str], fingerprint: str) -> None:
    """Write a fitted model as a Zarr group, the content of a workspace that is about to be published."""
    sample_axes = axes_for(model.sample_shape_)
    version, facts = _stated_beside(model.grid_)
    grid_axes = tuple(f"cell_{i}" for i in range(model.grid_.n_spatial))
    axes = {
        "mean": sample_axes,
        "components": ("component", *sample_axes),
        "explained_variance": (*grid_axes, "component"),
        "total_variance": grid_axes,
    }
    write_arrays(
        store,
        {name: (values, axes[name]) for name, values in _arrays_of(model).items()},
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
        overlap = 0 if facts["version"] == 1 else int(facts["overlap"])
        grid = LappedGrid(shape, cell, overlap) if overlap else CellGrid(shape, cell)
        k, n = int(facts["n_components"]), int(facts["n_samples_seen"])
        if n < 2:
            raise ValueError(f"{n} samples")
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the model at '{path}' is damaged ({error}): fit it again") from error
    expected = {
        "mean": grid.sample_shape,
        "components": (k, *grid.sample_shape),
        "explained_variance": (*grid.grid_shape, k),
        "total_variance": grid.grid_shape,
    }
    arrays = read_arrays(path, _ARRAYS, expected)
    # All components were asked for by None, which also fits where there are more of them than samples.
    model = CellPCA(None if k == grid.max_features else k, cell_shape=cell, overlap=overlap)
    model.restore(grid, arrays["components"], arrays["mean"], arrays["explained_variance"], arrays["total_variance"], n)
    return model


def _stated_beside(grid: CellGrid) -> tuple[int, dict[str, int]]:
    """Return the version of a store of a model with these cells, and what it states beside."""
    return (VERSION, {"overlap": grid.overlap}) if isinstance(grid, LappedGrid) else (1, {})


def _arrays_of(model: CellPCA) -> dict[str, Array]:
    return {
        "mean": model.mean_,
        "components": model.components_,
        "explained_variance": model.explained_variance_,
        "total_variance": model.total_variance_,
    }
