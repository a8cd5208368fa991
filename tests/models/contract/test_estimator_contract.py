"""The contract of all estimators."""

from __future__ import annotations

import functools
import inspect
import math
import re
import shutil
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import (
    check_estimator_repr,
    check_no_attributes_set_in_init,
    check_parameters_default_constructible,
)

from dpca import PCA, BandPCA, CellPCA, KernelPCA, PatchPCA, Progress, StreamingPCA
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import as_source
from dpca.jobs.models.fit import fit_store
from dpca.models.base.store import ESTIMATORS, load_any, model_fingerprint, stored_basis
from dpca.storage import DataError, StoreError, open_stack
from dpca.storage.run import Run
from tests.helpers.resealing import edit_facts

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

MODELS: dict[str, Any] = {
    "cells": CellPCA(3, cell_shape=4),
    "all components of cells": CellPCA(cell_shape=(2, 3)),
    "lapped cells": CellPCA(3, cell_shape=8, overlap=3),
    "shared cells": CellPCA(4, cell_shape=4, shared=True),
    "shared lapped cells": CellPCA(4, cell_shape=4, shared=True, overlap=2),
    "bands": BandPCA(3, band_size=20),
    "bands with weights": BandPCA(3, band_size=20, weights=[1.0, 0.0, 2.0]),
    "lapped cells with weights": CellPCA(2, cell_shape=4, overlap=2, weights=[1.0, 0.5, 2.0], keep_state=True),
    "random bands": BandPCA(4, band_size=40, mapping="random", random_state=3),
    "raster bands": BandPCA(2, band_size=50, mapping="raster", keep_channels=False),
    "bands by few means": BandPCA(None, band_size=7, mapping="mean", n_intervals=3, n_estimating=5, random_state=1),
    "covariance": PCA(3, n_least=2, random_state=0),
    "dual": PCA(None, solver="dual"),
    "whitened": PCA(3, whiten=True),
    "a mask as weights": PCA(2, solver="covariance", weights=[1.0, 0.0, 2.0], random_state=0),
    "cells with a state": CellPCA(3, cell_shape=4, keep_state=True),
    "randomized": PCA(np.int64(3), solver="randomized", tol=0.9, random_state=0),
    "incremental SVD": StreamingPCA(3, random_state=0, oversampling=4, batch_size=7),
    "a gradient rule": StreamingPCA(3, method="oja", random_state=0),
    "a stream with weights": StreamingPCA(3, weights=[0.1, 3, 2], keep_state=True, random_state=0),
    "a rule with a state": StreamingPCA(3, method="ccipca", random_state=0, keep_state=True),
}
#: Estimators with components in another space than samples.
KERNELS: dict[str, Any] = {
    "a kernel": KernelPCA(3, n_landmarks=20, random_state=0),
    "a kernel of all samples": KernelPCA(3, kernel="poly", method="exact"),
    "patches": PatchPCA(3, patch_shape=3, stride=2),
    "patches with weights": PatchPCA(3, patch_shape=3, weights=[1.0, 0.0, 2.0]),
}
ADAPTING: dict[str, Any] = {
    "cells that meet a target": CellPCA(cell_shape=4, target_psnr=20, data_range=(0, 255)),
    "a ratio of bands": BandPCA(band_size=60, ratio=20, mapping="random", random_state=0),
    "a share of the variance": PCA(0.9, solver="covariance"),
}
SHAPE = (8, 9, 3)
ALL = MODELS | ADAPTING | KERNELS
every_model = pytest.mark.parametrize("model", [clone(m) for m in MODELS.values()], ids=list(MODELS))
every_basis = pytest.mark.parametrize(
    "model", [clone(m) for m in (MODELS | ADAPTING).values()], ids=list(MODELS | ADAPTING)
)
every_choice = pytest.mark.parametrize("model", [clone(m) for m in ALL.values()], ids=list(ALL))
every_kind = pytest.mark.parametrize(
    "model", [MODELS[name] for name in ("cells", "bands", "covariance", "incremental SVD")], ids=list("cbps")
)


def samples(dtype: Any = np.uint8, n: int = 30) -> np.ndarray:
    """Samples of some spatial structure and some noise."""
    rng = np.random.default_rng(0)
    low = rng.normal(size=(n, 6)) @ rng.normal(size=(6, math.prod(SHAPE)))
    x = np.clip(20 * low + rng.normal(0, 5, low.shape) + 128, 0, 255)
    return x.reshape(n, *SHAPE).astype(dtype)


def learned(model: Any) -> dict[str, Any]:
    """Return the fitted attributes of a model, except the report and the state of `partial_fit`."""
    names = {name for name in vars(model) if name.endswith("_") and not name.startswith("_")}
    return {name: getattr(model, name) for name in names - {"fit_report_"}}


@functools.cache
def fitted_once(model: Any) -> Any:
    """The model fitted to `samples()`, for tests that do not change it."""
    return clone(model).fit(samples())


def assert_alike(a: Any, b: Any) -> None:
    x, y = learned(a), learned(b)
    assert x.keys() == y.keys()
    for name in x:
        np.testing.assert_array_equal(x[name], y[name], err_msg=name)
        assert getattr(x[name], "dtype", None) == getattr(y[name], "dtype", None)


# -- parameters


@every_kind
def test_the_documentation_describes_every_parameter(model: Any) -> None:
    text = inspect.getdoc(type(model)) or ""
    assert not re.findall(r"\{[a-z_]+\}", text), "a text of others was not filled in"
    described = re.search(r"\nParameters\n-+\n(.*?)\nAttributes\n-+\n(.*?)\nNotes\n", text, re.S)
    assert described is not None
    parameters = {n for line in re.findall(r"^(\w[\w, ]*?)(?: : .*)?$", described[1], re.M) for n in line.split(", ")}
    assert parameters >= set(inspect.signature(type(model)).parameters)
    attributes = {n for line in re.findall(r"^(\w[\w, ]*?)(?: : .*)$", described[2], re.M) for n in line.split(", ")}
    assert attributes >= {"components_", "mean_", "explained_variance_", "n_samples_seen_", "sample_shape_"}


@every_kind
@pytest.mark.parametrize(
    "check",
    [check_no_attributes_set_in_init, check_estimator_repr, check_parameters_default_constructible],
    ids=lambda check: check.__name__,
)
def test_scikit_learns_checks_of_constructors(model: Any, check: Any) -> None:
    """All the others are in `tests.models.contract.test_scikit_learn`."""
    check(type(model).__name__, clone(model))


@every_choice
def test_parameters_stay_as_they_were_given(model: Any) -> None:
    fitted = clone(model)
    assert fitted.fit(samples()) is fitted
    assert fitted.get_params() == model.get_params()


# -- fitting and using


@every_basis
def test_what_is_learned_has_the_shapes_that_are_promised(model: Any) -> None:
    x, fitted = samples(), fitted_once(model)
    k = fitted.n_components_
    assert fitted.components_.shape[0] == k
    assert fitted.components_.reshape(k, -1).shape[1] == fitted.n_features_in_ == math.prod(SHAPE)
    assert fitted.mean_.size == math.prod(SHAPE)
    assert (fitted.components_.dtype, fitted.mean_.dtype) == (np.float32, np.float64)
    assert (fitted.n_samples_seen_, fitted.sample_shape_) == (len(x), SHAPE)
    variances = fitted.explained_variance_
    assert variances.dtype == np.float64
    assert (np.diff(variances, axis=-1) <= 1e-9 * variances.max()).all()
    ratio = variances / np.asarray(fitted.total_variance_)[..., None]
    np.testing.assert_allclose(fitted.explained_variance_ratio_, ratio)
    np.testing.assert_allclose(fitted.singular_values_, np.sqrt(variances * (len(x) - 1)))
    assert clone(model).fit(samples(np.float64)).components_.dtype == np.float64
    scores = fitted.transform(x)
    assert scores.shape == (len(x), *fitted.basis_.score_shape)
    assert scores.dtype == np.float32
    assert fitted.inverse_transform(scores).shape == x.shape
    names = fitted.get_feature_names_out()
    assert len(names) == len(set(names)) == math.prod(fitted.basis_.score_shape)


@every_choice
def test_fit_transform_is_fit_and_transform(model: Any) -> None:
    x = samples()
    np.testing.assert_array_equal(clone(model).fit_transform(x), fitted_once(model).transform(x))


@pytest.mark.cases(8)
@every_choice
def test_lazy_in_lazy_out(model: Any, tmp_path: Path) -> None:
    x, fitted, path = samples(), fitted_once(model), str(tmp_path / "x.zarr")
    stored = zarr.create_array(path, data=x, chunks=(11, *SHAPE))
    expected = fitted.transform(x)
    back = fitted.inverse_transform(expected)
    first = fitted.inverse_transform(expected, 1)
    np.testing.assert_array_equal(fitted.inverse_transform(expected[..., :1], 1), first)
    lazy = [fitted.transform(given) for given in (da.from_array(x, chunks=(13, 4, 9, 2)), stored, path, Path(path))]
    for scores in lazy:
        assert isinstance(scores, da.Array)
        assert (scores.shape, scores.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(scores.compute(scheduler="sync"), expected, atol=1e-3)
    # What a path names is the stored array again.
    for scores in lazy[:2]:
        rebuilt = fitted.inverse_transform(scores)
        assert isinstance(rebuilt, da.Array)
        assert (rebuilt.shape, rebuilt.dtype) == (back.shape, back.dtype)
        np.testing.assert_allclose(rebuilt.compute(scheduler="sync"), back, atol=1e-2)
    kept = zarr.create_array(str(tmp_path / "y.zarr"), data=expected, chunks=(11, *expected.shape[1:-1], 1))
    np.testing.assert_allclose(fitted.inverse_transform(kept, 1).compute(scheduler="sync"), first, atol=1e-2)


@pytest.mark.cases(8)
@every_choice
def test_the_same_samples_give_the_same_components_from_wherever_they_come(model: Any, tmp_path: Path) -> None:
    x = samples()
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(len(x), *SHAPE))
    for given in (da.from_array(x, chunks=x.shape), tmp_path / "x.zarr"):
        assert_alike(clone(model).fit(given), fitted_once(model))


@every_kind
def test_a_model_that_is_not_fitted_says_so(model: Any, tmp_path: Path) -> None:
    model = clone(model)
    for use in (
        lambda: model.transform(samples()),
        lambda: model.inverse_transform(np.zeros((2, 3))),
        lambda: model.save(tmp_path / "m.zarr"),
        lambda: model.get_feature_names_out(),
        lambda: model.basis_,
    ):
        with pytest.raises(NotFittedError):
            use()
    assert not (tmp_path / "m.zarr").exists()


@every_choice
def test_samples_and_scores_of_another_shape(model: Any) -> None:
    fitted = fitted_once(model)
    with pytest.raises(DataError, match=r"\(8,.8,.3\).*\(8,.9,.3\)"):
        fitted.transform(np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(DataError, match=r"\(8,.8,.3\).*\(8,.9,.3\)"):
        fitted.transform(da.zeros((2, 8, 8, 3)))
    scores = fitted.transform(samples())
    with pytest.raises(DataError, match="n_samples"):
        fitted.inverse_transform(np.concatenate([scores, scores], axis=-1))
    with pytest.raises(DataError, match="most"):
        fitted.inverse_transform(scores, scores.shape[-1] + 1)


@every_choice
def test_values_that_are_not_finite_are_named_by_their_sample(model: Any) -> None:
    fitted = fitted_once(model)
    bad = samples(np.float32)
    bad[3, 2, 1] = np.nan
    for use in (clone(model).fit, fitted.transform):
        with pytest.raises(DataError, match="sample.3"):
            use(bad)


@every_choice
def test_a_single_sample_has_no_variance(model: Any) -> None:
    with pytest.raises(DataError, match=r"\b2.samples|minimum"):
        clone(model).fit(samples(n=1))


@every_choice
def test_a_plan_knows_the_size_of_what_will_be_found(model: Any) -> None:
    given, model = model, clone(model)
    source, axes = as_source(samples()), ("y", "x", "channel")
    basis, known = model.plan_fit(source, axes, Run())
    found = fitted_once(given).basis_
    assert basis.sample_shape == found.sample_shape
    if known:
        assert basis.score_shape == found.score_shape
    else:
        assert math.prod(basis.score_shape) <= math.prod(found.score_shape)
    assert not learned(model)
    with pytest.raises(PlanError):
        model.set_params(memory_budget=1).plan_fit(source, axes, Run())


@pytest.mark.cases(6)
@every_choice
def test_a_fit_that_is_watched_shows_models_and_learns_the_same(model: Any, tmp_path: Path) -> None:
    seen: list[Progress] = []
    watched = clone(model).fit(x := samples(), callback=seen.append)
    assert_alike(watched, fitted_once(model))
    *early, last = seen
    assert (last.model, last.finished, last.n_samples_seen, last.n_samples) == (watched, True, len(x), len(x))
    assert [p.seconds for p in seen] == sorted(p.seconds for p in seen)
    for told in early:
        so_far = told.model
        assert type(so_far) is type(model)
        assert (told.n_samples, told.finished) == (len(x), False)
        assert 2 <= told.n_samples_seen == so_far.n_samples_seen_ <= len(x)
        assert 0 <= told.captured_variance <= 1
        assert not told.captured_bound > 1
        assert so_far.transform(x).shape[:-1] == watched.transform(x).shape[:-1]
        so_far.save(tmp_path / "m.zarr", overwrite=True)
        np.testing.assert_array_equal(load_any(tmp_path / "m.zarr").transform(x), so_far.transform(x))
    ended = clone(model).fit(x, callback=lambda told: np.float64(told.captured_variance) >= 0)  # numpy's own True
    assert ended.n_samples_seen_ == (early[0].n_samples_seen if early else len(x))
    if early:
        np.testing.assert_array_equal(ended.transform(x), early[0].model.transform(x))
        with pytest.raises(ValueError, match="callback"):
            clone(model).fit(x, callback=_refuse)
    for wrong in ({"callback": 3}, {"max_seconds": 0}, {"max_seconds": "a"}, {"max_samples": 1.5}):
        with pytest.raises(DataError, match=next(iter(wrong))):
            clone(model).fit(x, **wrong)


def _refuse(told: Progress) -> None:
    raise ValueError("the callback's own")


# -- keeping


@pytest.mark.cases(8)
@every_choice
def test_what_is_saved_is_loaded(model: Any, tmp_path: Path) -> None:
    x, path, fitted = samples(), tmp_path / "m.zarr", fitted_once(model)
    fitted.save(path)
    for again in (type(model).load(path), type(model).load(str(path)), load_any(path)):
        assert type(again) is type(model)
        # The log-likelihood depends on the components only, not on incremental SVD or the value of a target.
        assert {n for n in learned(fitted) if n not in learned(again)} <= {
            "target_reached_",
            "target_standard_error_",
            "residual_norms_",
        }
        for name, value in learned(again).items():
            np.testing.assert_array_equal(value, getattr(fitted, name), err_msg=name)
        scores = fitted.transform(x)
        np.testing.assert_array_equal(again.transform(x), scores)
        np.testing.assert_array_equal(again.inverse_transform(scores), fitted.inverse_transform(scores))
    with xarray.open_zarr(path, consolidated=False) as opened:
        assert len(opened.variables) == len(list(zarr.open_group(path).arrays()))
    basis = stored_basis(str(path), model_fingerprint(path), 2)
    assert basis.score_shape == (*fitted.basis_.score_shape[:-1], 2)
    assert basis.sample_shape == SHAPE
    assert len(basis.score_axes(("y", "x", "channel"))) == len(basis.score_shape)
    assert basis.n_spatial(("y", "x", "channel")) == 2


@every_kind
@pytest.mark.parametrize(
    ("shape", "dtype"), [((20, 30), np.float32), ((12, 4, 5, 6), np.float64), ((9, 11, 5), np.int32)], ids=str
)
def test_samples_of_other_shapes_and_types_are_kept(model: Any, shape: Any, dtype: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    fitted = clone(model).fit(x)
    fitted.save(tmp_path / "m.zarr")
    assert_alike(type(model).load(tmp_path / "m.zarr"), fitted)


@pytest.mark.parametrize("model", list(MODELS.values()), ids=list(MODELS))
def test_a_loaded_model_can_be_fitted_anew(model: Any, tmp_path: Path) -> None:
    fitted = fitted_once(model)
    fitted.save(tmp_path / "m.zarr")
    again = type(model).load(tmp_path / "m.zarr")
    if "random_state" in again.get_params():
        again.set_params(random_state=model.random_state)
    assert_alike(again.fit(samples()), fitted)


@pytest.mark.cases(8)
@every_choice
def test_the_same_model_is_stored_once_and_in_the_same_bytes_anywhere(model: Any, tmp_path: Path) -> None:
    def content(name: str) -> dict[Path, Any]:
        files = [p for p in (tmp_path / name).rglob("*") if p.is_file()]
        return {p.relative_to(tmp_path / name): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}

    fitted_once(model).save(tmp_path / "m.zarr")
    before, again = content("m.zarr"), type(model).load(tmp_path / "m.zarr")
    # A seed is not kept where a fit alone needs it.
    again.save(tmp_path / "m.zarr")
    assert content("m.zarr") == before
    again.save(tmp_path / "elsewhere.zarr")
    assert {p: b for p, (b, _) in content("elsewhere.zarr").items()} == {p: b for p, (b, _) in before.items()}
    assert not any(str(tmp_path).encode() in data for data, _ in before.values())


@every_kind
def test_another_model_needs_permission(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.zarr"
    fitted_once(model).save(path)
    other = clone(model).set_params(n_components=2).fit(samples())
    with pytest.raises(StoreError, match="overwrite"):
        other.save(path)
    assert load_any(path).n_components_ == 3
    other.save(path, overwrite=True)
    assert load_any(path).n_components_ == 2
    assert not list(tmp_path.glob("*.partial"))


@every_kind
def test_a_model_of_another_kind_or_time_is_refused(model: Any, tmp_path: Path) -> None:
    path, kind = tmp_path / "m.zarr", type(model).store_kind
    fitted_once(model).save(path)
    for name, other in ESTIMATORS.items():
        if name != kind:
            with pytest.raises(StoreError, match=f"{kind}.*{name}"):
                other.load(path)
    edit_facts(path, lambda facts: facts.update(version=99))
    for read in (type(model).load, load_any, model_fingerprint):
        with pytest.raises(StoreError, match="99"):
            read(path)
    with pytest.raises(StoreError, match="unreadable"):
        type(model).load(tmp_path / "nothing.zarr")


CONTRADICTIONS: dict[str, list[tuple[str, Any]]] = {
    "every": [("n_components", 4), ("n_components", "two"), ("n_samples_seen", None), ("sample_shape", [9, 8, 3, 2])],
    "cell-pca": [("n_samples_seen", 1), ("cell_shape", [0, 4]), ("cell_shape", [3, 3]), ("cell_shape", None)],
    "band-pca": [("n_samples_seen", 1), ("n_bands", 1), ("parameters", {})],
    "pca": [("kept", ["mean"]), ("n_passes", "two"), ("parameters", None), ("total_variance", None)],
    "streaming-pca": [("parameters", None), ("total_variance", "all"), ("captured_bound", "much")],
}


@every_kind
def test_facts_that_contradict_the_arrays(model: Any, tmp_path: Path) -> None:
    fitted_once(model).save(tmp_path / "m.zarr")
    for i, (fact, value) in enumerate(CONTRADICTIONS["every"] + CONTRADICTIONS[type(model).store_kind]):
        damaged = shutil.copytree(tmp_path / "m.zarr", tmp_path / f"{i}.zarr")
        edit_facts(damaged, lambda facts, new={fact: value}: facts.update(new))
        with pytest.raises(StoreError, match="damaged") as told:
            type(model).load(damaged)
        assert "\n" not in str(told.value), fact


@pytest.mark.cases(6)
@every_choice
def test_a_job_fits_it_once(model: Any, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=samples(), chunks=(11, *SHAPE))
    stack = open_stack(tmp_path / "x.zarr")
    model = clone(model)
    if "random_state" in model.get_params():
        model.set_params(random_state=0)
    found = fit_store(stack, tmp_path / "m.zarr", clone(model))
    assert found.cost.bytes > 0
    assert_alike(found.model, clone(model).fit(stack))
    again = fit_store(stack, tmp_path / "m.zarr", clone(model))
    assert again.cost.bytes == 0
    np.testing.assert_array_equal(again.model.transform(samples()), found.model.transform(samples()))
    other = clone(model).set_params(memory_budget=2**30)
    with pytest.raises(StoreError, match="overwrite"):
        fit_store(stack, tmp_path / "m.zarr", other)
