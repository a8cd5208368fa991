"""Noise removed by few components: photographs by patches, and digits (sections 5.1.2 of the source and beyond)."""

from __future__ import annotations

import numpy as np
from skimage.data import camera

from dpca import PCA, KernelPCA
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.kernel.courses import KernelMatrix, Variant, centered, curves, gaussian, run, table
from dpca.pipelines.studies.kernel.usps import digits
from dpca.pipelines.studies.reproduction.data import Setting
from dpca.pipelines.studies.runner import Section
from dpca.plots import comparison
from dpca.report.page import DataTable

COMPONENTS, PASSES, WINDOW, SPACING = 20, 50, 11, 4
#: Table 1 of the source and, with letters for names, its figure 8. The first is that of Kim et al. (2005).
VARIANTS = (
    Variant("constant", 0.05),
    Variant("t", 2.0),
    Variant("et*", 5.0, 4),
    Variant("et", 0.1),
    Variant("smd*", 5.0, 4, 1.0),
    Variant("smd", 0.1, 1, 2.0),
    Variant("s", 0.5, 1, 2.0),
    Variant("ts", 2.0, 1, 1.0),
    Variant("es", 1.0, 1, 2.0),
)
_NOISE, _DIGITS_NOISE = 0.1, 0.5
_THEIRS = (
    "Theirs (figures 6 and 8, on Lena, which is not free): the constant gain is three orders of magnitude behind after "
    "50 passes; et* beats et, SMD improves both; each of t, e and s helps alone and with the others."
)


def patches_section(setting: Setting, n_passes: int = PASSES) -> Section:
    """Figures 6 and 8, left: a quarter of a noisy photograph in windows, and the photograph without the noise."""
    picture = camera()[128:383, 128:383] / 255.0
    noisy = picture + np.random.default_rng(0).normal(0, _NOISE, picture.shape)
    windows = _windows(noisy)
    some = windows[_grid(picture.shape, SPACING)]
    problem = KernelMatrix(centered(gaussian(some, 1.0)), COMPONENTS)
    courses = [run(problem, variant, 1, n_passes) for variant in VARIANTS]
    kernel = KernelPCA(COMPONENTS, gamma=0.5, n_landmarks=1000, pre_image="fixed-point", random_state=0).fit(some)
    linear = PCA(COMPONENTS).fit(some)
    restored = {"kernel PCA": _mean(kernel, windows, noisy.shape), "linear PCA": _mean(linear, windows, noisy.shape)}
    levels = {name: _snr(picture, image) for name, image in {"noisy": noisy, **restored}.items()}
    lines = [(name, f"{level:.1f} dB") for name, level in levels.items()]
    note = "Linear PCA is better here: kernel components smooth more, and a few pre-images go astray."
    return Section(
        [
            table("A photograph in 3,844 windows: excess reconstruction error", courses, (1, 10, 50), [_THEIRS]),
            DataTable("Signal to noise of the photograph, 20 components", ("image", "signal to noise"), lines, [note]),
        ],
        {
            "patches": curves(courses),
            "patches-restored": comparison(
                np.stack([picture] * 3), np.stack([noisy, *restored.values()]), list(levels), None, (0.0, 1.0)
            ),
        },
        {
            "patches": ("Windows of a noisy photograph", _THEIRS),
            "patches-restored": ("The photograph without the noise", note),
        },
        {"patches": {"signal_to_noise": levels, "excess": {c.variant.label: c.excess for c in courses}}},
    )


def digits_section(setting: Setting, n_passes: int = 1) -> Section:
    """Noisy USPS digits in [-1, 1]: mean squared error of linear and kernel PCA, by the number of components."""
    clean, _ = digits(setting)
    noisy = clean + np.random.default_rng(0).normal(0, _DIGITS_NOISE, clean.shape)
    lines, found = [], {}
    for k in (16, 64, 256):
        linear = PCA(k).fit(noisy)
        kernel = KernelPCA(k, n_landmarks=1000, alpha=1.0, random_state=0).fit(noisy)
        found[k] = [_mse(model.inverse_transform(model.transform(noisy)), clean) for model in (linear, kernel)]
        lines.append((f"{k} components", *(f"{error:.3f}" for error in found[k])))
    shown = kernel.inverse_transform(kernel.transform(noisy[:6]))
    note = f"Mean squared error; the noise has {_mse(noisy, clean):.3f}, all of which 256 linear components keep."
    pictures = noisy[:6].reshape(-1, 16, 16), shown.reshape(-1, 16, 16)
    return Section(
        [DataTable("Noisy USPS digits", ("", "linear PCA", "kernel PCA, ridge"), lines, [note])],
        {"digits-restored": comparison(*pictures, [""] * 6, None, (-1.0, 1.0))},
        {"digits-restored": ("Digits: noisy, and by 256 kernel components", note)},
        {"digits": {str(k): errors for k, errors in found.items()}},
    )


def _windows(image: Array) -> Array:
    """All windows, (n, 121)."""
    views = np.lib.stride_tricks.sliding_window_view(image, (WINDOW, WINDOW))
    return views.reshape(-1, WINDOW**2).copy()


def _grid(shape: tuple[int, ...], spacing: int) -> Array:
    rows, columns = (np.arange(0, length - WINDOW + 1, spacing) for length in shape)
    grid: Array = (rows[:, None] * (shape[1] - WINDOW + 1) + columns).ravel()
    return grid


def _mean(model: PCA | KernelPCA, windows: Array, shape: tuple[int, ...]) -> Array:
    """Return the image whose pixels are the means of those of the windows, as a model gives them back."""
    grid = _grid(shape, 2)
    given = model.inverse_transform(model.transform(windows[grid])).reshape(-1, WINDOW, WINDOW)
    total, count = np.zeros(shape), np.zeros(shape)
    for number, window in zip(grid, given, strict=True):
        i, j = divmod(number, shape[1] - WINDOW + 1)
        total[i : i + WINDOW, j : j + WINDOW] += window
        count[i : i + WINDOW, j : j + WINDOW] += 1
    return np.divide(total, count, out=total, where=count > 0)


def _snr(image: Array, found: Array) -> float:
    return float(10 * np.log10(np.var(image) / _mse(image, found)))


def _mse(a: Array, b: Array) -> float:
    return float(np.mean((a - b) ** 2))
