"""A streaming PCA on disk."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpca.models.model_store import content_fingerprint, publish, read_arrays, read_facts, write_arrays
from dpca.models.streaming_methods import describe_option, translate_parameters
from storage.errors import StoreError

if TYPE_CHECKING:
    from dpca.models.streaming_pca import StreamingPCA

Array = NDArray[Any]

KIND = "streaming-pca"
VERSION = 1
_ARRAYS = {"mean": ("feature",), "components": ("component", "feature"), "explained_variance": ("component",)}
_PARAMETERS = (
    "method",
    "batch_size",
    "n_passes",
    "center",
    "shuffle",
    "execution",
    "n_streams",
    "round_size",
    "oversampling",
    "forgetting",
)
# What is known of a fit beside its components; stores of older versions lack some of them.
_CERTIFICATES = ("captured_bound", "angle_moved", "variance_moved")


def save_model(model: StreamingPCA, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a fitted model; it appears under ``path`` only when it is whole.

    Raises
    ------
    StoreError
        If ``path`` exists and is something else.
    """
    fingerprint = content_fingerprint(KIND, VERSION, _arrays_of(model), _facts_of(model))
    publish(path, KIND, fingerprint, lambda store: write_model(model, store, fingerprint), overwrite=overwrite)


def write_model(model: StreamingPCA, store: str | os.PathLike[str], fingerprint: str) -> None:
    """Write a fitted model as a Zarr group, the content of a workspace that is about to be published."""
    named = {name: (values, _ARRAYS[name]) for name, values in _arrays_of(model).items()}
    write_arrays(store, named, kind=KIND, version=VERSION, fingerprint=fingerprint, **_facts_of(model))


def load_model(path: str | os.PathLike[str]) -> StreamingPCA:
    """Read what `save_model` wrote.

    Raises
    ------
    StoreError
        If ``path`` holds no streaming PCA, an incomplete one, or one of a newer version.
    """
    from dpca.models.streaming_pca import StreamingPCA

    facts = read_facts(path, KIND, VERSION)
    try:
        shape, k = tuple(map(int, facts["sample_shape"])), int(facts["n_components"])
        n, total = int(facts["n_samples_seen"]), float(facts["total_variance"])
        parameters = translate_parameters(facts["parameters"])
        known = {name: np.asarray(facts[name], float) for name in _CERTIFICATES if facts.get(name) is not None}
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the model at '{path}' is damaged ({error}): fit it again") from error
    d = math.prod(shape)
    arrays = read_arrays(path, tuple(_ARRAYS), {"mean": (d,), "components": (k, d), "explained_variance": (k,)})
    model = StreamingPCA(k, **parameters)
    model.restore({**arrays, "total_variance": np.asarray(total), **known}, shape, n)
    return model


def _arrays_of(model: StreamingPCA) -> dict[str, Array]:
    return {name: getattr(model, f"{name}_") for name in _ARRAYS}


def _facts_of(model: StreamingPCA) -> dict[str, Any]:
    return {
        "sample_shape": list(model.sample_shape_),
        "n_components": int(model.n_components_),
        "n_samples_seen": int(model.n_samples_seen_),
        "total_variance": model.total_variance_,
        # JSON has no nan.
        **{name: None if math.isnan(value := getattr(model, f"{name}_")) else value for name in _CERTIFICATES},
        "parameters": {name: describe_option(getattr(model, name)) for name in _PARAMETERS},
    }
