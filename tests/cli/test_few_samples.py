"""Inputs with so few samples that a compressed store does not pay, or no fit is possible."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dpca.cli import main
from dpca.report import words
from dpca.report.record import read_report


@pytest.mark.usefixtures("small_pictures")
def test_a_store_larger_than_its_input_ends_with_the_remedy(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, store = str(image_folder(3, (16, 16, 3))), str(tmp_path / "small.zarr")
    compressing = ["compress", source, store, "--cell", "8", "--quality", "max-error=0.5", "--scheduler", scheduler]
    for _ in range(2):  # also if there is nothing to do
        assert main(compressing) == 0
        printed = capsys.readouterr().out.splitlines()
        assert printed[-2].startswith("note: the output has ")
        assert "--quality" in printed[-2]
        assert "more samples" in printed[-2]
        assert "times larger than the input" in printed[-1]
        assert len([line for line in printed if "more than the input" in line]) == 1
    report = read_report(tmp_path / "small.report")
    assert report is not None
    assert printed[-2] == f"note: {report['notes'][-1]}"


def test_which_output_is_larger() -> None:
    small = {"bytes_given": 100, "bytes_compressed": 90, "bytes_written": {"compressed": 90, "total": 90}}
    assert words.size_warning(small) is None
    assert words.size_warning({**small, "bytes_given": None}) is None
    with_stack = {**small, "bytes_written": {"stack": 50, "compressed": 90, "total": 140}}
    warning = words.size_warning(with_stack)
    assert warning is not None
    assert "stack" in warning
    assert "--quality" not in warning
    scores = {"bytes_given": 100, "bytes_written": {"scores": 80, "model": 70, "total": 150}, "cells": 4}
    warning = words.size_warning(scores)
    assert warning is not None
    assert "80 bytes of it scores" in warning
    assert "dpca compress" in warning


@pytest.mark.parametrize("command", ["compress", "scores", "plan", "job run"])
def test_one_sample_is_refused_before_workers_start(
    command: str, image_folder: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = str(image_folder(1)), str(tmp_path / "out.zarr")
    argv = [command, source, output]
    if command == "plan":
        argv = [command, source]
    elif command == "job run":
        (tmp_path / "job.toml").write_text(f'inputs = ["{source}"]\noutput = "{output}"\ntarget = "high"\n')
        argv = [*command.split(), str(tmp_path / "job.toml")]
    assert main(argv) == 3
    printed = capsys.readouterr()
    assert "at least 2 samples" in printed.out + printed.err
    assert "worker" not in printed.out
    assert not (tmp_path / "out.zarr.partial").exists()
