"""Ctrl-C and SIGTERM end a job cleanly; the same command goes on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import zarr

from dpca.pipelines import celeba_cpca, lsun_streaming
from tests.helpers.forked import Programs


@pytest.mark.parametrize(
    ("program", "number", "code"), [(celeba_cpca, signal.SIGTERM, 143), (lsun_streaming, signal.SIGINT, 130)]
)
def test_a_clean_stop(
    program: ModuleType,
    number: int,
    code: int,
    image_folder: Callable[..., Path],
    tmp_path: Path,
    scheduler: str,
    programs: Programs,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "out.zarr"
    settings = ["--source", str(image_folder(300, (60, 52, 3))), "--output", str(output), "--components", "5"]
    command = [sys.executable, str(program.__file__), *settings, "--workers", "2", "--memory", "1GB"]
    running = programs.start(command)
    for line in running.stdout:
        if line.startswith("fit "):
            break
    if number == signal.SIGINT:  # which a terminal sends to the program and to all of its workers
        os.killpg(running.pid, number)
    else:
        running.send_signal(number)
    _, errors = running.communicate()
    assert running.returncode == code, errors
    assert "same command resumes" in errors
    assert "Traceback" not in errors
    assert not output.exists()
    # The stack was ingested and is not ingested again.
    assert program.main([*settings, "--scheduler", scheduler]) == 0
    said = capsys.readouterr().out
    assert "unfinished run" in said
    assert "ingest" not in said.split("samples ")[0]
    assert zarr.open_group(str(output), mode="r")["scores"].shape[0] == 300
    assert not output.with_name("out.zarr.partial").exists()
