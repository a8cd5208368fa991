"""Ranks by noise of known standard deviation, against singular values and known truths."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca import BandPCA, CellPCA, Denoiser
from dpca.jobs import fit_store
from dpca.storage import open_stack
from dpca.storage.errors import DataError
from tests.helpers.phantoms import Floats, movie, rmse


def uneven(n: int = 120, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """Return a signal of two components, itself with noise, and the standard deviation of the noise."""
    rng = np.random.default_rng(seed)
    smooth = np.cumsum(rng.normal(size=(2, 12 * 12)), axis=1) / 5
    signal = (20 + rng.normal(size=(n, 2)) @ smooth).reshape(n, 12, 12)
    sigma = np.linspace(0.2, 2, 12)[:, None] * np.linspace(1, 1.5, 12)
    return signal, signal + sigma * rng.normal(size=signal.shape), sigma


@pytest.mark.parametrize("n", [30, 120])
@pytest.mark.parametrize(
    "make", [lambda **given: CellPCA(cell_shape=6, **given), lambda **given: BandPCA(band_size=36, **given)]
)
def test_components_span_the_signal_of_scaled_attributes(make: Any, n: int) -> None:
    _, x, sigma = uneven(n)
    model = make(n_components="marchenko-pastur", sigma=sigma).fit(x)
    assert 0 < model.ranks_.max() < 10
    parts = (
        model.partition_.all_parts(x),
        model.partition_.all_parts(sigma[None]),
        model.partition_.all_parts(model.components_),
    )
    variances = model.explained_variance_.reshape(-1, model.n_components_)
    for values, scale, rows, rank, found in zip(*parts, model.ranks_.ravel(), variances, strict=True):
        centered = values - values.mean(axis=0)
        _, singular, v = np.linalg.svd(centered / scale, full_matrices=False)
        m, longer = sorted((n - 1, values.shape[1]))
        assert rank == (singular > np.sqrt(m) + np.sqrt(longer)).sum()
        span = np.linalg.qr((v[:rank] * scale).T)[0]
        _, inside, axes = np.linalg.svd(centered @ span)
        np.testing.assert_allclose(np.abs(np.sum(rows[:rank] * (axes[:rank] @ span.T), axis=1)), 1, rtol=1e-6)
        np.testing.assert_allclose(found[:rank], inside[:rank] ** 2 / (n - 1), rtol=1e-6)
        np.testing.assert_allclose(rows[:rank] @ rows[:rank].T, np.eye(rank), atol=1e-6)


@pytest.mark.parametrize("given", [{}, {"overlap": 2}, {"shared": True}])
def test_one_level(given: dict[str, Any]) -> None:
    signal, _, _ = uneven()
    x = signal + 0.7 * np.random.default_rng(1).normal(size=signal.shape)
    model = CellPCA("marchenko-pastur", cell_shape=6, sigma=0.7, **given).fit(x)
    every = CellPCA(None, cell_shape=6, **given).fit(x)
    n, d = (119 * (4 if given.get("shared") else 1)), 36
    expected = (every.explained_variance_ * n > 0.49 * (np.sqrt(n) + np.sqrt(d)) ** 2).sum(axis=-1)
    np.testing.assert_array_equal(model.ranks_, expected)
    assert 0 < model.ranks_.max() <= (8 if given.get("shared") else 3)
    same = CellPCA("marchenko-pastur", cell_shape=6, sigma=np.full((12, 12), 0.7)).fit(x)
    if not given:
        np.testing.assert_allclose(same.components_, model.components_, atol=1e-9)
    bounded = CellPCA("marchenko-pastur", cell_shape=6, sigma=0.7, max_components=1, **given).fit(x)
    assert bounded.ranks_.max() == 1
    assert not CellPCA("marchenko-pastur", cell_shape=6, sigma=1e3, **given).fit(x).ranks_.any()


def test_a_movie_of_photons() -> None:
    truth = movie(600, 48, 12)[0]
    x = np.random.default_rng(1).poisson(truth).astype(np.uint16)
    errors = []
    for sigma in (None, Denoiser(noise="poisson").fit(x).sigma_):
        model = CellPCA("marchenko-pastur", cell_shape=16, sigma=sigma).fit(x)
        errors.append(rmse(model.inverse_transform(model.transform(x)), truth))
    assert errors[1] < 0.85 * errors[0]
    assert errors[1] < 0.25 * rmse(x, truth)


def test_partial_fit_and_stores(tmp_path: Path) -> None:
    _, x, sigma = uneven()
    expected = CellPCA("marchenko-pastur", cell_shape=6, sigma=sigma).fit(x)
    model = CellPCA("marchenko-pastur", cell_shape=6, sigma=sigma, keep_state=True).fit(x[:50])
    model.save(tmp_path / "m.zarr")
    again = CellPCA.load(tmp_path / "m.zarr").partial_fit(x[50:])
    np.testing.assert_array_equal(again.ranks_, expected.ranks_)
    np.testing.assert_allclose(again.components_, expected.components_, atol=1e-6)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(20, 12, 12))
    stack = open_stack(tmp_path / "x.zarr")
    stored = fit_store(stack, tmp_path / "fitted.zarr", CellPCA("marchenko-pastur", cell_shape=6, sigma=sigma))[0]
    np.testing.assert_allclose(stored.components_, expected.components_, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"n_components": 3, "sigma": 1.0}, "marchenko-pastur"),
        ({"sigma": -1.0}, "sigma"),
        ({"sigma": np.ones((12, 11))}, "shape|map"),
        ({"sigma": np.zeros((12, 12))}, "positive"),
        ({"sigma": np.full((12, 12), np.nan)}, "positive"),
        ({"sigma": np.full((12, 12), np.inf)}, "finite"),
        ({"sigma": [[1.0], [2.0, 3.0]]}, "sigma"),
        ({"sigma": np.full((12, 12), "a")}, "sigma"),
        ({"sigma": np.full((12, 12), 1j)}, "sigma"),
        ({"sigma": np.ones((12, 12)), "overlap": 2}, "overlap"),
        ({"sigma": np.ones((12, 12)), "shared": True}, "shared"),
    ],
)
def test_what_is_not_supported_is_one_sentence(given: dict[str, Any], word: str) -> None:
    with pytest.raises(DataError, match=word):
        CellPCA(**{"n_components": "marchenko-pastur", "cell_shape": 6} | given).fit(uneven()[1])
