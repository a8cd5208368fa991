"""Weights of samples in `MCA` and `CCA`: repeated samples, and numpy's weighted covariance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from sklearn.base import clone

from dpca import CCA, MCA
from dpca.storage import DataError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.models.coupled.test_coupled import fields, upto_signs

N = 40
COUNTS = np.random.default_rng(0).integers(0, 4, N)
COUNTS[:3] = 0, 2, 1
SHARES = np.where(np.arange(N) % 5 == 1, 0, np.random.default_rng(1).random(N) * 3)
X, Y = (np.round(8 * field + 90).clip(0, 255).astype(np.uint8) for field in fields(N))
SOLVERS = ("covariance", "dual", "streaming")
MODELS: dict[str, Any] = {"mca": MCA(2, n_pca_modes=5, random_state=0), "cca": CCA(2, n_pca_modes=5, random_state=0)}
every_solver = pytest.mark.parametrize("solver", SOLVERS)
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))


def assert_same(found: Any, expected: Any) -> None:
    for name in ("singular_values_", "correlation_", "squared_covariance_fraction_", "covariance_fraction_"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    for a, b in zip(found.patterns(), expected.patterns(), strict=True):
        np.testing.assert_array_equal(a, b)
    for name in ("explained_variance_ratio_", "pca_variance_ratio_", "total_squared_covariance_", "n_samples_seen_"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


@every_solver
@every_model
def test_a_weight_of_2_is_a_pair_of_samples_twice(model: Any, solver: str) -> None:
    model = clone(model).set_params(solver=solver)
    known = clone(model).fit(X.repeat(COUNTS, axis=0), Y.repeat(COUNTS, axis=0))
    for x, y in ((X, Y), (da.from_array(X, chunks=(9, 5, 3)), zarr.create_array({}, data=Y, chunks=(7, 8)))):
        if solver == "streaming" and x is not X:
            continue  # its rounding errors depend on the batches
        found = clone(model).fit(x, y, sample_weight=COUNTS)
        assert_same(found, known)
        # Scores have a value for each given sample, not for each repetition.
        for a, b in zip(found.scores(), known.scores(), strict=True):
            np.testing.assert_allclose(np.repeat(a, COUNTS, axis=0), b, atol=1e-4 * np.abs(b).max())


def weighted(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows without their weighted mean, and the PCs' directions (5, d) of their weighted covariance."""
    rows = x.reshape(N, -1).astype(float)
    rows -= np.average(rows, axis=0, weights=SHARES)
    return rows, np.linalg.svd(np.sqrt(SHARES)[:, None] * rows, full_matrices=False)[2][:5]


@every_solver
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@every_model
def test_any_weights_are_those_of_numpys_covariance(model: Any, dtype: Any, solver: str) -> None:
    (a, rows), (b, columns) = weighted(X), weighted(Y)
    a, b, total = a @ rows.T, b @ columns.T, SHARES.sum()
    joint = np.cov(np.hstack([a, b]), rowvar=False, aweights=SHARES, ddof=0) * total / (total - 1)
    cross, roots = joint[:5, 5:], [np.sqrt(np.diag(joint)[i] * (total - 1) / total) for i in (slice(5), slice(5, 10))]
    if isinstance(model, CCA):
        u, s, vt = np.linalg.svd(cross / roots[0][:, None] / roots[1])
        scores = a / roots[0] @ u[:, :2], b / roots[1] @ vt[:2].T
        patterns = (u[:, :2].T * roots[0]) @ rows, (vt[:2] * roots[1]) @ columns
    else:
        u, s, vt = np.linalg.svd(cross)
        scores = a @ u[:, :2], b @ vt[:2].T
        patterns = u[:, :2].T @ rows, vt[:2] @ columns
    found = clone(model).set_params(solver=solver).fit(X.astype(dtype), Y.astype(dtype), sample_weight=SHARES)
    tolerance = 1e-9 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(found.singular_values_, s[:2], rtol=tolerance)
    for i in range(2):
        upto_signs(found.patterns()[i], patterns[i], tolerance)
        upto_signs(found.scores()[i].T, scores[i].T, tolerance)
    correlations = [np.cov(p, q, aweights=SHARES) for p, q in zip(scores[0].T, scores[1].T, strict=True)]
    expected = [c[0, 1] / np.sqrt(c[0, 0] * c[1, 1]) for c in correlations]
    np.testing.assert_allclose(found.correlation_, expected, rtol=tolerance)
    assert found.n_samples_seen_ == (SHARES > 0).sum()


@pytest.mark.parametrize("weights", [COUNTS, COUNTS + 0.5 * (COUNTS > 1)], ids=["whole", "any"])
@pytest.mark.parametrize("solver", ["covariance", "dual"])
def test_seasons_trends_deviations_and_rotations(solver: str, weights: np.ndarray, tmp_path: Path) -> None:
    times = xr.date_range("2000-01-01", periods=N, freq="MS", use_cftime=False)
    x, y = (xr.DataArray(f, {"time": times}, dims) for f, dims in ((X[:, 0] / 9, ("time", "lon")), (Y, ("time", "p"))))
    options: dict[str, Any] = {"climatology": "season", "detrend": True, "standardize": True, "solver": solver}
    twice = np.repeat(np.arange(N), (2 * weights).astype(int))
    known = MCA(2, **options).fit(x[twice], y[twice])
    found = MCA(2, **options).fit(x, y, sample_weight=weights)
    for a, b in ((found, known), (found.rotate(), known.rotate())):
        np.testing.assert_allclose(a.squared_covariance_fraction_, b.squared_covariance_fraction_, rtol=1e-6)
        for i in range(2):
            upto_signs(a.patterns()[i], b.patterns()[i], 1e-5)
            upto_signs(a.scores()[i].values[np.flatnonzero(weights)].T, b.transform(x, y)[i][weights > 0].T, 1e-5)
    found.save(tmp_path / "mca")
    again = MCA.load(tmp_path / "mca")
    for i in range(2):
        xr.testing.assert_identical(again.scores()[i], found.scores()[i])
    assert again.n_samples_seen_ == found.n_samples_seen_
    assert again.north_test(n_eff=False)["n_eff"][0] == found.n_samples_seen_
    for test in (again.north_test, again.permutation_test, found.permutation_test):
        with pytest.raises(DataError, match="sample_weight"):
            test()


@pytest.mark.parametrize("solver", ["covariance", "dual"])
def test_a_pair_of_weight_0_is_left_out_with_its_gaps(solver: str) -> None:
    x, used = X.astype(float), np.arange(N) != 7
    x[7, 2] = np.nan
    known = MCA(2, solver=solver).fit(x[used], Y[used])
    for weight in (1, 2.5):
        found = MCA(2, solver=solver).fit(x, Y, sample_weight=weight * used)
        upto_signs(found.patterns()[0], known.patterns()[0])
        scores = found.scores(normalized=True)
        np.testing.assert_array_equal(np.isnan(scores[0]).all(axis=1), ~used)
        assert np.isfinite(scores[1]).all()


@pytest.mark.parametrize("solver", ["covariance", "dual"])
@pytest.mark.parametrize("weights", [None, COUNTS, SHARES], ids=["none", "whole", "any"])
def test_scores_of_interpolated_gaps(solver: str, weights: Any) -> None:
    x, filled = X.astype(float), X.astype(float)
    x[5, 1, 2], filled[5, 1, 2] = np.nan, (X[4, 1, 2] + float(X[6, 1, 2])) / 2
    found = MCA(2, solver=solver, gaps="interpolate").fit(x, Y, sample_weight=weights)
    known = MCA(2, solver=solver).fit(filled, Y, sample_weight=weights)
    for a, b in zip(found.scores(), known.scores(), strict=True):
        upto_signs(a.T, b.T)


@pytest.mark.parametrize(
    ("weights", "word"),
    [
        (np.ones(N - 1), f"{N}"),
        (np.full(N, np.nan), "nan"),
        (np.full(N, -1), "-1"),
        (np.zeros(N), "positive"),
        (np.arange(N) == 3, "2"),
        (np.full(N, 1e-3), "sum"),
    ],
)
@every_solver
def test_weights_that_are_rejected(weights: Any, word: str, solver: str) -> None:
    with pytest.raises(DataError, match=word):
        MCA(1, n_pca_modes=3, solver=solver).fit(X, Y, sample_weight=weights)


def test_an_analytic_signal_requires_each_sample_once() -> None:
    with pytest.raises(DataError, match="hilbert"):
        MCA(1, hilbert=True).fit(X, Y, sample_weight=COUNTS)


def test_checkpoints_of_other_weights_are_not_used(tmp_path: Path) -> None:
    run = Run(checkpoints=Checkpoints(str(tmp_path / "kept")))
    for weights in (COUNTS, COUNTS + 1, SHARES, SHARES / 2):
        for solver in ("covariance", "dual"):
            found, known = (MCA(1, solver=solver).fit(X, Y, sample_weight=weights, run=r) for r in (run, Run()))
            assert_same(found, known)
