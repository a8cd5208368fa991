"""A PCA on disk."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpca.models.model_store import content_fingerprint, publish, read_arrays, read_facts, write_arrays
from storage.errors import StoreError

if TYPE_CHECKING:
    from dpca.models.pca import PCA

Array = NDArray[Any]

KIND = "pca"
VERSION = 1
_AXES = {
    "mean": ("feature",),
    "components": ("component", "feature"),
    "explained_variance": ("component",),
    "residual_norms": ("component",),
    "least_components": ("component", "feature"),
    "least_variance": ("component",),
}
_PARAMETERS = ("n_components", "solver", "n_least", "center", "n_iter", "oversampling", "tol")


def save_model(model: PCA, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a fitted model; it appears under ``path`` only when it is whole.

    Raises
    ------
    StoreError
        If ``path`` exists and is something else.
    """
    arrays = _arrays_of(model)
    facts = _facts_of(model, arrays)
    fingerprint = content_fingerprint(KIND, VERSION, arrays, facts)
    publish(path, KIND, fingerprint, lambda store: write_model(model, store, fingerprint), overwrite=overwrite)


def write_model(model: PCA, store: str | os.PathLike[str], fingerprint: str) -> None:
    """Write a fitted model as a Zarr group, the content of a workspace that is about to be published."""
    arrays = _arrays_of(model)
    named = {name: (values, _AXES[name]) for name, values in arrays.items()}
    write_arrays(store, named, kind=KIND, version=VERSION, fingerprint=fingerprint, **_facts_of(model, arrays))


def load_model(path: str | os.PathLike[str]) -> PCA:
    """Read what `save_model` wrote.

    Raises
    ------
    StoreError
        If ``path`` holds no PCA, an incomplete one, or one of a newer version.
    """
    from dpca.models.pca import PCA

    facts = read_facts(path, KIND, VERSION)
    try:
        shape, k, j = tuple(map(int, facts["sample_shape"])), int(facts["n_components"]), int(facts["n_least"])
        n, passes = int(facts["n_samples_seen"]), int(facts["n_passes"])
        known = {name: np.asarray(float(facts[name])) for name in ("total_variance", "captured_bound")}
        names = [str(name) for name in facts["kept"]]
        solver, reason = str(facts["solver"]), str(facts["solver_reason"])
        parameters = {name: facts["parameters"][name] for name in _PARAMETERS}
        d = math.prod(shape)
        sizes = {"mean": (d,), "components": (k, d), "least_components": (j, d), "least_variance": (j,)}
        shapes = {name: sizes.get(name, (k,)) for name in names if name in _AXES}
        if not {"mean", "components", "explained_variance"} <= shapes.keys():
            raise ValueError(f"it states the arrays {names}")
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the model at '{path}' is damaged ({error}): fit it again") from error
    arrays = read_arrays(path, tuple(shapes), shapes)
    model = PCA(**parameters)
    model.restore({**arrays, **known}, shape, n)
    model.solver_, model.solver_reason_, model.n_passes_ = solver, reason, passes
    return model


def _arrays_of(model: PCA) -> dict[str, Array]:
    return {name: getattr(model, f"{name}_") for name in _AXES if hasattr(model, f"{name}_")}


def _facts_of(model: PCA, arrays: dict[str, Array]) -> dict[str, Any]:
    return {
        "sample_shape": list(model.sample_shape_),
        "kept": list(arrays),
        "n_components": int(model.n_components_),
        "n_least": len(arrays.get("least_components", ())),
        "n_samples_seen": int(model.n_samples_seen_),
        "n_passes": int(model.n_passes_),
        "total_variance": model.total_variance_,
        "captured_bound": model.captured_bound_,
        "solver": model.solver_,
        "solver_reason": model.solver_reason_,
        "parameters": {name: _plain(getattr(model, name)) for name in _PARAMETERS},
    }


def _plain(value: Any) -> Any:
    """Return what JSON can hold in the place of numpy's numbers."""
    return value.item() if isinstance(value, np.generic) else value
