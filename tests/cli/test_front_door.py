"""First steps of a user: the version, the package as a program, completion, and the whole job as one command."""

from __future__ import annotations

import filecmp
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dpca
from dpca.choices import QUALITIES
from dpca.cli import main
from dpca.pipelines.celeba_cpca import main as celeba
from dpca.report import words


def python(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run Python as a user does in a folder of his own."""
    return subprocess.run([sys.executable, *argv], cwd=folder, capture_output=True, text=True, check=False)


def test_files_of_the_user_are_not_imported(tmp_path: Path) -> None:
    for name in ("storage", "pipelines", "kernels"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the user was imported')")
    ended = python(tmp_path, "-m", "dpca", "info", "storage.py")
    assert ended.returncode == 3, ended.stderr
    assert "error: " in ended.stderr
    assert "of the user" not in ended.stderr + ended.stdout


def test_the_version(tmp_path: Path) -> None:
    ended = python(tmp_path, "-m", "dpca", "--version")
    assert (ended.returncode, ended.stdout) == (0, f"dpca {dpca.__version__}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert ended.value.code == 0
    script = capsys.readouterr().out
    assert "compress" in script
    assert "target-psnr" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_completion_in_bash(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--print-completion", "bash"])
    asked = "COMP_WORDS=(dpca compress --target-p); COMP_CWORD=2; _shtab_dpca; echo ${COMPREPLY[@]}"
    script = f"{capsys.readouterr().out}\n{asked}\n"
    ended = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)
    assert ended.stdout == "--target-psnr\n"


@pytest.mark.usefixtures("small_pictures")
def test_scores_is_the_main_job(image_folder: Callable[..., Path], tmp_path: Path, scheduler: str) -> None:
    folder, (ours, other) = image_folder(12), (tmp_path / name / "out.zarr" for name in "ab")
    options = ["--components", "3", "--reconstruct", "--scheduler", scheduler]
    for output in (ours, other):
        output.parent.mkdir()
    assert main(["scores", str(folder), str(ours), *options]) == 0
    assert celeba(["--source", str(folder), "--output", str(other), *options]) == 0
    files = sorted(path.relative_to(ours) for path in ours.rglob("*") if path.is_file())
    same, *differ = filecmp.cmpfiles(ours, other, files, shallow=False)
    assert differ == [[], []]
    assert len(same) == len(files) > 10
    # The model is inside, so that one path suffices.
    assert main(["reconstruct", str(ours), str(tmp_path / "again.zarr"), "--scheduler", scheduler]) == 0
    assert main(["export", str(ours), str(tmp_path / "again.npy")]) == 0
    again = dpca.open(tmp_path / "again.zarr").samples[...]
    np.testing.assert_array_equal(again, dpca.open(ours).stack().compute())
    np.testing.assert_array_equal(again, np.load(tmp_path / "again.npy"))


def test_what_is_done_starts_no_cluster(
    image_folder: Callable[..., Path],
    tmp_path: Path,
    scheduler: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # where the workers are not
    folder = image_folder(12)
    stack, model, scores, again = (f"{name}.zarr" for name in ("stack", "model", "scores", "again"))
    commands = (
        ["ingest", str(folder), stack],
        ["fit", stack, model, "--cell", "10", "--components", "3"],
        ["transform", model, stack, scores],
        ["reconstruct", model, scores, again],
    )
    for command in commands:
        assert main([*command, "--scheduler", scheduler]) == 0
        capsys.readouterr()
        assert main([*command, "--scheduler", "tcp://127.0.0.1:1"]) == 0
        assert "worker" not in capsys.readouterr().out
    assert main([*commands[1], "--seed", "1", "--overwrite", "--scheduler", "tcp://127.0.0.1:1"]) == 6


def test_steps_that_are_done_need_no_library_that_computes(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("stack", "model", "scores", "again", "small")
    stack, model, scores, again, small = (str(tmp_path / f"{name}.zarr") for name in names)
    fit, transform = ["fit", stack, model, "--cell", "10", "--target-psnr", "30"], ["transform", model, stack, scores]
    steps = [fit, transform, ["encode", model, stack, small, "--psnr", "28"], ["reconstruct", model, scores, again]]
    for asked in (["ingest", str(image_folder(12)), stack], *steps):
        assert main([*asked, "--scheduler", scheduler]) == 0
    told = capsys.readouterr().out.splitlines()
    code = (
        f"import sys; from dpca.cli import main; assert all(main(step) == 0 for step in {steps!r})\n"
        "assert not sys.modules.keys() & {'sklearn', 'scipy', 'dask', 'distributed', 'numba', 'matplotlib'}\n"
    )
    ended = python(tmp_path, "-c", code)
    assert (ended.returncode, ended.stderr) == (0, "")
    again = ended.stdout.splitlines()
    assert len([line for line in again if line.startswith("nothing to do")]) == 4
    assert {line for line in again if not line.startswith("nothing to do")} <= {*told}  # the same numbers

    nobody = ["--scheduler", "tcp://127.0.0.1:1"]
    assert main([*fit, "--seed", "1", *nobody]) == 4
    assert "other settings" in capsys.readouterr().err
    assert main([*fit, "--seed", "1", "--overwrite", "--scheduler", scheduler]) == 0
    assert main([*transform, *nobody]) == 4
    assert "other input" in capsys.readouterr().err


@pytest.mark.usefixtures("small_pictures")
def test_a_job_that_is_done_is_recognized_without_the_libraries_that_compute(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = image_folder(12), tmp_path / "out.zarr"
    asked = ["scores", str(folder), str(output), "--components", "3"]
    assert main([*asked, "--scheduler", scheduler]) == 0
    capsys.readouterr()
    code = (
        f"import sys; from dpca.cli import main; assert main({asked!r}) == 0\n"
        "assert not sys.modules.keys() & {'sklearn', 'scipy', 'dask', 'distributed', 'numba', 'matplotlib'}\n"
    )
    ended = python(tmp_path, "-c", code)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "nothing to do" in ended.stdout

    # With any other input or option, the job itself reports what to do.
    nobody = ["--scheduler", "tcp://127.0.0.1:1"]
    assert main([*asked, "--seed", "1", *nobody]) == 4
    assert "other settings" in capsys.readouterr().err
    photo = folder / "photo-0003.png"
    original = photo.read_bytes()
    photo.write_bytes((folder / "photo-0004.png").read_bytes())
    assert main([*asked, *nobody]) == 4
    assert "other input" in capsys.readouterr().err
    photo.write_bytes(original)
    assert main([*asked, *nobody]) == 0
    (output / "mse" / "zarr.json").write_text("{}")
    assert main([*asked, *nobody]) == 4
    assert "damaged" in capsys.readouterr().err


@pytest.mark.usefixtures("small_pictures")
@pytest.mark.parametrize(("options", "goal"), [((), 36), (("--quality", "low"), 32), (("--quality", "psnr=30"), 30)])
def test_two_commands_make_photographs_smaller_and_files_again(
    options: tuple[str, ...],
    goal: float,
    image_folder: Callable[..., Path],
    tmp_path: Path,
    scheduler: str,
    capsys: Any,
) -> None:
    folder, small = image_folder(12, (40, 40, 3)), tmp_path / "small.zarr"
    assert main(["compress", str(folder), str(small), *options, "--scheduler", scheduler]) == 0
    found = dpca.open(small)
    assert found.facts["goal"] == {"name": "psnr", "value": goal}
    assert -10 * np.log10(found.quality["mse"].mean()) >= goal
    *_, last = capsys.readouterr().out.splitlines()
    assert "times" in last
    _, _, command = last.partition("; next: dpca ")
    line = [str(tmp_path / "out") if word == "out/" else word for word in shlex.split(command)]
    assert line == ["export", str(small), str(tmp_path / "out")]
    assert main(line) == 0
    files = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert files == sorted(path.name for path in folder.glob("*.png"))
    assert f"{len(files)} samples as png" in capsys.readouterr().out.splitlines()[-1]
    for file, pixels in zip(files, found, strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "out" / file)), pixels)


def test_the_words_for_a_quality(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(QUALITIES.values()) == list(QUALITIES.values())
    assert len(QUALITIES) == 3
    for word in ("best", "psnr", "psnr=-1", "ratio=x"):
        with pytest.raises(SystemExit):
            main(["compress", "photos", "small.zarr", "--quality", word])
        assert "low, medium, high" in capsys.readouterr().err


def test_ratios_in_words() -> None:
    report = {"bytes_compressed": 50, "bytes_given": 105, "bytes_decoded": 1000, "psnr": 36.04, "mse": 1e-4}
    assert words.result(report) == "2.1 times smaller than the input, PSNR 36.0 dB"
    assert words.result({**report, "bytes_given": 40}) == "1.2 times larger than the input, PSNR 36.0 dB"
    assert words.result({**report, "bytes_given": None}) == "20.0 times smaller than the decoded samples, PSNR 36.0 dB"
    assert words.result({"samples": 9, "ssim_mean": 0.9}) == "scores of 9 samples, mean SSIM 0.9000"
