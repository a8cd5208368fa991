"""A cell PCA on disk: a Zarr group of arrays and plain attributes."""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dpca.partition.cells import CellGrid
from storage.arrays import create_array, create_root, open_array, read_into, root_facts, write_shard
from storage.errors import StoreError, one_line
from storage.layout import Layout, axes_for
from storage.workspace import Workspace, fingerprint_of

if TYPE_CHECKING:
    from dpca.models.cell_pca import CellPCA

Array = NDArray[Any]

KIND = "cell-pca"
VERSION = 1
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
    fingerprint = fingerprint or _content_fingerprint(model)
    with Workspace(path, kind=KIND, fingerprint=fingerprint, overwrite=overwrite) as work:
        if work.state != "complete":
            write_model(model, work.store, fingerprint)
            work.publish()


def write_model(model: CellPCA, store: str | os.PathLike[str], fingerprint: str) -> None:
    """Write a fitted model as a Zarr group, the content of a workspace that is about to be published."""
    group = create_root(
        store,
        kind=KIND,
        version=VERSION,
        fingerprint=fingerprint,
        sample_shape=list(model.sample_shape_),
        cell_shape=list(model.grid_.cell_shape),
        n_components=model.n_components_,
        n_samples_seen=model.n_samples_seen_,
    )
    sample_axes = axes_for(model.sample_shape_)
    grid_axes = tuple(f"cell_{i}" for i in range(model.grid_.n_spatial))
    axes = {
        "mean": sample_axes,
        "components": ("component", *sample_axes),
        "explained_variance": (*grid_axes, "component"),
        "total_variance": grid_axes,
    }
    for name, values in _arrays_of(model).items():
        layout = _by_first_axis(values) if name == "components" else Layout(values.shape, values.shape)
        array = create_array(group, name, values.shape, values.dtype, layout, axes[name])
        for start in range(0, len(values), layout.shards[0]):
            write_shard(array, start, values[start : start + layout.shards[0]])


def load_model(path: str | os.PathLike[str]) -> CellPCA:
    """Read what `save_model` wrote.

    Raises
    ------
    StoreError
        If ``path`` holds no cell PCA, an incomplete one, or one of a newer version.
    """
    from dpca.models.cell_pca import CellPCA

    facts, arrays = _read(path)
    try:
        grid = CellGrid(tuple(map(int, facts["sample_shape"])), tuple(map(int, facts["cell_shape"])))
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
    for name, shape in expected.items():
        if arrays[name].shape != shape or arrays[name].dtype.kind != "f":
            raise StoreError(
                f"the model at '{path}' is damaged ({name} is {arrays[name].shape} {arrays[name].dtype}, not {shape} "
                f"of floating-point numbers): fit it again"
            )
    # All components were asked for by None, which also fits where there are more of them than samples.
    model = CellPCA(None if k == grid.max_features else k, cell_shape=grid.cell_shape)
    model.restore(grid, arrays["components"], arrays["mean"], arrays["explained_variance"], arrays["total_variance"], n)
    return model


def model_fingerprint(path: str | os.PathLike[str]) -> str:
    """Return the fingerprint that a stored model states."""
    return str(_facts(path)["fingerprint"])


def _facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        facts = root_facts(zarr.open_group(os.fspath(path), mode="r"))
    except Exception as error:  # zarr raises many kinds for metadata that are none
        raise StoreError(
            f"there is no model at '{path}': give the path of a store that 'dpca fit' or save() made"
        ) from error
    if facts.get("kind") != KIND:
        raise StoreError(
            f"'{path}' is a {facts.get('kind') or 'foreign'} store, not a model: give the path of a store that "
            f"'dpca fit' or save() made"
        )
    if facts.get("version") != VERSION:
        raise StoreError(
            f"the model at '{path}' has version {facts.get('version')} and this program reads version {VERSION}: "
            f"update dask-dpca, or fit the model again"
        )
    if "fingerprint" not in facts:
        raise StoreError(f"the model at '{path}' is damaged (it states no fingerprint): fit it again")
    return facts


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Array]]:
    facts = _facts(path)
    arrays = {}
    for name in _ARRAYS:
        try:
            stored = open_array(os.path.join(os.fspath(path), name))
            # Zarr itself takes a missing shard for zeros.
            read_into(stored, (slice(None),) * stored.ndim, values := np.empty(stored.shape, stored.dtype))
        except Exception as error:  # zarr raises many kinds for torn or altered chunks and metadata
            raise StoreError(f"the model at '{path}' is damaged ({name}: {one_line(error)}): fit it again") from error
        arrays[name] = values
    return facts, arrays


def _arrays_of(model: CellPCA) -> dict[str, Array]:
    return {
        "mean": model.mean_,
        "components": model.components_,
        "explained_variance": model.explained_variance_,
        "total_variance": model.total_variance_,
    }


def _by_first_axis(values: Array) -> Layout:
    """One component a chunk, as many chunks a shard as fit 64 MiB."""
    one = max(1, values[0].nbytes)
    return Layout((1, *values.shape[1:]), (max(1, min(len(values), 2**26 // one)), *values.shape[1:]))


def _content_fingerprint(model: CellPCA) -> str:
    digests = {
        name: [blake2b(np.ascontiguousarray(a).tobytes(), digest_size=16).hexdigest(), list(a.shape), str(a.dtype)]
        for name, a in _arrays_of(model).items()
    }
    return fingerprint_of(KIND, VERSION, digests, list(model.grid_.cell_shape), model.n_samples_seen_)
