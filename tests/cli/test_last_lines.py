"""The last line of commands: a number and the next command; and that commands show that they work."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dpca.cli import main
from tests.conftest import smooth_images


@pytest.fixture
def movie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    values = smooth_images(60, (20, 20)).astype(np.float32)
    np.save("movie.npy", values)
    np.save("constant.npy", np.full((40, 16, 16), 7, np.uint16))
    values[3, 4:9, 4:9] = np.nan
    np.save("gappy.npy", values)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("denoise movie.npy out.zarr --cell 10", r"[\d.]+% of the variance removed"),
        ("denoise constant.npy out.zarr --noise poisson", r"0.0% of the variance removed \(mean\), no noise, [^g]*$"),
        ("fill gappy.npy out.zarr --cell 10 --components 2", r"25 values filled, standard error [\d.]+"),
    ],
)
def test_the_last_line_has_the_number_and_the_next_command(
    movie: Path, capsys: pytest.CaptureFixture[str], argv: str, says: str, scheduler: str
) -> None:
    assert main([*argv.split(), "--scheduler", scheduler]) == 0
    found, after, following = capsys.readouterr().out.splitlines()[-1].partition("; next: ")
    assert re.match(f"'out.zarr': .*{says}", found), found
    assert (after, following) == ("; next: ", "dpca explore out.zarr")


def test_one_sample_is_counted_as_one(movie: Path, capsys: pytest.CaptureFixture[str], scheduler: str) -> None:
    assert main(["ingest", "movie.npy", "stack.zarr", "--scheduler", scheduler]) == 0
    capsys.readouterr()
    assert main(["export", "stack.zarr", "out", "--samples", "3"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "export 'stack.zarr'"
    assert "'out': 1 sample as " in last


def test_samples_appended_are_counted(movie: Path, capsys: pytest.CaptureFixture[str], scheduler: str) -> None:
    where = ["--scheduler", scheduler]
    assert main(["compress", "movie.npy", "small.zarr", "--cell", "10", "--quality", "psnr=40", *where]) == 0
    np.save("more.npy", smooth_images(67, (20, 20))[60:].astype(np.float32))
    assert main(["append", "small.zarr", "more.npy", "--drift", "accept", *where]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"'small.zarr': 7 samples appended, [\d.]+ kB in all; next: dpca info small.zarr", last), last
