"""PSNR, SSIM and pictures if no data range is stated: cameras fill 12 of the 16 bits of an integer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from matplotlib.figure import Figure

import dpca
from dpca import plots
from dpca.engine.sources.source import as_source
from dpca.explore.opening import open_explorer
from dpca.jobs import CompressionSettings, compress, encode_store, fit_store, plan_job, transform_store
from dpca.models.base.value_range import spanned_range
from dpca.report.record import format_table
from dpca.storage import StoreError, ingest, open_stack
from dpca.storage.input import open_input
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.helpers.pictures import empty_picture

HIGH = 2_632


@pytest.fixture(scope="module")
def movie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dim movie of 12 bits in 16, as .npy and as plain Zarr: a spot that wanders, and a hot pixel at times."""
    folder, rng = tmp_path_factory.mktemp("movie"), np.random.default_rng(0)
    t, y, x = np.ogrid[:40, :24, :32]
    spot = np.exp(-((y - 12 - 6 * np.sin(t / 5)) ** 2 + (x - 16 - 9 * np.cos(t / 7)) ** 2) / 60)
    values = (rng.poisson(200 + 700 * spot)).astype(np.uint16)
    values[7, 3, 3], values[30, 20, 20] = HIGH, 0
    np.save(folder / "m.npy", values)
    zarr.create_array(folder / "m.zarr", data=values, chunks=(16, 12, 32))
    zarr.create_array(folder / "floats.zarr", data=values.astype(np.float32), chunks=(16, 24, 32))
    return folder


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Collect the images of all figures of a report, instead of drawing them."""
    found: list[np.ndarray] = []

    def collect(figure: Figure) -> bytes:
        found.extend(np.asarray(image.get_array()) for image in figure.artists)
        return empty_picture(figure)

    monkeypatch.setattr("dpca.report.record.png", collect)
    return found


def require_contrast(picture: np.ndarray, white: float = 1.0) -> None:
    values = np.asarray(picture, np.float64) / white
    assert 0.1 < values.mean() < 0.9
    assert np.ptp(np.percentile(values, [5, 95])) > 0.3
    assert ((values <= 0) | (values >= 1)).mean() < 0.05


@pytest.mark.parametrize("name", ["m.npy", "m.zarr", "floats.zarr"])
def test_psnr_and_ssim_refer_to_what_the_values_span_and_pictures_are_not_black(
    movie: Path, tmp_path: Path, drawn: list[np.ndarray], name: str
) -> None:
    values = np.load(movie / "m.npy")
    settings = CompressionSettings(dpca.CellPCA(6, cell_shape=8), reconstruct=True)
    said: list[str] = []
    report = compress(movie / name, tmp_path / "out.zarr", settings, run=Run(say=said.append)).report
    assert report["data_range"] == [0, HIGH]
    rebuilt = zarr.open_array(tmp_path / "out.zarr/reconstructions", mode="r")[:].astype(np.float64)
    psnr = 10 * np.log10(HIGH**2 / np.mean((rebuilt - values) ** 2))
    assert report["psnr"] == pytest.approx(psnr, abs=0.01)
    lines = [line for line in format_table(report).splitlines() if line.startswith(("PSNR", "SSIM"))]
    assert len(lines) == 3
    assert all("(range 0 to 2,632)" in line for line in lines)
    assert (tmp_path / "out.report/index.html").read_text().count("range 0 to 2,632") >= 5
    assert not any("under a tenth" in note for note in report["notes"])
    assert ("range" in report["stages"]) == name.endswith("zarr") == any("--data-range" in line for line in said)
    panels = [picture for picture in drawn if picture.shape == (24, 32)]
    assert len(panels) >= 24
    for original, _, _ in zip(panels[::3], panels[1::3], panels[2::3], strict=False):
        require_contrast(original, 255)


@pytest.mark.usefixtures("drawn")
def test_a_range_of_which_little_is_used_is_warned_of(movie: Path, tmp_path: Path) -> None:
    settings = CompressionSettings(dpca.CellPCA(6, cell_shape=8), reading=ReadOptions(data_range=(0, 65535)))
    report = compress(movie / "m.npy", tmp_path / "out.zarr", settings).report
    (warning,) = [note for note in report["notes"] if "under a tenth" in note]
    assert "range 0 to 65,535" in warning
    assert "PSNR" in warning
    assert "range 0 to 65,535" in format_table(report)


@pytest.mark.parametrize(
    ("data_range", "words"),
    [((0, 4000), "under a hundredth of the range 0 to 4,000"), ((0, 4), "lie partly outside of")],
)
def test_a_goal_in_a_range_that_values_do_not_fill_is_warned_of(
    tmp_path: Path, data_range: tuple[float, float], words: str | None
) -> None:
    np.save(tmp_path / "f.npy", np.random.default_rng(0).uniform(-4, 4, (40, 16, 16)).astype(np.float32))
    stack = ingest(tmp_path / "f.npy", tmp_path / "f.zarr", reading=ReadOptions(data_range=data_range))
    dpca.CellPCA(8, cell_shape=8, shared=True).fit(stack).save(tmp_path / "model.zarr")
    said: list[str] = []
    encode_store(stack, tmp_path / "model.zarr", tmp_path / "out.zarr", run=Run(say=said.append), psnr=5.0)
    warnings = [line for line in said if "--data-range" in line]
    assert len(warnings) == (words is not None)
    assert all(str(words) in line for line in warnings)


@pytest.mark.long
@pytest.mark.usefixtures("drawn")
def test_an_unstated_range_is_found_once_and_serves_a_goal_of_all_stages(movie: Path, tmp_path: Path) -> None:
    settings = CompressionSettings(dpca.CellPCA(cell_shape=8), goal={"psnr": 34.0}, choose_cells=True)
    planned = plan_job(open_input(movie / "m.zarr"), settings, workers=[1])[0]
    assert next(iter(planned.stages)) == "range"
    report = compress(movie / "m.zarr", tmp_path / "out.zarr", settings).report
    decoded = dpca.open_compressed(tmp_path / "out.zarr")[:].astype(np.float64)
    error = np.mean((decoded - np.load(movie / "m.npy")) ** 2)
    assert 10 * np.log10(HIGH**2 / error) == pytest.approx(report["psnr"], abs=0.01)
    assert report["psnr"] > 33.5


def test_stages_by_themselves_find_the_range_too(movie: Path, tmp_path: Path) -> None:
    stack = open_stack(movie / "m.zarr")
    assert stack.data_range is None
    fit_store(stack, tmp_path / "model.zarr", model := dpca.CellPCA(target_psnr=30.0, cell_shape=8))
    assert model.target_numbers()["data_range"] == [0, HIGH]
    assert dpca.CellPCA.load(tmp_path / "model.zarr").target_numbers() == model.target_numbers()
    transform_store(stack, tmp_path / "model.zarr", tmp_path / "scores.zarr")
    encode_store(stack, tmp_path / "model.zarr", tmp_path / "codes.zarr", psnr=28)
    for name in ("scores", "codes"):
        facts = json.loads((tmp_path / f"{name}.zarr/zarr.json").read_text())["attributes"]["dpca"]
        assert facts["data_range"] == [0, HIGH]


def test_another_stated_range_makes_other_scores(movie: Path, tmp_path: Path) -> None:
    narrow, wide = (replace(open_stack(movie / "m.zarr"), data_range=(0.0, high)) for high in (HIGH, 2.0 * HIGH))
    fit_store(narrow, tmp_path / "model.zarr", dpca.PCA(2))
    transform_store(narrow, tmp_path / "model.zarr", tmp_path / "scores.zarr")
    with pytest.raises(StoreError, match="settings"):
        transform_store(wide, tmp_path / "model.zarr", tmp_path / "scores.zarr")


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: plots.image_grid(path, n=3),
        lambda path: plots.image_grid(np.load(path), n=3),
        lambda path: plots.reconstruction_ladder(dpca.PCA(3).fit(np.load(path)), np.load(path), [1, 2], levels=[1, 3]),
        lambda path: plots.volume_slices(np.load(path)[None], n=4),
        lambda path: plots.maximum_projections(np.load(path)[None]),
    ],
)
def test_plots_are_neither_black_nor_blown_out(movie: Path, draw: Callable[[Path], Any]) -> None:
    shown = [np.asarray(image.get_array()) for image in draw(movie / "m.npy").artists]
    assert shown
    require_contrast(shown[0], 255)


def test_explore_is_neither_black_nor_blown_out(movie: Path) -> None:
    explorer = open_explorer(str(movie / "m.zarr")).explorer
    require_contrast(explorer.view(5, 1).original)
    require_contrast(explorer.thumbnail(9))


def test_photographs_of_8_bits_are_shown_as_they_are_unless_they_are_black() -> None:
    photographs = np.random.default_rng(0).integers(30, 200, (4, 20, 20), dtype=np.uint8)
    (shown, *_) = (np.asarray(image.get_array()) for image in plots.image_grid(photographs).artists)
    np.testing.assert_array_equal(shown, photographs[0])
    (shown, *_) = (np.asarray(image.get_array()) for image in plots.image_grid(photographs // 10).artists)
    assert (shown.min(), shown.max()) == (0, 255)


def test_the_range_of_samples_with_long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one row of a sample is more than is read at a time."""
    x = np.random.default_rng(0).normal(size=(5, 3, 700)).astype(np.float32)
    monkeypatch.setattr("dpca.models.base.value_range._TOGETHER", 1000)
    assert spanned_range(as_source(x), Run()) == (x.min(), x.max())
