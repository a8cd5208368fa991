"""While workers start, a bar moves in a terminal, and a log has lines."""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from dpca.cli import work
from dpca.cli.work import begin_start, run_of, shown_progress
from dpca.engine.clusters import cluster
from dpca.storage import progress
from dpca.storage.errors import ClusterError

HERE = argparse.Namespace(
    scheduler=None, cluster=None, workers=2, memory=None, tls_ca_file=None, tls_cert=None, tls_key=None
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TwoWorkers:
    cluster = argparse.Namespace(worker_spec={0: None})
    status = "running"

    def nthreads(self) -> dict[str, int]:
        return {"tcp://a": 1, "tcp://b": 1}


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """Make a cluster start only when a condition holds."""

    def when(shown: Callable[[], bool]) -> None:
        @contextmanager
        def opened(*_: Any, **__: Any) -> Iterator[TwoWorkers]:
            end = time.monotonic() + 20
            while not shown():
                if time.monotonic() > end:
                    raise ClusterError("nothing was shown")
                time.sleep(0.005)
            yield TwoWorkers()

        monkeypatch.setattr(cluster, "open_client", opened)

    return when


def test_a_log_has_lines(
    starts: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(work, "_HEARTBEAT", 0.01)
    monkeypatch.setattr(work, "say", said.append)
    starts(lambda: any("start workers: 0 of 2 workers" in line for line in said))
    with run_of(HERE, said.append) as run:
        assert said == []  # a finished job starts nothing
        assert len(run.client.nthreads()) == 2  # type: ignore[union-attr]
        count = len(said)
        time.sleep(0.05)
        assert len(said) == count  # the stage has ended
    assert said[0].endswith(" start workers: 2 workers")
    assert said[-1] == "2 workers"


def test_a_bar_moves_in_a_terminal(
    starts: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(progress, "_REFRESHED", 0.01)
    starts(lambda: screen.getvalue().count("start workers:   0%") > 3)
    begun = begin_start(HERE, shown_progress)  # before the imports of a command
    with run_of(HERE, starting=begun) as run:
        run.say("a line of the job")
        assert len(run.client.nthreads()) == 2  # type: ignore[union-attr]
        drawn = screen.getvalue()
    assert "start workers: 100%" in drawn
    assert drawn == screen.getvalue()
    assert drawn.count("\n") == 1  # one bar
    assert capsys.readouterr().out.splitlines() == ["a line of the job", "2 workers"]


def test_the_bar_ends_before_an_error(starts: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)

    def fails() -> bool:
        raise ClusterError("no cluster")

    starts(fails)
    with pytest.raises(ClusterError), run_of(HERE) as run:
        run.client.nthreads()  # type: ignore[union-attr]
    assert screen.getvalue().endswith("\n")


class Pages(BaseHTTPRequestHandler):
    """Answers as a scheduler with a dashboard does, or as one without it."""

    def do_HEAD(self) -> None:
        self.send_response(405 if self.path == "/status" else 404)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_a_dashboard_is_stated_if_there_is_one() -> None:
    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert work._dashboard(f"{address}/status") == f", dashboard {address}/status"
        assert work._dashboard(f"{address}/elsewhere") == ""
        server.shutdown()
    assert work._dashboard(f"{address}/status") == ""


def test_a_given_scheduler_is_not_started(capsys: pytest.CaptureFixture[str]) -> None:
    begin_start(argparse.Namespace(**{**vars(HERE), "scheduler": "tcp://127.0.0.1:1"}), shown_progress).close()
    assert capsys.readouterr().out == ""
