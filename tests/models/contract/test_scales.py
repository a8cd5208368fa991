"""Samples of any scale: the same components and shares as at scale 1, or a sentence; never nothing without a word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import dpca
from dpca.models.linear.pca_solvers import SOLVERS
from dpca.parameters.streaming import RULE_CLASSES
from dpca.storage import DataError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

MODELS: dict[str, Any] = {
    **{f"PCA {solver}": dpca.PCA(3, solver=solver, random_state=0) for solver in ("auto", *SOLVERS)},
    **{method: dpca.StreamingPCA(3, method=method, random_state=0) for method in RULE_CLASSES},
    "cells": dpca.CellPCA(2, cell_shape=2),
    "shared cells": dpca.CellPCA(2, cell_shape=2, shared=True),
    "lapped cells": dpca.CellPCA(2, cell_shape=(8, 3), overlap=2),
    "bands": dpca.BandPCA(2, band_size=12),
    "patches": dpca.PatchPCA(2, patch_shape=2),
    "cascade": dpca.PatchCascade([2, 2], patch_shape=2, pool=1),
    "trajectory": dpca.TrajectoryPCA(2, random_state=0),
    "EOF": dpca.EOF(2, random_state=0),
    "EOF, standardized": dpca.EOF(2, standardize=True, random_state=0),
    "kernel": dpca.KernelPCA(2, n_landmarks=12, random_state=0),
    "linear kernel": dpca.KernelPCA(2, kernel="linear", method="exact"),
    "ridge": dpca.StreamingRidgeClassifier(),
    "spectral clustering": dpca.SpectralClustering(2, random_state=0),
}
#: Powers of ten, of which the nearest power of two is taken.
SCALES = {
    np.float64: (-310, -200, -155, -120, -80, -70, 70, 80, 120, 152, 200, 300),
    np.float32: (-36, -30, -18, -12, -8, 8, 12, 18, 30, 36),
}
CLASSES = np.arange(30) % 3 == 0


def samples() -> np.ndarray:
    rng = np.random.default_rng(0)
    low = rng.normal(size=(30, 5)) * [5, 4, 3, 2, 1]
    low[CLASSES, 0] += 9
    return (low @ rng.normal(size=(5, 48)) + rng.normal(0, 0.1, (30, 48)) + 3).reshape(30, 16, 3)


def found(model: Any, x: np.ndarray) -> list[np.ndarray]:
    """Fit a model, and return what does not depend on the scale."""
    model = clone(model)
    if isinstance(model, dpca.StreamingRidgeClassifier):
        return [model.fit(x, CLASSES).predict(x)]
    model.fit(x)
    if isinstance(model, dpca.SpectralClustering):
        return [model.labels_]
    if isinstance(model, dpca.KernelPCA):
        return [model.eigenvalues_ / model.eigenvalues_[0], model.captured_bound_]
    if isinstance(model, dpca.PatchCascade):
        return [one / one[0] for one in model.explained_variance_]
    components = model.model_.components_ if isinstance(model, dpca.EOF) else model.components_
    return [model.explained_variance_ratio_, components]


@pytest.mark.cases(7)
@pytest.mark.parametrize("dtype", SCALES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", MODELS)
def test_a_scale_changes_nothing_or_is_refused(name: str, dtype: type) -> None:
    x = samples().astype(dtype)
    expected, refused = found(MODELS[name], x), []
    for power in SCALES[dtype]:
        scaled = np.ldexp(x, round(power * np.log2(10))).astype(dtype)
        try:
            with np.errstate(all="ignore"):
                result = found(MODELS[name], scaled)
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017
            refused.append(power)
            continue
        for one, other in zip(result, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3, err_msg=f"1e{power}")
    assert not {-8, 8, 12} & {*refused} or name == "similarity-matching"


@pytest.mark.parametrize("name", ["PCA auto", "cells", "bands", "patches", "EOF", "incremental-svd"])
def test_constant_samples_and_dark_parts_stay_what_they_are(name: str) -> None:
    """Far from a plume values fall off beyond all squares; what matters is the largest variance."""
    x = samples()
    x[:, 8:] *= 1e-200
    ratio = clone(MODELS[name]).fit(x).explained_variance_ratio_
    assert np.max(np.sum(ratio, axis=-1)) > 0.5
    constant = clone(MODELS[name]).fit(np.full_like(x, 7.0))
    assert not np.any(constant.explained_variance_)


def test_batches_of_tiny_values_are_refused() -> None:
    model = dpca.StreamingPCA(2, random_state=0)
    with pytest.raises(DataError, match="multiply"):
        model.partial_fit(1e-200 * samples()).components_  # noqa: B018


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("name", ["covariance", "dual", "randomized", "orthogonal-iteration", "power", "vr-pca"])
def test_tiny_values_are_not_taken_for_zeros(name: str, center: bool) -> None:
    """Nor where neither a mean nor a variance tells them from these, without centering or of samples and opposites."""
    tiny = 1e-200 * samples()
    for x in (tiny, np.concatenate([tiny, -tiny])):
        with pytest.raises(DataError, match="multiply"):
            dpca.PCA(2, solver=name, center=center, random_state=0).fit(x)
    late = np.concatenate([np.zeros((40, *tiny.shape[1:])), tiny])
    with pytest.raises(DataError, match="multiply"):
        dpca.PCA(2, solver=name, center=center, random_state=0).fit(late)
    if name in ("covariance", "dual"):
        assert not dpca.PCA(2, solver=name, center=center).fit(np.zeros_like(tiny)).explained_variance_.any()


@pytest.mark.parametrize("method", ["covariance", "incremental-svd", "oja"])
def test_tiny_batches_are_not_taken_for_zeros(method: str) -> None:
    tiny, model = 1e-200 * samples(), dpca.StreamingPCA(2, method=method, center=False, random_state=0)
    with pytest.raises(DataError, match="multiply"):
        clone(model).fit(tiny)
    with pytest.raises(DataError, match="multiply"):
        clone(model).partial_fit(np.zeros_like(tiny)).partial_fit(tiny).components_  # noqa: B018
    one, other = clone(model).partial_fit(tiny), clone(model).partial_fit(tiny)
    if method != "oja":
        with pytest.raises(DataError, match="multiply"):
            one.merge(other)
    # Beside values that count, tiny ones are as good as 0.
    assert clone(model).partial_fit(tiny).partial_fit(samples()).total_variance_ > 0
