"""Which models take in further samples: those that partial_fit made, and nothing is ever forgotten in silence."""

from __future__ import annotations

import copy
import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from sklearn.base import clone

from dpca import BandPCA, CellPCA, StreamingPCA
from dpca.models.base.store import load_any
from dpca.parameters.streaming import RULE_CLASSES
from dpca.rules import Constant, Sanger
from dpca.storage import DataError, StoreError
from tests.conftest import smooth_images
from tests.helpers.resealing import edit_facts

MODELS: dict[str, Callable[[], Any]] = {
    **{method: lambda m=method: StreamingPCA(2, method=m, random_state=0, batch_size=10) for method in RULE_CLASSES},
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
    with pytest.raises(DataError, match=r"fit\(\).*clone"):
        model.partial_fit(images)
    for a, b in zip(learned(model), before, strict=True):
        np.testing.assert_array_equal(a, b)
    if hasattr(model, "merge"):
        with pytest.raises(DataError, match="state"):
            model.merge(clone(model).partial_fit(images))
        with pytest.raises(DataError, match="state"):
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
    """Values in the middle of a stream with squares beyond the range of float64."""
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
    """With batches of 20 samples, the rule takes the first 30 samples of the rejected call before it diverges."""
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
    """Access to the components between batches changes only the measured change since then."""
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


# -- states that are kept on request

FOUND = ("components_", "mean_", "explained_variance_", "total_variance_")


def assert_found_alike(a: Any, b: Any, **tolerance: float) -> None:
    assert a.n_samples_seen_ == b.n_samples_seen_
    for name in FOUND:
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), **tolerance, err_msg=name)


@pytest.mark.cases(5)
@every_model
def test_a_fit_with_its_state_goes_on_as_partial_fit_does(model: Any, images: np.ndarray, tmp_path: Path) -> None:
    model = clone(model).set_params(keep_state=True)
    expected = clone(model).partial_fit(images[:100]).partial_fit(images[100:])
    fitted = clone(model).fit(images[:100])
    assert_found_alike(fitted, clone(model).set_params(keep_state=False).fit(images[:100]), rtol=0)
    fitted.save(tmp_path / "m")
    loaded = type(model).load(tmp_path / "m")
    assert_found_alike(loaded, fitted, rtol=0)
    for one in (fitted, loaded):
        assert_found_alike(one.partial_fit(images[100:]), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.cases(5)
@every_model
def test_a_stream_that_was_stored_goes_on_where_it_was(model: Any, images: np.ndarray, tmp_path: Path) -> None:
    """103 samples leave some that wait for a batch."""
    one = clone(model).set_params(keep_state=True).partial_fit(images[:103])
    one.save(tmp_path / "m")
    assert "state_counts" in xarray.open_zarr(tmp_path / "m", consolidated=False)
    loaded = type(model).load(tmp_path / "m")
    loaded.save(tmp_path / "m")  # an identical store remains unchanged
    for turn in (loaded, one):
        turn.partial_fit(images[103:150]).partial_fit(images[150:])
    assert_found_alike(loaded, one, rtol=0)
    again = type(model).load(tmp_path / "m").set_params(keep_state=False)
    again.save(tmp_path / "without")
    assert not list((tmp_path / "without").glob("state_*"))
    assert not hasattr(type(model).load(tmp_path / "without"), "partial_fit")


@pytest.mark.parametrize("execution", ["chain", "averaged", "data-parallel"])
def test_every_execution_leaves_a_state(execution: str, images: np.ndarray) -> None:
    model = StreamingPCA(2, method="oja", execution=execution, keep_state=True, random_state=0).fit(images[:150])
    components = model.components_
    assert model.partial_fit(images[150:]).n_samples_seen_ == 200
    cosines = np.linalg.svd(components @ model.components_.T, compute_uv=False)
    assert (cosines > 0.9).all()


def test_states_of_many_kinds_are_kept(images: np.ndarray, tmp_path: Path) -> None:
    """Integers, a share of the variance, a ratio, samples in a store, two fits that are merged."""
    x = (images * 255).astype(np.uint8)
    zarr.create_array(str(tmp_path / "x"), data=x[:120], chunks=(50, 8, 8))
    models: list[Any] = [
        StreamingPCA(0.9, keep_state=True),
        StreamingPCA(3, method="incremental-svd", oversampling=4, keep_state=True, random_state=0),
        CellPCA(cell_shape=3, ratio=9, keep_state=True),
        BandPCA(2, band_size=9, mapping="mean", n_intervals=3, keep_state=True),
    ]
    for i, model in enumerate(models):
        fitted = clone(model).fit(str(tmp_path / "x"))
        fitted.save(tmp_path / str(i))
        loaded = type(model).load(tmp_path / str(i)).partial_fit(x[120:])
        assert_found_alike(loaded, fitted.partial_fit(x[120:]), rtol=0)
        if isinstance(model, CellPCA):
            assert_found_alike(loaded, clone(model).fit(x), rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(loaded.ranks_, clone(model).fit(x).ranks_)
    both = clone(models[0]).set_params(random_state=0)
    assert_found_alike(
        clone(both).fit(x[:120]).merge(clone(both).fit(x[120:])), clone(both).fit(x), rtol=1e-5, atol=1e-5
    )


def test_what_no_state_can_be_kept_of(images: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="n_passes"):
        StreamingPCA(2, n_passes=2, keep_state=True).fit(images)
    with pytest.raises(DataError, match="'yes'"):
        CellPCA(2, cell_shape=4, keep_state="yes").fit(images)
    StreamingPCA(2, keep_state=True, batch_size=10).partial_fit(images[:103]).save(tmp_path / "m")
    CellPCA(2, cell_shape=4, keep_state=True).fit(images).save(tmp_path / "c")
    for name, wrong in (
        ("m", {"n_held": 4}),
        ("m", {"n_held": -1}),
        ("m", {"dtype": "float99"}),
        ("c", {"dtype": "complex128"}),
    ):
        damaged = shutil.copytree(tmp_path / name, tmp_path / "damaged")
        edit_facts(damaged, lambda facts, new=wrong: facts["state"].update(new))
        with pytest.raises(StoreError, match="damaged"):
            load_any(damaged)
        shutil.rmtree(damaged)
    edit_facts(tmp_path / "c", lambda facts: facts.update(parameters={}))
    with pytest.raises(StoreError, match="keep_state"):
        load_any(tmp_path / "c")
