"""Which models take in further samples: those that partial_fit made, and nothing is ever forgotten in silence."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from dpca import BandPCA, CellPCA, StreamingPCA
from dpca.models.streaming_methods import METHODS
from dpca.rules import Constant, Sanger
from dpca.storage import DataError
from tests.conftest import smooth_images

MODELS: dict[str, Callable[[], Any]] = {
    **{method: lambda m=method: StreamingPCA(2, method=m, random_state=0, batch_size=10) for method in METHODS},
    "cells": lambda: CellPCA(2, cell_shape=4),
    "overlap": lambda: CellPCA(2, cell_shape=4, overlap=2),
    "shared": lambda: CellPCA(2, cell_shape=4, shared=True),
    "target": lambda: CellPCA(cell_shape=4, target_psnr=20, data_range=(0, 1)),
    "bands": lambda: BandPCA(2, band_size=9, random_state=0),
}
pytestmark = pytest.mark.filterwarnings("ignore::dpca.models.ConvergenceWarning")
every_model = pytest.mark.parametrize("model", [make() for make in MODELS.values()], ids=list(MODELS))
KEPT = ("components_", "mean_", "explained_variance_", "total_variance_")


@pytest.fixture
def images() -> np.ndarray:
    return smooth_images(200, (8, 8)) / 255


def learned(model: Any) -> list[Any]:
    return [copy.deepcopy(getattr(model, name)) for name in (*KEPT, "n_samples_seen_")]


@every_model
@pytest.mark.parametrize("how", ["fit", "load", "fit after partial_fit"])
def test_a_model_without_its_state_refuses_to_go_on(model: Any, how: str, images: np.ndarray, tmp_path: Path) -> None:
    images = images[:60]
    if how == "fit":
        model = clone(model).fit(images)
    elif how == "load":
        clone(model).partial_fit(images).save(tmp_path / "m")
        model = type(model).load(tmp_path / "m")
    else:
        model = clone(model).partial_fit(images).fit(images)
    before = learned(model)
    with pytest.raises(DataError, match=r"keeps no state to go on from: give all samples to fit\(\), or .*clone"):
        model.partial_fit(images)
    for a, b in zip(learned(model), before, strict=True):
        np.testing.assert_array_equal(a, b)
    if hasattr(model, "merge"):
        with pytest.raises(DataError, match="keeps no state"):
            model.merge(clone(model).partial_fit(images))
        with pytest.raises(DataError, match="keeps no state"):
            clone(model).partial_fit(images).merge(model)


@every_model
def test_a_model_that_partial_fit_made_goes_on_and_fit_begins_anew(model: Any, images: np.ndarray) -> None:
    half, whole = clone(model).partial_fit(images[:100]), clone(model)
    assert half.partial_fit(images[100:]).n_samples_seen_ == 200
    if isinstance(model, StreamingPCA):
        np.testing.assert_array_equal(half.components_, whole.partial_fit(images).components_)
    assert half.fit(images[:50]).n_samples_seen_ == 50


@every_model
def test_a_batch_that_is_refused_leaves_no_trace(model: Any, images: np.ndarray) -> None:
    """Values whose squares are beyond float64, in the middle of a stream."""
    good, other = clone(model), clone(model)
    hostile = np.where(images > 0.5, 1e300, -1e300)
    nan = images[:3].copy()
    nan[1, 0, 0] = np.nan
    good.partial_fit(images[:100])
    other.partial_fit(images[:100])
    before = learned(good)
    for batch in (hostile, nan, images[:, :4], images[:5].astype(np.float32)):
        with pytest.raises(DataError) as told:
            good.partial_fit(batch)
        assert "\n" not in str(told.value)
    for a, b in zip(learned(good), before, strict=True):
        np.testing.assert_array_equal(a, b)
    good.partial_fit(images[100:])
    other.partial_fit(images[100:])
    for a, b in zip(learned(good), learned(other), strict=True):
        np.testing.assert_array_equal(a, b)


@every_model
def test_a_first_batch_that_is_refused_does_not_bind(model: Any, images: np.ndarray) -> None:
    model = clone(model)
    with pytest.raises(DataError):
        model.partial_fit(np.where(images > 0.5, 1e300, -1e300)[:, :4])
    assert model.partial_fit(images).n_samples_seen_ == 200


def test_a_rule_that_diverges_in_the_middle_of_a_batch_leaves_no_trace() -> None:
    """20 samples at a time: of the refused ones, the first 30 are taken in before the rule notices."""
    rng = np.random.default_rng(0)
    small, large = 1e-3 * rng.normal(size=(130, 6)), rng.normal(size=(50, 6))
    good, other = (StreamingPCA(2, method=Sanger(schedule=Constant(0.1), unit=1.0), batch_size=20) for _ in range(2))
    for model in (good, other):
        model.set_params(random_state=0).partial_fit(1e-3 * small[:50])
    with pytest.raises(DataError, match="diverged"):
        good.partial_fit(np.concatenate([1e-3 * small[50:80], 1e6 * large]))
    for model in (good, other):
        model.partial_fit(1e-3 * small[50:])
    np.testing.assert_array_equal(good.components_, other.components_)
    assert good.n_samples_seen_ == other.n_samples_seen_ == 130


def test_components_are_found_when_they_are_asked_for(images: np.ndarray) -> None:
    """Whether they were looked at in between changes nothing but what they moved since."""
    watched, unseen = (StreamingPCA(2, batch_size=20, oversampling=2) for _ in range(2))
    looked = []
    for start in range(0, 200, 50):
        for model in (watched, unseen):
            model.partial_fit(images[start : start + 50])
            assert "components_" not in vars(model)
            assert model.n_samples_seen_ == start + 50
        looked.append(watched.components_)
    assert np.isnan(unseen.angle_moved_)
    cosines = np.linalg.svd(looked[-2] @ looked[-1].T, compute_uv=False)
    np.testing.assert_allclose(np.cos(watched.angle_moved_), cosines[-1], rtol=1e-6)
    np.testing.assert_array_equal(watched.components_, unseen.components_)
    assert watched.captured_bound_ == unseen.captured_bound_
    assert not hasattr(StreamingPCA(2), "components_")


@every_model
def test_every_method_of_learning_takes_y(model: Any) -> None:
    for name in ("fit", "partial_fit", "fit_transform"):
        assert "y" in list(inspect.signature(getattr(model, name)).parameters)[:2]
