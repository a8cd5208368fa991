"""The residual of known noise and known signal, and the report that shows it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from scipy.ndimage import gaussian_filter

from dpca import Denoiser, Run, plots
from dpca.cli import main
from dpca.jobs import denoise_store
from dpca.jobs.denoising.residual import Residual, residual_of
from dpca.storage import DataError, Stack, open_stack
from tests.helpers.phantoms import Floats, diffusion


def stack_of(path: Path, x: Any) -> Stack:
    zarr.open_array(path, mode="w", shape=x.shape, chunks=(8, *x.shape[1:]), dtype=x.dtype)[...] = x
    return open_stack(path)


def measured(path: Path, x: Floats, sigma: Any = 1.0, noise: str = "gaussian") -> Residual:
    """Return the residual if all of x is removed."""
    shape = x.shape[1:]
    clean = np.zeros(x.shape, np.float32)
    return residual_of(stack_of(path, x), clean, np.broadcast_to(sigma, shape), noise, (8,) * len(shape))


def test_white_noise(tmp_path: Path) -> None:
    found = measured(tmp_path / "x.zarr", 3 * np.random.default_rng(0).normal(size=(200, 40, 30)), 3.0)
    assert found.variance == pytest.approx(1, rel=0.02)
    assert {name: len(along) for name, along in found.correlations.items()} == {"samples": 16, "y": 16, "x": 15}
    assert all(np.abs(along).max() < 0.02 for along in found.correlations.values())
    assert found.power.shape == (40, 30)
    assert found.power.mean() == pytest.approx(1)
    assert np.abs(found.power - 1).max() < 0.5
    assert found.above == 0
    assert "looks like noise" in found.verdict


def test_noise_with_memory(tmp_path: Path) -> None:
    """An autoregressive process of order 1 has the correlation 0.6 ** lag."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 32, 32))
    for t in range(1, 256):
        x[t] = 0.6 * x[t - 1] + 0.8 * x[t]
    found = measured(tmp_path / "x.zarr", x)
    np.testing.assert_allclose(found.correlations["samples"][:6], 0.6 ** np.arange(1, 7), atol=0.02)
    assert np.abs(found.correlations["y"]).max() < 0.02
    assert "not look like noise" in found.verdict


def test_noise_that_was_smoothed(tmp_path: Path) -> None:
    """A Gaussian of width s makes the correlation exp(-lag ** 2 / (4 s ** 2)), and its square is the power."""
    x = np.stack([gaussian_filter(one, 1.0, mode="wrap") for one in np.random.default_rng(0).normal(size=(60, 64, 64))])
    found = measured(tmp_path / "x.zarr", x / x.std())
    np.testing.assert_allclose(found.correlations["x"][:4], np.exp(-(np.arange(1, 5) ** 2) / 4), atol=0.02)
    frequency = np.fft.fftshift(np.fft.fftfreq(64))
    expected = np.exp(-((2 * np.pi) ** 2) * (frequency[:, None] ** 2 + frequency**2))
    np.testing.assert_allclose(found.power, expected / expected.mean(), atol=0.5 * (expected / expected.mean()).max())
    assert found.power[32, 32] > 5 > found.power[0, 0]
    assert "along y and 0.7" in found.verdict


def test_pixels_without_noise_do_not_count(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(100, 24, 24))
    sigma = np.ones((24, 24))
    x[:, :, ::2] = sigma[:, ::2] = 0
    found = measured(tmp_path / "x.zarr", x, sigma)
    assert found.variance == pytest.approx(1, rel=0.02)
    assert found.pairs == {"samples": 99 * 24 * 12, "y": 100 * 23 * 12}, "no pixel has a neighbor along x"
    assert np.abs(found.correlations["y"]).max() < 0.03


def test_nothing_was_removed(tmp_path: Path) -> None:
    found = measured(tmp_path / "x.zarr", np.zeros((9, 12, 12)), 0.0)
    assert found.correlations == {}
    assert "nothing" in found.verdict.lower()


def test_few_pairs_show_no_correlation(tmp_path: Path) -> None:
    x = np.random.default_rng(3).normal(size=(4, 5))
    assert "looks like noise" in measured(tmp_path / "x.zarr", x).verdict


def test_a_middle_of_large_samples_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpca.jobs.denoising.residual._VALUES", 20 * 16 * 16)
    monkeypatch.setattr("dpca.jobs.denoising.residual._SAMPLES", 20)
    x = np.full((60, 40, 40), np.nan)
    x[20:40, 12:28, 12:28] = np.random.default_rng(0).normal(size=(20, 16, 16))
    found = measured(tmp_path / "x.zarr", x)
    assert found.shape == (20, 16, 16)
    assert found.variance == pytest.approx(1, rel=0.1)


def test_magnitudes_are_compared_with_their_means(tmp_path: Path) -> None:
    """Their noise is a third of the variance of the level where there is no signal."""
    rng = np.random.default_rng(0)
    truth = np.linspace(0, 5, 24) * np.ones((200, 24, 24))
    x = np.hypot(truth + rng.normal(size=truth.shape), rng.normal(size=truth.shape))
    found = residual_of(stack_of(tmp_path / "x.zarr", x), truth, np.ones((24, 24)), "rician", (8, 8))
    assert found.variance == pytest.approx(1, rel=0.02)
    assert found.above == 0


@pytest.mark.parametrize(("sigma", "fine"), [(None, True), (0.03, True), (0.12, False)])
def test_the_report_says_if_signal_was_removed(tmp_path: Path, sigma: float | None, fine: bool) -> None:
    truth = diffusion((20, 20, 12), 60)
    x = (truth + 0.03 * np.random.default_rng(0).normal(size=truth.shape)).astype(np.float32)
    stack = stack_of(tmp_path / "x.zarr", x)
    denoise_store(stack, tmp_path / "clean.zarr", Denoiser(sigma=sigma), run=Run(threads=1))
    folder = tmp_path / "clean.report"
    report = json.loads((folder / "report.json").read_text())
    assert ("looks like noise" in report["notes"][0]) == fine
    assert report["residual"]["above"] <= 0.02 if fine else report["residual"]["above"] > 0.05
    assert report["noise"]["sigma"] == pytest.approx(0.03 if sigma is None else sigma, rel=0.02)
    assert {file.name for file in folder.glob("*.png")} == {"maps.png", "residual.png", "comparison.png"}
    assert report["notes"][0] in (folder / "index.html").read_text()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_the_command_prints_the_sentence(tmp_path: Path, dtype: type, capsys: pytest.CaptureFixture[str]) -> None:
    light = 40 + 20 * np.sin(np.arange(60) / 9)[:, None, None] * np.hanning(24)[:, None] * np.ones(20)
    stack_of(tmp_path / "x.zarr", np.random.default_rng(0).poisson(light).astype(dtype))
    command = ["denoise", str(tmp_path / "x.zarr"), str(tmp_path / "clean.zarr"), "--noise", "poisson"]
    for _ in range(2):
        assert main([*command, "--workers", "1"]) == 0
        assert "looks like noise" in capsys.readouterr().out
    assert (tmp_path / "clean.report" / "index.html").exists()


@pytest.mark.parametrize("shape", [(30,), (20, 16), (6, 20, 16), (20, 16, 3)])
def test_pictures_of_any_sample(shape: tuple[int, ...]) -> None:
    maps = [np.random.default_rng(i).random(shape) for i in range(3)]
    figure: Any = plots.noise_maps(*maps)
    assert len(figure.pieces) == 3
    power = np.ones(shape[:2])
    assert plots.residual_chart(power, {"samples": [0.1, 0.0], "x": [0.2]}).axes
    assert plots.residual_chart(power, {}).axes
    with pytest.raises(DataError, match="power"):
        plots.residual_chart(np.ones((2, 2, 2)), {})


@pytest.mark.parametrize("shape", [(2, 16, 16), (3, 16, 16), (50, 1, 3)])
def test_too_few_values_to_tell_noise_from_signal(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = 100 + np.random.default_rng(0).normal(0, 3, shape)
    denoise_store(stack_of(tmp_path / "x.zarr", x), tmp_path / "clean.zarr", Denoiser(8, sigma=3.0))
    report = json.loads((tmp_path / "clean.report" / "report.json").read_text())
    assert "too small" in report["notes"][0]
    assert report["residual"]["above"] is None
