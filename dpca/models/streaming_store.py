"""A streaming PCA on disk."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import numpy as np

from dpca.models.model_store import content_fingerprint, publish, read_arrays, read_facts, write_arrays
from storage.errors import StoreError

if TYPE_CHECKING:
    from dpca.models.streaming_pca import StreamingPCA

KIND = "streaming-pca"
VERSION = 1
_ARRAYS = {"mean": ("feature",), "components": ("component", "feature"), "explained_variance": ("component",)}
_PARAMETERS = ("method", "batch_size", "oversampling", "n_passes", "center")


def save_model(model: StreamingPCA, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a fitted model; it appears under ``path`` only when it is whole.

    Raises
    ------
    StoreError
        If ``path`` exists and is something else.
    """
    arrays = {name: getattr(model, f"{name}_") for name in _ARRAYS}
    facts = {
        "sample_shape": list(model.sample_shape_),
        "n_components": int(model.n_components_),
        "n_samples_seen": int(model.n_samples_seen_),
        "total_variance": model.total_variance_,
        # JSON has no nan.
        "captured_bound": None if math.isnan(model.captured_bound_) else model.captured_bound_,
        "parameters": {name: getattr(model, name) for name in _PARAMETERS},
    }
    fingerprint = content_fingerprint(KIND, VERSION, arrays, facts)
    named = {name: (arrays[name], axes) for name, axes in _ARRAYS.items()}
    publish(
        path,
        KIND,
        fingerprint,
        lambda store: write_arrays(store, named, kind=KIND, version=VERSION, fingerprint=fingerprint, **facts),
        overwrite=overwrite,
    )


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
        bound = facts["captured_bound"]
        parameters = {name: facts["parameters"][name] for name in _PARAMETERS}
        known = {"captured_bound": np.asarray(bound, float)} if bound is not None else {}
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the model at '{path}' is damaged ({error}): fit it again") from error
    d = math.prod(shape)
    arrays = read_arrays(path, tuple(_ARRAYS), {"mean": (d,), "components": (k, d), "explained_variance": (k,)})
    model = StreamingPCA(k, **parameters)
    model.restore({**arrays, "total_variance": np.asarray(total), **known}, shape, n)
    return model
