"""SIGTERM ends a program as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from dpca.engine.stopping import Stopped, stop_on_signals


def test_sigterm_becomes_an_exception_and_what_is_open_is_closed() -> None:
    before = signal.getsignal(signal.SIGTERM)
    closed = []
    with pytest.raises(Stopped) as stopped, stop_on_signals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            closed.append(True)
    assert closed == [True]
    assert stopped.value.number == signal.SIGTERM
    assert str(stopped.value) == "SIGTERM"
    assert isinstance(stopped.value, KeyboardInterrupt)  # what stops for Ctrl-C stops for this
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_handler_before_is_put_back_after_any_end() -> None:
    def mine(number: int, frame: object) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with pytest.raises(ZeroDivisionError), stop_on_signals():
            assert signal.getsignal(signal.SIGTERM) is not mine
            raise ZeroDivisionError
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_of_the_main_thread_nothing_happens() -> None:
    seen = []

    def work() -> None:
        with stop_on_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_program_that_waits_is_ended() -> None:
    program = """
import threading
from dpca.engine.stopping import stop_on_signals
try:
    with stop_on_signals():
        print("ready", flush=True)
        threading.Event().wait(60)
except KeyboardInterrupt as stopped:
    print("stopped by", stopped, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.communicate(timeout=30)[0] == "stopped by SIGTERM\n"
    assert process.returncode == 0
