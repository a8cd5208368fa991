"""The log of a command outside a terminal: a line with the time when a stage begins, and one at intervals."""

from __future__ import annotations

import io
import re
import time

import pytest

from dpca.cli import work
from dpca.storage import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d fit: (.*)")


def test_a_stage_in_a_log(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_HEARTBEAT", 0.02)
    stage = work.shown_progress("fit", 12_000, "B")
    stage.advance(3_000)
    lines: list[str] = []
    deadline = time.monotonic() + 30
    while len(lines) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
        lines += capsys.readouterr().out.splitlines()
    stage.advance(6_000)
    while not lines[-1].endswith("left") and time.monotonic() < deadline:
        time.sleep(0.01)
        lines += capsys.readouterr().out.splitlines()
    stage.close()
    told = [match[1] for line in lines if (match := LINE.fullmatch(line))]
    assert len(told) == len(lines) >= 4
    assert told[:3] == ["12 kB", *["3 kB of 12 kB"] * 2]
    # 6 of the 9 kB since the first line with progress, so that half as much time is left as has passed.
    assert re.fullmatch(r"9 kB of 12 kB, about 0\.[01] s left", told[-1])
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("total", "unit", "told"),
    [(1, "groups of cells", "1 group of cells"), (2, "groups of cells", "2 groups of cells"), (1, "job", "1 job")],
)
def test_one_unit_is_told_in_the_singular(total: int, unit: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    work.shown_progress("fit", total, unit).close()
    match = LINE.fullmatch(capsys.readouterr().out.splitlines()[0])
    assert match is not None
    assert match[1] == told


def test_a_bar_in_a_terminal_shows_the_time_while_a_task_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_REFRESHED", 0.02)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    bar = progress.bar_progress("fit", 100, "samples")
    bar.advance(20)
    deadline = time.monotonic() + 30
    while "20/100" not in terminal.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    drawn = terminal.getvalue().count("20/100")
    while terminal.getvalue().count("20/100") < drawn + 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    bar.close()
    assert terminal.getvalue().count("20/100") >= drawn + 3
