"""The two sizes of a test run: all tests with ``--all``, and without it those that answer within three minutes.

The short run leaves out tests by what they need, tests that are marked as ``long``, and of tests that are marked with
``cases(n)`` all but n cases. Nothing is left out of a file that the command line names, or beside ``-m`` or ``-k``.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent

#: What tests may need; the short run has none of them.
NEEDS = {
    "cluster": "a Dask cluster, or a scheduler that people started",
    "programs": "other programs, hosts or processors",
    "kill": "a run that is killed, in many places",
    "browser": "Chromium",
    "s3": "an S3 server",
    "notebooks": "a kernel that runs notebooks",
    "docs": "the built site, or the commands of the guides",
    "studies": "a program of pipelines/ or tests/benchmarks",
    "fuzz": "many random cases",
    "memory": "a process whose peak memory is measured",
}
MARKERS = [
    *(f"{name}: needs {need}" for name, need in NEEDS.items()),
    "long: takes a second or more, and shorter tests see most of the faults that it sees",
    "cases(n): the short run takes n of its cases, spread over all of them",
]
_BY_FIXTURE = {"cluster": "cluster", "scheduler": "cluster", "programs": "programs", "s3": "s3", "browser": "browser"}
_BY_PLACE = {
    "notebooks": "notebooks",
    "studies": "studies",
    "pipelines": "studies",
    "test_benchmarks.py": "studies",
    "docs/test_code_blocks.py": "docs",
    "docs/test_examples.py": "docs",
    "docs/test_site.py": "docs",
}


def mark_needs(item: pytest.Item) -> None:
    """Mark a test with what it needs, by its fixtures and its place."""
    place = item.path.relative_to(ROOT).as_posix()
    found = {_BY_FIXTURE[name] for name in getattr(item, "fixturenames", ()) if name in _BY_FIXTURE}
    found |= {need for start, need in _BY_PLACE.items() if place == start or place.startswith(f"{start}/")}
    for need in sorted(found):
        item.add_marker(need)


def left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that the short run leaves out."""
    out = {item for item in items if any(item.get_closest_marker(name) for name in ("long", *NEEDS))}
    cases: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item not in out and item.get_closest_marker("cases"):
            cases[item.path, getattr(item, "originalname", item.name)].append(item)
    for every in cases.values():
        (n,) = every[0].get_closest_marker("cases").args  # type: ignore[union-attr]
        out |= set(every) - {every[i * len(every) // n] for i in range(n)}
    return out


def is_short(config: pytest.Config) -> bool:
    """Say whether this run is the short one: no option asks for all tests, and no argument names a file."""
    named = any(".py" in argument for argument in config.args)
    return not (config.getoption("all") or config.option.markexpr or config.option.keyword or named)
