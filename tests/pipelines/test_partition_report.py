"""The partition report as a user runs it: numbers against scikit-learn's, pictures, other stacks, stops, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from PIL import Image
from skimage.metrics import structural_similarity
from sklearn.decomposition import PCA

from dpca import BandPCA
from dpca.pipelines import partition_report as program
from dpca.pipelines.partition_report import main
from dpca.pipelines.studies.partitions import PartitionSettings, records, report_partitions, samples
from dpca.pipelines.studies.partitions.pictures import CAPTIONS
from dpca.plots import drawing
from dpca.storage import open_stack, verify
from dpca.storage.errors import DataError
from dpca.storage.readers import open_reader
from tests.conftest import smooth_images

pytestmark = pytest.mark.usefixtures("small_pictures")

SMALL = ["--cells", "4", "7", "--ratio", "12", "--band-size", "90", "--holistic", "4", "--estimating", "10"]


@pytest.fixture
def one_sample_pictured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_PICTURED", 1)


def store(path: Path, x: np.ndarray, rows: int = 16) -> str:
    zarr.create_array(str(path), data=x, chunks=(rows, *x.shape[1:]))
    return str(path)


def lines_of(report: dict[str, Any], table: str) -> dict[str, dict[str, Any]]:
    return {line["name"]: line for line in report["tables"][table]["lines"]}


@pytest.mark.usefixtures("drawn_pictures")
def test_every_number_is_what_it_says(tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = smooth_images(60, (14, 12, 3))
    source, output = store(tmp_path / "x.zarr", x), tmp_path / "out.zarr"
    argv = ["--source", source, "--output", str(output), *SMALL, "--train-fraction", "0.75", "--evaluate", "9"]
    assert main([*argv, "--scheduler", scheduler]) == 0
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    group = zarr.open_group(str(output), mode="r")
    held_out, training = group["held_out/number"][...], group["training/number"][...]
    assert (len(held_out), len(training)) == (9, 9)
    assert not set(held_out) & set(training)
    design = report["design"]
    assert (design["n_samples"], design["n_held_out"], design["components"]) == (60, 15, [3, 10])
    # One of the held-out samples in each quarter.
    rest = np.delete(np.arange(60), _all_held_out(output, 60, 15))

    # Cells of 7 x 7, against scikit-learn, cell by cell.
    rebuilt = np.empty((60, 14, 12, 3))
    left, total = 0.0, 0.0
    for top in (0, 7):
        for side in (0, 7):
            cell = x[:, top : top + 7, side : side + 7].astype(np.float64)
            flat = cell.reshape(60, -1)
            pca = PCA(10, svd_solver="full").fit(flat[rest])
            back = pca.inverse_transform(pca.transform(flat))
            rebuilt[:, top : top + 7, side : side + 7] = back.reshape(cell.shape)
            left += ((back[rest] - flat[rest]) ** 2).sum()
            total += ((flat[rest] - flat[rest].mean(axis=0)) ** 2).sum()
    line = lines_of(report, "4.2")["cells 7 x 7"]
    assert line["mse"] == pytest.approx(left / 45 / 504 / 255**2, rel=1e-5)
    errors = ((x[held_out] - rebuilt[held_out]) ** 2).mean(axis=(1, 2, 3)) / 255**2
    assert line["held_out_mse"] == pytest.approx(errors.mean(), rel=1e-4)
    pixels = np.clip(np.rint(rebuilt), 0, 255).astype(np.uint8)
    for numbers, key in ((held_out, "held_out_ssim"), (training, "ssim")):
        ssim = [structural_similarity(x[i], pixels[i], channel_axis=-1, data_range=255) for i in numbers]
        assert line[key] == pytest.approx(np.mean(ssim), abs=1e-3)
    of_pixels = ((x[training] / 255 - pixels[training] / 255) ** 2).mean()
    assert line["pixel_mse"] == pytest.approx(of_pixels, rel=1e-3)
    assert (line["partitions"], line["components"]) == (4, 10)
    assert line["scalars_ratio"] == 504 / 40
    assert line["bytes_ratio"] == pytest.approx(60 * 504 / (60 * 40 * 4 + 10 * 504 * 4 + 504 * 8))
    strategy = list(group["strategy"][...]).index("cells 7 x 7")
    np.testing.assert_allclose(group["held_out/mse"][strategy], errors, rtol=1e-3)
    assert group["explained_variance"][strategy][9] == pytest.approx(1 - left / total, rel=1e-6)

    # Components of whole samples are measured, not estimated.
    flat = x.reshape(60, -1).astype(np.float64)
    pca = PCA(4, svd_solver="full").fit(flat[rest])
    whole = lines_of(report, "4.1")["holistic"]
    assert whole["mse"] == pytest.approx(_left(pca, flat[rest]), rel=1e-4)
    shares = np.cumsum(pca.explained_variance_ratio_)
    assert [line["explained_holistic"] for line in report["tables"]["analogy"]["lines"]] == pytest.approx(list(shares))

    # Bands, against the estimator by itself, which is tested against the definition.
    bands = BandPCA(7, band_size=90, mapping="random", random_state=0).fit(x[rest])
    line = lines_of(report, "4.4")["bands at random"]
    assert line["mse"] == pytest.approx(_mse(bands.total_variance_.sum() - bands.explained_variance_.sum()), rel=1e-6)
    for name in ("bands by mean, from 10", "bands by mean and variance, from all", "bands in raster order"):
        assert lines_of(report, "4.4")[name]["held_out_ssim"] > 0
    # The cosine transform loses to components in every cell, by construction.
    table = lines_of(report, "baselines")
    for size in ("4 x 4", "7 x 7"):
        best = [table[f"{kind}"]["mse"] for kind in (f"cells {size}", f"DCT {size}, best set")]
        assert best == sorted(best)
        assert table[f"DCT {size}, best set"]["mse"] <= table[f"DCT {size}, low frequencies"]["mse"]
    for line in lines_of(report, "4.3").values():
        assert 0 < line["cell_seconds"] < line["seconds"]
    assert report["tables"]["4.3"]["remarks"] == ["No GPU was measured."]
    claims = {check["claim"]: check["holds"] for check in report["checks"]}
    assert claims["Larger cells are better at the same compression"] in (True, False)
    assert len(claims) == 2 * 7 + 2
    assert verify(output) == []
    page = (tmp_path / "out.report" / "index.html").read_text()
    for name, (heading, _) in CAPTIONS.items():
        assert heading in page
        with Image.open(tmp_path / "out.report" / f"{name}.png") as image:
            assert image.size[0] == int(drawing.WIDTH * drawing.DPI)
    assert "theirs" not in page
    printed = capsys.readouterr().out
    assert "Mappings of attributes to bands (table 4.4)" in printed
    assert main([*argv, "--scheduler", scheduler]) == 0
    assert "nothing to do" in capsys.readouterr().out


def _all_held_out(output: Path, n: int, count: int) -> Any:
    from dpca.engine.sources.sampling import spread_samples

    return spread_samples(n, count, np.random.default_rng(0))


def _mse(variance: float) -> float:
    return variance * 44 / 45 / 504 / 255**2


def _left(pca: PCA, flat: np.ndarray) -> float:
    return float(np.mean((pca.inverse_transform(pca.transform(flat)) - flat) ** 2)) / 255**2


@pytest.mark.usefixtures("one_sample_pictured")
@pytest.mark.parametrize(
    ("shape", "options", "defined"),
    [
        ((8, 9, 10), {"data_range": (0.0, 255.0)}, True),
        ((90,), {"data_range": (0.0, 255.0)}, False),
        ((3, 2), {}, False),
    ],
)
def test_other_stacks_have_a_report_too(
    shape: tuple[int, ...], options: dict[str, Any], defined: bool, tmp_path: Path
) -> None:
    n = 6 if shape == (3, 2) else 40
    x = smooth_images(n, (shape[0], int(np.prod(shape[1:])), 1)).reshape(n, *shape)
    x = x.astype(np.float32) if options else x
    stack = open_stack(store(tmp_path / "x.zarr", x), **options)
    settings = PartitionSettings(train_fraction=0.5, estimating=(2,), holistic=2)
    report, _ = report_partitions(stack, tmp_path / "out.zarr", settings)
    for table in ("4.2", "4.4", "baselines"):
        for line in report["tables"][table]["lines"]:
            assert line["held_out_mse"] >= 0
            assert ("ssim" in line) == defined
            assert ("pixel_mse" in line) == (table == "4.2" and not options)
    assert verify(tmp_path / "out.zarr") == []
    assert len(list((tmp_path / "out.report").glob("*.png"))) == 7


@pytest.mark.usefixtures("one_sample_pictured")
def test_published_numbers_stand_beside_those_of_the_same_settings(tmp_path: Path) -> None:
    stack = open_stack(store(tmp_path / "x.zarr", smooth_images(40, (30, 30, 3))))
    settings = PartitionSettings(compare="lfw", cells=(5, 10), band_size=90, estimating=(), holistic=3)
    report, _ = report_partitions(stack, tmp_path / "out.zarr", settings)
    assert lines_of(report, "4.2")["cells 5 x 5"]["theirs_ssim"] == 0.8859
    assert lines_of(report, "4.1")["cells 10 x 10"]["theirs_mse"] == 0.00041
    assert lines_of(report, "4.3")["cells 5 x 5"]["theirs_gpu"] == 0.3273
    # Three components are not a thousand, bands of 90 are not of 1,875.
    assert "theirs_mse" not in lines_of(report, "4.2")["holistic"]
    assert "theirs_mse" not in lines_of(report, "4.4")["bands at random"]
    assert "1,000 components of whole samples, MSE 0.0029 and SSIM 0.71" in report["tables"]["4.1"]["remarks"][0]
    assert "theirs: CPU s a cell" in (tmp_path / "out.report" / "index.html").read_text()


@pytest.mark.usefixtures("one_sample_pictured")
def test_a_stopped_run_goes_on_after_the_last_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = open_stack(store(tmp_path / "x.zarr", smooth_images(40, (9, 8))))
    settings = PartitionSettings(cells=(4,), estimating=(), holistic=3)
    fitted: list[str] = []
    real = records.fit_noting

    def fragile(strategy: Any, training: Any) -> Any:
        fitted.append(strategy.name)
        found = real(strategy, training)
        if len(fitted) == 4:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(records, "fit_noting", fragile)
    with pytest.raises(KeyboardInterrupt):
        report_partitions(stack, tmp_path / "out.zarr", settings)
    assert not (tmp_path / "out.zarr").exists()
    report, _ = report_partitions(stack, tmp_path / "out.zarr", settings)
    again = [name for name in fitted if fitted.count(name) == 2]
    assert again == [fitted[3]] * 2
    assert len(set(fitted)) == len(report["strategies"])
    # A part of its time went into the run that was stopped.
    assert not report["strategies"][3]["whole"]
    assert lines_of(report, "4.4")[again[0]]["seconds_is"] == "at least"
    assert report["strategies"][2]["whole"]
    monkeypatch.setattr(records, "fit_noting", real)
    whole, _ = report_partitions(stack, tmp_path / "whole.zarr", settings)
    for a, b in zip(report["strategies"], whole["strategies"], strict=True):
        assert {**a, "seconds": 0, "whole": 0} == {**b, "seconds": 0, "whole": 0}
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.usefixtures("one_sample_pictured")
def test_images_are_ingested(image_folder: Callable[..., Path], tmp_path: Path, scheduler: str) -> None:
    output = tmp_path / "out.zarr"
    argv = ["--source", str(image_folder(20)), "--output", str(output), "--resize", "16x14", "--cells", "7"]
    argv += ["--estimating", "--holistic", "2", "--scheduler", scheduler]
    assert main(argv) == 0
    assert open_stack(output / "stack").sample_shape == (16, 14, 3)
    assert verify(output) == []
    assert main(argv[:-2]) == 0


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--ratio", "0.5"], 3, "ratio is 0.5"),
        (["--train-fraction", "1.5"], 3, "train_fraction is 1.5"),
        (["--holistic", "50"], 3, "n_components is 50, but there are only 20 samples"),
        (["--band-size", "2"], 3, "band_size is 2"),
    ],
)
def test_bad_settings_are_one_sentence(
    options: list[str], code: int, sentence: str, tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = store(tmp_path / "x.zarr", smooth_images(20, (9, 8, 3)))
    argv = ["--source", source, "--output", str(tmp_path / "out.zarr"), "--cells", "4", "--scheduler", scheduler]
    assert main([*argv, *options]) == code
    told = capsys.readouterr().err
    assert told.startswith(f"error: {sentence}")
    assert told.count("\n") == 1
    assert not (tmp_path / "out.zarr").exists()
    assert not (tmp_path / "out.report").exists()


def test_values_without_a_range_are_refused(tmp_path: Path) -> None:
    stack = open_stack(store(tmp_path / "x.zarr", np.random.default_rng(0).normal(size=(9, 4)).astype("f4")))
    with pytest.raises(DataError, match="--data-range"):
        report_partitions(stack, tmp_path / "out.zarr", PartitionSettings())


@pytest.mark.parametrize("options", [["--cells", "5y5"], ["--compare", "mnist"], ["--evaluate", "0"], ["--seed", "-1"]])
def test_bad_options_are_usage_errors(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(options)
    assert stop.value.code == 2
    assert f"argument {options[0]}" in capsys.readouterr().err


@pytest.mark.usefixtures("one_sample_pictured")
def test_the_embedded_portraits_are_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheduler: str
) -> None:
    # Whole portraits would take a minute.
    np.save(tmp_path / "small.npy", smooth_images(12, (9, 8, 3)))
    monkeypatch.setattr(program, "Portraits", lambda: open_reader(tmp_path / "small.npy"))
    monkeypatch.chdir(tmp_path)
    assert main(["--scheduler", scheduler, "--holistic", "2"]) == 0
    report = json.loads(Path("portraits-partitions.report/report.json").read_text())
    assert report["sample_shape"] == [9, 8, 3]
    assert open_stack("portraits-partitions.zarr/stack").n_samples == 12
