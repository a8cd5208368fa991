"""Targets of quality: met on samples that the fit did not see, and by SSIM, against exhaustive search."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import structural_similarity

from dpca import BandPCA, CellPCA
from dpca.kernels.pixels import Pixels
from dpca.models.cells import targets
from dpca.models.cells.targets import fewest
from dpca.representation.linear import LinearRepresentation
from dpca.storage.errors import DataError
from dpca.storage.progress import Stage, no_progress
from dpca.storage.run import Run
from tests.conftest import smooth_images

SHAPE = (12, 16, 3)


def cells(**asked: Any) -> CellPCA:
    return CellPCA(cell_shape=4, **{"max_components": 48, "random_state": 0, **asked})


def bands(**asked: Any) -> BandPCA:
    return BandPCA(band_size=96, n_intervals=3, **{"max_components": 96, "random_state": 0, **asked})


def labels_of(model: Any) -> np.ndarray:
    """Which partition each attribute belongs to."""
    if isinstance(model, BandPCA):
        return model.bands_.labels
    y, x, _ = np.indices(model.sample_shape_)
    return y // 4 * 4 + x // 4


def curve(model: Any, seen: np.ndarray, unseen: np.ndarray) -> list[float]:
    """Mean squared error of unseen samples after 0, 1, 2, ... components, rebuilt one by one, in float64."""
    labels, directions = labels_of(model).ravel(), []
    rows, others = (x.reshape(len(x), -1).astype(float) for x in (seen, unseen))
    for i in range(labels.max() + 1):
        values, vectors = np.linalg.eigh(np.cov(rows[:, labels == i].T))
        directions += [(value, i, vector) for value, vector in zip(values, vectors.T, strict=True)]
    directions.sort(key=lambda d: -d[0])
    rest = others - rows.mean(0)
    errors = [float((rest**2).mean()) / 255**2]
    for _, i, vector in directions:
        rest[:, labels == i] -= np.outer(rest[:, labels == i] @ vector, vector)
        errors.append(float((rest**2).mean()) / 255**2)
    return errors


@pytest.mark.parametrize("make", [cells, bands])
def test_a_target_is_met_on_what_was_left_out_with_the_fewest_components(make: Any, tmp_path: Path) -> None:
    x = smooth_images(260, SHAPE)
    model = make(target_mse=3e-4, validation_fraction=0.25).fit(x)
    held = model.validation_samples_
    assert len(held) == 65
    assert model.n_samples_seen_ == 195
    seen = np.delete(x, held, axis=0)
    np.testing.assert_allclose(model.mean_, seen.mean(0), rtol=1e-12)
    errors = curve(model, seen, x[held])
    count = int(model.ranks_.sum())
    assert errors[count] <= 3e-4 < errors[count - 1]
    assert model.target_reached_ == pytest.approx(errors[count], rel=1e-5)
    model.save(tmp_path / "model.zarr")
    assert type(model).load(tmp_path / "model.zarr").target_numbers() == model.target_numbers()
    assert model.target_numbers()["left_out"] == 65
    rebuilt = model.inverse_transform(model.transform(x[held]))
    assert ((rebuilt - x[held]) ** 2).mean() / 255**2 == pytest.approx(model.target_reached_, rel=1e-4)
    groups = np.array_split(((rebuilt - x[held]) ** 2).reshape(65, -1).mean(1) / 255**2, 10)
    expected = np.std([group.mean() for group in groups], ddof=1) / math.sqrt(10)
    assert model.target_standard_error_ == pytest.approx(expected, rel=1e-3)
    decibels = make(target_psnr=-10 * math.log10(3e-4), validation_fraction=0.25).fit(x)
    np.testing.assert_array_equal(decibels.ranks_, model.ranks_)
    assert decibels.target_reached_ == pytest.approx(-10 * math.log10(model.target_reached_))
    share = model.target_standard_error_ / model.target_reached_
    assert decibels.target_standard_error_ == pytest.approx(10 / math.log(10) * share)


@pytest.mark.parametrize("make", [cells, bands])
def test_few_samples_promise_too_much_of_themselves_but_not_of_what_was_left_out(make: Any) -> None:
    """As many samples as a partition has attributes: components fit them far better than any others."""
    x, new = smooth_images(100, SHAPE), smooth_images(900, SHAPE)[100:]

    def error_of(model: Any) -> tuple[float, float]:
        errors = ((model.inverse_transform(model.transform(new)) - new) ** 2).reshape(800, -1).mean(1) / 255**2
        return float(errors.mean()), float(errors.std())

    wanted = 2.3e-4
    promised = make(target_mse=wanted).fit(x)
    assert promised.target_reached_ <= wanted
    assert promised.target_standard_error_ == 0
    assert error_of(promised)[0] > 1.1 * wanted
    kept = make(target_mse=wanted, validation_fraction=0.4).fit(x)
    error, deviation = error_of(kept)
    assert abs(error - kept.target_reached_) < 4 * math.hypot(kept.target_standard_error_, deviation / math.sqrt(800))
    assert error < 1.05 * wanted


def test_wherever_the_stack_lies(tmp_path: Path, cluster: Any) -> None:
    x = smooth_images(150, SHAPE)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(40, 6, 16, 3))
    # What is held out is read in one way, whatever is asked of it.
    for make, asked in ((cells, {"target_psnr": 34}), (bands, {"target_ssim": 0.9})):
        expected = make(**asked, validation_fraction=0.2).fit(x)
        for stack in (str(tmp_path / "x.zarr"), da.from_array(x, chunks=(64, 12, 8, 3))):
            model = make(**asked, validation_fraction=0.2).fit(stack)
            np.testing.assert_array_equal(model.validation_samples_, expected.validation_samples_)
            np.testing.assert_array_equal(model.components_, expected.components_)
            assert model.target_reached_ == pytest.approx(expected.target_reached_, rel=1e-6)


def test_volumes_of_floats_in_large_units() -> None:
    """Squares of such values leave float32's range."""
    x = smooth_images(120, (8, 8, 16)).reshape(120, 8, 8, 16) * np.float32(1e20)
    options = {"cell_shape": (4, 4, 8), "validation_fraction": 0.2, "random_state": 0, "max_components": 128}
    model = CellPCA(target_mse=4e-4, data_range=(0, 255e20), **options).fit(x)
    held = model.validation_samples_
    errors = (model.inverse_transform(model.transform(x[held])) / 1e20 - x[held] / 1e20).astype(float)
    assert (errors**2).mean() / 255**2 == pytest.approx(model.target_reached_, rel=1e-4)
    assert model.target_reached_ <= 4e-4
    structure = CellPCA(target_ssim=0.9, data_range=(0, 255e20), **options).fit(x)
    assert 0.9 <= structure.target_reached_ < 0.93


def test_bands_folded_by_incremental_svd() -> None:
    """Their eigenvalues are bounds, but what they capture of other samples is measured."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(400, 8)) @ rng.normal(size=(8, 3000)) * 3 + rng.normal(size=(400, 3000))).astype(np.float32)
    model = BandPCA(
        target_mse=3e-3,
        band_size=1500,
        mapping="random",
        random_state=0,
        max_components=8,
        data_range=(-50, 50),
        validation_fraction=0.2,
        memory_budget=54 * 2**20,
    ).fit(x)
    assert "incremental SVD" in model.fit_report_.note
    held = x[model.validation_samples_]
    errors = ((model.inverse_transform(model.transform(held)) - held) / 100) ** 2
    assert errors.mean() == pytest.approx(model.target_reached_, rel=1e-4)
    assert 0 < model.ranks_.sum() < 16
    assert model.target_reached_ <= 3e-3


def similarities(model: Any, x: np.ndarray) -> np.ndarray:
    """SSIM of what is written for samples, by scikit-image."""
    pixels = np.clip(np.rint(model.inverse_transform(model.transform(x))), 0, 255).astype(np.uint8)
    pairs = zip(x, pixels, strict=True)
    return np.array([structural_similarity(a, b, channel_axis=-1, data_range=255) for a, b in pairs])


@pytest.mark.parametrize("make", [cells, bands])
@pytest.mark.parametrize("fraction", [None, 0.3])
def test_ssim_is_met_with_the_fewest_components(make: Any, fraction: float | None) -> None:
    x = smooth_images(160, SHAPE)
    model = make(target_ssim=0.93, validation_fraction=fraction).fit(x)
    measured = x if fraction is None else x[model.validation_samples_]
    expected = similarities(model, measured)
    assert model.target_reached_ == pytest.approx(expected.mean(), abs=1e-5)
    assert model.target_standard_error_ == pytest.approx(expected.std(ddof=1) / math.sqrt(len(measured)), rel=1e-3)
    assert model.target_reached_ >= 0.93
    fewer = make(total_components=int(model.ranks_.sum()) - 1)
    fewer.fit(x if fraction is None else np.delete(x, model.validation_samples_, axis=0))
    assert similarities(fewer, measured).mean() < 0.93
    assert hasattr(model, "validation_samples_") == (fraction is not None)


def test_no_component_where_the_mean_is_good_enough_and_all_where_nothing_less_is() -> None:
    x = np.full((40, 8, 8), 100, np.uint8)
    x[:, 0, 0] += np.arange(40, dtype=np.uint8)
    assert cells(target_ssim=0.3, max_components=16).fit(x).ranks_.sum() == 0
    assert cells(target_mse=0.1, max_components=16, validation_fraction=0.2).fit(x).ranks_.sum() == 0
    model = cells(target_ssim=1.0, max_components=16).fit(x)
    np.testing.assert_array_equal(model.ranks_, [[1, 0], [0, 0]])
    assert model.target_reached_ == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60).map(sorted), st.floats(0, 1))
@settings(deadline=None)
def test_the_search_finds_what_trying_all_finds(values: list[float], target: float) -> None:
    found, reached = fewest(lambda n: values[n], target, len(values) - 1)
    assert reached == values[found]
    if reached < target:
        assert found == len(values) - 1
    else:
        assert found == next(i for i, value in enumerate(values) if value >= target)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.floats(0, 1))
@settings(deadline=None)
def test_what_the_search_finds_reaches_the_target_even_where_the_measure_wavers(
    values: list[float], target: float
) -> None:
    found, reached = fewest(lambda n: values[n], target, len(values) - 1)
    assert reached == values[found]
    assert reached >= target or values[-1] < target


@pytest.mark.parametrize("target", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("scale", [300, 3000])
def test_the_search_is_short_where_the_measure_is_smooth(scale: int, target: float) -> None:
    asked: list[int] = []

    def measure(n: int) -> float:
        asked.append(n)
        return 1 - 0.6 / (1 + n / scale)

    found, _ = fewest(measure, target, 47_000)
    assert found == pytest.approx(scale * (0.6 / (1 - target) - 1), abs=1)
    assert len(asked) <= 16


@pytest.mark.parametrize("held_out", [False, True])
def test_ssim_is_searched_on_a_few_hundred_samples_spread_over_all(held_out: bool) -> None:
    source = _source(np.zeros((3 * targets.SSIM_SAMPLES, 8, 8), np.uint8))
    left_out = np.arange(1, 3 * targets.SSIM_SAMPLES, 2) if held_out else None
    check = targets.check_for(_choice(cells(target_ssim=0.9)), source, left_out, 2, np.random.default_rng(0), None)
    assert len(check.samples) == targets.SSIM_SAMPLES == len(np.unique(check.samples))
    assert np.isin(check.samples, np.arange(3 * targets.SSIM_SAMPLES) if left_out is None else left_out).all()
    assert check.samples[0] < 10
    assert check.samples[-1] >= 3 * targets.SSIM_SAMPLES - 10


def test_samples_held_in_memory_are_as_many_as_fit() -> None:
    x = smooth_images(300, (40, 40))
    free = CellPCA(target_ssim=0.8, cell_shape=10, max_components=30, random_state=0).fit(x)
    tight = CellPCA(target_ssim=0.8, cell_shape=10, max_components=30, random_state=0, memory_budget=2**26)
    row = 1600 + 16 * 30 * 4
    check = targets.check_for(_choice(tight), _source(x), None, 2, np.random.default_rng(0), 40 * row)
    assert check is not None
    basis = LinearRepresentation(free.grid_, np.zeros((40, 40)), np.zeros((30, 40, 40), np.float32))
    held = targets.Held(basis, check, (0, 255))
    assert held.n_samples == 20
    np.testing.assert_array_equal(np.concatenate(held._samples), x[check.samples[np.arange(20) * 300 // 20]])
    assert tight.fit(x).target_reached_ == free.target_reached_


def test_ssim_of_held_samples_is_that_of_the_stated_range() -> None:
    x = smooth_images(30, (40, 40))
    model = CellPCA(6, cell_shape=10).fit(x)
    check = targets.TargetCheck(_source(x), np.arange(30), "measured", 2, 2**30)
    found = targets.Held(model.basis_, check, (50, 200)).ssim(np.full(16, 6))
    pixels = model.basis_.decode(model.basis_.encode(x), pixels=Pixels(x.dtype, (50, 200)))
    expected = [structural_similarity(a, b, data_range=150) for a, b in zip(x, pixels, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_samples_are_read_in_blocks_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    x = smooth_images(30, (40, 40))
    monkeypatch.setattr(targets, "_BLOCK_BYTES", 7 * x[0].size * 4)
    blocks = list(targets._blocks(_source(x), np.arange(1, 30)))
    assert [len(block) for block in blocks] == [7, 7, 7, 7, 1]
    np.testing.assert_array_equal(np.concatenate(blocks), x[1:])


def _choice(model: CellPCA) -> Any:
    from dpca.models.cells.rank_choice import RankChoice

    return RankChoice.of(model.get_params())


def _source(x: np.ndarray) -> Any:
    from dpca.engine.sources.source import as_source

    return as_source(x)


def test_what_another_target_left_is_gone() -> None:
    x = smooth_images(60, SHAPE)
    model = cells(target_ssim=0.8, validation_fraction=0.2).fit(x)
    assert model.target_reached_ >= 0.8
    model.set_params(target_ssim=None, validation_fraction=None, target_psnr=30).fit(x)
    assert model.target_reached_ >= 30
    assert not hasattr(model, "validation_samples_")
    model.set_params(target_psnr=None, ratio=20).fit(x)
    assert not hasattr(model, "target_reached_")


def test_the_seed_decides_what_is_left_out() -> None:
    x = smooth_images(60, SHAPE)

    def left_out(seed: int) -> np.ndarray:
        return cells(target_psnr=25, validation_fraction=0.2, random_state=seed).fit(x).validation_samples_

    np.testing.assert_array_equal(left_out(1), left_out(1))
    assert (left_out(1) != left_out(2)).any()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"target_psnr": 30, "validation_fraction": 0.6}, "above 0 and at most 0.5"),
        ({"target_psnr": 30, "validation_fraction": 0}, "above 0 and at most 0.5"),
        ({"target_psnr": 30, "validation_fraction": True}, "above 0 and at most 0.5"),
        ({"target_psnr": 30, "validation_fraction": 0.01}, "0.01 of 40 samples is 0"),
        ({"ratio": 8, "validation_fraction": 0.2}, r"no target .*--target-mse \(target_mse\)"),
        ({"target_ssim": 0.9, "target_psnr": 30}, "target_psnr and target_ssim are given"),
        ({"target_ssim": 1.1}, "target_ssim is 1.1"),
        ({"target_ssim": 0}, "target_ssim is 0"),
        (
            {"target_ssim": 0.99, "max_components": 2},
            r"target_ssim\) is 0.99, but all 24 .* only 0\.\d+ on the 40 samples measured: .*=K\) above 2",
        ),
        (
            {"target_psnr": 60, "validation_fraction": 0.25},
            r"target_psnr\) is 60, but all \d+ .* only 3\d\.\d+ on the 10 samples held out: fit more samples",
        ),
        (
            {"target_mse": 1e-5, "validation_fraction": 0.25, "max_components": 20},
            r"target_mse\) is 1e-05, but all \d+ .* on the 10 samples held out: .*"
            r"\(max_components=K\) above 20",
        ),
    ],
)
def test_what_cannot_be(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        cells(**asked).fit(smooth_images(40, SHAPE))


@pytest.mark.parametrize("shape", [(40,), (6, 30), (30, 6, 3)])
def test_ssim_of_what_has_no_structure(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, *shape), dtype=np.uint8)
    with pytest.raises(DataError, match="7"):
        BandPCA(band_size=6, target_ssim=0.9).fit(x)
    with pytest.raises(DataError, match=r"--target-psnr.*--target-mse"):
        CellPCA(cell_shape=3, target_ssim=0.9).fit(x)


def test_batches_cannot_tell_a_range_or_be_kept() -> None:
    x = smooth_images(40, SHAPE)
    with pytest.raises(DataError, match="data_range"):
        cells(target_psnr=30).partial_fit(x.astype(np.uint16))
    for asked in ({"target_ssim": 0.9}, {"target_psnr": 30, "validation_fraction": 0.2}):
        with pytest.raises(DataError, match="partial_fit"):
            cells(**asked).partial_fit(x)
    model = cells(target_psnr=30)
    for start in (0, 20):
        model.partial_fit(x[start : start + 20])
    assert model.target_reached_ == pytest.approx(cells(target_psnr=30).fit(x).target_reached_)


def test_a_third_of_the_components_is_not_enough_and_the_search_goes_on() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (60, *SHAPE), dtype=np.uint8)
    stages: list[str] = []

    def progress(stage: str, total: int, unit: str) -> Stage:
        stages.append(stage)
        return no_progress(stage, total, unit)

    for asked in ({"target_psnr": 16.0}, {"target_psnr": 16.0, "validation_fraction": 0.2}, {"threshold": 0.95}):
        stages.clear()
        searched = CellPCA(cell_shape=4, random_state=0, **asked)
        searched.fit(noise, run=Run(progress=progress))
        assert stages == ["fit", "fit again, 32 components", "fit again, 48 components"][: len(stages)]
        assert len(stages) > 1
        before = {2: 16, 3: 32}[len(stages)]
        assert f"{before} components of each cell were too few" in searched.fit_report_.note
        np.testing.assert_array_equal(searched.ranks_, cells(**asked).fit(noise).ranks_)
    with pytest.raises(DataError, match="more.samples"):
        CellPCA(cell_shape=4, target_psnr=60.0, validation_fraction=0.2, random_state=0).fit(noise)
