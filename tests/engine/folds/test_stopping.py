"""Signals end a program cleanly, once and at any place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dpca.engine.folds.stopping import SIGNALS, Stopped, defer_signals, interruptible


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_becomes_an_exception_and_what_is_open_is_closed(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    closed = []
    with pytest.raises(Stopped) as stopped, interruptible():
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            closed.append(True)
    assert closed == [True]
    assert stopped.value.number == number
    assert str(stopped.value) == number.name
    assert isinstance(stopped.value, KeyboardInterrupt)  # what stops for Ctrl-C stops for this
    assert signal.getsignal(number) is before


def test_the_handler_before_is_put_back_after_any_end() -> None:
    def mine(number: int, frame: object) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with pytest.raises(ZeroDivisionError), interruptible():
            assert signal.getsignal(signal.SIGTERM) is not mine
            raise ZeroDivisionError
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_of_the_main_thread_nothing_happens() -> None:
    seen = []

    def work() -> None:
        with interruptible():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_program_that_waits_is_ended() -> None:
    program = """
import threading
from dpca.engine.folds.stopping import interruptible
try:
    with interruptible():
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


def test_a_block_that_must_not_be_left_half_way_is_finished_first() -> None:
    reached = []
    with pytest.raises(Stopped), interruptible():
        with defer_signals():
            with defer_signals():
                os.kill(os.getpid(), signal.SIGTERM)
                reached.append("inner")
            reached.append("outer")
        reached.append("beyond")
    assert reached == ["inner", "outer"]


def test_a_stop_is_not_lost_to_an_error_of_such_a_block() -> None:
    with pytest.raises(Stopped), interruptible(), defer_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError


def test_a_second_signal_does_not_disturb_the_closing() -> None:
    closed = []
    with pytest.raises(Stopped), interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            closed.append(True)
    assert closed == [True]


class Finalized:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)  # the signal is obeyed here, where no exception can leave


def test_a_signal_that_meets_a_finalizer_is_not_lost() -> None:
    with pytest.raises(Stopped), interruptible():
        thing = Finalized()
        del thing
        time.sleep(30)
        pytest.fail("went on")


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.long
def test_impatience_ends_a_program_whose_closing_takes_long() -> None:
    program = """
import time
from dpca.engine.folds.stopping import interruptible
with interruptible():
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("closing", flush=True)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(0.1)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "closing\n"
        time.sleep(1.5)
        process.terminate()
        assert (
            process.communicate(timeout=30)[1]
            == "stopped by SIGTERM: finished work is kept, the same command resumes\n"
        )
    assert process.returncode == 143
