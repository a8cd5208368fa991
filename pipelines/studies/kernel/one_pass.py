"""All of MNIST in one pass: landmarks beside scikit-learn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.decomposition import IncrementalPCA
from sklearn.decomposition import KernelPCA as ScikitLearnKernelPCA
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline

from dpca import KernelPCA
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.data import Setting
from dpca.pipelines.studies.kernel.mnist import COMPONENTS, errors
from dpca.pipelines.studies.runner import Section
from dpca.report.page import DataTable

SIGMA = 10.5
_GAMMA = 1 / (2 * SIGMA**2)
_FEATURES, _SAMPLES = 500, 3000


def methods_section(setting: Setting, n_passes: int = 1) -> Section:
    """Landmarks beside scikit-learn: the error of all of MNIST's kernel matrix."""
    x = setting.digits("train")[0].astype(np.float32) / np.float32(255)
    projections, seconds = {}, {}
    for name, model, some in _models(x):
        began = time.process_time()
        model.fit(some)
        seconds[name] = time.process_time() - began
        scores = np.asarray(model.transform(x), np.float32)
        projections[name] = scores - scores.mean(axis=0)
    found = dict(zip(projections, errors(x, SIGMA, list(projections.values())), strict=True))
    lines = [(name, f"{error:.2f}", f"{seconds[name]:.1f} s") for name, error in found.items()]
    notes = (
        f"Gaussian kernel, sigma {SIGMA:g}, pixels in 0 to 1. Errors are of the whole kernel matrix, 60,000 x "
        "60,000 (equation 38 of Günter, Schraudolph & Vishwanathan 2007).",
    )
    head = ("method", "error", "CPU s of a fit")
    return Section(
        [DataTable(f"MNIST, 60,000 digits, {COMPONENTS} components", head, lines, notes)],
        numbers={"mnist-methods": {name: {"error": found[name], "seconds": seconds[name]} for name in found}},
    )


def _models(x: Array) -> Iterator[tuple[str, Any, Array]]:
    """Yield the name of each method, its estimator, and the samples of its fit."""
    shared: dict[str, Any] = {"gamma": _GAMMA, "random_state": 0}
    for count in (2000, _FEATURES):
        yield f"dpca KernelPCA, {count:,} landmarks", KernelPCA(COMPONENTS, n_landmarks=count, **shared), x
    nystroem = Nystroem(n_components=_FEATURES, **shared)
    yield f"scikit-learn Nystroem({_FEATURES}), IncrementalPCA", make_pipeline(nystroem, IncrementalPCA(COMPONENTS)), x
    some = x[np.sort(np.random.default_rng(0).choice(len(x), _SAMPLES, replace=False))]
    exact = ScikitLearnKernelPCA(COMPONENTS, kernel="rbf", gamma=_GAMMA, eigen_solver="arpack", random_state=0)
    yield f"scikit-learn KernelPCA, {_SAMPLES:,} samples", exact, some
