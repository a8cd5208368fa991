"""A band PCA on disk: a Zarr group of arrays and plain attributes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpca.models.model_store import content_fingerprint, publish, read_arrays, read_facts, write_arrays
from dpca.models.rank_choice import CHOICES
from dpca.partition.bands import Bands
from storage.errors import StoreError
from storage.layout import axes_for

if TYPE_CHECKING:
    from dpca.models.band_pca import BandPCA

Array = NDArray[Any]

KIND = "band-pca"
VERSION = 1
_ARRAYS = ("labels", "mean", "components", "explained_variance", "total_variance")
_PARAMETERS = (
    *CHOICES,
    "max_components",
    "band_size",
    "mapping",
    "n_intervals",
    "n_estimating",
    "keep_channels",
    "random_state",
)


def save_model(model: BandPCA, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a fitted model; it appears under ``path`` only when it is whole.

    Raises
    ------
    StoreError
        If ``path`` exists and is something else.
    """
    fingerprint = content_fingerprint(KIND, VERSION, _arrays_of(model), _facts_of(model))
    publish(path, KIND, fingerprint, lambda store: write_model(model, store, fingerprint), overwrite=overwrite)


def write_model(model: BandPCA, store: str | os.PathLike[str], fingerprint: str) -> None:
    """Write a fitted model as a Zarr group, the content of a workspace that is about to be published."""
    sample_axes = axes_for(model.sample_shape_)
    axes = {
        "labels": sample_axes,
        "mean": sample_axes,
        "components": ("component", *sample_axes),
        "explained_variance": ("band", "component"),
        "total_variance": ("band",),
    }
    named = {name: (values, axes[name]) for name, values in _arrays_of(model).items()}
    write_arrays(store, named, kind=KIND, version=VERSION, fingerprint=fingerprint, **_facts_of(model))


def load_model(path: str | os.PathLike[str]) -> BandPCA:
    """Read what `save_model` wrote.

    Raises
    ------
    StoreError
        If ``path`` holds no band PCA, a damaged one, or one of a newer version.
    """
    from dpca.models.band_pca import BandPCA

    facts = read_facts(path, KIND, VERSION)
    try:
        shape, p = tuple(map(int, facts["sample_shape"])), int(facts["n_bands"])
        k, n = int(facts["n_components"]), int(facts["n_samples_seen"])
        parameters = {name: facts["parameters"][name] for name in _PARAMETERS}
        if n < 2:
            raise ValueError(f"{n} samples")
        expected = {
            "labels": shape,
            "mean": shape,
            "components": (k, *shape),
            "explained_variance": (p, k),
            "total_variance": (p,),
        }
        arrays = read_arrays(path, _ARRAYS, expected, integers=("labels",))
        bands = Bands(arrays["labels"])
        if bands.n_partitions != p:
            raise ValueError(f"{bands.n_partitions} bands, not {p}")
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the model at '{path}' is damaged ({error}): fit it again") from error
    model = BandPCA(**parameters)
    model.restore(
        bands, arrays["components"], arrays["mean"], arrays["explained_variance"], arrays["total_variance"], n
    )
    return model


def _arrays_of(model: BandPCA) -> dict[str, Array]:
    return {"labels": model.bands_.labels} | {name: getattr(model, f"{name}_") for name in _ARRAYS[1:]}


def _facts_of(model: BandPCA) -> dict[str, Any]:
    return {
        "sample_shape": list(model.sample_shape_),
        "n_bands": model.bands_.n_partitions,
        "n_components": model.n_components_,
        "n_samples_seen": model.n_samples_seen_,
        "parameters": {name: _plain(getattr(model, name)) for name in _PARAMETERS},
    }


def _plain(value: Any) -> Any:
    """Return what JSON can hold; a generator in the place of a seed is forgotten."""
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, str | int | float | bool) else None
