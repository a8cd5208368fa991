"""Volumes and vectors in the ``dpca`` command, with cells and bands: results are those of the estimators."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr

from dpca import BandPCA, CellPCA
from dpca.cli import main
from dpca.storage import open_stack


def waves(n: int, shape: tuple[int, ...], dtype: type, seed: int = 0) -> np.ndarray:
    """A few smooth patterns and some noise, from 0 to 1000."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(4, *shape)).cumsum(axis=-1)
    values = np.tensordot(rng.normal(size=(n, 4)), patterns, 1) + rng.normal(0, 0.3, (n, *shape))
    values = 1000 * (values - values.min()) / np.ptp(values)
    return np.rint(values).astype(dtype) if np.dtype(dtype).kind in "iu" else values.astype(dtype)


class Case(NamedTuple):
    """A stack, how to fit it, the estimator that this means, the scores and whether SSIM is defined."""

    samples: np.ndarray
    options: list[str]
    model: Any
    scores: tuple[tuple[int, ...], tuple[str, ...]]
    ssim: bool


CASES = {
    "volumes in cells": Case(
        waves(20, (21, 20, 23), np.uint16),
        ["--cell", "10x10x10", "--components", "4"],
        CellPCA(4, cell_shape=10),
        ((3, 2, 3, 4), ("cell_z", "cell_y", "cell_x", "component")),
        True,
    ),
    "flat volumes in cells": Case(
        waves(12, (5, 9, 8), np.uint8),
        ["--cell", "5x3x4", "--components", "3"],
        CellPCA(3, cell_shape=(5, 3, 4)),
        ((1, 3, 2, 3), ("cell_z", "cell_y", "cell_x", "component")),
        False,
    ),
    "volumes in bands": Case(
        waves(20, (8, 9, 10), np.float32),
        ["--band-size", "200", "--mapping", "mean", "--intervals", "3", "--components", "4"],
        BandPCA(4, band_size=200, mapping="mean", n_intervals=3, random_state=0),
        ((5, 4), ("band", "component")),
        True,
    ),
    "vectors in cells": Case(
        waves(60, (130,), np.float32),
        ["--cell", "50", "--components", "5"],
        CellPCA(5, cell_shape=50),
        ((3, 5), ("cell_feature", "component")),
        False,
    ),
    "vectors in bands": Case(
        waves(60, (130,), np.float64),
        ["--band-size", "40", "--mapping", "random", "--seed", "3", "--components", "all"],
        BandPCA(None, band_size=40, mapping="random", random_state=3),
        ((4, 40), ("band", "component")),
        False,
    ),
    "images in lapped cells": Case(
        waves(30, (24, 21, 3), np.uint8),
        ["--cell", "8x7", "--overlap", "3", "--components", "4"],
        CellPCA(4, cell_shape=(8, 7), overlap=3),
        ((3, 3, 4), ("cell_y", "cell_x", "component")),
        True,
    ),
    "volumes in cells of one basis": Case(
        waves(12, (8, 10, 8), np.float32),
        ["--cell", "4", "--shared", "--components", "4"],
        CellPCA(4, cell_shape=4, shared=True),
        ((2, 3, 2, 4), ("cell_z", "cell_y", "cell_x", "component")),
        True,
    ),
    "images in bands": Case(
        waves(30, (12, 11, 3), np.uint8),
        ["--band-size", "100", "--intervals", "2", "--estimating", "20", "--split-channels", "--components", "3"],
        BandPCA(3, band_size=100, n_intervals=2, n_estimating=20, keep_channels=False, random_state=0),
        ((5, 3), ("band", "component")),
        True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_there_and_back(name: str, tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]) -> None:
    samples, options, model, (shape, axes), ssim = CASES[name]
    where = ["--scheduler", scheduler]
    np.save(tmp_path / "a.npy", samples)
    source, stack, fitted, scores, again = (
        str(tmp_path / file) for file in ("a.npy", "stack.zarr", "model.zarr", "scores.zarr", "again.zarr")
    )
    cells = options[:2] if options[0] == "--cell" else []
    assert main(["ingest", source, stack, *cells, *where]) == 0
    assert main(["fit", stack, fitted, *options, *where]) == 0
    told = capsys.readouterr().out
    # Of all components, a band of ten has ten.
    least = "10 to " if "all" in options else ""
    assert f"{np.prod(shape[:-1])} {'cells' if cells else 'bands'}, {least}{shape[-1]} components each" in told
    assert main(["transform", fitted, stack, scores, *where]) == 0
    assert ("mean ssim" in (told := capsys.readouterr().out)) == ssim
    assert ("no ssim" in told) != ssim
    assert main(["reconstruct", fitted, scores, again, *where]) == 0

    group = zarr.open_group(scores, mode="r")
    model.fit(open_stack(stack))
    assert group["scores"].shape == (len(samples), *shape)
    assert group["scores"].metadata.dimension_names == ("sample", *axes)
    expected = model.transform(samples)
    np.testing.assert_allclose(group["scores"][...], expected, atol=1e-5 * np.abs(expected).max())
    rebuilt = open_stack(again)
    assert (rebuilt.axes, rebuilt.dtype) == (open_stack(stack).axes, samples.dtype)
    exact = model.inverse_transform(expected)
    if samples.dtype.kind == "u":
        exact = np.clip(np.rint(exact), 0, np.iinfo(samples.dtype).max)
    assert np.abs(rebuilt.samples[...] - exact).max() <= (1 if samples.dtype.kind == "u" else 0.01)

    capsys.readouterr()
    for argv in (["fit", stack, fitted, *options], ["transform", fitted, stack, scores]):
        assert main([*argv, *where]) == 0
        assert "nothing to do" in capsys.readouterr().out


def test_one_length_of_cells_is_that_of_every_axis(tmp_path: Path, scheduler: str) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 80, 90, 70), np.uint8))
    stack = str(tmp_path / "stack.zarr")
    assert main(["ingest", str(tmp_path / "a.npy"), stack, "--cell", "11", "--scheduler", scheduler]) == 0
    assert all(chunk % 11 == 0 for chunk in open_stack(stack).samples.chunks[1:])


@pytest.mark.parametrize(
    "flag", [["--mapping", "mean"], ["--split-channels"], ["--intervals", "3"]], ids=lambda f: f[0]
)
def test_options_of_bands_mean_nothing_to_cells(
    flag: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=waves(4, (10,), np.uint8))
    assert main(["fit", str(tmp_path / "x.zarr"), "m.zarr", "--cell", "5", "--components", "2", *flag]) == 3
    assert f"{flag[0]} requires bands" in capsys.readouterr().err


@pytest.mark.parametrize("flag", [["--overlap", "2"], ["--shared"]], ids=lambda f: f[0])
def test_options_of_cells_mean_nothing_to_bands(
    flag: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=waves(4, (10,), np.uint8))
    assert main(["fit", str(tmp_path / "x.zarr"), "m.zarr", "--band-size", "5", "--components", "2", *flag]) == 3
    assert f"{flag[0]} requires cells" in capsys.readouterr().err


def test_the_range_of_a_foreign_array_tells_scores_apart(
    tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An array of floats does not state its range; the quality depends on it, and so does the store."""
    zarr.create_array(str(tmp_path / "x.zarr"), data=waves(20, (30,), np.float32))
    stack, model, scores = (str(tmp_path / f"{name}.zarr") for name in ("x", "model", "scores"))
    where = ["--scheduler", scheduler]
    assert main(["fit", stack, model, "--cell", "10", "--components", "2", *where]) == 0
    assert main(["transform", model, stack, scores, "--data-range", "0,1000", *where]) == 0
    assert main(["transform", model, stack, scores, "--data-range", "0,2000", *where]) == 4
    assert "other settings" in capsys.readouterr().err
