"""Large samples in stores are encoded and decoded in boxes: the scores and samples of whole ones, up to rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca import PCA, BandPCA, CellPCA, PatchPCA
from dpca.kernels.pixels import Pixels
from dpca.models.base import each_sample
from dpca.models.cells import cells_on_disk
from dpca.representation import by_blocks
from dpca.representation.base import Representation
from dpca.representation.reconstruction import samples_of
from tests.helpers.patterned import patterned

WEIGHTS = np.linspace(0, 2, 41 * 52 * 3).reshape(41, 52, 3)
MODELS: dict[str, Any] = {
    "cells": CellPCA(3, cell_shape=(6, 9)),
    "cells that overlap": CellPCA(3, cell_shape=(6, 9), overlap=3),
    "shared cells": CellPCA(3, cell_shape=7, shared=True),
    "cells with weights": CellPCA(3, cell_shape=7, weights=WEIGHTS),
    "whole components": PCA(3),
    "whitened components": PCA(2, whiten=True),
    "patches": PatchPCA(4, patch_shape=(5, 4)),
    "patches with gaps between them": PatchPCA(4, patch_shape=(3, 2), stride=(5, 3)),
    "patches with weights": PatchPCA(4, patch_shape=(4, 6), stride=(3, 4), weights=WEIGHTS),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let all samples be large and boxes small; return the number of values of each sample that a task decodes."""
    seen, decode, encode = list[int](), Representation.decode, Representation.encode

    def decoding(basis: Any, scores: Any, *args: Any, **options: Any) -> Any:
        seen.append(int(np.prod(basis.sample_shape)))
        return decode(basis, scores, *args, **options)

    def encoding(basis: Any, samples: Any, *args: Any) -> Any:
        seen.append(samples[0].size)
        return encode(basis, samples, *args)

    monkeypatch.setattr(by_blocks, "LARGE_SAMPLE", 0)
    monkeypatch.setattr(by_blocks, "_TASK_BYTES", 2**15)
    monkeypatch.setattr(Representation, "decode", decoding)
    monkeypatch.setattr(Representation, "encode", encoding)
    monkeypatch.setitem(each_sample._BY_BOXES, encoding, by_blocks.encoded_by_boxes)
    return seen


@pytest.mark.cases(9)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_boxes_are_those_of_whole_samples(name: str, dtype: str, small: list[int], tmp_path: Path) -> None:
    x, model = patterned(9, WEIGHTS.shape, dtype, 0), MODELS[name]
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(2, 11, 20, 3))
    expected = model.fit(x).transform(x)
    atol = 1e-4 * np.abs(expected).max()
    zarr.create_array(str(tmp_path / "y.zarr"), data=expected, chunks=(4, *expected.shape[1:-1], 2))
    back = model.inverse_transform(expected)
    pixels, tolerance = Pixels(np.dtype("u1"), (0, 255)), 1e-4 * np.abs(back).max()
    rounded, of_two = samples_of(model.basis_, expected, None, pixels), model.inverse_transform(expected[..., :2], 2)
    small.clear()
    for given in (str(tmp_path / "x.zarr"), da.from_array(x, chunks=(4, 41, 13, 3))):
        scores = model.transform(given)
        assert (scores.shape, scores.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(scores.compute(), expected, atol=atol)
        assert all(len(set(lengths[:-1])) < 2 for lengths in scores.chunks)  # as `to_zarr` requires
    for given in (da.from_array(expected, chunks=(3, 5, *expected.shape[2:])[: expected.ndim]), tmp_path / "y.zarr"):
        lazy = given if isinstance(given, da.Array) else str(given)
        samples = model.inverse_transform(lazy)
        assert (samples.shape, samples.dtype) == (back.shape, back.dtype)
        np.testing.assert_allclose(samples.compute(), back, atol=tolerance)
    np.testing.assert_allclose(model.inverse_transform(str(tmp_path / "y.zarr"), 2), of_two, atol=tolerance)
    assert len(small) > 30
    assert max(small) < x[0].size
    found = samples_of(model.basis_, da.from_array(expected), None, pixels)
    assert found.dtype == np.uint8
    np.testing.assert_allclose(found.compute().astype(int), rounded, atol=1)


def test_volumes_and_series(small: list[int]) -> None:
    for shape, model in (
        ((20, 22, 24), CellPCA(2, cell_shape=(4, 3, 5), overlap=2)),
        ((20, 22, 24), PatchPCA(3, patch_shape=(2, 3, 4), stride=(1, 2, 3))),
        ((4001,), PatchPCA(3, patch_shape=7, stride=2)),
        ((4001,), CellPCA(2, cell_shape=7)),
    ):
        x = patterned(12, shape, "float32", 1)
        expected = model.fit(x).transform(x)
        small.clear()
        np.testing.assert_allclose(model.transform(da.from_array(x)), expected, atol=1e-4 * np.abs(expected).max())
        back = model.inverse_transform(da.from_array(expected)).compute()
        assert max(small) < x[0].size
        np.testing.assert_allclose(back, model.inverse_transform(expected), atol=1e-4 * np.abs(back).max())


def test_components_on_disk_are_read_in_the_boxes(
    small: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x = patterned(9, (60, 80), "float32", 0)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(2, 20, 20))
    expected = CellPCA(3, cell_shape=8).fit(x).transform(x)
    monkeypatch.setattr(cells_on_disk, "MOST_BYTES", 0)
    model = CellPCA(3, cell_shape=8).fit(x)
    assert isinstance(model.components_, da.Array)
    small.clear()
    scores = model.transform(str(tmp_path / "x.zarr"))
    np.testing.assert_allclose(scores.compute(), expected, atol=1e-3)
    back = model.inverse_transform(scores).compute()
    assert max(small) < x[0].size
    np.testing.assert_allclose(back, model.inverse_transform(expected), rtol=1e-3, atol=1e-3)


def test_bands_are_in_boxes_and_samples_that_are_not_large_are_whole(
    small: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = da.from_array(patterned(9, (60, 80), "float32", 0), chunks=(3, 20, 20))
    bands = BandPCA(2, band_size=50, mapping="raster").fit(x)
    scores = bands.transform(x).compute()
    assert max(small) < x[0].size
    np.testing.assert_allclose(scores, bands.transform(x.compute()), atol=1e-3)
    monkeypatch.setattr(by_blocks, "LARGE_SAMPLE", 2**40)
    small.clear()
    cells = CellPCA(3, cell_shape=8).fit(x)
    cells.inverse_transform(cells.transform(x)).compute()
    assert set(small) == {x[0].size}
