"""Commands with ``--mask``: statistics, components and errors are those of the region."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpca import PCA, Mask, load, open_compressed
from dpca.cli import main
from dpca.cli.job_file import read_job_file
from dpca.report.record import read_report
from dpca.storage import DataError, open_stack
from dpca.storage.readers import open_reader
from dpca.storage.readers.maps import read_map
from dpca.storage.readers.masked import MaskedReader
from tests.conftest import smooth_images, write_images


def _movie(tmp_path: Path) -> tuple[str, np.ndarray, np.ndarray, str]:
    """Write samples with missing values outside of a region, and the region."""
    rng = np.random.default_rng(0)
    modes = rng.normal(size=(2, 12, 16))
    x = (300 + rng.normal(size=(40, 2)) @ modes.reshape(2, -1) + 0.05 * rng.normal(size=(40, 192))).astype("f4")
    x, inside = x.reshape(40, 12, 16), np.zeros((12, 16), bool)
    inside[2:9, 3:14] = True
    inside[4, 5:9] = False
    x[:, ~inside] = np.where(rng.random((40, int((~inside).sum()))) < 0.5, np.nan, 1e4)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "mask.npy", inside)
    return str(tmp_path / "x.npy"), x, inside, str(tmp_path / "mask.npy")


def test_scores_are_those_of_the_values_inside(
    tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, x, inside, mask = _movie(tmp_path)
    where = ["--scheduler", scheduler]
    command = ["scores", source, str(tmp_path / "out.zarr"), "--mask", mask, "--cell", "12x16", "--components", "2"]
    assert main([*command, *where]) == 0
    expected = PCA(2).fit(Mask(inside).values(x.astype("f8")))
    found = load(f"{tmp_path}/out.zarr/model")
    in_place = Mask(inside).in_place(expected.components_, 0)
    np.testing.assert_allclose(np.abs(found.components_.reshape(2, 12, 16)), np.abs(in_place), atol=1e-4)
    np.testing.assert_allclose(found.explained_variance_ratio_.sum(), expected.explained_variance_ratio_.sum(), 1e-5)
    capsys.readouterr()
    assert main([*command, *where]) == 0
    assert "nothing to do" in capsys.readouterr().out
    np.save(mask, ~inside | (np.arange(16) < 4))
    assert main([*command, *where]) == 4
    assert "other settings" in capsys.readouterr().err


def test_an_error_bound_holds_inside(tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]) -> None:
    source, x, inside, mask = _movie(tmp_path)
    store, given, where = str(tmp_path / "small.zarr"), ["--mask", mask], ["--scheduler", scheduler]
    goal = [*given, "--cell", "6x8", "--components", "2"]
    assert main(["compress", source, store, *goal, "--quality", "max-error=0.1", *where]) == 0
    found = open_compressed(store)[...]
    np.testing.assert_allclose(found[:, inside], x[:, inside], atol=0.1001)
    assert np.ptp(found[:, ~inside]) <= 0.2001
    assert main(["verify", store, "--stack", source, *given, *where]) == 0
    assert main(["compare", store, source, *given]) == 0
    with pytest.raises(SystemExit):  # the constant outside would be another one
        main(["append", store, source, *given, *where])
    for command in (["compress", source, str(tmp_path / "mean.zarr"), *where], ["plan", source, "--quality", "high"]):
        capsys.readouterr()
        assert main([*command, *goal]) == 3
        assert "psnr" in capsys.readouterr().err
    assert not (tmp_path / "mean.zarr").exists()


def test_a_stack_is_planned_denoised_and_ingested_in_a_region(
    tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, x, inside, mask = _movie(tmp_path)
    stack, where = str(tmp_path / "inside.zarr"), ["--scheduler", scheduler]
    assert main(["ingest", source, stack, "--mask", mask, *where]) == 0
    np.testing.assert_array_equal(open_stack(stack).samples[...][:, inside], x[:, inside])
    np.save(source, whole := np.where(np.isfinite(x), x, 0))
    assert main(["ingest", source, str(tmp_path / "whole.zarr"), *where]) == 0
    for given in (source, str(tmp_path / "whole.zarr")):
        capsys.readouterr()
        assert main(["plan", given, "--mask", mask, "--json"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["samples"] == 40
        clean = f"{given}.clean.zarr"
        assert main(["denoise", given, clean, "--mask", mask, *where]) == 0
        found = open_stack(clean).samples[...]
        assert np.ptp(found[:, ~inside]) == 0
        assert 0 < np.abs(found - whole)[:, inside].mean() < 0.1
    np.save(mask, np.zeros((12, 16)))
    assert main(["denoise", source, str(tmp_path / "none.zarr"), "--mask", mask, *where]) == 3
    assert "everywhere" in capsys.readouterr().err


def test_photographs_in_a_region(tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]) -> None:
    photos, where = write_images(tmp_path / "photos", 30, (12, 16, 3)), ["--scheduler", scheduler]
    inside = np.zeros((12, 16), bool)
    inside[2:9, 3:14] = True
    mask = tmp_path / "mask.png"
    Image.fromarray(inside).save(mask)
    x, given = smooth_images(30, (12, 16, 3)).astype("f8"), [str(photos), "--mask", str(mask)]
    command = ["scores", str(photos), str(tmp_path / "out.zarr"), "--cell", "12x16", "--components", "2", *given[1:]]
    assert main([*command, *where]) == 0
    expected = PCA(2).fit(Mask(inside).values(x))
    in_place = Mask(inside).in_place(expected.components_, 0)
    found = load(f"{tmp_path}/out.zarr/model").components_.reshape(in_place.shape)
    np.testing.assert_allclose(np.abs(found), np.abs(in_place), atol=1e-4)
    assert "outside the mask" in " ".join(read_report(tmp_path / "out.report")["notes"])
    small = str(tmp_path / "small.zarr")
    goal = ["--cell", "6x8", "--components", "2", "--quality", "max-error=3", *given[1:]]
    assert main(["compress", str(photos), small, *goal, *where]) == 0
    assert np.abs(open_compressed(small)[...][:, inside] - x[:, inside]).max() <= 3
    assert main(["verify", small, "--stack", *given, *where]) == 0
    assert main(["compare", small, *given]) == 0
    assert main(["plan", *given]) == 0
    capsys.readouterr()
    Image.fromarray(inside[1:]).save(mask)
    assert main([*command, *where, "--overwrite"]) == 3
    assert "(11, 16)" in capsys.readouterr().err


@pytest.mark.parametrize("white", [255, 0])
def test_transparent_pixels_are_outside(tmp_path: Path, white: int) -> None:
    inside = np.zeros((12, 16), bool)
    inside[2:9, 3:14] = True
    pixels = np.where(inside[..., None], 255, [white, white, white, 0]).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "mask.png")
    np.testing.assert_array_equal(read_map(tmp_path / "mask.png") > 0, inside)
    gray = Image.fromarray(np.where(inside, 65535, 7).astype(np.uint16))
    gray.save(tmp_path / "gray.png", transparency=7)
    np.testing.assert_array_equal(read_map(tmp_path / "gray.png") == 65535, inside)
    pixels[5, 5, 3] = 128  # neither
    Image.fromarray(pixels).save(tmp_path / "mask.png")
    with pytest.raises(DataError, match="128"):
        MaskedReader(open_reader(write_images(tmp_path / "photos", 2, (12, 16))), str(tmp_path / "mask.png"))


def test_a_key_of_job_files(tmp_path: Path) -> None:
    _movie(tmp_path)
    keys = 'inputs = "x.npy"\noutput = "small.zarr"\nmask = "mask.npy"\n[target]\nmax-error = 0.1\n'
    (tmp_path / "job.toml").write_text(keys)
    assert read_job_file(str(tmp_path / "job.toml")).options.mask == str(tmp_path / "mask.npy")
