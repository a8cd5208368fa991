"""Partitions that keep different numbers of components: what was asked for is what comes out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

from dpca import BandPCA, CellPCA
from dpca.models.cells.rank import noise_ranks
from dpca.models.cells.rank_choice import RankWarning
from dpca.storage.errors import DataError
from tests.conftest import smooth_images


def uneven(n: int = 120) -> np.ndarray:
    """Images whose left half varies much more than the right one; n x 12 x 16 x 3."""
    x = smooth_images(n, (12, 16, 3)).astype(float)
    x[:, :, 8:] = 128 + (x[:, :, 8:] - 128) * 0.1
    noise = np.random.default_rng(1).normal(0, 2, x.shape)
    return np.clip(np.rint(x + noise), 0, 255).astype(np.uint8)


def cells(**asked: Any) -> CellPCA:
    return CellPCA(cell_shape=4, **{"max_components": 48, **asked})


def bands(**asked: Any) -> BandPCA:
    return BandPCA(band_size=96, n_intervals=3, **{"max_components": 96, **asked})


def error_of(model: Any, x: np.ndarray) -> float:
    rebuilt = model.inverse_transform(model.transform(x.astype(float)))
    return float(((rebuilt - x) ** 2).mean()) / 255**2


@pytest.mark.parametrize("make", [cells, bands])
def test_a_target_is_met_and_no_component_is_wasted(make: Any) -> None:
    x = uneven()
    model = make(target_mse=2e-4).fit(x)
    found = error_of(model, x)
    assert found <= 2e-4
    smaller = make(total_components=int(model.ranks_.sum()) - 1).fit(x)
    assert error_of(smaller, x) > 2e-4
    same = make(target_psnr=-10 * np.log10(2e-4)).fit(x)
    np.testing.assert_array_equal(same.ranks_, model.ranks_)
    certificate = (model.total_variance_.sum() - model.explained_variance_.sum()) * 119 / 120 / x[0].size / 255**2
    assert found == pytest.approx(certificate, rel=1e-4)


@pytest.mark.parametrize("make", [cells, bands])
def test_a_ratio_is_exact_and_better_than_the_same_number_everywhere(make: Any) -> None:
    x = uneven()
    model = make(ratio=16).fit(x)
    assert model.ranks_.sum() == 576 // 16
    assert len(np.unique(model.ranks_)) > 1
    # The certificate of any fixed number: as many components as that in each cell.
    fixed = CellPCA(3, cell_shape=4).fit(x)
    assert fixed.ranks_.sum() == 36
    if make is cells:
        assert error_of(model, x) < 0.9 * error_of(fixed, x)


def test_a_ratio_of_few_samples_keeps_all_components() -> None:
    x = uneven()[:5]
    model = cells(ratio=3).fit(x)
    assert model.ranks_.min() >= 4  # and some of rounding errors
    assert error_of(model, x) < 1e-9
    with pytest.raises(DataError, match="components"):
        cells(total_components=61).fit(x)
    with pytest.raises(DataError, match="max_components"):
        cells(ratio=3, max_components=2).fit(x)


def test_threshold_cell_by_cell() -> None:
    x = uneven()
    model = cells(threshold=0.9).fit(x)
    for row in range(3):
        for column in range(4):
            cell = x[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].reshape(len(x), -1).astype(float)
            share = np.linalg.svd(cell - cell.mean(0), compute_uv=False) ** 2
            share = np.cumsum(share) / share.sum()
            assert model.ranks_[row, column] == np.argmax(share > 0.9) + 1
    bounded = cells(threshold=0.9, max_components=2).fit(x)
    np.testing.assert_array_equal(bounded.ranks_, np.minimum(model.ranks_, 2))


def test_noise_is_not_kept() -> None:
    """Three patterns under white noise in each cell; the edge of noise may let one more through."""
    rng = np.random.default_rng(0)
    x = 10 * rng.normal(size=(400, 8, 8))
    patterns = rng.normal(size=(3, 8, 8))
    x += np.tensordot(60 * rng.normal(size=(400, 3)), patterns, 1)
    model = CellPCA("marchenko-pastur", cell_shape=4).fit(x)
    assert ((model.ranks_ >= 3) & (model.ranks_ <= 4)).all()


@pytest.mark.parametrize("sigma", [None, 10.0, "map"])
def test_noise_of_few_samples_is_found_from_their_gram_matrices(sigma: Any) -> None:
    """A covariance of each of these cells has a hundred times as many numbers as the samples of the cell."""
    rng = np.random.default_rng(3)
    patterns = rng.normal(size=(2, 40, 45))
    x = 10 * rng.normal(size=(9, 40, 45)) + np.tensordot(60 * rng.normal(size=(9, 2)), patterns, 1)
    given = {"cell_shape": 20, "sigma": np.full((40, 45), 10.0) if sigma == "map" else sigma}
    model = CellPCA("marchenko-pastur", **given).fit(x)
    assert "Gram" in model.fit_report_.note
    by_covariances = CellPCA("marchenko-pastur", keep_state=True, **given).fit(x)
    np.testing.assert_array_equal(model.ranks_, by_covariances.ranks_)
    np.testing.assert_allclose(model.explained_variance_, by_covariances.explained_variance_, rtol=1e-6)
    for i in range(model.grid_.n_parts):
        (rows,) = model.grid_.split(x, [i], (0, 0), np.empty(x.size))
        values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:8] ** 2 / 8
        edge = (10 * (np.sqrt(rows.shape[1]) + np.sqrt(8))) ** 2 / 8
        expected = noise_ranks(values, rows.shape[1]) if sigma is None else (values > edge).sum()
        assert model.ranks_.ravel()[i] == expected == 2


@pytest.mark.parametrize("make", [cells, bands])
def test_saved_and_loaded(make: Any, tmp_path: Path) -> None:
    x = uneven()
    model = make(ratio=16).fit(x)
    model.save(tmp_path / "m.zarr")
    again = type(model).load(tmp_path / "m.zarr")
    np.testing.assert_array_equal(again.ranks_, model.ranks_)
    np.testing.assert_array_equal(again.transform(x), model.transform(x))


def test_batches_come_to_the_same() -> None:
    x = uneven()
    model = cells(ratio=16)
    for start in range(0, 120, 40):
        model.partial_fit(x[start : start + 40])
    np.testing.assert_array_equal(model.ranks_, cells(ratio=16).fit(x).ranks_)


def test_too_few_components_computed_is_told() -> None:
    """A cell of noise among cells of far weaker noise would take all twelve components; four times the mean is 4."""
    x = np.random.default_rng(2).normal(0, 1, (100, 12, 16, 3))
    x[:, :4, :4] *= 30
    with pytest.warns(RankWarning, match=r"\b1\b.*\b4\b"):
        model = cells(ratio=48, max_components=None).fit(x)
    assert model.ranks_[0, 0] == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cells(ratio=48, max_components=4).fit(x)  # asked for
    assert cells(ratio=48).fit(x).ranks_[0, 0] == 12


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"ratio": 8, "threshold": 0.9}, "threshold and ratio are given"),
        ({"n_components": 3, "ratio": 8}, "n_components and ratio are given"),
        ({"n_components": 3}, "bounds ranks"),
        ({"ratio": -1}, "ratio is -1"),
        ({"total_components": 2.5}, "total_components is 2.5: give a positive integer"),
        ({"ratio": 8, "max_components": 0}, "max_components is 0"),
        ({"total_components": 500, "max_components": 4}, "total_components is 500"),
        (
            {"target_mse": 1e-9, "max_components": 2},
            r"target_mse\) is 1e-09, but all 24 .* on the samples of the fit: .*max_components=K\) above 2",
        ),
        ({"threshold": 1.5}, "at least 0 and below 1"),
        ({"target_mse": 1e-3, "data_range": (1, 1)}, "give two finite numbers, the lower first"),
    ],
)
def test_what_cannot_be(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        cells(**asked).fit(uneven(40))


def test_targets_refer_to_what_the_values_span_unless_a_range_is_given() -> None:
    x = uneven(60)
    bounds = (int(x.min()), int(x.max()))
    expected = cells(target_psnr=35, data_range=bounds).fit(x)
    for given in (x.astype(np.uint16), x.astype(np.int32), da.from_array(x.astype(np.float32), chunks=(7, 5, 16, 3))):
        found = cells(target_psnr=35).fit(given)
        np.testing.assert_array_equal(found.ranks_, expected.ranks_)
        assert found.target_numbers()["data_range"] == list(bounds)
    scaled = cells(target_psnr=35, data_range=(0, 1)).fit(x / np.float32(255))
    np.testing.assert_array_equal(scaled.ranks_, cells(target_psnr=35).fit(x).ranks_)
