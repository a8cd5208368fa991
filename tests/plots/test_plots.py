"""Figures are compared with the arrays, pixel by pixel."""

from __future__ import annotations

import io
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import rcParams
from matplotlib._pylab_helpers import Gcf
from matplotlib.figure import Figure
from PIL import Image

from dpca import plots
from dpca.plots import drawing

GRAY = 128


@pytest.fixture
def photographs():
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, size=(4, 12, 10, 3), dtype=np.uint8)


def images(figure: Figure) -> list[np.ndarray]:
    """All pictures of a figure as they are shown, in order."""
    return [np.asarray(picture.get_array()) for picture in figure.artists]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def pixels(figure: Figure) -> np.ndarray:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return np.asarray(Image.open(buffer).convert("RGB"))


def test_comparison_shows_original_reconstruction_difference(photographs):
    rebuilt = photographs.astype(np.float32)
    rebuilt[1] = np.clip(rebuilt[1] + 20, 0, 255)
    figure = plots.comparison(photographs, rebuilt, list("abcd"), [1, 0.9, 1, np.nan], (0, 255))
    shown = images(figure)
    assert len(shown) == 12
    np.testing.assert_array_equal(shown[0], photographs[0])
    np.testing.assert_array_equal(shown[4], rebuilt[1])
    np.testing.assert_array_equal(shown[2], GRAY)  # perfect: neutral gray
    assert (shown[5] >= GRAY).all()  # too bright: brighter than gray
    assert shown[5].mean() > 200
    assert {"a", "SSIM 0.900", "original", "reconstruction", "difference \N{MULTIPLICATION SIGN} 5"} <= set(
        words(figure)
    )
    assert sum(text.startswith("SSIM") for text in words(figure)) == 3


def test_ranks_are_shown_where_they_are():
    ranks = np.repeat(np.repeat([[1, 2], [3, 12]], 5, axis=0), 4, axis=1)
    figure = plots.rank_map(ranks)
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), ranks)
    # The middle slice of a volume; channels of one pixel together.
    volume = np.stack([0 * ranks, ranks, 0 * ranks])
    np.testing.assert_array_equal(plots.rank_map(volume).axes[0].images[0].get_array(), ranks)
    colored = plots.rank_map(np.stack([ranks, ranks, ranks + 3], axis=-1), axes=("y", "x", "channel"))
    np.testing.assert_array_equal(colored.axes[0].images[0].get_array(), ranks + 1)
    labels = [int(text.get_text()) for text in figure.axes[1].get_yticklabels()]
    assert labels == sorted(set(labels))
    drawn = pixels(figure)
    assert drawn.shape[1] == drawing.WIDTH * drawing.DPI
    box = figure.axes[0].get_position()
    height, width = drawn.shape[:2]
    few, many = (
        drawn[int((1 - y) * height), int(x * width)]
        for y, x in ((box.y1 - 0.05, box.x0 + 0.05), (box.y0 + 0.05, box.x1 - 0.05))
    )
    assert few.mean() > 200 > many.mean()  # the darker, the more


def test_ranks_of_vectors_are_a_line():
    ranks = np.array([0, 0, 3, 3, 1])
    np.testing.assert_array_equal(plots.rank_map(ranks).axes[0].lines[0].get_ydata(), ranks)


def test_perfect_difference_is_neutral_in_the_rendered_picture(photographs):
    figure = plots.comparison(photographs[:1], photographs[:1], ["a"], None, (0, 255))
    drawn = pixels(figure)
    box = figure.artists[2].get_window_extent().transformed(figure.transFigure.inverted())
    height, width = drawn.shape[:2]
    inside = drawn[
        int((1 - box.y1) * height) + 2 : int((1 - box.y0) * height) - 2,
        int(box.x0 * width) + 2 : int(box.x1 * width) - 2,
    ]
    assert inside.size > 100_000
    np.testing.assert_array_equal(inside, GRAY)
    assert "difference" in words(figure)
    assert width == drawing.WIDTH * drawing.DPI


@pytest.mark.parametrize(
    ("dtype", "data_range"),
    [(np.uint8, (0, 255)), (np.uint16, (0, 65535)), (np.float32, (-1, 1)), (np.float64, (0, 1e9)), (bool, (0, 1))],
)
def test_any_dtype_and_range_maps_to_black_and_white(dtype, data_range):
    low, high = data_range
    sample = np.array([[[low, high], [high, low]]]).astype(dtype)
    original, rebuilt, error = images(plots.comparison(sample, sample, ["s"], None, data_range))
    np.testing.assert_array_equal(original, [[0, 255], [255, 0]])
    np.testing.assert_array_equal(rebuilt, original)
    np.testing.assert_array_equal(error, GRAY)


def test_volumes_show_their_middle_slice():
    volume = np.random.default_rng(0).random((2, 5, 8, 9))
    shown = images(plots.comparison(volume, volume, ["a", "b"], None, (0, 1)))
    np.testing.assert_array_equal(shown[3], np.rint(volume[1, 2] * 255))


def test_samples_of_one_axis_are_curves():
    curves = np.sin(np.linspace(0, 9, 50)) * np.ones((2, 1))
    figure = plots.comparison(curves, 0.9 * curves, ["a", "b"], None, (-1, 1))
    assert not images(figure)
    assert len(figure.axes) == 6
    (line,) = (line for line in figure.axes[0].lines if len(line.get_ydata()) == 50)
    np.testing.assert_allclose(line.get_ydata(), (curves[0] + 1) / 2)
    pixels(figure)


def test_arrays_that_do_not_fit_are_refused(photographs):
    with pytest.raises(ValueError, match="originals"):
        plots.comparison(photographs, photographs[:3], list("abcd"), None, (0, 255))
    with pytest.raises(ValueError, match="names"):
        plots.comparison(photographs, photographs, list("abc"), None, (0, 255))
    with pytest.raises(ValueError, match="data_range"):
        plots.comparison(photographs, photographs, list("abcd"), None, (255, 0))
    with pytest.raises(ValueError, match="components"):
        plots.eigenimages(np.empty((0, 3, 3)))


@pytest.mark.parametrize("name", ["$x_1$", "$\\bad{", "日本語", "a\nb\tc", "\udc80", "\x1b[31m", "x" * 5000, "", "😀"])
def test_hostile_names_are_drawn_as_text(photographs, name):
    figure = plots.comparison(photographs[:2], photographs[:2], [name, "other"], [0.9, 0.8], (0, 255))
    pixels(figure)  # warnings about missing glyphs or bad mathematics are errors
    assert all("\n" not in text and len(text) < 100 for text in words(figure))


def test_drawable_leaves_out_folders_and_keeps_both_ends():
    assert drawing.drawable("lfw/Aaron_Eckhart_0001.jpg", 40) == "lfw/Aaron_Eckhart_0001.jpg"
    assert drawing.drawable("lfw/Aaron_Eckhart/Aaron_Eckhart_0001.jpg", 22) == "Aaron_Eckhart_0001.jpg"
    short = drawing.drawable("lfw/Aaron_Eckhart_0001.jpg", 12)
    assert len(short) == 12
    assert short.startswith("Aaron")
    assert short.endswith("1.jpg")


@pytest.mark.long
@given(st.text(max_size=80), st.integers(3, 60))
def test_any_name_fits_its_place(name, length):
    told = drawing.drawable(name, length)
    assert len(told) <= length
    assert told.isprintable()
    assert drawing.drawable(told, length) == told
    assert told[-1:] == drawing.drawable(name, 100)[-1:]


def shown_components(figure: Figure) -> list[np.ndarray]:
    """All panels but the scale at the foot."""
    return images(figure)[:-1]


def test_components_share_one_scale_and_are_colored_by_sign():
    components = np.zeros((3, 20, 20))
    components[0, 5:15, 5:15] = 0.3
    components[1, :, :10], components[1, :, 10:] = -0.15, np.nan
    figure = plots.eigenimages(components, explained_variance_ratio=[0.5, 0.25, 0.125])
    first, second, third = shown_components(figure)
    np.testing.assert_array_equal(third, 255)  # zero is white
    assert (first[0, 0] == 255).all()
    assert first[10, 10, 0] > first[10, 10, 2]  # above it red
    assert second[0, 0, 2] > second[0, 0, 0]  # below it blue, and paler, for it is half as far
    assert second[0, 0].sum() > first[10, 10].sum()
    assert len(set(second[0, 15])) == 1  # no data is gray
    assert second[0, 15, 0] < 255
    assert {"1", "2", "3", "50.0%", "25.0%", "0.3", "\N{MINUS SIGN}0.3"} <= set(words(figure))
    colored = shown_components(plots.eigenimages(np.stack([components] * 3, axis=-1)[[0, 2]]))
    np.testing.assert_array_equal(colored[1], GRAY)
    assert colored[0][10, 10].min() == 255


def test_eigenvectors_agree_across_cells_only_when_told_the_cells():
    checkered = np.kron([[1, -1, 1], [-1, 1, -1]], np.ones((4, 4)))[None]
    assert len(np.unique(shown_components(plots.cell_eigenvectors(checkered))[0].reshape(-1, 3), axis=0)) == 2
    (aligned,) = shown_components(plots.cell_eigenvectors(checkered, cell_shape=(4, 4)))
    assert len(np.unique(aligned.reshape(-1, 3), axis=0)) == 1
    # of volumes the slice's part of the cell counts
    volume = np.stack([checkered] * 6, axis=1)
    (sliced,) = shown_components(plots.cell_eigenvectors(volume, cell_shape=(2, 4, 4)))
    np.testing.assert_array_equal(sliced, aligned)


@pytest.mark.parametrize(
    "shape", [(5, 8, 9), (5, 8, 9, 3), (7, 6, 8, 9), (2, 4, 8, 9, 3), (9, 30), (1, 2, 90), (1, 90, 2)]
)
def test_eigenimages_of_any_shape(shape):
    figure = plots.eigenimages(np.random.default_rng(0).normal(size=shape))
    assert len(figure.axes) + len(figure.artists) == shape[0] + (len(shape) > 2)  # and the scale
    pixels(figure)


def test_explained_variance_shows_mean_and_spread():
    ratio = np.array([[0.5, 0.7, 0.8], [0.7, 0.9, 0.9999], [np.nan] * 3])
    (axes,) = plots.explained_variance(ratio).axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.6, 0.8, 0.89995])
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["90% of cells", "half of the cells", "mean of 2 cells"]
    assert axes.texts[0].get_text() == "89.9%"
    low, high = axes.get_ylim()
    assert low <= 0.5
    assert 1 <= high < 1.05


def test_explained_variance_never_overclaims():
    (axes,) = plots.explained_variance([0.5, 0.99999]).axes
    assert axes.texts[0].get_text() == "99.9%"


@pytest.mark.parametrize("ratio", [[[0.4]], [0.1, 0.2], np.full((3, 2), np.nan), np.ones((4, 200))])
def test_explained_variance_of_any_size(ratio):
    pixels(plots.explained_variance(ratio))


def test_histogram_holds_every_value_and_marks_mean_and_worst():
    values = np.append(np.random.default_rng(0).normal(0.95, 0.01, 500).clip(0, 1), [0.5, np.nan])
    (axes,) = plots.ssim_histogram(values).axes
    assert sum(bar.get_height() for bar in axes.patches) == 501
    marks = {text.get_text(): text.xy[0] for text in axes.texts}
    assert marks == {"mean 0.949": pytest.approx(np.nanmean(values)), "worst 0.500": 0.5}


@pytest.mark.parametrize("values", [[0.5], [1.0, 1.0], [-1, 1], np.full(1000, 0.25), np.linspace(0, 1, 10**5)])
def test_histogram_of_any_values(values):
    figure = plots.ssim_histogram(values)
    assert sum(bar.get_height() for bar in figure.axes[0].patches) == len(values)
    pixels(figure)


def test_histogram_needs_a_value():
    with pytest.raises(ValueError, match="no.SSIM"):
        plots.ssim_histogram([np.nan])


def test_scores_are_placed_by_the_first_two_and_colored_by_their_place():
    figure = plots.scores_scatter([[1, 2, 9], [-3, 4, 9]], [0, 1], explained_variance_ratio=[0.5, 0.25, 0.1])
    (axes,) = figure.axes
    (points,) = axes.collections
    np.testing.assert_array_equal(points.get_offsets(), [[1, 2], [-3, 4]])
    np.testing.assert_array_equal(points.get_array(), [0, 1])
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "score 1 (50.0% of the variance)",
        "score 2 (25.0% of the variance)",
    )
    early, late = points.get_cmap()([0.0, 1.0])
    assert early[:3].sum() < late[:3].sum()


def test_a_single_score_is_drawn_along_the_stack():
    figure = plots.scores_scatter([[1.0], [-3.0]], [0, 1])
    np.testing.assert_array_equal(figure.axes[0].collections[0].get_offsets(), [[0, 1], [1, -3]])
    assert figure.axes[0].get_ylabel() == "score 1"
    pixels(figure)


def test_scores_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"\(3,.0\)"):
        plots.scores_scatter(np.zeros((3, 0)))
    with pytest.raises(ValueError, match="place"):
        plots.scores_scatter(np.zeros((3, 2)), [0, 1])
    with pytest.raises(ValueError, match=r"scores.*\(2,\):"):
        plots.scores_scatter([1, 2], [0, 1])


def test_global_state_is_left_alone_and_threads_do_not_disturb(photographs):
    style, managed = dict(rcParams), len(Gcf.figs)
    drawn: list[np.ndarray] = []

    def draw() -> None:
        drawn.append(pixels(plots.comparison(photographs, photographs, list("abcd"), None, (0, 255))))

    threads = [threading.Thread(target=draw) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drawn) == 3
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[0], drawn[2])
    assert (dict(rcParams), len(Gcf.figs)) == (style, managed)
