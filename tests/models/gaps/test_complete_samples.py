"""Fits that support missing values, to samples that have none, or a single one that shows late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.base import clone

from dpca import PCA, BandPCA, CellPCA
from dpca.engine.sources import sampling
from dpca.storage.errors import DataError

OPTIONS: dict[str, Any] = {"gaps": "iterate", "random_state": 0}
MODELS = [
    *(PCA(2, solver=solver, **OPTIONS) for solver in ("auto", "covariance", "dual", "randomized")),
    CellPCA(2, cell_shape=4, **OPTIONS),
    *(BandPCA(2, band_size=20, mapping=mapping, **OPTIONS) for mapping in ("mean", "raster")),
]


def samples() -> Any:
    rng = np.random.default_rng(0)
    scores, noise = rng.standard_normal((300, 3)) * 3, rng.standard_normal((300, 64))
    return (scores @ rng.standard_normal((3, 64)) + 0.1 * noise).reshape(300, 8, 8).astype(np.float32)


def stored(x: Any, kind: str, folder: Path) -> Any:
    if kind == "memory":
        return x
    if kind == "dask":
        return da.from_array(x, chunks=(70, 8, 4))
    zarr.create_array(path := str(folder / "x.zarr"), data=x, chunks=(50, 8, 8))
    return path


@pytest.mark.parametrize("kind", ["memory", "dask", "store"])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'solver', 'parts')}")
def test_a_late_missing_value_is_found(model: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first samples show no gap, and the result is that of a fit that knows of it."""
    x = samples()
    x[-1, 3, 5] = np.nan
    wanted = model.fit(x[::-1].copy()).components_
    monkeypatch.setattr("dpca.models.gaps.gap_fit._SEARCHED", 2**10)
    found = model.fit(stored(x, kind, tmp_path))
    assert np.isfinite(found.held_out_rmse_)
    for a, b in zip(found.components_.reshape(-1, 2, 64)[:1], wanted.reshape(-1, 2, 64)[:1], strict=True):
        np.testing.assert_allclose(np.abs(a @ b.T), np.abs(b @ b.T), atol=5e-3)


@pytest.mark.parametrize("kind", ["memory", "dask", "store"])
def test_complete_samples_are_read_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    take = "dpca.rules.gaps.present.PresentMoments._take"
    monkeypatch.setattr(take, lambda self, state, batch: counted.append(len(batch)))
    x = stored(samples(), kind, tmp_path)
    for model in MODELS:
        plain = type(model)(**(model.get_params() | {"gaps": "reject"})).fit(x)
        np.testing.assert_array_equal(model.fit(x).components_, plain.components_)
    assert not counted


def test_an_early_missing_value_ends_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    x, looked = samples(), []
    x[0, 0, 0] = np.nan
    monkeypatch.setattr(PCA, "_fit_complete", lambda *args, **options: looked.append(args))
    PCA(2, **OPTIONS).fit(x)
    assert not looked
    # Samples that are too large to be searched at first are not read for it.
    monkeypatch.setattr("dpca.models.gaps.gap_fit._MOST_SEARCHED", 64)
    monkeypatch.setattr(sampling, "check_finite", lambda *args: pytest.fail("read"))
    PCA(2, **OPTIONS).fit(samples())
    assert looked


@pytest.mark.parametrize("model", MODELS[:1] + MODELS[4:], ids=lambda m: type(m).__name__)
def test_infinities_and_wrong_parameters_are_errors_as_before(model: Any) -> None:
    x = samples()
    x[-1, 0, 0] = np.inf
    with pytest.raises(DataError, match="infinite"):
        model.fit(x)
    with pytest.raises(DataError, match="n_components"):
        type(model)(**(model.get_params() | {"n_components": 0.9})).fit(samples())


def test_a_callback_sees_one_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpca.models.gaps.gap_fit.fit_complete", lambda *_: pytest.fail("fitted twice"))
    monkeypatch.setattr("dpca.models.linear.pca.fit_complete", lambda *_: pytest.fail("fitted twice"))
    x = samples()
    x[-1, 0, 0] = np.nan
    seen: list[float] = []
    PCA(2, **OPTIONS).fit(x, callback=lambda progress: seen.append(progress.model.held_out_rmse_))
    assert len(seen) > 1


@pytest.mark.parametrize("kind", ["memory", "dask", "store"])
@pytest.mark.parametrize(
    ("dtype", "missing"), [(np.uint8, 255), (np.int16, -9999), (np.float32, -9999), (np.float64, 1e20)]
)
def test_complete_samples_with_a_fill_value_are_read_once(
    dtype: Any, missing: float, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    take = "dpca.rules.gaps.present.PresentMoments._take"
    monkeypatch.setattr(take, lambda self, state, batch: counted.append(len(batch)))
    x = stored((samples() * 3 + 100).astype(dtype), kind, tmp_path)
    for model in MODELS:
        plain = type(model)(**(model.get_params() | {"gaps": "reject"})).fit(x)
        found = type(model)(**(model.get_params() | {"missing_value": missing})).fit(x)
        np.testing.assert_array_equal(found.components_, plain.components_)
        np.testing.assert_array_equal(found.mean_, plain.mean_)
    assert not counted


@pytest.mark.parametrize("kind", ["memory", "dask", "store"])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'solver', 'parts')}")
def test_a_late_fill_value_is_found(model: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = (samples() * 3 + 100).clip(0, 254).astype(np.uint8)
    x[-1, 3, 5] = 255
    given = type(model)(**(model.get_params() | {"missing_value": 255}))
    # With a callback, the values are counted first.
    wanted = clone(given).fit(stored(x, kind, tmp_path), callback=lambda progress: None)
    monkeypatch.setattr("dpca.models.gaps.gap_fit._SEARCHED", 2**10)
    found = given.fit(stored(x, kind, tmp_path / "again"))
    assert found.held_out_rmse_ == wanted.held_out_rmse_
    np.testing.assert_array_equal(found.mean_, wanted.mean_)
    np.testing.assert_array_equal(found.components_, wanted.components_)


def test_infinities_that_are_missing_are_found_late(monkeypatch: pytest.MonkeyPatch) -> None:
    x = samples()
    complete = PCA(2, missing_value="infinite", **OPTIONS).fit(x)
    np.testing.assert_array_equal(complete.components_, PCA(2).fit(x).components_)
    monkeypatch.setattr("dpca.models.gaps.gap_fit._SEARCHED", 2**10)
    x[-1, 3, 5] = -np.inf
    assert np.isfinite(PCA(2, missing_value="infinite", **OPTIONS).fit(x).held_out_rmse_)
