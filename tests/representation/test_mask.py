"""A region of samples has the statistics and components of its values alone; everything outside is filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca import PCA, CellPCA, Mask, StreamingPCA
from dpca.storage import DataError


@pytest.fixture(scope="module")
def movie() -> Any:
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 12, 10)) * np.linspace(1, 5, 10) + rng.normal(size=(60, 1, 1)) * 9


@pytest.fixture(scope="module")
def inside() -> Any:
    rows, columns = np.mgrid[:12, :10]
    return (rows - 6) ** 2 + (columns - 5) ** 2 < 17


def test_whole_sample_models_are_those_of_the_values_in_the_region(movie: Any, inside: Any) -> None:
    mask, own = Mask(inside), movie[:, inside]
    centered = own - own.mean(0)
    _, singular, right = np.linalg.svd(centered, full_matrices=False)
    for model in (PCA(3), StreamingPCA(3)):
        scores = model.fit_transform(mask.values(movie))
        np.testing.assert_allclose(model.explained_variance_, singular[:3] ** 2 / 59)
        np.testing.assert_allclose(model.total_variance_, centered.var(0, ddof=1).sum())
        np.testing.assert_allclose(np.abs(scores), np.abs(centered @ right[:3].T), atol=1e-8)
        maps = mask.in_place(model.components_)
        assert np.isnan(maps[:, ~inside]).all()
        np.testing.assert_allclose(np.abs(maps[:, inside]), np.abs(right[:3]), atol=1e-8)
        back = mask.in_place(model.inverse_transform(scores), fill_value=-1)
        assert (back[:, ~inside] == -1).all()
        np.testing.assert_allclose(back[:, inside], own.mean(0) + centered @ right[:3].T @ right[:3], atol=1e-8)


def test_cells_ignore_what_is_outside(movie: Any, inside: Any) -> None:
    mask, garbage = Mask(inside), np.random.default_rng(1).normal(size=movie.shape) * 1e6
    changed = np.where(inside, movie, garbage)
    changed[3, 0, 0] = np.nan
    model = CellPCA(4, cell_shape=5).fit(mask.filled(movie, 7))
    other = CellPCA(4, cell_shape=5).fit(mask.filled(changed, 7))
    np.testing.assert_array_equal(model.explained_variance_, other.explained_variance_)
    np.testing.assert_allclose(model.total_variance_.sum(), movie[:, inside].var(0, ddof=1).sum())
    scores = model.transform(mask.filled(changed, 7))
    back = mask.in_place(model.inverse_transform(scores))
    assert np.isnan(back[:, ~inside]).all()
    np.testing.assert_allclose(back[:, inside], model.inverse_transform(scores)[:, inside])


def test_lazy_samples(movie: Any, inside: Any, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "movie.zarr", data=movie, chunks=(20, 6, 10))
    mask = Mask(inside)
    for given in (tmp_path / "movie.zarr", da.from_array(movie, chunks=(25, 12, 5))):
        for function in (mask.values, mask.filled):
            lazy = function(given)
            assert isinstance(lazy, da.Array)
            np.testing.assert_array_equal(lazy.compute(), function(movie))
        model = PCA(2).fit(mask.values(given))
        back = mask.in_place(model.inverse_transform(model.transform(mask.values(given))))
        assert isinstance(back, da.Array)
        expected = mask.in_place(model.inverse_transform(model.transform(mask.values(movie))))
        assert (back.shape, back.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(back.compute(), expected)


def test_channels_and_integers(inside: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (6, 12, 10, 3), dtype=np.uint8)
    mask = Mask(inside)
    values = mask.values(pixels)
    np.testing.assert_array_equal(values, pixels[:, inside].reshape(6, -1))
    back = mask.in_place(values, fill_value=0)
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, np.where(inside[..., None], pixels, 0))
    np.testing.assert_array_equal(mask.filled(pixels), back)
    lazy = mask.in_place(da.from_array(values, chunks=(2, 5)), fill_value=0)
    np.testing.assert_array_equal(lazy.compute(), back)
    assert mask.in_place(values).dtype == np.float64
    assert mask.in_place(pixels).shape == pixels.shape


def test_what_does_not_fit_is_refused(movie: Any, inside: Any) -> None:
    xarray = pytest.importorskip("xarray")
    for wrong in (inside.astype(int), np.zeros((12, 10), bool)):
        with pytest.raises(DataError, match="mask"):
            Mask(wrong)
    with pytest.raises(DataError, match="mask"):
        Mask(inside).values(movie[:, :-1])
    with pytest.raises(DataError, match="mask"):
        Mask(inside).in_place(np.zeros((3, 5)))
    with pytest.raises(DataError, match="xarray"):
        Mask(inside).values(xarray.DataArray(movie))
