"""Invalid input of every kind: one error message, an exit code, and no incomplete output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from dpca.cli import main as dpca_main
from dpca.pipelines.celeba_cpca import main as job
from dpca.storage import ingest
from dpca.storage.run import Run
from tests.cli.bad_cases import CASES, HELD, make_photos, make_stack
from tests.conftest import smooth_images

pytestmark = pytest.mark.usefixtures("small_pictures")


def _content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", CASES)
def test_one_sentence_a_code_and_no_trace(
    name: str, tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    source, *rest = case.make(tmp_path)
    before = _content(tmp_path)
    code = job(["--source", source, "--output", str(tmp_path / "out.zarr"), "--scheduler", scheduler, *rest])
    error = capsys.readouterr().err
    HELD.clear()
    assert code == case.code, error
    assert re.search(case.says, error), error
    _is_one_sentence(error)
    after = _content(tmp_path)
    # What was ingested may wait in the work folder for the next try; nothing else may have changed.
    assert {k: v for k, v in after.items() if not k.startswith("out.zarr.partial/")} == {
        k: v for k, v in before.items() if not k.startswith("out.zarr.partial/")
    }


def _is_one_sentence(error: str) -> None:
    assert error.startswith("error: ")
    assert error.endswith("\n")
    assert error.count("\n") == 1, error
    assert "Traceback" not in error


def test_settings_that_differ_from_those_of_the_output(
    tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--source", str(make_photos(tmp_path)), "--output", str(tmp_path / "out.zarr"), "--scheduler", scheduler]
    assert job([*argv, "--components", "2"]) == 0
    before = _content(tmp_path / "out.zarr")
    capsys.readouterr()
    assert job([*argv, "--components", "3"]) == 4
    error = capsys.readouterr().err
    _is_one_sentence(error)
    assert "--overwrite" in error
    assert _content(tmp_path / "out.zarr") == before
    assert job([*argv, "--components", "3", "--overwrite"]) == 0
    assert zarr.open_group(str(tmp_path / "out.zarr"), mode="r")["scores"].shape[-1] == 3


@pytest.mark.parametrize(
    "argv",
    [
        ["--cell", "0"],
        ["--cell", "ten"],
        ["--components", "-1"],
        ["--workers", "0"],
        ["--resize", "5"],
        ["--data-range", "1,0"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_ends_before_anything_runs(
    argv: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        job(argv)
    assert stop.value.code == 2
    assert "error: argument" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_memory_that_is_no_number_or_too_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--source", str(make_photos(tmp_path)), "--output", str(tmp_path / "out.zarr"), "--workers", "1"]
    for memory, word in (("lots", "lots"), ("50MB", "50MB")):
        assert job([*argv, "--memory", memory]) == 3
        error = capsys.readouterr().err
        assert word in error
        _is_one_sentence(error)


def test_cells_that_do_not_fit_the_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.random.default_rng(0).integers(0, 256, (20, 96, 96, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", values)
    argv = ["--source", str(tmp_path / "a.npy"), "--output", str(tmp_path / "out.zarr"), "--cell", "96"]
    # The covariance of 27,648 attributes takes 6 GB, and only it has all components.
    assert job([*argv, "--components", "all", "--workers", "1", "--memory", "1GB"]) == 5
    error = capsys.readouterr().err
    assert re.search(r"27,648 attributes", error)
    _is_one_sentence(error)
    assert not (tmp_path / "out.zarr").exists()


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A limit on the size of files acts in the program and its workers as a full disk does: a write fails half-way."""
    np.save(tmp_path / "a.npy", np.random.default_rng(0).integers(0, 256, (64, 128, 128, 3), dtype=np.uint8))
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000));"
        "from dpca.cli import main; from dpca.storage import ingest, Run, StoreError;"
        f"ingest({str(tmp_path / 'a.npy')!r}, {str(tmp_path / 'out.zarr')!r}, run=Run(threads=1))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert re.search(r"StoreError: .*disk is full", run.stderr)
    assert not (tmp_path / "out.zarr").exists()
    # With room again, the same call finishes.
    assert ingest(tmp_path / "a.npy", tmp_path / "out.zarr", run=Run(threads=1)).n_samples == 64


def test_a_disk_too_small_is_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = make_photos(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    argv = ["--source", str(photos), "--output", str(tmp_path / "out.zarr"), "--components", "2"]
    assert job([*argv, "--scheduler", scheduler]) == 4
    error = capsys.readouterr().err
    assert "1 kB free" in error
    _is_one_sentence(error)
    assert [p.name for p in tmp_path.iterdir()] == ["photos"]


def test_a_model_and_a_stack_that_do_not_belong_together(
    tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = make_stack(tmp_path)
    where = ["--scheduler", scheduler]
    model, scores = str(tmp_path / "model.zarr"), str(tmp_path / "scores.zarr")
    assert dpca_main(["fit", str(stack), model, "--cell", "8", "--components", "2", *where]) == 0
    np.save(tmp_path / "b.npy", smooth_images(9, (20, 24, 3)))
    ingest(tmp_path / "b.npy", tmp_path / "other.zarr", run=Run(threads=1))
    assert dpca_main(["transform", model, str(tmp_path / "other.zarr"), scores, *where]) == 3
    error = capsys.readouterr().err
    assert re.search(r"\(20, 24, 3\).*\(24, 24, 3\)", error)
    _is_one_sentence(error)
    assert dpca_main(["transform", str(stack), str(stack), scores, *where]) == 4
    error = capsys.readouterr().err
    assert "not a model" in error
    _is_one_sentence(error)
    assert dpca_main(["reconstruct", model, str(stack), str(tmp_path / "again.zarr"), *where]) == 4
    _is_one_sentence(capsys.readouterr().err)
    assert not os.path.exists(scores)
