"""PCA: every solver against scikit-learn's full SVD, over every kind of input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.decomposition import PCA as Reference
from sklearn.exceptions import ConvergenceWarning

from dpca import PCA
from dpca.engine.folds.plan import PlanError
from dpca.models.linear.pca_solvers import SOLVERS
from dpca.rules.covariance.covariance_product import CovarianceProduct
from dpca.storage.errors import DataError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.conftest import smooth_images

SHAPE = (8, 9, 3)
ITERATIVE = ["randomized", "orthogonal-iteration", "power", "vr-pca"]
# Iterations that let each meet a tolerance on these spectra.
PATIENT: dict[str, dict[str, Any]] = {
    "randomized": {"n_iter": 10},
    "orthogonal-iteration": {"tol": 1e-5, "n_iter": 200},
    "power": {"tol": 1e-3},
    "vr-pca": {"tol": 1e-3, "n_iter": 100},
}


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    x = smooth_images(300, SHAPE)
    return x[np.random.default_rng(0).permutation(len(x))]


def spectrum(name: str, n: int = 120, d: int = 40) -> np.ndarray:
    rng = np.random.default_rng(1)
    deviations = {
        "steep": 0.5 ** np.arange(d),
        "slow": 0.8 ** np.arange(d),
        "close pairs": np.repeat(0.6 ** np.arange(d // 2), 2),
        "rank 3": np.r_[3.0, 2.0, 1.0, np.zeros(d - 3)],
    }[name]
    samples = np.linalg.qr(rng.normal(size=(n, d)))[0]
    samples -= samples.mean(0)
    return 5 + (np.linalg.qr(samples)[0] * deviations) @ np.linalg.qr(rng.normal(size=(d, d)))[0].T * np.sqrt(n - 1)


def captured(components: Any, x: np.ndarray) -> float:
    rows = x.reshape(len(x), -1).astype(float)
    rows = rows - rows.mean(0)
    return float(np.linalg.norm(rows @ np.asarray(components, float).T) ** 2 / (len(rows) - 1))


@pytest.mark.cases(8)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", ["steep", "slow", "close pairs", "rank 3"])
def test_against_the_full_svd(solver: str, name: str) -> None:
    x, k = spectrum(name), 4
    exact = Reference(k, svd_solver="full").fit(x)
    model = PCA(k, solver=solver, random_state=0, **PATIENT.get(solver, {})).fit(x)
    best = exact.explained_variance_.sum()
    loose = 1e-3 if solver in ("power", "vr-pca") else 1e-8
    assert 1 - loose < captured(model.components_, x) / best <= 1 + 1e-9
    # What is stated is what these components have, to the last digit.
    assert model.explained_variance_.sum() == pytest.approx(captured(model.components_, x), rel=1e-9)
    np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=20 * loose, atol=1e-9)
    np.testing.assert_allclose(model.mean_, exact.mean_, rtol=1e-10)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(k), atol=1e-9)
    assert model.components_.dtype == np.float64
    assert np.all(model.components_[np.arange(k), np.abs(model.components_).argmax(1)] > 0)
    assert model.total_variance_ == pytest.approx(x.var(0, ddof=1).sum(), rel=1e-9)
    assert model.captured_bound_ <= captured(model.components_, x) / best + 1e-9
    if solver in ITERATIVE:
        covariance = np.cov(x, rowvar=False)
        rows = model.components_
        residual = rows @ covariance - model.explained_variance_[:, None] * rows
        np.testing.assert_allclose(model.residual_norms_, np.linalg.norm(residual, axis=1), atol=1e-6)
    else:
        assert 1 - 1e-10 < model.captured_bound_ <= 1
    scores = model.transform(x)
    np.testing.assert_allclose(scores.var(0, ddof=1), model.explained_variance_, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
def test_pixels_about_zero(images: np.ndarray, solver: str) -> None:
    x = images.reshape(300, -1)
    values = np.linalg.eigvalsh(x.T.astype(float) @ x / 299)[::-1][:2]
    model = PCA(2, solver=solver, center=False, random_state=0, **PATIENT.get(solver, {})).fit(images)
    assert model.components_.dtype == np.float32
    np.testing.assert_array_equal(model.mean_, 0)
    np.testing.assert_allclose(model.explained_variance_, values, rtol=1e-3)
    assert model.total_variance_ == pytest.approx((x.astype(float) ** 2).sum() / 299, rel=1e-6)


@pytest.mark.parametrize("solver", ["covariance", "dual", "randomized"])
def test_every_kind_of_input_gives_the_same(images: np.ndarray, solver: str, tmp_path: Path, cluster: Any) -> None:
    path = str(tmp_path / "x.zarr")
    stored = zarr.create_array(path, data=images, chunks=(64, *SHAPE))
    reference = PCA(5, solver=solver, random_state=0).fit(images)
    for x in (da.from_array(images, chunks=(70, *SHAPE)), stored, path):
        model = PCA(5, solver=solver, random_state=0).fit(x, run=Run(client=cluster))
        np.testing.assert_allclose(model.explained_variance_, reference.explained_variance_, rtol=1e-5)
        np.testing.assert_allclose(model.components_, reference.components_, atol=2e-3)
        scores = model.transform(x)
        assert isinstance(scores, da.Array)
        np.testing.assert_allclose(scores.compute(), model.transform(images), rtol=1e-4, atol=1e-2)
    lazy = model.inverse_transform(model.transform(path))
    assert isinstance(lazy, da.Array)
    np.testing.assert_allclose(lazy[:7].compute(), model.inverse_transform(model.transform(images[:7])), atol=1e-2)


@pytest.mark.parametrize("solver", ITERATIVE)
def test_the_same_seed_gives_the_same_bytes(solver: str) -> None:
    x = spectrum("steep").astype(np.float32)
    models = [PCA(3, solver=solver, random_state=7, tol=0.1).fit(x) for _ in range(2)]
    assert models[0].components_.tobytes() == models[1].components_.tobytes()
    assert models[0].explained_variance_.tobytes() == models[1].explained_variance_.tobytes()


def test_passes_are_counted_and_reasons_given(images: np.ndarray) -> None:
    assert PCA(3, solver="covariance").fit(images).n_passes_ == 1
    assert PCA(3, solver="dual").fit(images).n_passes_ == 2
    assert PCA(3, solver="randomized", n_iter=2).fit(images).n_passes_ == 4
    model = PCA(3).fit(images)
    assert model.solver_ == "covariance"
    assert "216 x 216" in model.solver_reason_
    assert "requested" in PCA(3, solver="dual").fit(images).solver_reason_
    assert model.fit_report_.plan.segments[-1][1] == 300


def test_the_reason_is_the_same_however_much_memory_is_free(images: np.ndarray) -> None:
    assert PCA(3, memory_budget=10**9).fit(images).solver_reason_ == PCA(3).fit(images).solver_reason_


def test_none_keeps_all(images: np.ndarray) -> None:
    few = images[:20]
    exact = Reference(svd_solver="full").fit(few.reshape(20, -1).astype(float))
    for solver in ("covariance", "dual"):
        model = PCA(None, solver=solver).fit(few)
        assert model.components_.shape == (20, 216)
        np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(20), atol=1e-5)
        np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=1e-4, atol=1e-2)
        np.testing.assert_allclose(model.inverse_transform(model.transform(few)), few, atol=0.01)


def test_the_dual_form_reads_blocks_of_attributes_that_fit(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((160, 50, 20, 50), np.float32)
    path = str(tmp_path / "wide.zarr")
    zarr.create_array(path, data=x, chunks=(4, 25, 20, 50))
    model = PCA(3, solver="dual", memory_budget=48 * 2**20).fit(path)
    assert model.fit_report_.plan.groups[0].region[0][1] < x[0].size  # attributes of a block
    assert model.fit_report_.plan.task_bytes <= 48 * 2**20
    np.testing.assert_allclose(model.explained_variance_, PCA(3, solver="dual").fit(x).explained_variance_, rtol=1e-5)
    with pytest.raises(PlanError, match="solver='randomized'"):
        PCA(3, solver="dual", memory_budget=2**20).fit(path)


@pytest.mark.parametrize("solver", ITERATIVE)
def test_what_has_not_converged_is_warned_about(solver: str) -> None:
    with pytest.warns(ConvergenceWarning, match=f"{solver}.*tol=1e-09.*n_iter"):
        PCA(4, solver=solver, n_iter=1, tol=1e-9, random_state=0).fit(spectrum("slow"))


def test_constant_samples_have_no_variance() -> None:
    for solver in SOLVERS:
        model = PCA(2, solver=solver, random_state=0).fit(np.full((30, 5), 7.0))
        assert model.total_variance_ == 0
        np.testing.assert_array_equal(model.explained_variance_, [0, 0])
        np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(2), atol=1e-12)
        assert 1 - 1e-10 < model.captured_bound_ <= 1


def test_a_stopped_fit_goes_on(images: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=images, chunks=(64, *SHAPE))
    model = PCA(3, solver="randomized", random_state=0)
    checkpoints = Checkpoints(str(tmp_path / "kept"))
    first = model.fit(path, run=Run(checkpoints=checkpoints)).components_.copy()
    assert {p.name for p in (tmp_path / "kept").iterdir()} == {f"pass-{i}" for i in range(1, 7)}
    # All passes are found there: no batch is taken in again.
    monkeypatch.setattr(CovarianceProduct, "update", None)
    np.testing.assert_array_equal(model.fit(path, run=Run(checkpoints=checkpoints)).components_, first)
    with pytest.raises(DataError, match="random_state"):
        PCA(3, solver="randomized").fit(path, run=Run(checkpoints=checkpoints))


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"n_components": 0}, "positive integer"),
        ({"n_components": 2.5}, "positive integer"),
        ({"n_components": True}, "positive integer"),
        ({"n_components": 217}, "only 216 attributes"),
        ({"n_components": 2, "solver": "full"}, "one of auto, covariance"),
        ({"n_components": 2, "solver": "dual", "n_least": 2}, "use solver='covariance'"),
        ({"n_components": 2, "n_least": 217}, "only 216 attributes"),
        ({"n_components": 2, "n_least": -1}, "an integer of at least 0"),
        ({"n_components": None, "solver": "randomized"}, "requires all"),
        ({"n_components": 2, "solver": "power", "n_iter": 0}, "n_iter is 0: give a positive integer"),
        ({"n_components": 2, "solver": "randomized", "n_iter": -1}, "at least 0"),
        ({"n_components": 2, "solver": "randomized", "oversampling": -1}, "oversampling"),
        ({"n_components": 2, "solver": "power", "oversampling": 5}, "does not support oversampling"),
        ({"n_components": 2, "solver": "dual", "tol": 1e-3}, "does not support tol"),
        ({"n_components": 2, "solver": "power", "tol": float("nan")}, "positive"),
        ({"n_components": 2, "solver": "dual", "n_iter": 5}, "does not iterate"),
        ({"n_components": 2, "tol": 0}, "positive number"),
    ],
)
def test_wrong_parameters_are_one_sentence(images: np.ndarray, parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        PCA(**parameters).fit(images)


def test_wrong_data_is_one_sentence(images: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"\b4.samples"):
        PCA(5).fit(images[:4])
    with pytest.raises(ValueError, match=r"\b1.sample"):
        PCA(1).fit(images[:1])
    spoiled = images.astype(np.float32)
    spoiled[299, 0, 0, 0] = np.nan
    for solver in ("dual", "randomized"):
        with pytest.raises(DataError, match="sample.299.*finite"):
            PCA(2, solver=solver).fit(da.from_array(spoiled, chunks=(100, *SHAPE)))
    with pytest.raises(DataError, match="fitted"):
        PCA(2).fit(images).transform(images[:, :5])


@pytest.mark.parametrize(("n", "d"), [(8, 12), (40, 6)])
def test_likelihoods_are_those_of_scikit_learn(n: int, d: int) -> None:
    """With fewer samples than attributes, what is left out are n - k variances, whose mean is the noise."""
    x = np.random.default_rng(0).normal(size=(n, d)) * np.linspace(3, 1, d)
    others = np.random.default_rng(1).normal(size=(5, d))
    ours, theirs = PCA(2).fit(x), Reference(2, svd_solver="full").fit(x)
    found = [ours.score(other[None]) for other in others]
    np.testing.assert_allclose(found, theirs.score_samples(others), rtol=1e-6)
