"""First steps of a user: the version, the package as a program, completion, and the whole job as one command."""

from __future__ import annotations

import filecmp
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dpca
from dpca.cli import main
from dpca.pipelines.celeba_cpca import main as celeba


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
