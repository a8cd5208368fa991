"""Every option for the number of components: output and report agree with the estimator."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca import BandPCA, CellPCA
from dpca.cli import main
from dpca.pipelines.celeba_cpca import main as job
from tests.conftest import smooth_images

pytestmark = pytest.mark.usefixtures("small_pictures")


def uneven(n: int = 60) -> np.ndarray:
    """Images with much more variance in the left half than in the right half."""
    x = smooth_images(n, (16, 16)).astype(float)
    x[:, :, 8:] = 128 + (x[:, :, 8:] - 128) * 0.1
    return np.clip(np.rint(x), 0, 255).astype(np.uint8)


@pytest.fixture
def stack(tmp_path: Path) -> str:
    zarr.create_array(str(tmp_path / "x.zarr"), data=uneven(), chunks=(20, 16, 16))
    return str(tmp_path / "x.zarr")


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        (["--components", "3"], {"n_components": 3}),
        (["--components", "all"], {"n_components": None}),
        (["--components", "marchenko-pastur"], {"n_components": "marchenko-pastur"}),
        (["--components", "marchenko-pastur", "--sigma", "0.7"], {"n_components": "marchenko-pastur", "sigma": 0.7}),
        (["--threshold", "0.9"], {"threshold": 0.9}),
        (["--total-components", "31"], {"total_components": 31}),
        (["--ratio", "8", "--max-components", "12"], {"ratio": 8, "max_components": 12}),
        (["--target-mse", "0.001"], {"target_mse": 1e-3}),
        (["--target-psnr", "33.5"], {"target_psnr": 33.5}),
        (["--target-ssim", "0.9"], {"target_ssim": 0.9}),
        (
            ["--target-mse", "0.001", "--validation-fraction", "0.2", "--seed", "3"],
            {"target_mse": 1e-3, "validation_fraction": 0.2, "random_state": 3},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_asked_for_is_kept(
    options: list[str],
    parameters: dict[str, Any],
    stack: str,
    tmp_path: Path,
    scheduler: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["fit", stack, str(tmp_path / "m.zarr"), "--cell", "4", *options, "--scheduler", scheduler]) == 0
    told = capsys.readouterr().out
    expected = CellPCA(cell_shape=4, **{"random_state": 0, **parameters}).fit(uneven())
    ranks = expected.ranks_
    np.testing.assert_array_equal(CellPCA.load(tmp_path / "m.zarr").ranks_, ranks)
    kept = f"{ranks.min()} to {ranks.max()}" if np.ptp(ranks) else str(ranks.max())
    assert f"16 cells, {kept} components each" in told
    target = next((name for name in parameters if name.startswith("target")), None)
    if target:
        assert f"{target} is {parameters[target]:g}; {expected.target_reached_:.6g} (range 0 to 255)" in told


def test_bands_have_ranks_too(stack: str, tmp_path: Path, scheduler: str) -> None:
    options = ["--band-size", "40", "--intervals", "2", "--ratio", "16"]
    assert main(["fit", stack, str(tmp_path / "m.zarr"), *options, "--scheduler", scheduler]) == 0
    expected = BandPCA(band_size=40, n_intervals=2, ratio=16).fit(uneven())
    model = BandPCA.load(tmp_path / "m.zarr")
    np.testing.assert_array_equal(model.ranks_, expected.ranks_)
    assert model.ranks_.sum() == 16


def test_the_report_shows_ranks_that_differ(stack: str, tmp_path: Path, scheduler: str) -> None:
    output = str(tmp_path / "out.zarr")
    argv = ["--source", stack, "--output", output, "--scheduler", scheduler, "--cell", "4"]
    assert job([*argv, "--total-components", "40"]) == 0
    ranks = CellPCA.load(tmp_path / "out.zarr" / "model").ranks_
    assert np.ptp(ranks) > 0
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    assert report["ranks"] == {"min": ranks.min(), "mean": 2.5, "max": ranks.max(), "total": 40}
    assert report["components"] == ranks.max()
    assert report["scalars_ratio"] == 256 / 40
    page = (tmp_path / "out.report" / "index.html").read_text()
    assert f"{ranks.min()} to {ranks.max()} in each cell, 2.5 on average, 40 in all" in page
    assert (tmp_path / "out.report" / "ranks.png").exists()
    # Of equal ranks there is nothing to show.
    assert job([*argv, "--components", "2", "--overwrite"]) == 0
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    assert report["components"] == 2
    assert "ranks" not in report


def test_a_bound_that_costs_something_is_noted(
    tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One cell of noise among constant ones would take all components there are; four times the mean is 4."""
    x = np.zeros((50, 8, 16), np.uint8)
    x[:, :4, :4] = np.random.default_rng(0).integers(0, 256, (50, 4, 4))
    x[:, 4:, 12:] = np.random.default_rng(1).integers(0, 9, (50, 4, 4))
    np.save(tmp_path / "a.npy", x)
    argv = ["--source", str(tmp_path / "a.npy"), "--output", str(tmp_path / "out.zarr"), "--scheduler", scheduler]
    assert job([*argv, "--cell", "4", "--ratio", "16"]) == 0
    assert "note: 2 parts" in capsys.readouterr().out
    assert "--max-components K (max_components=K)" in (tmp_path / "out.report" / "index.html").read_text()


@pytest.mark.parametrize(
    "asked",
    [["--target-mse", "1e-9", "--max-components", "2"], ["--total-components", "1000"]],
)
def test_a_target_that_cannot_be_met_leaves_no_trace(
    asked: list[str], tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "a.npy", uneven())
    stack, model = str(tmp_path / "a.zarr"), str(tmp_path / "model.zarr")
    assert main(["ingest", str(tmp_path / "a.npy"), stack, "--scheduler", scheduler]) == 0
    fit = ["fit", stack, model, "--cell", "4", "--scheduler", scheduler]
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main([*fit, *asked]) == 3
    assert "max_components" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert main([*fit, "--ratio", "16"]) == 0  # no lock is left


def test_images_that_need_no_component(tmp_path: Path, scheduler: str) -> None:
    """The mean is good enough: nothing is kept, and nothing is divided by it."""
    np.save(tmp_path / "a.npy", uneven())
    argv = ["--source", str(tmp_path / "a.npy"), "--output", str(tmp_path / "out.zarr"), "--scheduler", scheduler]
    assert job([*argv, "--cell", "4", "--target-psnr", "1"]) == 0
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    assert report["scalars_ratio"] is None
    assert report["psnr"] > 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--components", "3", "--ratio", "8"], "not allowed with"),
        (["--threshold", "0.9", "--target-mse", "0.1"], "not allowed with"),
        (["--threshold", "1"], "below 1"),
        (["--ratio", "0.5"], "a number of at least 1"),
        (["--target-psnr", "inf"], "positive number"),
        (["--components", "some"], "'all' or 'marchenko-pastur'"),
        (["--max-components", "3"], "one of the arguments"),
        (["--cell", "3", "--ratio", "2"], None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line(options: list[str], says: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    bands = ["--band-size", "9"]
    with pytest.raises(SystemExit) as stop:
        main(["fit", "x.zarr", "m.zarr", *bands, *options])
    assert stop.value.code == 2
    assert re.search(re.escape(says or "not allowed with"), capsys.readouterr().err)


def test_a_bound_on_a_fixed_number_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=uneven())
    bounded = ["--cell", "4", "--components", "3", "--max-components", "5"]
    assert main(["fit", str(tmp_path / "x.zarr"), "m.zarr", *bounded]) == 3
    assert "n_components" in capsys.readouterr().err


def test_targets_of_foreign_floats_mean_the_range_of_their_values(
    tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = uneven() / np.float32(255)
    zarr.create_array(str(tmp_path / "f.zarr"), data=values)
    argv = ["fit", str(tmp_path / "f.zarr"), str(tmp_path / "m.zarr"), "--cell", "4", "--target-psnr", "33.5"]
    assert main([*argv, "--scheduler", scheduler]) == 0
    assert f"(range {values.min():.5g} to {values.max():.5g})" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "m.zarr")
    assert main([*argv, "--data-range", "0,1", "--scheduler", scheduler]) == 0
    expected = CellPCA(cell_shape=4, target_psnr=33.5).fit(uneven())
    np.testing.assert_array_equal(CellPCA.load(tmp_path / "m.zarr").ranks_, expected.ranks_)
