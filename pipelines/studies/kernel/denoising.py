"""Noise reduction by a few components: a photograph in patches, and digits (section 5.1.2 of the paper and beyond)."""

from __future__ import annotations

import numpy as np
from skimage.data import camera
from sklearn.metrics import mean_squared_error

from dpca import PCA, KernelPCA
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.data import Setting
from dpca.pipelines.studies.kernel.courses import (
    KernelMatrix,
    centered,
    excess_of,
    gaussian,
    picture,
    run,
    table,
    variants_of,
)
from dpca.pipelines.studies.runner import Picture, Section
from dpca.plots import comparison
from dpca.report.page import DataTable

COMPONENTS, PASSES, WINDOW, SPACING = 20, 50, 11, 4
_NOISE, _DIGITS_NOISE = 0.1, 0.5
_THEIRS = (
    "Theirs (figures 6 and 8, on Lena, which is not free): the constant gain is three orders of magnitude behind after "
    "50 passes; et* beats et, SMD improves both; each of t, e and s helps alone and with the others."
)


def patches_section(setting: Setting, n_passes: int = PASSES) -> Section:
    """Figures 6 and 8, left: windows of a noisy photograph."""
    photograph = camera()[128:383, 128:383] / 255.0
    noisy = photograph + np.random.default_rng(0).normal(0, _NOISE, photograph.shape)
    windows = _windows(noisy)
    some = windows[_grid(noisy.shape, SPACING)]
    problem = KernelMatrix(centered(gaussian(some, 1.0)), COMPONENTS)
    courses = [run(problem, variant, 1, n_passes) for variant in variants_of("patches")]
    kernel = KernelPCA(COMPONENTS, gamma=0.5, n_landmarks=1000, pre_image="fixed-point", random_state=0).fit(some)
    linear = PCA(COMPONENTS).fit(some)
    restored = {"kernel PCA": _mean(kernel, windows, noisy.shape), "linear PCA": _mean(linear, windows, noisy.shape)}
    levels = {
        name: float(10 * np.log10(np.var(photograph) / mean_squared_error(photograph, image)))
        for name, image in {"noisy": noisy, **restored}.items()
    }
    lines = [(name, f"{level:.1f} dB") for name, level in levels.items()]
    note = "Linear PCA is better here: kernel components smooth more, and a few pre-images fail."
    figure = comparison(
        np.stack([photograph] * 3), np.stack([noisy, *restored.values()]), list(levels), None, (0.0, 1.0)
    )
    return Section(
        [
            table("A photograph in 3,844 windows: excess reconstruction error", courses, (1, 10, 50), [_THEIRS]),
            DataTable("Signal to noise of the photograph, 20 components", ("image", "signal to noise"), lines, [note]),
        ],
        {
            "patches": picture(courses, "Windows of a noisy photograph", _THEIRS),
            "patches-restored": Picture(figure, "The photograph after noise reduction", note),
        },
        {"patches": {"signal_to_noise": levels, "excess": excess_of(courses)}},
    )


def digits_section(setting: Setting, n_passes: int = 1) -> Section:
    """Noisy USPS digits by linear and by kernel components."""
    clean, _ = setting.usps_digits()
    noisy = clean + np.random.default_rng(0).normal(0, _DIGITS_NOISE, clean.shape)
    lines, found = [], {}
    for k in (16, 64, 256):
        models = PCA(k).fit(noisy), KernelPCA(k, n_landmarks=1000, alpha=1.0, random_state=0).fit(noisy)
        restored = [np.asarray(model.inverse_transform(model.transform(noisy))) for model in models]
        found[str(k)] = [float(mean_squared_error(clean, one)) for one in restored]
        lines.append((f"{k} components", *(f"{error:.3f}" for error in found[str(k)])))
    error = mean_squared_error(clean, noisy)
    note = f"Mean squared error; that of the noise is {error:.3f}, and 256 linear components keep all of it."
    pictures = noisy[:6].reshape(-1, 16, 16), restored[1][:6].reshape(-1, 16, 16)
    figure = comparison(*pictures, [""] * 6, None, (-1.0, 1.0))
    return Section(
        [DataTable("Noisy USPS digits", ("", "linear PCA", "kernel PCA, ridge"), lines, [note])],
        {"digits-restored": Picture(figure, "Digits: noisy, and by 256 kernel components", note)},
        {"digits": found},
    )


def _grid(shape: tuple[int, ...], spacing: int) -> Array:
    rows, columns = (np.arange(0, length - WINDOW + 1, spacing) for length in shape)
    grid: Array = (rows[:, None] * (shape[1] - WINDOW + 1) + columns).ravel()
    return grid


def _windows(image: Array) -> Array:
    """Return all windows of an image, (n, 121)."""
    views: Array = np.lib.stride_tricks.sliding_window_view(image, (WINDOW, WINDOW))
    return views.reshape(-1, WINDOW**2)


def _mean(model: PCA | KernelPCA, windows: Array, shape: tuple[int, int]) -> Array:
    """Return the mean image of the reconstructed windows."""
    grid, n_pixels = _grid(shape, 2), shape[0] * shape[1]
    given = np.ravel(model.inverse_transform(model.transform(windows[grid])))
    pixels = _windows(np.arange(n_pixels).reshape(shape))[grid].ravel()
    total, count = np.bincount(pixels, given, n_pixels), np.bincount(pixels, None, n_pixels)
    return np.divide(total, count, out=np.zeros(n_pixels), where=count > 0).reshape(shape)
