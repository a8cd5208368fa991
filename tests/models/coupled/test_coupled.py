"""MCA and CCA against numpy: singular vectors of the cross-covariance, canonical correlations, fractions, rotations."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.signal
import xarray as xr
import zarr
from distributed import Client

from dpca import CCA, EOF, MCA, Run
from dpca.models import GapWarning
from dpca.storage import DataError
from dpca.storage.errors import PlanError
from tests.models.eof.sea import COSLAT, SST

N, X_SHAPE, Y_SHAPE = 90, (5, 6), (8,)
SOLVERS = ("covariance", "dual")


def fields(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two fields with three modes in common."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 3)) * [3.0, 2.0, 1.2]
    x = 5 + common @ rng.normal(size=(3, 30)) + rng.normal(size=(n, 30))
    y = -2 + common @ rng.normal(size=(3, 8)) + rng.normal(size=(n, 8))
    return x.reshape(n, *X_SHAPE), y


def centered(x: np.ndarray) -> np.ndarray:
    rows = x.reshape(len(x), -1).astype(np.float64)
    return rows - rows.mean(axis=0)


def leading(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The leading PCs (n, k) and components (k, d)."""
    u, s, v = np.linalg.svd(centered(x), full_matrices=False)
    return u[:, :k] * s[:k], v[:k]


def upto_signs(found: Any, expected: np.ndarray, tolerance: float = 1e-9) -> None:
    """Compare maps (k, ...) or columns given as rows, whatever their signs or phases."""
    a, b = (np.asarray(one).reshape(len(one), -1) for one in (found, expected))
    phases = np.einsum("kd,kd->k", b.conj(), a)
    np.testing.assert_allclose(a, b * (phases / np.abs(phases))[:, None], atol=tolerance * np.abs(b).max())


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8])
def test_modes_are_singular_vectors_of_the_cross_covariance(solver: str, dtype: Any) -> None:
    x, y = (np.round(8 * f + 90).clip(0, 255).astype(dtype) for f in fields())
    u, s, vt = np.linalg.svd(centered(x).T @ centered(y) / (N - 1))
    model = MCA(3, solver=solver).fit(x, y)
    tolerance = {np.float32: 2e-5, np.uint8: 2e-6}.get(dtype, 1e-9)
    np.testing.assert_allclose(model.singular_values_, s[:3], rtol=tolerance)
    upto_signs(model.patterns()[0], u.T[:3], tolerance)
    upto_signs(model.patterns()[1], vt[:3], tolerance)
    upto_signs(model.scores()[0].T, u.T[:3] @ centered(x).T, tolerance)
    upto_signs(model.scores()[1].T, vt[:3] @ centered(y).T, tolerance)
    np.testing.assert_allclose(model.squared_covariance_fraction_, s[:3] ** 2 / (s**2).sum(), rtol=10 * tolerance)
    np.testing.assert_allclose(model.total_squared_covariance_, (s**2).sum(), rtol=10 * tolerance)


@pytest.mark.parametrize("solver", SOLVERS)
def test_scores_of_both_fields_belong_together(solver: str) -> None:
    x, y = fields()
    model = MCA(3, solver=solver).fit(x, y)
    a, b = model.scores()
    np.testing.assert_allclose(a.T @ b / (N - 1), np.diag(model.singular_values_), atol=1e-9)
    correlations = [np.corrcoef(a[:, i], b[:, i])[0, 1] for i in range(3)]
    np.testing.assert_allclose(model.correlation_, correlations, rtol=1e-9)
    for field, scores, share in zip((x, y), (a, b), model.explained_variance_ratio_, strict=True):
        np.testing.assert_allclose(share, scores.var(axis=0) / field.reshape(N, -1).var(axis=0).sum(), rtol=1e-9)
    largest = model.patterns()[0].reshape(3, -1)
    assert (largest.max(axis=1) == np.abs(largest).max(axis=1)).all()
    normalized = model.scores(normalized=True)
    np.testing.assert_allclose((normalized[1] ** 2).sum(axis=0), 1)
    new = fields(7, seed=1)[0]
    np.testing.assert_allclose(model.transform(X=x), a, atol=1e-9)
    maps = model.patterns()[0].reshape(3, -1)
    np.testing.assert_allclose(model.transform(X=new), (new - x.mean(axis=0)).reshape(7, -1) @ maps.T, atol=1e-9)
    slopes = np.linalg.lstsq(a, b, rcond=None)[0]
    np.testing.assert_allclose(np.diag(slopes), np.diag(a.T @ b) / (a**2).sum(axis=0), rtol=0.5)
    by_each = (a.T @ b) / (a**2).sum(axis=0)[:, None]
    np.testing.assert_allclose(model.predict(new), model.transform(X=new) @ by_each, atol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("q", [(4, 6), (0.9, 0.95)], ids=["number", "share"])
def test_canonical_correlations_are_those_of_principal_components(solver: str, q: Any) -> None:
    x, y = fields()
    model = CCA(3, n_pca_modes=q, solver=solver).fit(x, y)
    kept = []
    for field, wanted in zip((x, y), q, strict=True):
        variances = np.linalg.svd(centered(field))[1] ** 2
        share = np.cumsum(variances) / variances.sum()
        kept.append(wanted if isinstance(wanted, int) else int((share < wanted).sum()) + 1)
    (px, vx), (py, _) = (leading(field, k) for field, k in zip((x, y), kept, strict=True))
    qx, qy = (np.linalg.svd(p, full_matrices=False)[0] for p in (px, py))
    u, rho, vt = np.linalg.svd(qx.T @ qy)
    np.testing.assert_allclose(model.correlation_, rho[:3], rtol=1e-9)
    np.testing.assert_allclose(model.singular_values_, rho[:3] * N / (N - 1), rtol=1e-9)
    upto_signs(model.scores()[0].T, (qx @ u[:, :3]).T * np.sqrt(N), 1e-8)
    upto_signs(model.scores()[1].T, (qy @ vt[:3].T).T * np.sqrt(N), 1e-8)
    upto_signs(model.patterns()[0], model.scores()[0].T @ centered(x) @ vx.T @ vx / N, 1e-8)
    upto_signs(model.transform(Y=y).T, model.scores()[1].T, 1e-8)
    retained = [(p**2).sum() / (centered(f) ** 2).sum() for p, f in zip((px, py), (x, y), strict=True)]
    np.testing.assert_allclose(model.pca_variance_ratio_, retained)


@pytest.mark.parametrize("make", [MCA, CCA], ids=["mca", "cca"])
@pytest.mark.parametrize("method", [None, "varimax", "promax"])
@pytest.mark.parametrize("hilbert", [False, True], ids=["real", "hilbert"])
def test_fractions_are_those_of_residuals(make: Any, method: Any, hilbert: bool) -> None:
    """Swenson (2015), equation 15, from the fields themselves."""
    x, y = fields()
    solver = "dual" if method is None else "covariance"
    model = make(3, n_pca_modes=(7, 6), hilbert=hilbert, padding=None, solver=solver).fit(x, y)
    modes: Any = model if method is None else model.rotate(method)
    rows = [p @ v for p, v in (leading(x, 7), leading(y, 6))]
    rows = [scipy.signal.hilbert(r, axis=0) if hilbert else r for r in rows]
    rows = [r - r.mean(axis=0) for r in rows]
    scores, maps = modes.scores(), [p.reshape(3, -1) for p in modes.patterns()]

    def left_over(i: int) -> list[np.ndarray]:
        return [r - np.outer(s[:, i], p[i].conj()) for r, s, p in zip(rows, scores, maps, strict=True)]

    total = np.linalg.norm(rows[0].conj().T @ rows[1]) ** 2
    squared = [1 - np.linalg.norm(a.conj().T @ b) ** 2 / total for a, b in map(left_over, range(3))]
    np.testing.assert_allclose(modes.squared_covariance_fraction_, np.maximum(squared, 0), atol=1e-10)
    for j in range(2):
        shares = [1 - (np.linalg.norm(left_over(i)[j]) / np.linalg.norm(rows[j])) ** 2 for i in range(3)]
        np.testing.assert_allclose(modes.explained_variance_ratio_[j], shares, atol=1e-10)


@pytest.mark.parametrize("hilbert", [False, True], ids=["real", "hilbert"])
def test_rotations_keep_the_fields_and_simplify_the_patterns(hilbert: bool) -> None:
    x, y = fields()
    model = MCA(4, hilbert=hilbert).fit(x, y)
    before = model.inverse_transform(*model.scores())
    for method in ("varimax", "promax"):
        turned = model.rotate(method)
        for field, same in zip(before, turned.inverse_transform(*turned.scores()), strict=True):
            np.testing.assert_allclose(same, field, atol=1e-9)
        assert (np.diff(turned.singular_values_) <= 0).all()
        loadings = [
            np.concatenate([p.reshape(4, -1) for p in modes.patterns()], axis=1).T * np.sqrt(modes.singular_values_)
            for modes in (model, turned)
        ]
        alike = [np.abs(one / np.sqrt((np.abs(one) ** 2).sum(axis=1))[:, None]) ** 2 for one in loadings]
        assert alike[1].var(axis=0).sum() > 1.05 * alike[0].var(axis=0).sum()
    if not hilbert:
        np.testing.assert_allclose(turned.transform(x, y)[1], turned.scores()[1], atol=1e-9)
    for wrong, word in (({"method": "equamax"}, "equamax"), ({"n_modes": 5}, "2 to 4"), ({"power": 0}, "power")):
        with pytest.raises(DataError, match=word.replace(" ", ".")):
            model.rotate(**{"method": "promax", **wrong})
    fewer = model.rotate(n_modes=2)
    assert fewer.scores()[0].shape == (N, 2)
    half = model.inverse_transform(X=model.scores()[0][:, :2])
    np.testing.assert_allclose(fewer.inverse_transform(X=fewer.scores()[0]), half, atol=1e-9)


def test_a_propagating_wave_is_one_complex_mode() -> None:
    t, a, b = np.arange(200)[:, None], np.linspace(0, 2 * np.pi, 20), np.linspace(0, 5, 9)
    x, y = np.cos(2 * np.pi * t / 20 - a), np.cos(2 * np.pi * t / 20 - b - 1)
    model = MCA(2, hilbert=True, padding=None).fit(x, y)
    assert model.squared_covariance_fraction_[0] == pytest.approx(1)
    assert model.correlation_[0] == pytest.approx(1)
    maps = model.patterns()[0][0]
    np.testing.assert_allclose(np.abs(maps), np.abs(maps[0]), rtol=1e-9)
    np.testing.assert_allclose(np.unwrap(np.angle(maps / maps[0])), a, atol=1e-9)
    np.testing.assert_allclose(model.inverse_transform(X=model.scores()[0][:, :1]), x, atol=1e-9)
    with pytest.raises(DataError, match="hilbert"):
        model.transform(x)


def test_identical_fields_give_the_modes_of_an_eof_analysis() -> None:
    """Land, weights, climatology and trend are those of EOF."""
    options: dict[str, Any] = {"weights": "coslat", "climatology": "month", "detrend": True, "standardize": True}
    for solver in SOLVERS:
        model = MCA(3, solver=solver, **options).fit(SST, SST)
        eof = EOF(3, solver="dual", **options).fit(SST)
        np.testing.assert_allclose(model.singular_values_, eof.explained_variance_, rtol=1e-8)
        xr.testing.assert_allclose(model.patterns()[1], eof.eofs().drop_attrs(), atol=1e-8)
        np.testing.assert_allclose(model.scores()[0], eof.pcs(), atol=1e-6)
        np.testing.assert_allclose(
            model.covariance_fraction_, eof.explained_variance_ratio_ / float(eof.explained_variance_ratio_.sum())
        )
        xr.testing.assert_allclose(model.inverse_transform(X=model.scores()[0]), eof.reconstruct(), atol=1e-6)


def test_weights_of_each_field_are_its_own() -> None:
    x, y = SST, fields(len(SST))[1]
    model = MCA(2, weights=("coslat", np.arange(8.0))).fit(x, y)
    there = ~np.isnan(SST.values[0])
    rows = centered(SST.values[:, there] * COSLAT[there]), centered(y * np.arange(8.0))
    values = np.linalg.svd(rows[0].T @ rows[1] / (len(SST) - 1))[1]
    np.testing.assert_allclose(model.singular_values_, values[:2])
    np.testing.assert_array_equal(np.isnan(model.patterns()[0][0]), ~there)


def test_streaming_modes_approach_the_exact_ones() -> None:
    x, y = fields(400)
    exact = MCA(2, n_pca_modes=6).fit(x, y)
    found = MCA(2, n_pca_modes=6, solver="streaming", n_passes=4, batch_size=50, oversampling=2, random_state=0).fit(
        x, y
    )
    np.testing.assert_allclose(found.singular_values_, exact.singular_values_, rtol=1e-3)
    np.testing.assert_allclose(found.scores()[0][:, 0], exact.scores()[0][:, 0], atol=0.2)
    with pytest.raises(DataError, match="n_pca_modes"):
        MCA(2, solver="streaming").fit(x, y)


def test_grid_points_that_miss_values_later_are_found() -> None:
    """The first pass counts on the grid points of the first sample."""
    x, y = fields()
    x[40:45, 1, 2] = np.nan
    y[7, 3] = np.nan
    for solver in SOLVERS:
        with pytest.warns(GapWarning) as told:
            model = MCA(2, solver=solver).fit(x, y)
        assert len(told) == 2
        kept = np.delete(centered(x), 8, axis=1), np.delete(centered(y), 3, axis=1)
        np.testing.assert_allclose(model.singular_values_, np.linalg.svd(kept[0].T @ kept[1] / (N - 1))[1][:2])
        assert np.isnan(model.patterns()[0][:, 1, 2]).all()


def test_samples_without_values_are_named() -> None:
    x, y = fields()
    x[3] = np.nan
    with pytest.raises(DataError, match="1"):
        MCA(2).fit(x, y)


@pytest.mark.parametrize(
    ("model", "second", "word"),
    [
        (MCA(2), fields(50)[1], "50"),
        (MCA(9), fields()[1], "n_modes"),
        (MCA(2, n_pca_modes=0), fields()[1], "n_pca_modes"),
        (MCA(2, n_pca_modes=(3, 4, 5)), fields()[1], "n_pca_modes"),
        (MCA(2, weights="area"), fields()[1], "weights"),
        (MCA(2, solver="svd"), fields()[1], "solver"),
        (CCA(2, n_pca_modes=3), np.ones((N, 8)), "constant"),
        (MCA(2, solver="dual"), np.ones((N, 8)), "n_modes"),
    ],
)
def test_wrong_calls_are_one_sentence(model: Any, second: np.ndarray, word: str) -> None:
    with pytest.raises(DataError, match=word):
        model.fit(fields()[0], second)


def test_modes_that_do_not_fit_are_refused_before_anything_is_read() -> None:
    x, y = da.zeros((10**6, 10**6), chunks=(100, 10**6)), da.zeros((10**6, 10**5), chunks=(100, 10**5))
    with pytest.raises(PlanError, match="memory_budget.*fewer.n_pca_modes.*auto") as raised:
        MCA(2, solver="streaming", n_pca_modes=9, memory_budget=10**5).fit(np.ones((20, 9000)), np.ones((20, 30)))
    assert len(str(raised.value)) < 500
    with pytest.raises(PlanError, match="n_pca_modes"):
        MCA(2).fit(x, y)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_integers_give_the_same_bytes_for_any_chunks_and_workers(dtype: Any, tmp_path: Any, scheduler: str) -> None:
    x, y = (np.round(20 * f + 90).clip(0, 255).astype(dtype) for f in fields(600))
    expected = MCA(3, solver="covariance").fit(x, y)
    stored = []
    for i, field in enumerate((x, y)):
        stored.append(zarr.create_array(tmp_path / f"{i}.zarr", data=field, chunks=(37 + 50 * i, *field.shape[1:])))
    lazy = da.from_array(x, chunks=(45, 2, 6)), da.from_array(y, chunks=(200, 3))
    with Client(scheduler) as client:
        others = [
            MCA(3, solver="covariance").fit(*stored, run=Run(threads=3)),
            MCA(3, solver="covariance").fit(*stored, run=Run(client=client)),
            MCA(3, solver="covariance").fit(*lazy, run=Run(client=client)),
        ]
    for other in others:
        assert other.singular_values_.tobytes() == expected.singular_values_.tobytes()
        for one, same in zip(other.patterns(), expected.patterns(), strict=True):
            assert one.tobytes() == same.tobytes()


@pytest.mark.parametrize("solver", [*SOLVERS, "streaming"])
def test_inputs_of_any_kind_give_the_same_modes(solver: str, tmp_path: Any, scheduler: str) -> None:
    x, y = fields()
    model = MCA(2, solver=solver, n_pca_modes=5, random_state=0)
    expected = model.fit(x, y).patterns()
    arrays = [
        zarr.create_array(tmp_path / f"{i}.zarr", data=field, chunks=(20, *field.shape[1:]))
        for i, field in enumerate((x, y))
    ]
    with Client(scheduler) as client:
        for given in (
            [tmp_path / "0.zarr", str(tmp_path / "1.zarr")],
            arrays,
            [da.from_array(x, chunks=(30, 5, 3)), arrays[1]],
            [x, da.from_array(y, chunks=30)],
        ):
            found = model.fit(*given, run=Run(client=client))
            for one, same in zip(found.patterns(), expected, strict=True):
                np.testing.assert_allclose(one, same, atol=1e-8)
    lazy = model.transform(X=da.from_array(x, chunks=(30, 5, 3)))
    assert isinstance(lazy, da.Array)
    np.testing.assert_allclose(lazy, model.transform(X=x), atol=1e-9)


def test_labels_come_back_as_they_went_in() -> None:
    y = xr.DataArray(fields(len(SST))[1], {"time": SST.time, "station": list("abcdefgh")}, ("time", "station"))
    model = MCA(2).fit(SST.transpose("lat", "time", "lon").chunk(lat=3), y, dim="time")
    a, b = model.patterns()
    assert (a.dims, b.dims, model.singular_values_.dims) == (("mode", "lat", "lon"), ("mode", "station"), ("mode",))
    assert list(b.station.values) == list("abcdefgh")
    assert list(model.correlation_.mode.values) == [1, 2]
    scores = model.scores()[1]
    assert scores.dims == ("time", "mode")
    xr.testing.assert_identical(scores.time, y.time)
    back = model.inverse_transform(Y=scores)
    assert (back.dims, back.name) == (y.dims, "reconstruction")
    assert model.inverse_transform(X=model.scores()[0]).dims == ("lat", "time", "lon")
    with pytest.raises(DataError, match="station"):
        model.transform(Y=y.rename(station="place"))


def test_what_fills_gaps_is_what_they_accept() -> None:
    """`EOF`, which prepares the fields, has one more way."""
    x, y = fields()
    x[4, 2, 3] = np.nan
    with pytest.warns(GapWarning, match="interpolate") as seen:
        MCA(2).fit(x, y)
    assert not any("iterate" in str(one.message) for one in seen)
