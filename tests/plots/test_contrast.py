"""Pictures of every kind of source, looked at by their histograms: nothing is black, and nothing is blown out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from dpca import PCA, CellPCA, open_compressed, plots
from dpca.jobs.compressed.encode import encode_store
from dpca.jobs.scores.report import pictured
from dpca.plots.given import samples_given
from dpca.plots.panels import intensity, levels, shown_range
from dpca.storage import Stack, ingest
from tests.conftest import smooth_images
from tests.plots.test_plots import images

SHAPE = (120, 160)
Y, X = np.mgrid[: SHAPE[0], : SHAPE[1]]
CELLS = [(20, 30, 4.0), (70, 90, 3.0), (100, 140, 5.0), (40, 120, 3.5)]


def cells(dtype: str, scale: float, dark: float) -> np.ndarray:
    """Few bright cells on a dark, noisy background."""
    image = np.random.default_rng(0).normal(dark, scale / 100, SHAPE)
    for y, x, radius in CELLS:
        image += scale * np.exp(-((Y - y) ** 2 + (X - x) ** 2) / (2 * radius**2))
    return image.astype(dtype)


def waves(scale: float, offset: float) -> np.ndarray:
    return offset + scale * np.sin(X / 9) * np.cos(Y / 7)


def with_values(image: np.ndarray, every: int, value: float) -> np.ndarray:
    changed = image.copy()
    changed.reshape(-1)[::every] = value
    return changed


MOVIE = cells("u2", 3000, 110)
SOURCES = {
    "16-bit movie": MOVIE,
    "16-bit movie with hot pixels": with_values(MOVIE, 2000, 65535),
    "movie on an empty background": np.where(MOVIE > 300, MOVIE, 0).astype("u2"),
    "8-bit movie that is nearly black": cells("u1", 18, 3),
    "signed 16 bits": waves(900, -200).astype("i2"),
    "signed 8 bits": waves(100, 0).astype("i1"),
    "32-bit counts": waves(9e8, 1.5e9).astype("u4"),
    "64-bit integers": waves(1e12, -1e15).astype("i8"),
    "temperatures": waves(0.5, 280).astype("f4"),
    "temperatures with missing values": with_values(waves(0.5, 280).astype("f4"), 3, np.nan),
    "temperatures with outliers": with_values(with_values(waves(0.5, 280).astype("f4"), 1000, 1e20), 1001, -1e20),
    "half precision": waves(1, 0).astype("f2"),
    "double precision": waves(1e-9, 1).astype("f8"),
    "infinities": with_values(waves(1, 0).astype("f4"), 500, np.inf),
    "floats of a photograph": smooth_images(1, (120, 160, 3))[0] / np.float32(255),
    "16-bit photograph in color": smooth_images(1, (120, 160, 3))[0].astype("u2") * 16,
}


def drawn_by_panels(image: np.ndarray) -> np.ndarray:
    values = image.astype(np.float64)
    return levels(intensity(values, shown_range([values], image.dtype)))


def drawn_by_plots(image: np.ndarray) -> np.ndarray:
    (picture,) = images(plots.image_grid(image[None], axes=("y", "x", "channel")[: image.ndim]))
    return picture


def drawn_by_reports(image: np.ndarray) -> np.ndarray:
    """A report states the data range of all samples, with every outlier in it."""
    finite = image[np.isfinite(image)]
    bounds = (float(finite.min()), float(finite.max()))
    given = samples_given(image[None], ("y", "x", "channel")[: image.ndim])
    figure = pictured({0: image}, image[None], ["one"], None, bounds, given)
    return images(figure)[0]


@pytest.mark.parametrize("drawn", [drawn_by_panels, drawn_by_plots, drawn_by_reports])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_picture_is_neither_black_nor_blown_out(kind: str, drawn: Any) -> None:
    image = SOURCES[kind]
    picture = drawn(image)
    known = np.isfinite(image) & (np.abs(image.astype(float)) < 1e18)
    shown = (picture if picture.ndim == image.ndim else picture[..., 0])[known]
    values, counts = np.unique(image[known], return_counts=True)
    background = counts.max() / known.sum() if "movie" in kind else 0.0  # a value that most pixels share is black
    assert (shown == 255).mean() <= 0.01
    assert (shown == 0).mean() <= background + 0.01
    if "movie" in kind:
        bright = np.array([picture[y, x] for y, x, _ in CELLS], int)
        assert bright.min() > np.median(shown) + 120
        assert len(np.unique(shown)) > min(60, 0.8 * len(values))
    else:
        low, high = np.percentile(shown, (5, 95))
        assert high - low > 100
        order = np.argsort(image[known].astype(float), kind="stable")
        assert np.all(np.diff(shown[order].astype(int)) >= 0)


@pytest.mark.parametrize("shape", [(40, 36), (40, 36, 3)])
@pytest.mark.parametrize("drawn", [drawn_by_panels, drawn_by_plots])
def test_photographs_of_8_bits_are_shown_as_they_are(shape: tuple[int, ...], drawn: Any) -> None:
    image = smooth_images(1, shape)[0]
    np.testing.assert_array_equal(drawn(image), image)


@pytest.mark.parametrize(
    ("value", "dtype", "level"),
    [
        *[(0, "u1", 0), (90, "u1", 90), (255, "u1", 255), (0, "u2", 128), (4000, "u2", 128), (-7, "i2", 128)],
        *[(0, "f4", 128), (1e30, "f4", 128), (280.5, "f8", 128)],
    ],
)
def test_a_constant_of_8_bits_is_shown_as_it_is_and_any_other_one_is_gray(value: float, dtype: str, level: int) -> None:
    assert set(np.unique(drawn_by_panels(np.full(SHAPE, value, dtype)))) == {level}


def test_without_any_value_the_range_is_that_of_the_type() -> None:
    assert shown_range([np.full((3, 3), np.nan)], np.dtype("f4")) == (0, 1)
    assert shown_range([np.empty((0, 3))], np.dtype("u1")) == (0, 255)


def test_colors_are_those_of_the_levels_and_missing_values_have_their_own() -> None:
    colors = np.random.default_rng(0).random((256, 3))
    picture = np.array([[0.0, 1.0], [0.5, np.nan]])
    shown = levels(picture, colors)
    np.testing.assert_array_equal(shown[0], np.rint(255 * colors[[0, 255]]))
    np.testing.assert_array_equal(shown[1, 0], np.rint(255 * colors[128]))
    np.testing.assert_array_equal(shown[1, 1], levels(np.full((1, 1), np.nan))[0, 0])
    in_color = np.full((2, 2, 3), 0.25)
    np.testing.assert_array_equal(levels(in_color, colors), levels(in_color))


COLORS = ["#0000ff", "#ff8000"]


def colored(path: Path) -> Stack:
    """Five samples of two channels with colors; the second channel is ten times as bright."""
    x = np.stack([np.roll(np.where(MOVIE < 6000, MOVIE, 0), shift) for shift in range(5)])
    channels = {"Channel": {"Name": ["DAPI", "GFP"], "Color": [65535, 0xFF8000FF - 2**32]}}
    tifffile.imwrite(path / "s.ome.tif", np.stack([x, x[:, ::-1] * 10], 1), metadata={"axes": "TCYX"} | channels)
    return ingest(path / "s.ome.tif", path / "s.zarr")


def blend(samples: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Samples as the sum of `COLORS`, each channel from its percentiles among the samples ``of``."""
    low, high = np.percentile(of, (0.2, 99.8), axis=(0, 1, 2))
    blue, orange = np.moveaxis((samples - low) / (high - low), -1, 0)
    return np.clip(np.stack([orange, orange * 128 / 255, blue], -1), 0, 1)


def test_channels_are_shown_in_their_colors(tmp_path: Path) -> None:
    stack = colored(tmp_path)
    x = stack.samples[...].astype(float)
    found = images(plots.image_grid(stack, [0, 3]))
    np.testing.assert_allclose(np.stack(found) / 255, blend(x[[0, 3]], x[[0, 3]]), atol=0.01)
    found = images(plots.image_grid(stack, [0, 3], data_range=(0, 40000)))
    np.testing.assert_allclose(found[1][..., 2] / 255, np.clip(x[3, ..., 0] / 40000, 0, 1), atol=0.005)
    (shown, *_) = images(pictured({2: stack.samples[2]}, x[[2]], ["c"] * 5, None, (0, 1), samples_given(stack)))
    np.testing.assert_allclose(shown / 255, blend(x[2], x[[2]]), atol=0.01)
    CellPCA(3, cell_shape=20).fit(stack).save(tmp_path / "model.zarr")
    encode_store(stack, tmp_path / "model.zarr", tmp_path / "small.zarr", psnr=50)
    small = open_compressed(tmp_path / "small.zarr")
    worst = int(np.argmin(small.quality["psnr"]))
    original, again, difference = images(plots.worst_cases(small, tmp_path / "small.zarr", 1))
    both = blend(small[worst], small[[worst]])
    np.testing.assert_allclose(np.stack([original, again]) / 255, np.stack([both, both]), atol=0.01)
    assert np.ptp(difference) == 0
    original, again, difference = images(plots.worst_cases(small, stack, 1))
    np.testing.assert_allclose(again / 255, blend(small[worst], x[[worst]]), atol=0.01)
    ladder = images(plots.reconstruction_ladder(small, stack, 1, levels=[1]))
    np.testing.assert_allclose(ladder[0] / 255, blend(x[1], x[[1]]), atol=0.01)
    (mean,) = images(plots.image_grid(stack, [0], axes=("z", "y", "x")))  # without channels
    assert mean.ndim == 2
    model = PCA(2).fit(stack)
    blue, orange = np.moveaxis(model.component_maps(2).astype(float), -1, 0)
    tinted = np.stack([orange, orange * 128 / 255, blue], -1)
    tinted /= np.percentile(np.abs(tinted), 99.5)
    found = images(plots.eigenimages(model))
    np.testing.assert_allclose(np.stack(found[:2]) / 255, np.clip((1 + tinted) / 2, 0, 1), atol=0.02)


def test_slices_of_volumes_are_shown_in_the_colors_of_channels(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 4000, (2, 4, 2, 30, 20)).astype("u2")
    channels = {"Channel": {"Color": [65535, 0xFF8000FF - 2**32]}}
    tifffile.imwrite(tmp_path / "s.ome.tif", x, metadata={"axes": "TZCYX"} | channels)
    slices = images(plots.volume_slices(ingest(tmp_path / "s.ome.tif", tmp_path / "s.zarr"), 1))
    expected = np.moveaxis(x[1], 1, -1).astype(float)
    np.testing.assert_allclose(np.stack(slices) / 255, blend(expected, expected), atol=0.01)
    projections = images(plots.maximum_projections(tmp_path / "s.zarr", 1, data_range=(0, 4000)))
    for axis, found in enumerate(projections):
        blue, orange = np.moveaxis(expected.max(axis) / 4000, -1, 0)
        np.testing.assert_allclose(found / 255, np.stack([orange, orange * 128 / 255, blue], -1), atol=0.01)
