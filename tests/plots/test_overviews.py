"""Pictures of large samples: what a page shows of them is read, and nothing else."""

from __future__ import annotations

from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpca import PCA, CellPCA, plots
from dpca.jobs.scores.transform import transform_store
from dpca.models.base.store import load_any
from dpca.plots import overviews
from dpca.plots.components import cells_shown, component_pictures
from dpca.plots.given import samples_given
from dpca.plots.overviews import overview, thinned
from dpca.plots.panels import panel
from dpca.storage import ingest
from dpca.storage.arrays.layout import axes_for

PLOTS = ("overviews", "given", "components", "volumes")


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample is large, and a page shows 20 pixels."""
    for name in PLOTS:
        monkeypatch.setattr(import_module(f"dpca.plots.{name}"), "LARGE_BYTES", 100)
    monkeypatch.setattr(overviews, "_READ_BYTES", 1000)
    monkeypatch.setattr(overviews, "_LONGEST", 20)
    monkeypatch.setattr(overviews, "_LONGEST_CURVE", 20)


SHAPES = st.lists(st.integers(1, 60), min_size=1, max_size=2) | st.tuples(
    *(st.integers(1, n) for n in (5, 9, 70, 60, 4))
).flatmap(lambda lengths: st.sampled_from([lengths[i:] for i in range(4)]))


@settings(deadline=None, max_examples=60)
@given(SHAPES, st.sampled_from([1, 8]), st.integers(1, 12))
def test_an_overview_is_what_a_page_shows(shape: tuple[int, ...], itemsize: int, unit: int) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    assume(3 not in shape[-2:])  # `panel` would take the columns for channels
    axes, read = axes_for(shape), []

    def box(region: tuple[tuple[int, int], ...]) -> np.ndarray:
        read.append(prod(b - a for a, b in region) * itemsize)
        return values[tuple(slice(a, b) for a, b in region)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overviews, "LARGE_BYTES", 100)
        patch.setattr(overviews, "_READ_BYTES", 1000)
        patch.setattr(overviews, "_LONGEST", 20)
        patch.setattr(overviews, "_LONGEST_CURVE", 20)
        found = overview(box, shape, itemsize, axes, [unit] * len(shape))
    assert found.ndim == len(shape)
    shown = panel(found, axes)
    expected = panel(values, axes)
    if expected.ndim > 1:
        expected = thinned(expected, 20) if prod(shape) * itemsize > 100 else expected
    elif prod(shape) * itemsize > 100:
        expected = expected[:: -(-len(expected) // 20)]
    np.testing.assert_array_equal(shown, expected)
    if prod(shape) * itemsize > 100:
        row = prod(shape[-(1 + (axes[-1] == "channel")) :]) * itemsize if expected.ndim > 1 else itemsize * 20
        assert max(read) <= max(1000, row)


def _pixels(figure: Any) -> list[np.ndarray]:
    return [np.asarray(picture.get_array()) for picture in figure.artists]


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    folder = tmp_path_factory.mktemp("volumes")
    x = np.random.default_rng(0).integers(0, 250, (6, 12, 18, 16)).astype(np.uint8)
    np.save(folder / "x.npy", x)
    stack = ingest(folder / "x.npy", folder / "x.zarr")
    for name, model in (("pca", PCA(3)), ("cells", CellPCA(2, cell_shape=(4, 5, 6)))):
        model.fit(x).save(folder / f"{name}.zarr")
        transform_store(stack, folder / f"{name}.zarr", folder / f"{name}-scores.zarr")
    return folder, x


def test_slices_and_projections_are_those_of_whole_volumes(
    volumes: tuple[Path, np.ndarray], small_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, x = volumes
    draw = (
        lambda: plots.volume_slices(folder / "x.zarr", 2, axis=1, n=5),
        lambda: plots.volume_slices(x, 2, axis=2, n=3),
        lambda: plots.maximum_projections(folder / "x.zarr", 4),
        lambda: plots.image_grid(folder / "x.zarr", [0, 3]),
    )
    boxes = [_pixels(one()) for one in draw]
    for name in PLOTS:
        monkeypatch.setattr(import_module(f"dpca.plots.{name}"), "LARGE_BYTES", 2**30)
    for one, found in zip(draw, boxes, strict=True):
        whole = _pixels(one())
        assert len(whole) == len(found) > 0
        for a, b in zip(found, whole, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["pca", "cells"])
def test_reconstructions_and_components_are_read_in_boxes(
    kind: str, volumes: tuple[Path, np.ndarray], small_pages: None
) -> None:
    folder, x = volumes
    from dpca import open_scores

    model = load_any(folder / f"{kind}.zarr")
    scores = open_scores(folder / f"{kind}-scores.zarr", model=model)
    found = samples_given(scores).overview(3)
    assert found.shape == (1, 18, 16)
    expected = scores.stack()[3].compute()
    assert np.abs(found[0].astype(int) - expected[6]).max() <= 1
    pictures = component_pictures(model, 2)
    assert pictures is not None
    np.testing.assert_array_equal(pictures[:, 0], model.component_maps(2)[:, 6])
    cells = cells_shown(model, pictures)
    assert cells == (None if kind == "pca" else (4, 5, 6))
    assert plots.eigenimages(model).artists
    if kind == "cells":
        assert plots.rank_map(model).axes
    assert zarr.open_group(folder / f"{kind}-scores.zarr")["scores"].shape[0] == len(x)


def test_strided_components_have_no_cells(small_pages: None) -> None:
    x = np.random.default_rng(0).integers(0, 250, (6, 50, 44)).astype(np.uint8)
    model = CellPCA(2, cell_shape=11).fit(x)
    pictures = component_pictures(model, 5)
    assert pictures is not None
    assert pictures.shape == (2, 17, 15)
    np.testing.assert_array_equal(pictures, model.component_maps(2)[:, ::3, ::3])
    assert cells_shown(model, pictures) is None
