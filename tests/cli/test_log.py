"""The log of a command outside a terminal: a line with the time when a stage begins, and one at intervals."""

from __future__ import annotations

import re
import time

import pytest

from dpca.cli import work

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
    stage.close()
    told = [match[1] for line in lines if (match := LINE.fullmatch(line))]
    assert len(told) == len(lines) >= 3
    assert told[0] == "12,000 B"
    assert told[-1] == "3,000 of 12,000 B"
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().out == ""
