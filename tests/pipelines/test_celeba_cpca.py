"""The main job as a user runs it: from images to scores, reconstructions, quality and report."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import zarr
from PIL import Image
from skimage.metrics import structural_similarity
from sklearn.decomposition import PCA

from dpca import open_compressed
from dpca.pipelines.celeba_cpca import main
from dpca.plots import drawing
from dpca.storage import open_stack, verify

pytestmark = pytest.mark.usefixtures("small_pictures")


def tree(folder: Path) -> dict[str, str]:
    """Content of every file below a folder."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): blake2b(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.usefixtures("drawn_pictures")
def test_everything_is_written_and_right(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = image_folder(30), tmp_path / "out.zarr"
    argv = ["--source", str(folder), "--output", str(output), "--cell", "10", "--components", "4", "--reconstruct"]
    argv += ["--keep-stack"]
    assert main([*argv, "--scheduler", scheduler]) == 0

    originals = np.stack([np.asarray(Image.open(p)) for p in sorted(folder.iterdir())])
    np.testing.assert_array_equal(open_stack(output / "stack").samples[...], originals)
    group = zarr.open_group(str(output), mode="r")
    assert list(group["name"][...]) == [p.name for p in sorted(folder.iterdir())]

    expected = np.empty(originals.shape)
    for i in range(0, 40, 10):
        for j in range(0, 36, 10):
            cell = originals[:, i : i + 10, j : j + 10].astype(float)
            pca = PCA(4, svd_solver="full").fit(cell.reshape(30, -1))
            scores = pca.transform(cell.reshape(30, -1))
            np.testing.assert_allclose(np.abs(group["scores"][:, i // 10, j // 10]), np.abs(scores), atol=2e-3)
            expected[:, i : i + 10, j : j + 10] = pca.inverse_transform(scores).reshape(cell.shape)
    rebuilt = group["reconstructions"][...]
    # One gray level apart at most, where float32 and float64 round to different sides.
    off = rebuilt.astype(int) - np.clip(np.rint(expected), 0, 255).astype(int)
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
    assert report["samples"] == 30
    assert report["sample_shape"] == [40, 36, 3]
    assert report["scalars_ratio"] == 40 * 36 * 3 / (16 * 4)
    assert report["mse"] == pytest.approx(mse.mean(), rel=1e-6)
    assert report["ssim_min"] == pytest.approx(min(ssim), abs=2e-6)
    assert report["ssim_min_name"] == f"photo-{int(np.argmin(ssim)):04d}.png"
    assert set(report["stages"]) == {"start", "ingest", "fit", "scores", "report"}
    for name, cost in report["stages"].items():
        assert cost["seconds"] > 0
        assert cost["bytes"] == (0 if name in {"start", "report"} else originals.nbytes)
        assert cost["peak_memory"] > 50e6
    for picture in ("comparison", "worst", "eigenfaces", "explained_variance", "ssim_histogram"):
        with Image.open(tmp_path / "out.report" / f"{picture}.png") as image:
            assert image.size[0] == int(drawing.WIDTH * drawing.DPI)
    HTMLParser().feed((tmp_path / "out.report" / "index.html").read_text())
    assert verify(output) == []
    assert f"{report['ssim_mean']:.4f}" in capsys.readouterr().out


def test_the_same_command_twice_does_nothing_and_a_report_that_was_deleted_is_made_again(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = image_folder(12), tmp_path / "out.zarr"
    argv = ["--source", str(folder), "--output", str(output), "--components", "3", "--scheduler", scheduler]
    assert main(argv) == 0
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    capsys.readouterr()
    assert main(argv) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == stamps
    page = tmp_path / "out.report" / "index.html"
    page.unlink()
    capsys.readouterr()
    assert main(argv) == 4
    assert "does not keep" in capsys.readouterr().err
    assert main([*argv, "--overwrite", "--keep-stack"]) == 0
    page.unlink()
    capsys.readouterr()
    assert main([*argv, "--keep-stack"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert page.exists()


def test_few_bytes_in_the_place_of_scores(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = image_folder(30), tmp_path / "out.zarr"
    argv = ["--source", str(folder), "--output", str(output), "--quality", "psnr=33", "--scheduler", scheduler]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    originals = np.stack([np.asarray(Image.open(p)) for p in sorted(folder.iterdir())])
    store = open_compressed(output)
    mse = np.square((store[...].astype(float) - originals) / 255).mean()
    assert -10 * np.log10(mse) > 32.9
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    assert report["bytes_compressed"] == report["bytes_written"]["total"] == size
    assert report["bytes_ratio"] == originals.nbytes / size
    assert report["bytes_given"] == sum(path.stat().st_size for path in folder.iterdir())
    assert report["mse"] == pytest.approx(mse, rel=1e-4)
    assert report["goal"] == {"name": "psnr", "value": 33}
    assert set(report["stages"]) == {"start", "ingest", "choose cells", "fit", "encode", "report"}
    table = printed.partition("input size")[2]
    assert f"{size / 30:,.0f} bytes a sample" in table.splitlines()[2]
    assert verify(output) == []
    done = tree(tmp_path)
    assert main(argv) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert tree(tmp_path) == done
    assert main([*argv, "--band-size", "100"]) == 3
    assert main([*argv, "--reconstruct"]) == 3
    assert "a compressed store requires cells" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*argv, "--quality", "beauty=3"])
    assert "max-relative-error" in capsys.readouterr().err


def test_cells_with_an_overlap_and_one_basis_for_all(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str
) -> None:
    folder = image_folder(20)
    argv = ["--source", str(folder), "--components", "3", "--scheduler", scheduler]
    reports = {}
    for name, flags in {"plain": [], "lapped": ["--overlap", "3"], "shared": ["--shared"]}.items():
        output = tmp_path / f"{name}.zarr"
        assert main([*argv, "--output", str(output), *flags]) == 0
        assert zarr.open_group(str(output), mode="r")["scores"].shape == (20, 4, 4, 3)
        reports[name] = json.loads((tmp_path / f"{name}.report" / "report.json").read_text())
    assert (reports["lapped"]["overlap"], reports["shared"]["shared"]) == (3, True)
    assert not {"overlap", "shared"} & set(reports["plain"])
    # One set of components for four kinds of cells in the place of 16, which are the best that there are.
    assert reports["shared"]["mse"] > 1.01 * reports["plain"]["mse"]
    assert reports["shared"]["bytes_ratio"] > 1.1 * reports["plain"]["bytes_ratio"]


def test_a_zarr_array_is_read_where_it_is(tmp_path: Path, scheduler: str) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(25, 20, 12)).astype(np.float32)
    zarr.create_array(str(tmp_path / "floats.zarr"), data=values, chunks=(7, 9, 12), zarr_format=2)
    output = tmp_path / "out.zarr"
    argv = ["--source", str(tmp_path / "floats.zarr"), "--output", str(output), "--cell", "10x6", "--components", "all"]
    assert main([*argv, "--data-range=-5,5", "--reconstruct", "--scheduler", scheduler]) == 0
    group = zarr.open_group(str(output), mode="r")
    assert "stack" not in group
    np.testing.assert_allclose(group["reconstructions"][...], values, atol=1e-4)


def test_a_stack_of_volumes_goes_through_the_same_command(tmp_path: Path, scheduler: str) -> None:
    rng = np.random.default_rng(4)
    np.save(tmp_path / "volumes.npy", rng.integers(0, 4096, (16, 9, 10, 11), dtype=np.uint16))
    output = tmp_path / "out.zarr"
    argv = ["--source", str(tmp_path / "volumes.npy"), "--output", str(output), "--cell", "5", "--components", "6"]
    assert main([*argv, "--data-range", "0,4095", "--scheduler", scheduler]) == 0
    group = zarr.open_group(str(output), mode="r")
    assert group["scores"].shape == (16, 2, 2, 3, 6)
    assert group["ssim"].shape == (16,)


def test_bands_of_vectors(tmp_path: Path, scheduler: str) -> None:
    """Readings of 90 stations of two kinds, without any space: bands find the kinds, whatever their order."""
    rng = np.random.default_rng(5)
    kind = rng.permutation(90) % 2
    trend = rng.normal(size=(80, 2)).cumsum(axis=0)
    values = (20 * kind + trend[:, kind] + rng.normal(0, 0.01, (80, 90))).astype(np.float32)
    np.save(tmp_path / "stations.npy", values)
    output = tmp_path / "out.zarr"
    argv = ["--source", str(tmp_path / "stations.npy"), "--output", str(output), "--scheduler", scheduler]
    assert main([*argv, "--band-size", "45", "--intervals", "2", "--components", "1", "--reconstruct"]) == 0
    group = zarr.open_group(str(output), mode="r")
    labels = group["model/labels"][...]
    assert group["scores"].shape == (80, 2, 1)
    assert set(zip(labels.tolist(), kind.tolist(), strict=True)) == {(0, 0), (1, 1)}
    assert np.abs(group["reconstructions"][...] - values).max() < 0.1
    assert "ssim" not in group
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    assert (report["bands"], report["band_size"], report["mapping"]) == (2, 45, "mean-variance")
    assert report["scalars_ratio"] == 45
    assert report["ssim_mean"] is None
    page = (tmp_path / "out.report" / "index.html").read_text()
    assert "2 bands of at most 45 attributes, mapped by mean-variance" in page
    assert "not defined for these samples" in page
    # Recognized before anything starts.
    assert main([*argv, "--band-size", "45", "--intervals", "2", "--components", "1", "--reconstruct"]) == 0
    assert main([*argv, "--cell", "9", "--components", "1", "--overwrite"]) == 0
    assert zarr.open_group(str(output), mode="r")["scores"].shape == (80, 10, 1)


def test_the_embedded_portraits_are_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheduler: str
) -> None:
    import dpca.pipelines.celeba_cpca as program

    full = program.Portraits()
    assert (len(full), full.sample_shape) == (2000, (218, 178, 3))
    # The job itself is the same for fewer of them.
    monkeypatch.setattr(program, "Portraits", lambda: type(full)(count=24))
    monkeypatch.chdir(tmp_path)
    assert main(["--scheduler", scheduler]) == 0
    group = zarr.open_group("portraits.zarr", mode="r")
    assert group["scores"].shape == (24, 22, 18, 20)
    assert group["reconstructions"].shape == (24, 218, 178, 3)
    assert group["ssim"][...].min() > 0.9


def test_a_broken_image_is_skipped_and_recorded(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str
) -> None:
    folder, output = image_folder(12), tmp_path / "out.zarr"
    broken = folder / "photo-0003.png"
    broken.write_bytes(broken.read_bytes()[:200])
    argv = ["--source", str(folder), "--output", str(output), "--components", "3", "--scheduler", scheduler]
    assert main([*argv, "--on-error", "skip", "--keep-stack"]) == 0
    stack = open_stack(output / "stack")
    assert stack.n_samples == 11
    assert [name for name, _ in stack.rejected] == ["photo-0003.png"]
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    assert report["rejected"][0][0] == "photo-0003.png"


def test_two_workers_one_worker_and_another_machine_make_the_same_bytes(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str
) -> None:
    folder = image_folder(40)
    argv = ["--source", str(folder), "--components", "3", "--reconstruct"]
    assert main([*argv, "--output", str(tmp_path / "a.zarr"), "--scheduler", scheduler]) == 0
    assert main([*argv, "--output", str(tmp_path / "b.zarr"), "--workers", "1", "--memory", "1GB"]) == 0
    assert tree(tmp_path / "a.zarr") == tree(tmp_path / "b.zarr")
