"""The command: its output, its page, and its end."""

from __future__ import annotations

import signal
import sys
import urllib.request
from pathlib import Path

import pytest

from dpca.cli import main
from dpca.engine.folds.stopping import STOPPED
from tests.helpers.forked import Programs

DPCA = [sys.executable, "-c", "import sys; from dpca.cli import main; sys.exit(main())", "explore"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_serves_the_first_picture_and_ends_without_a_word_more(
    stores: Path, programs: Programs, number: int, code: int
) -> None:
    running = programs.start([*DPCA, str(stores / "stack.zarr"), "--model", str(stores / "model.zarr")])
    line = running.stdout.readline()
    assert line.startswith("http://localhost:")
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(line.split()[0]) as answer:
        assert '<img src="data:image/png' in answer.read().decode()
    running.send_signal(number)
    by = " by SIGTERM" if number == signal.SIGTERM else ""
    assert running.communicate()[1] == f"{STOPPED}{by}\n"
    assert running.returncode == code


def test_what_is_wrong_is_said_before_anything_is_served(
    stores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, code, says in (
        (tmp_path / "nowhere", 3, "there is no file or folder"),
        (Path(__file__), 3, "unsupported format"),
    ):
        assert main(["explore", str(path)]) == code
        out, errors = capsys.readouterr()
        assert says in errors
        assert not out
    assert main(["explore", str(stores / "stack.zarr"), "--model", str(stores / "stack.zarr")]) == 4
    assert "not a model" in capsys.readouterr().err
