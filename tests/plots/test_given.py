"""Figures of models, stores and paths. Only the shown samples are read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.pylabtools import select_figure_formats
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

from dpca import EOF, CellPCA, KernelPCA, StreamingPCA, metrics, open_compressed, open_scores, plots
from dpca.jobs import encode_store, transform_store
from dpca.plots import drawing
from dpca.plots.panels import NO_DATA
from dpca.storage import DataError, StoreError, ingest, open_stack
from tests.plots.test_plots import images, pixels, shown_components, words

N, K = 24, 4


@pytest.fixture(scope="module")
def photographs() -> np.ndarray:
    """Smooth pictures in color, (24, 16, 12, 3) uint8."""
    y, x, c = np.mgrid[:16, :12, :3]
    rng = np.random.default_rng(0)
    waves = rng.uniform(-40, 40, (N, 6, 1, 1, 1)) * [np.sin((y * a + x * b) / 9 + c) for a in (0, 1, 2) for b in (1, 3)]
    return np.clip(128 + waves.sum(1) + rng.normal(0, 4, (N, 16, 12, 3)), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def made(photographs: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stack, a model, scores and a compressed store of them."""
    folder = tmp_path_factory.mktemp("made")
    np.save(folder / "p.npy", photographs)
    ingest(folder / "p.npy", folder / "stack.zarr", cell_shape=(4, 4))
    stack = open_stack(folder / "stack.zarr")
    CellPCA(n_components=K, cell_shape=4).fit(stack).save(folder / "cells.zarr")
    StreamingPCA(K).fit(stack).save(folder / "whole.zarr")
    for name in ("cells", "whole"):
        transform_store(stack, folder / f"{name}.zarr", folder / f"{name}-scores.zarr")
    encode_store(stack, folder / "cells.zarr", folder / "small.zarr", psnr=24.0)
    return folder


def test_a_grid_shows_the_samples_that_are_asked_for_under_their_names(made: Path, photographs: np.ndarray) -> None:
    for source in (photographs, da.from_array(photographs, chunks=(5, 16, 12, 3)), made / "stack.zarr"):
        figure = plots.image_grid(source, [3, -1])
        np.testing.assert_array_equal(images(figure), photographs[[3, -1]])
    assert words(plots.image_grid(made / "stack.zarr", n=3))[::2] == ["00", "12", "23"]
    assert words(plots.image_grid(photographs, 5, names=["$x$"]))[0] == "$x$"
    small = open_compressed(made / "small.zarr")
    np.testing.assert_array_equal(images(plots.image_grid(made / "small.zarr", 7))[0], small[7])


def test_only_what_is_shown_is_read(photographs: np.ndarray) -> None:
    read: list[int] = []

    def look(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        read.append(block_info[0]["array-location"][0][0])
        return block

    lazy = da.from_array(photographs, chunks=(1, 16, 12, 3)).map_blocks(look, dtype=np.uint8, meta=photographs[:0])
    with dask.config.set(scheduler="synchronous"):  # in this process, whatever client another test keeps
        read.clear()
        plots.image_grid(lazy, [4, 9])
        assert sorted(read) == [4, 9]
        read.clear()
        plots.reconstruction_ladder(StreamingPCA(2).fit(photographs), lazy, [6])
        assert read == [6]


@pytest.mark.parametrize("kind", ["cells", "whole"])
def test_a_ladder_shows_what_so_many_components_give_back(kind: str, made: Path, photographs: np.ndarray) -> None:
    from dpca.models.base.store import load_any

    model = load_any(made / f"{kind}.zarr")
    expected = [
        model.inverse_transform(model.transform(photographs[[2]]), k).round().clip(0, 255).astype(np.uint8)
        for k in (1, 2, K)
    ]
    scores = open_scores(made / f"{kind}-scores.zarr", model=model)
    for given in (model, made / f"{kind}.zarr", scores):
        figure = plots.reconstruction_ladder(given, made / "stack.zarr", 2)
        original, *rebuilt, _ = images(figure)
        np.testing.assert_array_equal(original, photographs[2])
        np.testing.assert_array_equal(rebuilt, [one[0] for one in expected])
    told = words(figure)
    assert {"original", "k = 1", "k = 2", f"k = {K}", "02"} <= set(told)
    ssim = metrics.ssim(photographs[[2]], expected[-1], data_range=255)[0]
    assert f"SSIM {ssim:.3f}" in told


def test_a_compressed_store_has_levels_of_its_own(made: Path, photographs: np.ndarray) -> None:
    store = open_compressed(made / "small.zarr")
    shown = images(plots.reconstruction_ladder(store, indices=[1], levels=[1, 2]))
    np.testing.assert_array_equal(shown[0], open_compressed(made / "small.zarr", level=1)[1])
    assert len(shown) == 2
    worst = plots.worst_cases(store, made / "stack.zarr", 2)
    first = int(np.argmin(store.quality["ssim"]))
    np.testing.assert_array_equal(images(worst)[0], photographs[first])
    np.testing.assert_array_equal(images(worst)[1], store[first])
    assert f"SSIM {store.quality['ssim'].min():.3f}" in words(worst)
    (axes,) = plots.ssim_histogram(made / "small.zarr").axes
    assert sum(bar.get_height() for bar in axes.patches) == N


def test_models_are_drawn_by_their_components_and_shares(made: Path, photographs: np.ndarray) -> None:
    from dpca.models.base.store import load_any

    model = load_any(made / "whole.zarr")
    figure = plots.eigenimages(made / "whole.zarr", 2)
    extent = np.percentile(np.abs(model.components_[:2]), 99.5)
    expected = np.rint(255 * np.clip(0.5 + 0.5 * model.components_[:2].reshape(2, 16, 12, 3) / extent, 0, 1))
    np.testing.assert_allclose(shown_components(figure), expected, atol=1)
    assert f"{model.explained_variance_ratio_[1]:.1%}" in words(figure)
    assert len(shown_components(plots.cell_eigenvectors(made / "cells.zarr"))) == K
    np.testing.assert_array_equal(
        plots.rank_map(made / "cells.zarr").axes[0].images[0].get_array(), np.full((16, 12), K)
    )
    (axes,) = plots.explained_variance(made / "cells.zarr").axes
    assert axes.get_legend().get_texts()[-1].get_text() == "mean of 12 cells"
    together = plots.explained_variance({"whole": made / "whole.zarr", "cells": load_any(made / "cells.zarr")})
    heights = {line.get_label().split("  ")[0]: line.get_ydata() for line in together.axes[0].get_lines()}
    np.testing.assert_allclose(heights["whole"], np.cumsum(model.explained_variance_ratio_))


def test_scores_of_stores_are_points_and_curves(made: Path) -> None:
    model, path = made / "whole.zarr", made / "whole-scores.zarr"
    store = open_scores(path, model=model)
    scores, share = store.scores.compute(), store.model.explained_variance_ratio_
    for given in (store, path):
        (axes,) = plots.scores_scatter(given, components=(2, 0), model=model).axes
        np.testing.assert_allclose(axes.collections[0].get_offsets(), scores[:, [2, 0]], rtol=1e-6)
        assert axes.get_xlabel() == f"score 3 ({share[2]:.1%} of the variance)"
    curves = plots.scores_over_time(store, 2)
    np.testing.assert_array_equal([one.lines[1].get_ydata() for one in curves.axes], scores[:, :2].T)
    cells = open_scores(made / "cells-scores.zarr", model=made / "cells.zarr")
    of_cell = cells.scores[:, 1, 2].compute()
    (axes,) = plots.scores_scatter(cells, cell=(1, 2)).axes
    np.testing.assert_allclose(axes.collections[0].get_offsets(), of_cell[:, :2], rtol=1e-6)
    named = xarray.DataArray(scores, dims=("time", "component"), coords={"time": np.arange(N) * 0.5})
    figure = plots.scores_over_time(named, 1)
    np.testing.assert_array_equal(figure.axes[0].lines[1].get_xdata(), np.arange(N) * 0.5)
    assert words(figure)[-1] == "time"


@pytest.mark.cases(1)
@pytest.mark.parametrize("n", [7, 10_001, 25_000])
def test_points_come_from_all_over_the_stack(n: int) -> None:
    lazy = da.arange(2.0 * n, chunks=1000).reshape(n, 2)
    points = plots.scores_scatter(lazy).axes[0].collections[0].get_offsets()
    rows = points[:, 0] / 2
    assert len(rows) == min(n, 10_000)
    assert (rows[0], rows[-1]) == (0, n - 1)
    assert len(plots.scores_over_time(lazy).axes[0].lines[1].get_ydata()) <= 10_000


def test_the_north_is_at_the_top() -> None:
    field = np.random.default_rng(0).random((6, 3, 4))
    south_first = xarray.DataArray(field, dims=("time", "lat", "lon"), coords={"lat": [-10.0, 0, 10]})
    north_first = south_first.isel(lat=slice(None, None, -1))
    draws: list[Callable[[Any], Figure]] = [
        lambda x: plots.image_grid(x, 1, data_range=(0, 1)),
        lambda x: plots.eigenimages(StreamingPCA(1, random_state=0).fit(x)),
        lambda x: plots.eigenimages(EOF(1).fit(x)),
        lambda x: plots.reconstruction_ladder(StreamingPCA(1).fit(x), x),
    ]
    for draw in draws:
        upside, upright = (images(draw(x))[0] for x in (south_first, north_first))
        np.testing.assert_allclose(upside.astype(int), upright.astype(int), atol=1)
    (shown,) = images(plots.image_grid(south_first, 1, data_range=(0, 1)))
    np.testing.assert_array_equal(shown, np.rint(255 * field[1, ::-1]))


def test_the_north_is_at_the_top_of_cells_that_do_not_fill_a_sample_and_of_volumes() -> None:
    """Signs are chosen along the borders of cells, which are counted from the south here."""
    field = np.random.default_rng(0).random((6, 2, 10, 12))
    volumes = xarray.DataArray(field, dims=("time", "level", "lat", "lon"), coords={"lat": np.arange(10.0)})
    for x, cells in ((volumes[:, 1], (4, 4)), (volumes, (1, 4, 4))):
        model = CellPCA(1, cell_shape=cells, random_state=0).fit(x)
        shown, *_ = images(plots.cell_eigenvectors(model, 1))
        south_first, *_ = images(plots.cell_eigenvectors(model.component_maps(1), cell_shape=cells[-2:]))
        np.testing.assert_array_equal(shown, south_first[::-1])


def test_volumes_are_cut_and_projected() -> None:
    volume = np.random.default_rng(0).integers(0, 255, (2, 5, 6, 7), dtype=np.uint8)
    figure = plots.volume_slices(volume, 1, axis=1, n=3)
    np.testing.assert_array_equal(images(figure), volume[1][:, [0, 2, 5]].transpose(1, 0, 2))
    assert words(figure)[::2] == ["y = 0", "y = 2", "y = 5"]
    along = images(plots.maximum_projections(volume, 0))
    for axis in range(3):
        np.testing.assert_array_equal(along[axis], volume[0].max(axis))
    *signed, _ = images(plots.maximum_projections(volume[:1] - 128.0))
    strongest = np.abs(volume[0] - 128.0).argmax(0)
    below = np.take_along_axis(volume[0] - 128.0, strongest[None], 0)[0] < 0
    np.testing.assert_array_equal(signed[0][..., 2] > signed[0][..., 0], below)  # blue below zero


def test_missing_values_are_sand() -> None:
    picture = np.linspace(0, 1, 48).reshape(1, 6, 8)
    picture[0, 2, 3] = np.nan
    (shown,) = images(plots.image_grid(picture))
    np.testing.assert_array_equal(shown[2, 3], np.rint(255 * np.array(NO_DATA)))
    assert (np.ptp(shown.astype(int), axis=-1) > 0).sum() == 1  # all else is gray
    pixels(plots.comparison(picture, picture, ["a"], None, (0, 1)))


def unusual() -> dict[str, Callable[[], Figure]]:
    one, gray, four = np.ones((1, 8, 9, 1)), np.eye(8)[None].repeat(3, 0), np.random.default_rng(0).random((5, 8, 9, 4))
    model, flat = StreamingPCA(2).fit(four), four.reshape(5, -1)
    return {
        "one sample of one channel": lambda: plots.image_grid(one),
        "gray": lambda: plots.image_grid(gray),
        "four channels": lambda: plots.reconstruction_ladder(model, four),
        "eigenimages of four channels": lambda: plots.eigenimages(model),
        "no axes of space": lambda: plots.reconstruction_ladder(StreamingPCA(2).fit(flat), flat),
        "all missing": lambda: plots.image_grid(np.full((2, 4, 4), np.nan)),
        "one score": lambda: plots.scores_over_time(np.zeros((1, 1))),
        "truth values": lambda: plots.image_grid(gray > 0),
    }


@pytest.mark.parametrize("name", unusual())
def test_unusual_samples_are_drawn(name: str) -> None:
    assert pixels(unusual()[name]()).size


def refused() -> dict[str, tuple[str, Callable[[], Any]]]:
    x = np.random.default_rng(0).random((5, 8, 9))
    model = StreamingPCA(2).fit(x)
    return {
        "complex samples": ("Complex data not supported", lambda: plots.image_grid(x + 1j)),
        "complex components": ("real numbers", lambda: plots.eigenimages(x + 1j)),
        "complex scores": ("real numbers", lambda: plots.scores_scatter(x[0] + 1j)),
        "no sample": ("so no values", lambda: plots.image_grid(x[:0])),
        "an empty list": ("is empty", lambda: plots.image_grid(x, [])),
        "beyond the last": ("no sample 5", lambda: plots.image_grid(x, [5])),
        "no number of samples": ("is 0", lambda: plots.image_grid(x, n=0)),
        "axes of others": ("axes are", lambda: plots.image_grid(x, axes=("z", "y", "x"))),
        "more than there are": ("only 2", lambda: plots.eigenimages(model, 3)),
        "no number": ("n_components is 0", lambda: plots.eigenimages(model, 0)),
        "a fraction of a sample": ("give an integer", lambda: plots.image_grid(x, 1.5)),
        "a range of one value": ("data_range is", lambda: plots.image_grid(x, data_range=(1, 1))),
        "one end of a range": ("data_range is 3", lambda: plots.comparison(x, x, list("abcde"), None, 3)),
        "too few shares": ("2 components", lambda: plots.eigenimages(x[:2], explained_variance_ratio=[0.5])),
        "too few shares of scores": (
            "9 components",
            lambda: plots.scores_over_time(x[0], explained_variance_ratio=[0.5]),
        ),
        "too few shares of maps": ("5 components", lambda: plots.mode_maps(x, shares=[0.5])),
        "cells of nothing": ("positive length", lambda: plots.cell_eigenvectors(x, cell_shape=(0, 2))),
        "one component of two": ("components are", lambda: plots.scores_scatter(x[0], components=3)),
        "half a cell": ("cell to show", lambda: plots.scores_scatter(x, cell=(1.5,))),
        "levels beyond": ("a level is 3", lambda: plots.reconstruction_ladder(model, x, levels=[1, 3])),
        "no samples for a model": ("no samples", lambda: plots.reconstruction_ladder(model)),
        "other samples": ("the model has samples of", lambda: plots.reconstruction_ladder(model, x[:, :4])),
        "no model": ("not a model", lambda: plots.reconstruction_ladder(x, x)),
        "not fitted": ("not fitted", lambda: plots.eigenimages(StreamingPCA(2))),
        "no components": ("no components", lambda: plots.eigenimages(KernelPCA(2).fit(x.reshape(5, -1)))),
        "no store": ("no quality", lambda: plots.worst_cases(x, x)),
        "no volume": ("not volumes", lambda: plots.volume_slices(x)),
        "no such axis": ("axis is 3", lambda: plots.volume_slices(x[None], axis=3)),
        "no parts": ("no cells or bands", lambda: plots.rank_map(model)),
        "no cell": ("cell is", lambda: plots.scores_scatter(x)),
        "no such component": ("0 to 8", lambda: plots.scores_scatter(x[0], components=(0, 9))),
        "times of others": ("a time for each", lambda: plots.scores_over_time(x[0], times=[1, 2])),
        "no file": ("nowhere", lambda: plots.image_grid("nowhere")),
        "a model for samples": ("is a model", lambda: plots.image_grid(model)),
        "ragged curve": ("line", lambda: plots.convergence({"a": ([1, 2], [0])})),
    }


@pytest.mark.parametrize("name", refused())
def test_input_that_cannot_be_drawn(name: str) -> None:
    sentence, draw = refused()[name]
    with pytest.raises(Exception, match=sentence) as caught:
        draw()
    assert isinstance(caught.value, DataError | StoreError | NotFittedError)
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_matplotlib_waits_until_something_is_drawn() -> None:
    program = "import sys, dpca; dpca.plots; assert 'matplotlib' not in sys.modules; dpca.plots.image_grid"
    program += "; assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_figures_show_themselves_in_notebooks_with_and_without_pyplot() -> None:
    shell, figure = InteractiveShell(), plots.image_grid(np.zeros((1, 4, 4)))
    data, described = shell.display_formatter.format(figure)
    assert data["image/png"][:4] == b"\x89PNG"
    assert described["image/png"] == {"width": round(drawing.WIDTH * 96)}
    select_figure_formats(
        shell, {"png"}
    )  # as pyplot's backend for notebooks does, which leaves out figures without axes
    assert shell.display_formatter.format(figure)[0]["image/png"] == data["image/png"]
