"""The two sizes of a test run: all tests with ``--all``, and without it those that answer within three minutes.

The short run leaves out tests by what they need, and tests that are marked as ``long``. Of a test with several
parameters it takes so many cases that every value of every parameter occurs, and of a test that is marked with
``cases(n)`` at most n of them. Nothing is left out of a file that the command line names, or beside ``-m`` or ``-k``,
unless ``--short`` is given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.covering import covering

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
    "pairwise: of the product of its parameters, only cases in which every two values meet, in every run",
]
_NONE = SimpleNamespace(params={})
_BY_FIXTURE = {
    "cluster": "cluster",
    "hidden_cluster": "cluster",
    "programs": "programs",
    "s3": "s3",
    "browser": "browser",
}
_BY_PLACE = {
    "notebooks": "notebooks",
    "studies": "studies",
    "pipelines": "studies",
    "test_benchmarks.py": "studies",
    "docs/test_code_blocks.py": "docs",
    "docs/test_examples.py": "docs",
    "docs/test_containers.py": "docs",
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
    for every in _by_function(item for item in items if item not in out):
        taken = _covering(every, 1)
        if (marker := every[0].get_closest_marker("cases")) is not None:
            (n,) = marker.args
            taken = [taken[i * len(taken) // n] for i in range(n)] if n < len(taken) else taken
        out |= set(every) - set(taken)
    return out


def without_repeated_pairs(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the cases of tests marked as ``pairwise`` that add no pair of values."""
    marked = _by_function(item for item in items if item.get_closest_marker("pairwise"))
    return {item for every in marked for item in set(every) - set(_covering(every, 2))}


def _by_function(items: Iterable[pytest.Item]) -> Iterable[list[pytest.Item]]:
    found: dict[tuple[Path, object, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        found[item.path, getattr(item, "cls", None), getattr(item, "originalname", item.name)].append(item)
    return found.values()


def _covering(every: list[pytest.Item], strength: int) -> list[pytest.Item]:
    """Return cases of a test in which all values, or all pairs of values, of its parameters occur."""
    return [every[i] for i in covering([_values(item) for item in every], strength)]


def _values(item: pytest.Item) -> dict[str, Hashable]:
    """Return what each ``parametrize``, and each fixture with parameters, gives to a case of a test."""
    given = {name: id(value) for name, value in getattr(item, "callspec", _NONE).params.items()}
    values: dict[str, Hashable] = {}
    for marker in item.iter_markers("parametrize"):
        names = marker.args[0] if marker.args else marker.kwargs["argnames"]
        together = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        values[",".join(together)] = tuple(given.pop(name) for name in together)
    return values | given


def is_short(config: pytest.Config) -> bool:
    """Say whether this run is the short one: ``--short`` asks for it, or nothing asks for other tests."""
    if config.getoption("short"):
        return True
    named = any(".py" in argument for argument in config.args)
    return not (config.getoption("all") or config.option.markexpr or config.option.keyword or named)


def is_of_one_test(config: pytest.Config) -> bool:
    """Say whether an argument names a single test."""
    return any("::" in argument for argument in config.args)
