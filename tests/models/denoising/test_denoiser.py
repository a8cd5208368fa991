"""`Denoiser` against a reference of a few lines, and against known truths."""

import itertools
from typing import Any

import dask.array as da
import numpy as np
import pytest

from dpca import Denoiser, Run
from dpca.partition.shifted import ShiftedGrids
from dpca.storage.errors import DataError
from tests.helpers.phantoms import Floats, diffusion, movie, rmse


def noisy(shape: tuple[int, ...] = (30, 20, 18), sigma: float = 0.3, seed: int = 0) -> tuple[Floats, Floats]:
    """Return a signal of three components on top of a mean, and with white noise."""
    rng = np.random.default_rng(seed)
    n, d = shape[0], int(np.prod(shape[1:]))
    smooth = np.cumsum(rng.normal(size=(3, d)), axis=1) / np.sqrt(d)
    signal = (3 + rng.normal(size=(n, 3)) @ smooth * 3).reshape(shape)
    return signal, signal + sigma * rng.normal(size=shape)


def reference(x: Floats, cell: tuple[int, ...], scale: Floats | None, shrinkage: str) -> dict[str, Floats]:
    """Denoise by the singular values of each cell, its weights and the definitions of the papers alone."""
    n, shape = len(x), x.shape[1:]
    sums = {name: np.zeros(shape) for name in ("weight", "sigma", "rank", "removed")}
    total = np.zeros(x.shape)
    for box in ShiftedGrids(shape, cell).boxes:
        place = tuple(slice(a, b) for a, b in box)
        values = x[(slice(None), *place)].reshape(n, -1)
        s = np.ones(values.shape[1]) if scale is None else scale[place].ravel()
        u, singular, v = np.linalg.svd(values / s, full_matrices=False)
        short, long = sorted(values.shape)
        if scale is None:
            for rank in range(short):
                rest = singular[rank:] ** 2
                if rest.mean() >= (rest[0] - rest[-1]) / 4 / np.sqrt((short - rank) / (long - rank)):
                    break
            sigma = np.sqrt(rest.sum() / (short - rank) / (long - rank))
        else:
            rank, sigma = int((singular > np.sqrt(short) + np.sqrt(long)).sum()), 1.0
        y, beta = singular[:rank] / sigma / np.sqrt(long), short / long
        new = y.copy()
        if shrinkage == "optimal":
            new = np.where(y > 1 + np.sqrt(beta), np.sqrt(np.maximum((y**2 - beta - 1) ** 2 - 4 * beta, 0)) / y, 0)
        if shrinkage == "hard":
            least = np.sqrt(2 * (beta + 1) + 8 * beta / (beta + 1 + np.sqrt(beta**2 + 14 * beta + 1)))
            new = np.where(y > least, y, 0)
        rank = int((new > 0).sum())
        clean = (u[:, :rank] * new[:rank] * sigma * np.sqrt(long)) @ v[:rank] * s
        assert rank, "the reference has no shrunk mean"
        taper = 1 / (1 + rank)
        for axis, (a, b) in enumerate(box):
            at = np.arange(b - a) + 0.5
            along = [-1 if i == axis else 1 for i in range(len(box))]
            taper = taper * np.sqrt(np.minimum(at, b - a - at)).reshape(along)
        lengths = taper.shape
        total[(slice(None), *place)] += taper * clean.reshape(n, *lengths)
        sums["weight"][place] += taper
        sums["sigma"][place] += taper * (sigma * s).reshape(lengths)
        sums["rank"][place] += taper * rank
        sums["removed"][place] += taper * (1 - clean.var(axis=0) / values.var(axis=0)).reshape(lengths)
    weight = sums.pop("weight")
    return {"clean": total / weight, **{name: values / weight for name, values in sums.items()}}


@pytest.mark.parametrize("shrinkage", ["optimal", "hard", "none"])
@pytest.mark.parametrize("n", [30, 300, 600])
@pytest.mark.parametrize("known", [False, True])
def test_equal_to_the_singular_values_of_each_cell(shrinkage: str, n: int, known: bool) -> None:
    """The three lengths are fewer samples than attributes, more, and so many that covariances take less memory."""
    _, x = noisy((n, 20, 18))
    scale = np.full((20, 18), 0.3) * np.linspace(0.9, 1.1, 18) if known else None
    given: Any = None if scale is None else scale
    model = Denoiser((6, 7), sigma=given, shrinkage=shrinkage)
    found, expected = model.fit_transform(x), reference(x, (6, 7), scale, shrinkage)
    np.testing.assert_allclose(found, expected["clean"], atol=1e-6)
    np.testing.assert_allclose(model.sigma_, expected["sigma"], rtol=1e-5)
    np.testing.assert_allclose(model.rank_, expected["rank"], rtol=1e-5)
    np.testing.assert_allclose(model.removed_, np.maximum(expected["removed"], 0), atol=1e-5)


def test_poisson_noise_is_scaled_by_its_standard_deviation() -> None:
    rng = np.random.default_rng(0)
    signal = 40 + 20 * noisy((200, 16, 16))[0]
    x = (2.5 * rng.poisson(np.maximum(signal, 1)) + 100 + rng.normal(0, 4, signal.shape)).astype(np.float64)
    model = Denoiser(8, noise="poisson", gain=2.5, offset=100, read_noise=4)
    scale = np.sqrt(2.5 * (x.mean(axis=0) - 100) + 16)
    np.testing.assert_allclose(model.fit_transform(x), reference(x, (8, 8), scale, "optimal")["clean"], rtol=1e-6)
    assert model.gain_ == 2.5


def test_a_phantom_of_diffusion() -> None:
    truth = diffusion((16, 16, 12), 45)
    x = truth + 0.03 * np.random.default_rng(1).normal(size=truth.shape)
    model = Denoiser()
    assert rmse(model.fit_transform(x), truth) < 0.012
    assert np.median(model.sigma_) == pytest.approx(0.03, rel=0.02)
    assert 0 < model.removed_.mean() < 1
    assert model.removed_.max() <= 1 + 1e-6


def test_the_gain_of_a_movie_is_estimated() -> None:
    truth = movie(600, 48, 12)[0]
    x = (3.0 * np.random.default_rng(1).poisson(truth)).astype(np.uint16)
    model = Denoiser(noise="poisson")
    clean = model.fit_transform(x)
    assert model.gain_ == pytest.approx(3, rel=0.03)
    assert rmse(clean / 3, truth) < 0.25 * rmse(x / 3, truth)
    known = Denoiser(noise="poisson", gain=3).fit_transform(x)
    assert rmse(known, clean) < 0.1 * rmse(clean / 3, truth) * 3


def test_any_input_and_any_number_of_threads(tmp_path: Any) -> None:
    _, x = noisy((40, 20, 18))
    expected = Denoiser(6).fit_transform(x)
    for given, threads in itertools.product((x, da.from_array(x, chunks=(7, 5, 18))), (1, 2)):
        model = Denoiser(6).fit(given, run=Run(threads=threads))
        np.testing.assert_allclose(model.transform(x), expected, atol=1e-12)


def test_masked_attributes_stay_as_they_are() -> None:
    signal, x = noisy((60, 18, 18))
    inside = np.hypot(*np.mgrid[-8.5:9, -8.5:9]) < 8
    masked = np.where(inside, x, 7.0)
    model = Denoiser(6)
    clean = model.fit_transform(masked)
    np.testing.assert_allclose(clean[:, ~inside], 7, rtol=1e-12)
    assert rmse(clean[:, inside], signal[:, inside]) < 0.5 * 0.3
    assert (model.sigma_[~inside] == 0).all()
    assert np.median(model.sigma_[inside]) == pytest.approx(0.3, rel=0.05)


def test_a_constant_stack_is_kept() -> None:
    x = np.full((10, 12, 12), 5, np.uint8)
    model = Denoiser(4)
    assert (model.fit_transform(x) == 5).all()
    assert not model.sigma_.any()


def test_noise_alone_is_removed() -> None:
    x = np.random.default_rng(0).normal(size=(100, 24, 24))
    model = Denoiser(8)
    assert rmse(model.fit_transform(x), np.zeros(x.shape)) < 0.03
    assert model.sigma_.mean() == pytest.approx(1, rel=0.02)


def test_a_constant_signal_below_the_edge_of_the_noise_is_not_lost() -> None:
    """No component shows it. The mean is then shrunk, with a smaller error than that of either the mean or 0."""
    x = 0.2 + np.random.default_rng(0).normal(size=(16, 24, 24))
    clean = Denoiser(8, sigma=1.0).fit_transform(x)
    truth = np.full(x.shape, 0.2)
    assert 0.05 < clean.mean() < 0.2
    assert rmse(clean, truth) < min(rmse(x.mean(axis=0)[None], truth[:1]), 0.2)


@pytest.mark.parametrize("n", [2, 3])
def test_very_few_samples(n: int) -> None:
    signal, x = noisy((n, 20, 20))
    assert rmse(Denoiser(5, sigma=0.3).fit_transform(x), signal) < 0.3
    with pytest.raises(DataError, match="sigma"):
        Denoiser(5).fit(x)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int64, bool])
def test_integers_at_the_ends_of_their_range(dtype: type) -> None:
    low, high = (0, 1) if dtype is bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = np.where(np.random.default_rng(0).random((30, 12, 12)) < 0.5, low, high).astype(dtype)
    clean = Denoiser(4, keep_dtype=True).fit_transform(x)
    assert clean.dtype == x.dtype
    signal, many = noisy((50, 12, 12), 0.01)
    many = np.clip(np.rint(low + (many - signal.min()) / np.ptp(signal) * (float(high) - float(low))), low, high)
    if dtype not in (bool, np.int64):
        found = Denoiser(4, keep_dtype=True).fit_transform(many.astype(dtype))
        assert rmse(found, many) < 0.02 * (float(high) - float(low))
    assert Denoiser(4).fit_transform(x).dtype == (np.float64 if dtype is np.int64 else np.float32)


def test_cells_larger_than_the_sample() -> None:
    signal, x = noisy((60, 5, 6))
    assert rmse(Denoiser(50).fit_transform(x), signal) < 0.15


@pytest.mark.parametrize(
    ("given", "x", "word"),
    [
        ({}, np.zeros((1, 9, 9)), "sample"),
        ({}, np.zeros((9, 2)), "sigma"),
        ({"sigma": -1.0}, np.zeros((9, 9, 9)), "sigma"),
        ({"sigma": np.ones((9, 8))}, np.zeros((9, 9, 9)), "sigma"),
        ({"sigma": np.zeros((9, 9))}, np.zeros((9, 9, 9)), "sigma"),
        ({"sigma": [[1.0], [2.0, 3.0]]}, np.zeros((9, 9, 9)), "sigma"),
        ({"gain": 2.0}, np.zeros((9, 9, 9)), "poisson"),
        ({"noise": "poisson", "sigma": 1.0}, np.zeros((9, 9, 9)), "sigma"),
        ({"noise": "poisson", "read_noise": 1.0}, np.zeros((9, 9, 9)), "gain"),
        ({"noise": "rician", "gain": 2.0}, np.zeros((9, 9, 9)), "poisson"),
        ({"noise": "rician"}, np.linspace(-1, 1, 729).reshape(9, 9, 9), "negative"),
        ({"cell_shape": (3, 3, 3)}, np.zeros((9, 9, 9)), "cell_shape"),
        ({"cell_shape": 0}, np.zeros((9, 9, 9)), "cell_shape"),
        ({"shrinkage": "soft"}, np.zeros((9, 9, 9)), "shrinkage"),
        ({}, np.full((9, 9, 9), np.nan), "nan"),
        ({}, np.zeros((9, 9, 9), complex), "complex"),
    ],
)
def test_what_cannot_be_denoised_is_one_sentence(given: dict[str, Any], x: Floats, word: str) -> None:
    with pytest.raises(DataError, match=f"(?i){word}"):
        Denoiser(**given).fit(x)


def test_other_samples_than_those_of_the_fit() -> None:
    model = Denoiser(5).fit(noisy()[1])
    with pytest.raises(DataError, match="shape|samples"):
        model.transform(np.zeros((3, 4, 5)))
