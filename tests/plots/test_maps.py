"""Maps of modes: signed colors, no data in grey, the north at the top, time functions beside."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.plots.maps import mode_maps
from dpca.plots.panels import signed
from tests.plots.test_plots import pixels

MAPS = np.array([[[1.0, -2.0, np.nan], [0.0, 1.0, 0.5]], [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])


def test_maps_beside_time_functions() -> None:
    series = np.arange(10.0).reshape(5, 2)
    figure = mode_maps(MAPS, series, latitude=[10, 20], times=np.arange(5), shares=[0.5, 0.25], units="K")
    image = figure.axes[0].images[0]
    np.testing.assert_array_equal(image.get_array().filled(9), np.nan_to_num(MAPS[0, ::-1], nan=9))
    assert image.get_clim() == (-2, 2)
    low, middle, high, nothing = image.cmap(image.norm(np.ma.masked_invalid([-2.0, 0.0, 2.0, np.nan])))
    np.testing.assert_allclose([low[:3], high[:3]], signed(np.array([-1.0, 1.0]), 1.0), atol=0.01)
    np.testing.assert_allclose(middle[:3], 1, atol=0.01)
    assert len(set(nothing[:3])) == 1
    curve = figure.axes[2].lines[1]
    np.testing.assert_array_equal(curve.get_ydata(), series[:, 0])
    texts = [text.get_text() for text in figure.texts]
    assert {"1", "2", "50.0%", "25.0%", "K"} <= set(texts)
    assert pixels(figure).size


def test_maps_alone_and_what_does_not_fit() -> None:
    upright = mode_maps(MAPS[:1], latitude=[20, 10]).axes
    np.testing.assert_array_equal(upright[0].images[0].get_array()[1], MAPS[0, 1])
    assert len(upright) == 2
    with pytest.raises(ValueError, match=r"maps have shape \(2, 3\)"):
        mode_maps(MAPS[0])
    with pytest.raises(ValueError, match=r"time functions have shape \(4, 3\): give \(n, 2\)"):
        mode_maps(MAPS, np.zeros((4, 3)))
