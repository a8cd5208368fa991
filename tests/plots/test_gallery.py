"""Galleries: panels are in their places."""

from __future__ import annotations

import io

import numpy as np
import pytest

from dpca.plots.layouts import gallery


@pytest.mark.parametrize("shape", [(12, 10), (12, 10, 3), (40,), (300, 4)])
def test_a_gallery_has_a_panel_for_each_place(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    rows = [[rng.uniform(size=shape) for _ in range(4)] for _ in range(2)]
    heads, notes = ["original", "a", "b", "c"], ["", "k = 5", "", "a note that is too long to fit above a panel"]
    captions = [["", "SSIM 0.100", "SSIM 0.200", ""], ["", "", "", "SSIM 0.300"]]
    figure = gallery(rows, heads, notes, ["one.png", "$two$.png"], captions)
    panels = figure.artists or figure.axes
    assert len(panels) == 8
    told = [text.get_text() for text in figure.texts]
    for text in (*heads, "k = 5", "one.png", "$two$.png", "SSIM 0.100", "SSIM 0.300"):
        assert text in told
    if len(shape) > 1:
        shown = np.asarray(panels[2].get_array())
        np.testing.assert_array_equal(shown, np.rint(rows[0][1] * 255))
    places = [one.get_window_extent() for one in panels]
    # Column after column, each from top to bottom.
    assert places[0].y0 > places[1].y0
    assert places[0].x0 == places[1].x0 < places[2].x0
    figure.savefig(io.BytesIO(), format="png")


def test_a_gallery_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="fill"):
        gallery([], ["a"], [""], [])
    with pytest.raises(ValueError, match="fill"):
        gallery([[np.zeros((2, 2))]], ["a", "b"], ["", ""], ["x"])
    with pytest.raises(ValueError, match="notes"):
        gallery([[np.zeros((2, 2))]], ["a"], [], ["x"])
