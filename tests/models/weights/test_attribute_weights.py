"""Weights of attributes: against the singular value decomposition of weighted anomalies, and `EOF`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr
from sklearn.base import clone

from dpca import EOF, PCA, BandPCA, CellPCA, StreamingPCA, load
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.centered import ScaledSource
from dpca.engine.sources.source import as_source
from dpca.jobs import fit_store, transform_store
from dpca.models.linear import component_store, dual_solver
from dpca.storage import DataError, StoreError, ingest, open_stack
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints

SHAPE, N = (6, 8), 40
RNG = np.random.default_rng(0)
LOW = RNG.normal(size=(N, 4)) @ (RNG.normal(size=(4, 48)) * [[9.0], [6.0], [4.0], [2.0]])
SAMPLES = (LOW + RNG.normal(size=LOW.shape) + 100).reshape(N, *SHAPE)
WEIGHTS = RNG.uniform(0.2, 3, SHAPE)
MASKED = np.where(np.arange(48).reshape(SHAPE) % 7 == 2, 0, WEIGHTS)
FIELD = xarray.DataArray(SAMPLES, {"lat": np.linspace(-60, 70, 6), "lon": np.arange(8)}, ("time", "lat", "lon"))
MODELS: dict[str, Any] = {
    "covariance": PCA(3, solver="covariance"),
    "dual": PCA(3, solver="dual"),
    "randomized": PCA(3, solver="randomized", random_state=0),
    "stream": StreamingPCA(3),
    "incremental SVD": StreamingPCA(3, method="incremental-svd", n_passes=2, random_state=0),
}


def decomposed(x: Any, weights: Any, k: int = 3) -> tuple[Any, Any, Any]:
    """Return the mean of samples, and variances and components of weighted anomalies."""
    x = x.reshape(len(x), -1).astype(np.float64)
    mean = x.mean(axis=0)
    _, s, v = np.linalg.svd((x - mean) * np.broadcast_to(weights, SHAPE).ravel(), full_matrices=False)
    return mean, s[:k] ** 2 / (len(x) - 1), v[:k]


def assert_same(a: Any, b: Any, atol: float = 1e-10) -> None:
    """Compare two models of float64."""
    for name in ("mean_", "explained_variance_", "components_"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-10, atol=atol, err_msg=name)
    np.testing.assert_allclose(a.transform(SAMPLES), b.transform(SAMPLES), atol=1e-8)


@pytest.mark.pairwise
@pytest.mark.parametrize("weights", [WEIGHTS, MASKED, [0.5, 1, 2, 1, 2, 3, 4, 0]], ids=["all", "masked", "broadcast"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_components_are_those_of_weighted_anomalies(name: str, dtype: str, weights: Any) -> None:
    x = SAMPLES.astype(dtype)
    mean, variances, rows = decomposed(x, weights)
    factors = np.broadcast_to(weights, SHAPE).ravel()
    close = 1e-10 if dtype in ("float64", "int32") else 2e-5
    for given in (x, da.from_array(x, chunks=(15, 6, 3))):
        model = clone(MODELS[name]).set_params(weights=weights).fit(given)
        np.testing.assert_allclose(model.explained_variance_, variances, rtol=close)
        np.testing.assert_allclose(model.mean_, mean, rtol=close)
        signs = np.sign((model.components_ * rows).sum(axis=1))
        np.testing.assert_allclose(model.components_, rows * signs[:, None], atol=close)
        scores = ((x.reshape(N, -1) - mean) * factors) @ rows.T * signs
        np.testing.assert_allclose(model.transform(x), scores, atol=40 * close)
        anomalies = np.divide(scores * signs @ rows, factors, out=np.zeros((N, 48)), where=factors > 0)
        found = model.inverse_transform(model.transform(x)).reshape(N, -1)
        np.testing.assert_allclose(found, mean + anomalies, atol=20 * close)


@pytest.mark.parametrize("kind", [PCA, StreamingPCA])
@pytest.mark.parametrize(
    "weights",
    ["coslat", WEIGHTS, MASKED, xarray.DataArray(WEIGHTS[:, 0], {"lat": FIELD.lat}, ("lat",))],
    ids=["coslat", "all", "masked", "named"],
)
def test_modes_are_those_of_eof(kind: Any, weights: Any) -> None:
    model, eof = kind(3, weights=weights).fit(FIELD), EOF(3, weights=weights).fit(FIELD)
    np.testing.assert_allclose(model.components_.reshape(3, *SHAPE), eof.eofs().values, atol=1e-12)
    np.testing.assert_allclose(model.explained_variance_, eof.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(model.transform(FIELD).values, eof.pcs().values, atol=1e-10)
    found, maps = model.inverse_transform(model.transform(FIELD)), eof.reconstruct()
    assert found.dims == maps.dims
    known = ~np.isnan(maps.values)  # EOF does not know the mean where the weight is 0
    np.testing.assert_array_equal(known, np.broadcast_to((weights is not MASKED) | (MASKED > 0), known.shape))
    np.testing.assert_allclose(found.values[known], maps.values[known], rtol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_weights_of_1_change_nothing(name: str) -> None:
    weighted = clone(MODELS[name]).set_params(weights=np.ones(SHAPE)).fit(SAMPLES)
    assert_same(weighted, clone(MODELS[name]).fit(SAMPLES), atol=1e-9)


@pytest.mark.parametrize("whiten", [False, True])
def test_other_results_are_those_of_weighted_samples(whiten: bool) -> None:
    rows = SAMPLES.reshape(N, -1) * MASKED.ravel()
    model, other = (PCA(3, n_least=2, whiten=whiten, weights=w) for w in (MASKED, None))
    model.fit(SAMPLES), other.fit(rows)
    assert model.score(SAMPLES) == pytest.approx(other.score(rows), rel=1e-10)
    assert model.score(FIELD) == model.score(SAMPLES)
    for kind in ("residual", "least-components"):
        found = model.score_samples(SAMPLES, kind)
        np.testing.assert_allclose(found, other.score_samples(rows, kind), rtol=1e-6, atol=1e-9)
        np.testing.assert_array_equal(model.score_samples(FIELD, kind), found)
    assert model.expected_mse((0, 1)) is None
    np.testing.assert_allclose(model.transform(SAMPLES), other.transform(rows), atol=1e-9)


def test_samples_without_a_mean() -> None:
    model = PCA(3, center=False, weights=MASKED).fit(SAMPLES)
    _, _, rows = np.linalg.svd(SAMPLES.reshape(N, -1) * MASKED.ravel(), full_matrices=False)
    np.testing.assert_allclose(np.abs(model.components_), np.abs(rows[:3]), atol=1e-10)
    assert not model.mean_.any()
    twice = PCA(3, center=False, weights=2 * MASKED).fit(SAMPLES)
    np.testing.assert_array_equal(twice.components_, model.components_)
    assert twice.basis_.fingerprint() != model.basis_.fingerprint()


@pytest.mark.parametrize("weights", [WEIGHTS, MASKED], ids=["all", "masked"])
def test_beside_weights_of_samples(weights: Any) -> None:
    often = np.arange(N) % 4
    repeated = PCA(3, weights=weights).fit(SAMPLES.repeat(often, axis=0))
    assert_same(PCA(3, weights=weights).fit(SAMPLES, sample_weight=often), repeated)
    shares, x = np.linspace(0, 3, N), SAMPLES.reshape(N, -1)
    model = PCA(3, weights=weights).fit(SAMPLES, sample_weight=shares)
    mean = np.average(x, axis=0, weights=shares)
    rows = (x - mean) * weights.ravel()
    covariance = (rows * shares[:, None]).T @ rows / (shares.sum() - 1)
    np.testing.assert_allclose(model.explained_variance_, np.linalg.eigvalsh(covariance)[:-4:-1], rtol=1e-10)
    np.testing.assert_allclose(model.mean_, mean, rtol=1e-12)


def test_batches_streams_and_merged_models() -> None:
    model = StreamingPCA(3, method="covariance", weights=WEIGHTS)
    whole = clone(model).fit(SAMPLES)
    first, second = (clone(model).partial_fit(x) for x in (SAMPLES[:15], SAMPLES[15:]))
    assert_same(clone(model).partial_fit(SAMPLES[:15]).partial_fit(SAMPLES[15:]), whole)
    assert_same(first.merge(second), whole)
    with pytest.raises(DataError, match="weights"):
        first.merge(StreamingPCA(3, method="covariance").partial_fit(SAMPLES))
    streamed = clone(model)
    *_, last = streamed.iter_fit(SAMPLES, max_samples=15)
    assert_same(last.model, clone(model).fit(SAMPLES[:15]))
    assert [*streamed.iter_fit(SAMPLES)]
    assert_same(streamed, whole)
    assert_same(StreamingPCA(3, method="covariance").partial_fit(SAMPLES), PCA(3).fit(SAMPLES))
    named = StreamingPCA(3, weights="coslat").partial_fit(FIELD)
    assert_same(named, PCA(3, weights="coslat").fit(FIELD))
    tracked = StreamingPCA(3, weights=WEIGHTS, track_scores=True).partial_fit(SAMPLES)
    np.testing.assert_allclose(tracked.tracked_scores_, tracked.transform(SAMPLES), atol=1e-9)


def test_a_model_without_weights_forgets_those_of_an_earlier_fit() -> None:
    model = PCA(3, weights=MASKED).fit(SAMPLES)
    assert_same(model.set_params(weights=None).fit(SAMPLES), PCA(3).fit(SAMPLES), atol=0)
    assert not hasattr(model, "weights_")


@pytest.mark.parametrize("weights", ["coslat", MASKED], ids=["coslat", "masked"])
def test_a_stored_model_has_its_weights(tmp_path: Path, weights: Any) -> None:
    for kind in (PCA, StreamingPCA):
        model = kind(3, weights=weights).fit(FIELD)
        model.save(tmp_path / kind.store_kind)
        again = load(tmp_path / kind.store_kind)
        np.testing.assert_array_equal(again.get_params()["weights"], model.weights_.reshape(SHAPE))
        scores = model.transform(FIELD)
        for one in (again, pickle.loads(pickle.dumps(model))):
            np.testing.assert_array_equal(one.weights_, model.weights_)
            np.testing.assert_array_equal(one.transform(FIELD), scores)
            np.testing.assert_array_equal(one.inverse_transform(scores), model.inverse_transform(scores))
            assert one.basis_.fingerprint() == model.basis_.fingerprint()
        assert_same(clone(again).fit(SAMPLES), model)
        assert model.basis_.fingerprint() != kind(3).fit(FIELD).basis_.fingerprint()


def test_programs_from_before_weights_reject_such_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (PCA(3), StreamingPCA(3), CellPCA(3, cell_shape=4), BandPCA(3, band_size=20)):
        for weights in (None, WEIGHTS):
            path = tmp_path / f"{model.store_kind}-{weights is None}"
            clone(model).set_params(weights=weights).fit(SAMPLES).save(path)
            with monkeypatch.context() as before:
                before.setattr(type(model), "weighted_version", 0)
                if weights is None:
                    load(path)
                else:
                    with pytest.raises(StoreError, match="version"):
                        load(path)


def test_a_stored_model_continues(tmp_path: Path) -> None:
    model = StreamingPCA(3, method="covariance", weights=WEIGHTS, keep_state=True).fit(SAMPLES[:15])
    model.save(tmp_path / "m")
    assert_same(load(tmp_path / "m").partial_fit(SAMPLES[15:]), PCA(3, weights=WEIGHTS).fit(SAMPLES), atol=1e-9)


def test_jobs_know_the_weights_and_write_reconstructions_in_units(tmp_path: Path) -> None:
    x = SAMPLES.astype(np.uint8)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(10, *SHAPE))
    stack = open_stack(ingest(str(tmp_path / "x.zarr"), tmp_path / "stack.zarr").path)
    named = xarray.DataArray(WEIGHTS[:, 0], dims="y")
    found = fit_store(stack, tmp_path / "model.zarr", PCA(3, weights=MASKED)).model
    assert_alike = np.testing.assert_array_equal
    assert_alike(found.components_, PCA(3, weights=MASKED).fit(x).components_)
    settings = [PCA(3, weights=w).fit_settings() for w in (None, MASKED, WEIGHTS, named, named + 1)]
    assert "weights" not in settings[0]
    assert all(a != b for i, a in enumerate(settings) for b in settings[:i])
    transform_store(stack, tmp_path / "model.zarr", tmp_path / "scores.zarr")
    scores = zarr.open_group(tmp_path / "scores.zarr")["scores"]
    np.testing.assert_allclose(scores[...], found.transform(x), atol=1e-3)


@pytest.mark.parametrize("whiten", [False, True])
def test_components_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whiten: bool) -> None:
    x, weights = SAMPLES[:9], MASKED
    model = PCA(3, solver="dual", weights=weights, whiten=whiten)
    expected = clone(model).fit(x)
    monkeypatch.setattr(dual_solver, "MOST_BYTES", 0)
    monkeypatch.setattr(component_store, "_SHARD_BYTES", 2**9)
    lazy = da.from_array(x, chunks=(4, 6, 3))
    model.fit(lazy).save(tmp_path / "m")
    scores, close = expected.transform(x), {"atol": 1e-9, "rtol": 1e-9}
    for one in (model, load(tmp_path / "m")):
        assert isinstance(one.components_, da.Array)
        np.testing.assert_allclose(one.mean_, expected.mean_, rtol=1e-12)
        signs = np.sign((one.components_.compute() * expected.components_).sum(axis=1))
        for given in (x, lazy):
            np.testing.assert_allclose(one.transform(given) * signs, scores, **close)
            np.testing.assert_allclose(one.score_samples(given), expected.score_samples(x), rtol=1e-6)
            assert one.score(given) == pytest.approx(expected.score(x), rel=1e-9)
        back = one.inverse_transform(scores[:, :2] * signs[:2], 2)
        np.testing.assert_allclose(back, expected.inverse_transform(scores[:, :2], 2), **close)


def test_checkpoints_of_other_weights_are_not_used(tmp_path: Path) -> None:
    run = Run(checkpoints=Checkpoints(str(tmp_path / "kept")))
    for weights in (MASKED, WEIGHTS):
        model = PCA(3, solver="covariance", weights=weights)
        assert_same(clone(model).fit(SAMPLES, run=run), clone(model).fit(SAMPLES))


@pytest.mark.parametrize("model", [PCA(3, solver="covariance"), StreamingPCA(3), CellPCA(3, cell_shape=4)], ids="psc")
def test_a_plan_is_that_of_the_fit(model: Any) -> None:
    x = SAMPLES.astype(np.uint8)
    source, model = as_source(x), clone(model).set_params(weights=WEIGHTS)

    def fits(budget: int) -> bool:
        try:
            return bool(model.set_params(memory_budget=budget).plan_fit(source, ("y", "x"), Run()))
        except PlanError:
            return False

    low, high = 0, 2**30
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    model.set_params(memory_budget=high + 50).fit(x)
    with pytest.raises(PlanError):
        model.set_params(memory_budget=low - 50).fit(x)
    weighted, region = ScaledSource(source, WEIGHTS), ((0, 6), (0, 4))
    assert weighted.extra_bytes(region) >= source.extra_bytes(region) + 24 * 8
    basis = model.set_params(memory_budget=None).fit(x).basis_
    assert basis.work_bytes(10, "u1") >= basis.of_rows.work_bytes(10, "u1") + 10 * 48 * 4


@pytest.mark.parametrize(
    ("weights", "word"),
    [
        (np.ones((6, 7)), r"\(6,.7\)"),
        (-WEIGHTS, "least.0"),
        (np.where(MASKED == 0, np.nan, MASKED), "finite"),
        (np.where(MASKED == 0, np.inf, MASKED), "finite"),
        (np.zeros(8), "everywhere"),
        (WEIGHTS * 1e-20, "1e-15"),
        (WEIGHTS + 0j, "complex128"),
        ([[1, 2], [3]], "array"),
        ("lat", "coslat"),
        ("coslat", "latitudes"),
        (xarray.DataArray(np.ones(6), dims="lat"), "dims"),
    ],
)
def test_weights_that_are_rejected(weights: Any, word: str) -> None:
    for model in (PCA(3, weights=weights), StreamingPCA(3, weights=weights)):
        with pytest.raises(DataError, match=word):
            model.fit(SAMPLES)
    with pytest.raises(DataError, match=word):
        StreamingPCA(3, weights=weights).partial_fit(SAMPLES)


def test_what_weights_do_not_support() -> None:
    stream = StreamingPCA(3, weights=MASKED)
    for use in (
        lambda: stream.partial_fit(SAMPLES),
        lambda: next(stream.iter_fit(SAMPLES)),
        lambda: clone(stream).set_params(keep_state=True).fit(SAMPLES).partial_fit(SAMPLES),
    ):
        with pytest.raises(DataError, match="pass"):
            use()
    for model in (PCA(3, weights=WEIGHTS, gaps="iterate"), StreamingPCA(3, weights=WEIGHTS, gaps="iterate")):
        with pytest.raises(DataError, match="gaps"):
            model.fit(SAMPLES)
    bad = SAMPLES.copy()
    bad[3, 0, 2] = np.nan  # at a place of weight 0
    for given in (bad, da.from_array(bad, chunks=(10, 6, 8))):
        with pytest.raises(DataError, match="sample.3"):
            PCA(3, weights=MASKED).fit(given)
