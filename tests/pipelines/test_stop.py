"""Ctrl-C and SIGTERM end a job cleanly; the same command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import zarr

from pipelines import celeba_cpca, lsun_streaming


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
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "out.zarr"
    settings = ["--source", str(image_folder(300, (60, 52, 3))), "--output", str(output), "--components", "5"]
    command = [sys.executable, str(program.__file__), *settings, "--workers", "2", "--memory", "1GB"]
    # A session of its own: a terminal sends Ctrl-C to the program and to all of its workers.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("fit "):
                break
        if number == signal.SIGINT:
            os.killpg(running.pid, number)
        else:
            running.send_signal(number)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == code, errors
    assert "stopped: what is finished is kept" in errors
    assert "Traceback" not in errors
    assert not output.exists()
    # The stack was ingested and is not ingested again.
    assert program.main([*settings, "--scheduler", scheduler]) == 0
    said = capsys.readouterr().out
    assert "going on with the unfinished run" in said
    assert "ingest" not in said.split("samples ")[0]
    assert zarr.open_group(str(output), mode="r")["scores"].shape[0] == 300
    assert not output.with_name("out.zarr.partial").exists()
