"""Eigenimages as a user makes them: from a source to components, scores, quality and report."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import zarr
from PIL import Image
from skimage.metrics import structural_similarity
from sklearn.decomposition import PCA

from dpca import StreamingPCA
from dpca.cli import main as dpca
from dpca.pipelines.lsun_streaming import main
from dpca.plots import drawing
from dpca.storage import open_stack, verify
from tests.conftest import smooth_images
from tests.helpers.forked import Programs
from tests.pipelines.test_celeba_cpca import tree
from tests.storage.sources.made_sources import write_lsun

pytestmark = pytest.mark.usefixtures("small_pictures")

PROGRAM = Path(__file__).parents[2] / "pipelines" / "lsun_streaming.py"


@pytest.mark.usefixtures("drawn_pictures")
def test_everything_is_written_and_right(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = image_folder(30), tmp_path / "out.zarr"
    argv = ["--source", str(folder), "--output", str(output), "--components", "4", "--reconstruct", "--keep-stack"]
    assert main([*argv, "--scheduler", scheduler]) == 0

    originals = np.stack([np.asarray(Image.open(p)) for p in sorted(folder.iterdir())])
    np.testing.assert_array_equal(open_stack(output / "stack").samples[...], originals)
    group = zarr.open_group(str(output), mode="r")
    assert list(group["name"][...]) == [p.name for p in sorted(folder.iterdir())]
    # Fewer samples than directions kept: nothing is truncated, and the answer is exact.
    rows = originals.reshape(30, -1).astype(float)
    pca = PCA(4, svd_solver="full").fit(rows)
    model = StreamingPCA.load(output / "model")
    np.testing.assert_allclose(np.abs(np.einsum("ij,ij->i", model.components_, pca.components_)), 1, atol=1e-6)
    np.testing.assert_allclose(model.explained_variance_, pca.explained_variance_, rtol=1e-5)
    assert group["scores"].shape == (30, 4)
    np.testing.assert_allclose(np.abs(group["scores"][...]), np.abs(pca.transform(rows)), atol=0.02)

    expected = np.clip(np.rint(pca.inverse_transform(pca.transform(rows))), 0, 255).reshape(originals.shape)
    rebuilt = group["reconstructions"][...]
    off = rebuilt.astype(int) - expected.astype(int)
    assert np.abs(off).max() <= 1
    assert np.count_nonzero(off) < 1e-3 * off.size
    mse = ((originals / 255 - rebuilt / 255) ** 2).mean((1, 2, 3))
    ssim = [
        structural_similarity(a, b, channel_axis=-1, data_range=255) for a, b in zip(originals, rebuilt, strict=True)
    ]
    np.testing.assert_allclose(group["mse"][...], mse, rtol=1e-6)
    np.testing.assert_allclose(group["psnr"][...], -10 * np.log10(mse), rtol=1e-6)
    np.testing.assert_allclose(group["ssim"][...], ssim, atol=2e-6)

    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    known = {"samples": 30, "sample_shape": [40, 36, 3], "attributes": 4320, "components": 4, "passes": 1}
    assert {key: report[key] for key in known} == known
    assert report["method"] == "incremental-svd"
    assert report["scalars_ratio"] == 4320 / 4
    assert report["mse"] == pytest.approx(mse.mean(), rel=1e-6)
    assert report["ssim_min_name"] == f"photo-{int(np.argmin(ssim)):04d}.png"
    assert report["explained_variance_ratio"] == pytest.approx(pca.explained_variance_ratio_.sum(), rel=1e-5)
    np.testing.assert_allclose(report["leading_ratios"], pca.explained_variance_ratio_, rtol=1e-5)
    assert 0.999 < report["captured_bound"] <= 1
    (note,) = report["notes"]
    assert "the input" in note  # with the stack and the reconstructions
    assert set(report["stages"]) == {"start", "ingest", "fit", "scores", "report"}
    for name, cost in report["stages"].items():
        assert cost["seconds"] > 0
        assert cost["bytes"] == (0 if name in {"start", "report"} else originals.nbytes)
    for picture in ("eigenimages", "comparison", "worst", "explained_variance", "scores", "ssim_histogram"):
        with Image.open(tmp_path / "out.report" / f"{picture}.png") as image:
            assert image.size[0] == int(drawing.WIDTH * drawing.DPI)
    assert verify(output) == []
    told = capsys.readouterr().out
    assert re.search(r"at least 99\.9\d% of the variance", told)
    assert "fit 4 components by incremental-svd in 1 pass to 30 samples of 40 x 36 x 3 uint8" in told


class Finished(NamedTuple):
    """What a user made who started the program, and what it printed; not to be changed."""

    folder: Path
    argv: list[str]
    images: np.ndarray
    printed: str = ""

    @property
    def output(self) -> Path:
        """What it is called where nothing else is asked for."""
        return self.folder / "church_train_lmdb-eigenimages.zarr"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, programs: Programs) -> Finished:
    """The program on one worker of its own."""
    folder, images = tmp_path_factory.mktemp("program"), smooth_images(200, (24, 20, 3))
    files = {}
    for i, pixels in enumerate(images):
        Image.fromarray(pixels).save(buffer := io.BytesIO(), format="WEBP", lossless=True)
        files[f"{i:05d}".encode()] = buffer.getvalue()
    source = write_lsun(folder / "church_train_lmdb", files)
    finished = Finished(
        folder,
        ["--source", str(source), "--components", "3", "--workers", "1", "--memory", "1GB", "--keep-stack"],
        images,
    )
    program = programs.start([sys.executable, str(PROGRAM), *finished.argv, "--output", str(finished.output)])
    printed, errors = program.communicate()
    assert (program.returncode, errors) == (0, "")
    return finished._replace(printed=printed)


def test_the_program_twice_does_nothing_the_second_time(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "ingest 200 samples" in finished.printed
    np.testing.assert_array_equal(open_stack(finished.output / "stack").samples[...], finished.images)
    stamps = {p: p.stat().st_mtime_ns for p in finished.folder.rglob("*") if "lmdb/" not in str(p)}
    monkeypatch.chdir(finished.folder)
    assert main(finished.argv) == 0
    told, errors = capsys.readouterr()
    assert "nothing to do" in told
    assert "worker" not in told
    assert errors == ""
    assert {p: p.stat().st_mtime_ns for p in finished.folder.rglob("*") if "lmdb/" not in str(p)} == stamps


def test_one_worker_makes_the_same_scores_as_two(finished: Finished, tmp_path: Path, scheduler: str) -> None:
    """Segments are cut by the number of workers; up to what that rounds, the answer is the same."""
    argv = [*finished.argv[:4], "--scheduler", scheduler]
    for name in "ab":
        assert main([*argv, "--output", str(tmp_path / f"{name}.zarr")]) == 0
    assert tree(tmp_path / "a.zarr") == tree(tmp_path / "b.zarr")
    two, one = (zarr.open_group(path, mode="r")["scores"][...] for path in (tmp_path / "a.zarr", finished.output))
    np.testing.assert_allclose(two, one, atol=1e-3 * np.abs(two).max())


def test_a_zarr_array_is_read_where_it_is_and_what_a_rule_assumes_is_noted(
    tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(150, 6)) @ (rng.normal(size=(6, 20 * 12)) * np.array([[9, 7, 5, 1, 1, 1]]).T)
    zarr.create_array(str(tmp_path / "floats.zarr"), data=values.reshape(150, 20, 12).astype("f4"), chunks=(40, 9, 12))
    output = tmp_path / "out.zarr"
    argv = ["--source", str(tmp_path / "floats.zarr"), "--output", str(output), "--components", "3", "--passes", "3"]
    argv += ["--method", "block-power", "--batch", "50", "--data-range=-90,90", "--scheduler", scheduler]
    assert main(argv) == 0
    group = zarr.open_group(str(output), mode="r")
    assert not {"stack", "reconstructions", "ssim"} & set(group)
    exact = PCA(3, svd_solver="full").fit(values)
    model = StreamingPCA.load(output / "model")
    # The last pass measured the components that it was given; they had been polished once.
    np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=0.02)
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    assert (report["method"], report["passes"]) == ("block-power", 3)
    assert report["stages"]["fit"]["bytes"] == 3 * 150 * 240 * 4
    assert not any(key.startswith("ssim") for key in report)
    (note,) = (note for note in report["notes"] if "random order" in note)
    assert note.startswith("block-power assumes samples in random order")
    assert f"note: {note}" in capsys.readouterr().out


def test_scores_and_models_are_known_to_the_commands(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str
) -> None:
    folder, output = image_folder(25), tmp_path / "out.zarr"
    argv = ["--source", str(folder), "--output", str(output), "--components", "3", "--reconstruct", "--keep-stack"]
    assert main([*argv, "--scheduler", scheduler]) == 0
    model, stack = str(output / "model"), str(output / "stack")
    where = ["--scheduler", scheduler]
    assert dpca(["transform", model, stack, str(tmp_path / "scores.zarr"), *where]) == 0
    group = zarr.open_group(str(output), mode="r")
    again = zarr.open_group(str(tmp_path / "scores.zarr"), mode="r")
    np.testing.assert_array_equal(again["scores"][...], group["scores"][...])
    assert dpca(["reconstruct", model, str(tmp_path / "scores.zarr"), str(tmp_path / "again.zarr"), *where]) == 0
    np.testing.assert_array_equal(open_stack(tmp_path / "again.zarr").samples[...], group["reconstructions"][...])


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--components", "13"], 3, "n_components is 13, but there are only 12 samples"),
        (
            ["--components", "3", "--method", "oja", "--oversampling", "5"],
            3,
            "the method oja does not support oversampling",
        ),
    ],
)
def test_bad_settings_are_one_sentence(
    options: list[str],
    code: int,
    sentence: str,
    image_folder: Callable[..., Path],
    tmp_path: Path,
    scheduler: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "out.zarr"
    argv = ["--source", str(image_folder(12)), "--output", str(output), "--scheduler", scheduler]
    assert main([*argv, *options]) == code
    told = capsys.readouterr().err
    assert told.startswith(f"error: {sentence}")
    assert told.count("\n") == 1
    assert not output.exists()
    assert not (tmp_path / "out.report").exists()


@pytest.mark.parametrize(
    "options", [["--method", "magic"], ["--components", "all"], ["--passes", "0"], ["--seed", "-1"]]
)
def test_bad_options_are_usage_errors(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(options)
    assert stop.value.code == 2
    assert f"argument {options[0]}" in capsys.readouterr().err


def test_the_embedded_portraits_are_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheduler: str
) -> None:
    import dpca.pipelines.lsun_streaming as program

    portraits = program.Portraits
    monkeypatch.setattr(program, "Portraits", lambda: portraits(count=60))
    monkeypatch.chdir(tmp_path)
    assert main(["--scheduler", scheduler]) == 0
    group = zarr.open_group("portraits-eigenimages.zarr", mode="r")
    assert group["scores"].shape == (60, 50)
    assert group["reconstructions"].shape == (60, 218, 178, 3)
    assert group["ssim"][...].min() > 0.8


def test_shuffled_samples_give_no_warning_of_their_order(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str
) -> None:
    folder = image_folder(30)
    components = []
    for name, flags in {
        "as they come": [],
        "shuffled": ["--shuffle"],
        "otherwise": ["--shuffle", "--seed", "1"],
    }.items():
        argv = ["--source", str(folder), "--output", str(tmp_path / f"{name}.zarr"), "--components", "2"]
        assert main([*argv, "--method", "ccipca", "--batch", "5", "--scheduler", scheduler, *flags]) == 0
        notes = json.loads((tmp_path / f"{name}.report" / "report.json").read_text())["notes"]
        assert any("assumes samples in random order" in note for note in notes) == (name == "as they come")
        components.append(StreamingPCA.load(tmp_path / f"{name}.zarr" / "model").components_)
    # Another order, another answer.
    assert not any(np.array_equal(a, b) for a, b in pairwise(components))
