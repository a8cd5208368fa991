"""`dpca compress` offers the options of models that it accepts, and no others, and states its own defaults."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dpca.cli import main
from dpca.cli.arguments import options_of
from dpca.parameters.cells import BandParameters, CellParameters
from dpca.parameters.kernel import KernelParameters
from tests.conftest import smooth_images

#: Each option of a model, in a command that uses it.
FORMS = {
    "--cell": "--cell 8",
    "--overlap": "--cell 8 --overlap 4 --components 3",
    "--shared": "--cell 8 --shared --components 9",
    "--gaps": "--cell 8 --components 2 --gaps iterate --quality max-error=2",
    "--missing-value": "--cell 8 --components 2 --gaps iterate --missing-value infinite --quality max-error=2",
    "--components": "--components 9",
    "--threshold": "--cell 8 --threshold 0.9",
    "--total-components": "--cell 8 --total-components 30",
    "--ratio": "--cell 8 --ratio 4",
    "--target-mse": "--cell 8 --target-mse 0.001",
    "--target-psnr": "--cell 8 --target-psnr 33",
    "--target-ssim": "--cell 8 --target-ssim 0.9",
    "--validation-fraction": "--cell 8 --target-psnr 33 --validation-fraction 0.2",
    "--sigma": "--cell 8 --components marchenko-pastur --sigma 20",
    "--max-components": "--cell 8 --target-psnr 33 --max-components 20",
}


def printed_help(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    return re.sub(r"\s+", " ", capsys.readouterr().out)


def test_each_option_of_a_model_has_a_form(capsys: pytest.CaptureFixture[str]) -> None:
    classes = (CellParameters, BandParameters, KernelParameters)
    known = {one.option.flag for cls in classes for one in options_of(cls).values() if one.option is not None}
    offered = set(re.findall(r"(?<=[\[ ])--[a-z-]+", printed_help(capsys, "compress").split("positional")[0]))
    assert known & offered == set(FORMS)


@pytest.mark.usefixtures("small_pictures")
@pytest.mark.parametrize("flag", FORMS)
def test_a_form_is_accepted(flag: str, tmp_path: Path, scheduler: str) -> None:
    values = smooth_images(24, (16, 16)).astype(np.float32)
    if "--gaps" in FORMS[flag]:
        values[3, 4:9, 4:9] = np.inf if "infinite" in FORMS[flag] else np.nan
    np.save(tmp_path / "x.npy", values)
    given = ["compress", str(tmp_path / "x.npy"), str(tmp_path / "small.zarr"), "--scheduler", scheduler]
    assert main([*given, *FORMS[flag].split()]) == 0


def test_options_of_bands_and_kernels_are_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compress", "photos", "small.zarr", "--band-size", "9"])
    assert ended.value.code == 2
    assert "--band-size" in capsys.readouterr().err
    job = tmp_path / "job.toml"
    job.write_text('inputs = ["x.npy"]\noutput = "small.zarr"\ntarget = "high"\nband-size = 9\n')
    assert main(["job", "run", str(job)]) == 3
    assert "band-size" in capsys.readouterr().err


def test_ratio_refers_to_the_goal_of_smaller_files(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("compress", "scores", "fit"):
        assert "--quality ratio=R" in printed_help(capsys, command)


def test_the_stated_defaults_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    compress, scores = printed_help(capsys, "compress"), printed_help(capsys, "scores")
    assert "Default: those with the smallest compressed size" in compress
    assert "Default: --ratio 3" in compress
    for default in ("Default: --cell 10.", "Default: --components 20."):
        assert default in scores
        assert default not in compress
