"""Bars of a terminal."""

from __future__ import annotations

import io
import sys
import time

import pytest

from dpca.storage import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_again_while_a_task_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_REFRESHED", 0.01)
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    bar = progress.bar_progress("encode", 10, "shards")
    begun, end = screen.getvalue().count("encode"), time.monotonic() + 20
    while screen.getvalue().count("encode") < begun + 3 and time.monotonic() < end:
        time.sleep(0.01)
    assert screen.getvalue().count("encode") >= begun + 3
    bar.close()
    assert "0/10 " in screen.getvalue()


def test_nothing_is_drawn_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_REFRESHED", 0.01)
    monkeypatch.setattr(sys, "stderr", log := io.StringIO())
    bar = progress.bar_progress("encode", 10, "shards")
    bar.advance(10)
    time.sleep(0.05)
    bar.close()
    assert log.getvalue() == ""
