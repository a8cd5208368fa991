"""Tasks report while they run, on threads and on a cluster."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from dpca.engine.folds.fold import fold
from dpca.engine.sources.source import as_source
from dpca.partition.whole import Whole
from dpca.rules.covariance.moments import Moments
from dpca.storage.progress import Stage
from dpca.storage.remote import reports
from dpca.storage.remote.reports import Reporter, listening
from dpca.storage.run import Run


def reporting(name: str, what: str, counts: list[int]) -> None:
    """A task."""
    reports.EVERY = 0.0
    report = Reporter(name, what)
    for n in counts:
        report(n)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "EVERY", 0.0)


@pytest.mark.usefixtures("often")
def test_counts_of_threads_are_told_as_increases_and_never_twice() -> None:
    told: list[tuple[str, int]] = []
    with listening(None, lambda what, n: told.append((what, n))) as name:
        reporting(name, "a", [3, 7])
        reporting(name, "b", [5])
        reporting(name, "a", [2, 7, 9])  # repeated
    assert told == [("a", 3), ("a", 4), ("b", 5), ("a", 2)]
    assert not reports._heard
    reporting("", "c", [1])
    reporting(name, "c", [1])  # nobody listens any more
    assert len(told) == 4


def test_reports_are_rare() -> None:
    told: list[int] = []
    with listening(None, lambda _, n: told.append(n)) as name:
        report = Reporter(name, "a")
        for n in range(1000):
            report(n)
        assert told == []
        report(1000, ended=True)
        assert told == [1000]


def test_counts_come_from_the_workers_of_a_cluster(cluster: Any) -> None:
    told: list[tuple[str, int]] = []
    with listening(cluster, lambda what, n: told.append((what, n))) as name:
        cluster.submit(reporting, name, "a", [3, 7], pure=False).result()
        cluster.submit(reporting, name, "a", [2, 9], pure=False).result()
        ended = time.monotonic() + 20
        while sum(n for _, n in told) < 9 and time.monotonic() < ended:
            time.sleep(0.01)
        names = list(cluster.get_events())
    assert told == [("a", 3), ("a", 4), ("a", 2)]
    assert f"dpca-{cluster.id}" in names
    assert not any(name.split()[1] in topic for topic in names)  # one topic for all that a client waits for


class Told:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def __call__(self, stage: str, total: int, unit: str) -> Stage:
        return self

    def advance(self, n: int) -> None:
        self.counts.append(n)

    def close(self) -> None:
        pass


@pytest.mark.usefixtures("often")
def test_each_batch_of_a_fold_counts() -> None:
    told, x = Told(), np.ones((3000, 4), np.float32)
    report = fold(Moments(), as_source(x), Whole((4,)), run=Run(threads=1, progress=told))[1]
    rows = report.plan.batch_rows
    assert rows < 3000
    assert [n // x[0].nbytes for n in told.counts if n] == [min(rows, 3000 - start) for start in range(0, 3000, rows)]
