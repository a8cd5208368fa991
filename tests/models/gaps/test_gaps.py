"""Fits to samples with missing values: against the truth, other procedures, and exact conditional distributions."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr

from dpca import PCA, BandPCA, CellPCA, load
from dpca.metrics import principal_angles
from dpca.rules.gaps.expectation import GapEM
from dpca.storage import DataError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints

KINDS = ("random", "clouds")


def mask_of(kind: str, shape: tuple[int, int, int], rng: np.random.Generator) -> Any:
    """Return about 30 % of the values: at random, or a block that moves over the samples."""
    if kind == "random":
        return rng.random(shape) < 0.3
    mask, (n, height, width) = np.zeros(shape, bool), shape
    for i in range(n):
        rows, columns = (i * 2 + np.arange(height * 11 // 20)) % height, (i * 3 + np.arange(width * 11 // 20)) % width
        mask[i][np.ix_(rows, columns)] = True
    return mask


def samples_of(n: int, side: int, rank: int, kind: str, seed: int = 0) -> tuple[Any, Any, Any]:
    """Return samples (n, side, side) of ``rank`` components and noise, which are missing, and the components."""
    rng = np.random.default_rng(seed)
    components = np.linalg.qr(rng.standard_normal((side**2, rank)))[0].T
    signal = (rng.standard_normal((n, rank)) * np.linspace(3, 1, rank) * side / np.sqrt(rank)) @ components
    x = without_last_bits(signal + 2 * rng.standard_normal(side**2) + 0.3 * rng.standard_normal((n, side**2)))
    x = x.reshape(n, side, side)
    return x, mask_of(kind, x.shape, rng), components


def without_last_bits(x: Any) -> Any:
    """Return values whose bits, from which a fit chooses what it holds out, are the same on any processor."""
    return np.round(x * 2**16) / 2**16


def fill_em(x: Any, k: int, tolerance: float, most: int) -> tuple[Any, Any]:
    """Fill NaN by alternating projections on k components: statsmodels' PCA(missing="fill-em"), and DINEOF's core."""
    missing = np.isnan(x)
    filled = np.where(missing, np.nanmean(x, axis=0), x)
    for _ in range(most):
        mean = filled.mean(axis=0)
        u, s, v = np.linalg.svd(filled - mean, full_matrices=False)
        new = ((u[:, :k] * s[:k]) @ v[:k] + mean)[missing]
        change = np.linalg.norm(new - filled[missing]) / np.linalg.norm(new)
        filled[missing] = new
        if change < tolerance:
            break
    return filled, v[:k]


def largest(a: Any, b: Any) -> float:
    return float(np.max(principal_angles(a, b)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "side", "rank"), [(300, 10, 5), (500, 20, 20), (700, 20, 5)])
def test_angles_are_those_of_em_in_memory(kind: str, n: int, side: int, rank: int) -> None:
    x, mask, truth = samples_of(n, side, rank, kind)
    gappy = np.where(mask, np.nan, x)
    model = PCA(rank, gaps="iterate", random_state=0).fit(gappy)
    _, theirs = fill_em(gappy.reshape(n, -1), rank, 5e-8, 100)
    ours = np.linalg.norm(np.sin(principal_angles(model.components_, truth)))
    assert ours <= 1.05 * np.linalg.norm(np.sin(principal_angles(theirs, truth)))
    assert largest(model.components_, truth) <= 1.05 * largest(theirs, truth)
    assert model.solver_ == "expectation-maximization"


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decay", [1.0, 2.0])
@pytest.mark.parametrize("rank", [5, 20])
def test_held_out_values_are_predicted_as_by_dineof(kind: str, decay: float, rank: int) -> None:
    """A spectrum without a gap, of which no procedure finds all."""
    rng = np.random.default_rng(1)
    n, side = 400, 16
    modes = np.linalg.qr(rng.standard_normal((side**2, 60)))[0].T
    x = (rng.standard_normal((n, 60)) * np.arange(1, 61.0) ** -decay * side) @ modes
    x = without_last_bits(x + 2 * rng.standard_normal(side**2) + 0.05 * rng.standard_normal(x.shape))
    x = x.reshape(n, side, side)
    mask = mask_of(kind, x.shape, rng)
    held = (rng.random(x.shape) < 0.03) & ~mask
    given = np.where(mask | held, np.nan, x)
    ours = PCA(rank, gaps="iterate", random_state=0).fit(given).fill(given)
    theirs, _ = fill_em(given.reshape(n, -1), rank, 1e-4, 300)

    def rmse(filled: Any) -> float:
        return float(np.sqrt(np.mean((filled.reshape(x.shape) - x)[held] ** 2)))

    assert rmse(ours) <= 1.0005 * rmse(theirs)


def expected(model: PCA, x: Any, missing: Any) -> tuple[Any, Any]:
    """Return the conditional mean and covariance of a sample under the model, by its complete covariance."""
    k, d = model.components_.shape
    v = model.components_.astype(float)
    noise = (model.total_variance_ - model.explained_variance_.sum()) / (d - k)
    covariance = v.T @ np.diag(model.explained_variance_ - noise) @ v + noise * np.eye(d)
    o, m = ~missing, missing
    gain = covariance[np.ix_(m, o)] @ np.linalg.inv(covariance[np.ix_(o, o)])
    mean, spread = x.copy(), np.zeros((d, d))
    mean[m] = model.mean_[m] + gain @ (x[o] - model.mean_[o])
    spread[np.ix_(m, m)] = covariance[np.ix_(m, m)] - gain @ covariance[np.ix_(o, m)]
    return mean, spread


def test_scores_values_and_errors_are_conditional_moments() -> None:
    x, mask, _ = samples_of(200, 6, 3, "random")
    x, mask = x.reshape(200, -1), mask.reshape(200, -1)
    gappy = np.where(mask, np.nan, x)
    model = PCA(3, gaps="iterate", random_state=0).fit(gappy)
    scores, errors, filled, spread = (
        f(gappy) for f in (model.transform, model.score_errors, model.fill, model.fill_errors)
    )
    for i in range(0, 200, 20):
        mean, covariance = expected(model, gappy[i], mask[i])
        np.testing.assert_allclose(filled[i], mean, rtol=1e-6)
        np.testing.assert_allclose(spread[i], np.sqrt(covariance.diagonal()), rtol=1e-5)
        np.testing.assert_allclose(scores[i], model.components_ @ (mean - model.mean_), rtol=1e-6, atol=1e-9)
        variances = (model.components_ @ covariance @ model.components_.T).diagonal()
        np.testing.assert_allclose(errors[i], np.sqrt(variances), rtol=1e-5)
    kept = ~mask
    np.testing.assert_array_equal(filled[kept].view(np.uint64), x[kept].view(np.uint64))
    assert not spread[kept].any()


def test_errors_are_calibrated() -> None:
    """Errors divided by their standard errors have variance 1."""
    x, mask, _ = samples_of(600, 16, 5, "clouds")
    gappy = np.where(mask, np.nan, x)
    model = PCA(5, gaps="iterate", random_state=0).fit(gappy)
    off = (model.transform(gappy) - model.transform(x)) / model.score_errors(gappy)
    assert off.std() == pytest.approx(1, abs=0.05)
    off = (model.fill(gappy) - x)[mask] / model.fill_errors(gappy)[mask]
    assert off.std() == pytest.approx(1, abs=0.02)
    assert model.held_out_rmse_ == pytest.approx(0.3, abs=0.03)
    np.testing.assert_allclose(model.explained_variance_, PCA(5).fit(x).explained_variance_, rtol=0.02)
    assert model.total_variance_ == pytest.approx(PCA(5).fit(x).total_variance_, rel=0.02)


@pytest.mark.parametrize(
    "estimator",
    [PCA(4, random_state=0), CellPCA(3, cell_shape=5, random_state=0), BandPCA(3, band_size=30, random_state=0)],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_without_gaps_nothing_changes(estimator: Any, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(1, 255, (80, 10, 10)).astype(dtype)
    plain = estimator.fit(x)
    known = {name: np.array(getattr(plain, name)) for name in ("components_", "mean_", "explained_variance_")}
    scores = plain.transform(x)
    gappy = type(estimator)(**estimator.get_params() | {"gaps": "iterate", "missing_value": 0}).fit(x)
    for name, values in known.items():
        np.testing.assert_array_equal(getattr(gappy, name), values)
    np.testing.assert_array_equal(gappy.transform(x), scores)
    np.testing.assert_array_equal(gappy.fill(x), x)
    np.testing.assert_allclose(gappy.transform(np.where(x == x[0], 0, x)), scores, atol=250)  # gaps in new samples


def test_the_last_pass_uses_all_values(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []

    class Recorded(GapEM):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            shares.append(self.share)

    monkeypatch.setattr("dpca.models.gaps.gap_fit.GapEM", Recorded)
    x = np.random.default_rng(0).random((50, 6))
    PCA(2, gaps="iterate", random_state=0).fit(np.where(x < 0.2, np.nan, x))
    assert shares[-1] == 0
    assert min(shares[1:-1]) > 0


@pytest.fixture(scope="module")
def field() -> tuple[Any, Any]:
    """Samples as float32 and which are missing; some attributes have no value."""
    x, mask, _ = samples_of(300, 10, 3, "clouds")
    mask[:, :2, :3] = True
    return x.astype(np.float32), mask


def test_inputs_of_all_kinds(field: tuple[Any, Any], tmp_path: Path) -> None:
    x, mask = field
    gappy = np.where(mask, np.float32(np.nan), x)
    model = PCA(3, gaps="iterate", random_state=0)
    wanted = model.fit(gappy).components_.copy()
    scores = model.transform(gappy)
    marked = np.where(mask, np.float32(-999), x)
    array = zarr.create_array(str(tmp_path / "x.zarr"), data=gappy, chunks=(70, 10, 4))
    named = xarray.DataArray(gappy, dims=("time", "lat", "lon"), coords={"lat": np.arange(10.0)})
    for given in (
        np.ma.array(x, mask=mask),
        da.ma.masked_array(da.from_array(x, chunks=(40, 5, 5)), mask=mask),
        da.from_array(gappy, chunks=(90, 10, 10)),
        array,
        str(tmp_path / "x.zarr"),
        named,
    ):
        assert largest(model.fit(given).components_, wanted) < 1e-3
        np.testing.assert_allclose(np.abs(np.asarray(model.transform(given))), np.abs(scores), atol=0.02)
    assert model.transform(named).dims == model.score_errors(named).dims == ("time", "component")
    assert model.fill(named).dims == named.dims
    other = PCA(3, gaps="iterate", missing_value=-999, random_state=0).fit(marked)
    np.testing.assert_array_equal(other.components_, wanted)
    filled = other.fill(marked)
    assert (filled[:, :2, :3] == -999).all()
    assert not (filled[:, 2:] == -999).any()


def test_attributes_without_values(field: tuple[Any, Any], tmp_path: Path) -> None:
    x, mask = field
    gappy = np.where(mask, np.float32(np.nan), x)
    model = CellPCA(2, cell_shape=(2, 3), gaps="iterate", random_state=0).fit(gappy)
    land = mask.all(axis=0)
    np.testing.assert_array_equal(np.isnan(model.mean_), land)
    assert not model.components_[:, land].any()
    assert model.ranks_[0, 0] == 0
    np.testing.assert_array_equal(np.isnan(model.fill(gappy)), np.broadcast_to(land, x.shape))
    np.testing.assert_array_equal(np.isnan(model.fill_errors(gappy)), np.broadcast_to(land, x.shape))
    whole = PCA(2, gaps="iterate", random_state=0).fit(gappy)
    for undefined in (model.score, whole.score, whole.score_samples):
        with pytest.raises(DataError, match="attribute"):
            undefined(x)
    scores = model.transform(gappy)
    assert np.isfinite(scores).all()
    assert "expectation" in model.fit_report_.note
    model.save(tmp_path / "model.zarr")
    loaded = load(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.transform(gappy), scores)
    np.testing.assert_array_equal(loaded.fill_errors(gappy), model.fill_errors(gappy))


def test_cells_are_fitted_one_by_one(field: tuple[Any, Any]) -> None:
    """The model of a cell is that of `PCA` of the cell, up to what is held out, and of any chunks."""
    x, mask = field
    gappy = np.where(mask, np.nan, x)
    cells = CellPCA(2, cell_shape=5, gaps="iterate", random_state=0).fit(gappy)
    one = PCA(2, gaps="iterate", random_state=0).fit(np.ascontiguousarray(gappy[:, 5:, 5:]))
    assert largest(cells.components_[:, 5:, 5:].reshape(2, -1), one.components_) < 0.05
    lazy = CellPCA(2, cell_shape=5, gaps="iterate", random_state=0).fit(da.from_array(gappy, chunks=(33, 10, 7)))
    np.testing.assert_allclose(lazy.components_, cells.components_, atol=1e-4)
    np.testing.assert_allclose(np.asarray(lazy.transform(da.from_array(gappy))), cells.transform(gappy), atol=1e-3)


@pytest.mark.parametrize("mapping", ["mean", "mean-variance", "random", "raster"])
def test_bands_are_fitted_one_by_one(field: tuple[Any, Any], mapping: str, tmp_path: Path) -> None:
    """The model of a band is that of `PCA` of its attributes, up to what is held out, and bands have similar values."""
    x, mask = field
    gappy = np.where(mask, np.nan, x)
    model = BandPCA(2, band_size=25, mapping=mapping, gaps="iterate", random_state=0).fit(gappy)
    labels = model.bands_.labels
    means = np.nanmean(np.where(mask.all(axis=0), 0, gappy), axis=0)
    if mapping == "mean":
        spans = sorted((means[labels == i].min(), means[labels == i].max()) for i in range(model.bands_.n_parts))
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
    for band in range(model.bands_.n_parts):
        own = labels == band
        if (here := own & ~mask.all(axis=0)).sum() > 12:
            one = PCA(2, gaps="iterate", random_state=0).fit(gappy[:, here])
            assert largest(model.components_[:, here], one.components_) < 0.1
    np.testing.assert_array_equal(np.isnan(model.mean_), mask.all(axis=0))
    missing = mask & ~mask.all(axis=0)
    if mapping in ("random", "raster"):  # others have bands of a few attributes
        error = np.mean((model.fill(gappy) - x)[missing] ** 2)
        assert error < 0.6 * np.mean((means - x)[missing] ** 2)
    model.save(tmp_path / "model.zarr")
    np.testing.assert_array_equal(load(tmp_path / "model.zarr").fill(gappy), model.fill(gappy))


def test_the_subset_that_maps_bands_has_gaps(field: tuple[Any, Any]) -> None:
    x, mask = field
    options = {"band_size": 25, "n_estimating": 60, "random_state": 0}
    model = BandPCA(2, gaps="iterate", **options).fit(np.where(mask, np.nan, x))
    assert np.isfinite(model.transform(np.where(mask, np.nan, x))).all()
    complete = BandPCA(2, gaps="iterate", **options).fit(x)
    np.testing.assert_array_equal(complete.components_, BandPCA(2, **options).fit(x).components_)
    with pytest.raises(DataError, match="keep_state"):
        BandPCA(2, gaps="iterate", keep_state=True, **options).fit(x)


def test_integers_are_rounded_and_kept() -> None:
    x, mask, _ = samples_of(300, 10, 3, "random")
    pixels = np.clip(np.rint(x * 8 + 128), 1, 255).astype(np.uint8)
    model = PCA(3, gaps="iterate", missing_value=0, random_state=0).fit(np.where(mask, 0, pixels).astype(np.uint8))
    filled = model.fill(np.where(mask, 0, pixels).astype(np.uint8))
    assert filled.dtype == np.uint8
    np.testing.assert_array_equal(filled[~mask], pixels[~mask])
    assert np.sqrt(np.mean((filled.astype(float) - pixels)[mask] ** 2)) < 1.3 * 0.3 * 8


def test_interrupted_fits_resume_to_the_same_bytes(field: tuple[Any, Any], tmp_path: Path) -> None:
    x, mask = field
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=np.where(mask, np.float32(np.nan), x), chunks=(50, 10, 10))
    model = PCA(3, gaps="iterate", random_state=0)
    wanted = model.fit(path).components_.copy()
    run, calls = Run(checkpoints=Checkpoints(str(tmp_path / "kept"))), []

    def stop(progress: Any) -> None:
        calls.append(progress.model.held_out_rmse_)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(path, run=run, callback=stop)
    assert calls == sorted(calls, reverse=True)
    np.testing.assert_array_equal(PCA(3, gaps="iterate", random_state=0).fit(path, run=run).components_, wanted)
    with pytest.raises(DataError, match="random_state"):
        PCA(3, gaps="iterate").fit(path, run=run)


@pytest.mark.parametrize(
    "model", [PCA(3, gaps="iterate", random_state=0), CellPCA(2, cell_shape=5, gaps="iterate", random_state=0)]
)
def test_a_budget_ends_the_fit_after_a_pass(field: tuple[Any, Any], model: Any) -> None:
    x, mask = field
    gappy, seen = np.where(mask, np.nan, x), []
    model.fit(gappy, max_seconds=1e-9, callback=lambda progress: seen.append(progress.model.held_out_rmse_))
    assert len(seen) == 2  # of the first pass, and at the end
    assert np.isfinite(model.transform(gappy)).all()
    assert model.fit(gappy).held_out_rmse_ < seen[-1]


def test_on_a_cluster(field: tuple[Any, Any], tmp_path: Path, cluster: Any) -> None:
    x, mask = field
    path = str(tmp_path / "x.zarr")
    gappy = np.where(mask, np.float32(np.nan), x)
    zarr.create_array(path, data=gappy, chunks=(50, 10, 10))
    for model in (PCA(3, gaps="iterate", random_state=0), CellPCA(2, cell_shape=5, gaps="iterate", random_state=0)):
        here = model.fit(path, run=Run(threads=2)).components_.copy()
        there = model.fit(path, run=Run(client=cluster)).components_
        assert largest(here.reshape(len(here), -1), there.reshape(len(here), -1)) < 1e-3
        np.testing.assert_allclose(model.transform(path).compute(), model.transform(gappy), atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"n_components": None}, "n_components"),
        ({"n_components": 0.5}, "n_components"),
        ({"n_components": 99}, "n_components"),
        ({"center": False}, "center"),
        ({"whiten": True}, "whiten"),
        ({"n_least": 1}, "n_least"),
        ({"gaps": "drop"}, "gaps"),
        ({"gaps": "reject"}, "finite"),
        ({"gaps": "reject", "missing_value": 0}, "missing_value"),
        ({"missing_value": "none"}, "missing_value"),
    ],
)
def test_parameters_that_do_not_fit(changes: dict[str, Any], word: str) -> None:
    x = np.where(np.random.default_rng(0).random((30, 8)) < 0.3, np.nan, 1.5)
    with pytest.raises(DataError, match=word):
        PCA(**{"n_components": 2, "gaps": "iterate"} | changes).fit(x)


@pytest.mark.parametrize(
    "changes",
    [{"sigma": 1.0}, {"overlap": 2}, {"shared": True}, {"keep_state": True}, {"threshold": 0.5, "n_components": None}],
)
def test_cells_that_do_not_fit(changes: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=next(iter(changes))):
        CellPCA(**{"n_components": 2, "cell_shape": 4, "gaps": "iterate"} | changes).fit(np.full((9, 8, 8), np.nan))


def test_samples_that_do_not_fit() -> None:
    x = np.random.default_rng(0).random((30, 8))
    with pytest.raises(DataError, match="infinite"):
        PCA(2, gaps="iterate").fit(np.where(x < 0.1, np.inf, x))
    with pytest.raises(DataError, match="missing"):
        PCA(2, gaps="iterate").fit(np.full((9, 8), np.nan))
    with pytest.raises(DataError, match="n_components"):
        PCA(3, gaps="iterate").fit(np.where(np.arange(8) < 6, np.nan, x))
    model = PCA(2, gaps="iterate", random_state=0).fit(np.where(x < 0.2, np.nan, x))
    with pytest.raises(DataError, match="infinite"):
        model.transform(np.where(x < 0.1, -np.inf, x))
    with pytest.raises(DataError, match="gaps"):
        PCA(2).fit(x).fill(x)
    with pytest.raises(DataError, match="partial_fit"):
        CellPCA(2, cell_shape=2, gaps="iterate").partial_fit(x.reshape(30, 4, 2))
