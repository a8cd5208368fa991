"""The two sizes of a test run."""

from __future__ import annotations

import itertools
import math

import pytest

from tests.helpers.covering import covering

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.fixture
def cluster():
    pass

def test_short():
    pass

def test_cluster(cluster):
    pass

@pytest.mark.long
def test_long():
    pass

@pytest.mark.cases(2)
@pytest.mark.parametrize("case", range(5))
def test_cases(case):
    pass

@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0)])
def test_values(a, b, c):
    pass

@pytest.mark.pairwise
@pytest.mark.parametrize("a", range(2))
@pytest.mark.parametrize("b", range(2))
@pytest.mark.parametrize("c", range(3))
def test_pairs(a, b, c):
    pass
"""
VALUES = [f"test_values[{b}-0-{a}]" for b in range(2) for a in range(3)]
PAIRS = [f"test_pairs[{case}]" for case in ("0-0-0", "0-1-1", "1-0-0", "1-1-1", "2-0-1", "2-1-0")]
PRODUCT = [f"test_pairs[{c}-{b}-{a}]" for c in range(3) for b in range(2) for a in range(2)]
SHORT = ["test_short", "test_cases[0]", "test_cases[2]", VALUES[0], VALUES[2], VALUES[4], PAIRS[0], PAIRS[3], PAIRS[4]]
ALL = ["test_short", "test_cluster", "test_long", *(f"test_cases[{case}]" for case in range(5)), *VALUES, *PAIRS]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], SHORT),
        (["."], SHORT),
        (["--all"], ALL),
        (["test_some.py"], ALL),
        (["--short", "test_some.py"], SHORT),
        (["test_some.py::test_pairs"], PRODUCT),
        (["-k", "short or long"], ["test_short", "test_long"]),
        (["-m", "cluster"], ["test_cluster"]),
    ],
)
def test_what_runs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: list[str]
) -> None:
    monkeypatch.setattr("tests.selection.ROOT", pytester.path)
    pytester.makeconftest(
        "from tests.conftest import pytest_addoption, pytest_collection_modifyitems, pytest_configure\n"
    )
    pytester.makepyfile(test_some=TESTS)
    ran = pytester.inline_run("-p", "no:xdist", "-p", "no:cacheprovider", *arguments)
    passed, skipped, failed = ran.listoutcomes()
    assert [report.nodeid.split("::")[1] for report in passed] == expected
    assert not skipped
    assert not failed


@pytest.mark.parametrize("sizes", [(7,), (4, 3), (30, 3, 3), (5, 4, 3, 2)])
@pytest.mark.parametrize("strength", [1, 2])
def test_all_values_and_all_pairs_occur_in_few_cases(sizes: tuple[int, ...], strength: int) -> None:
    cases = [dict(enumerate(case)) for case in itertools.product(*map(range, sizes))]
    chosen = [cases[i] for i in covering(cases, strength)]
    for names in itertools.combinations(range(len(sizes)), min(strength, len(sizes))):
        every = itertools.product(*(range(sizes[name]) for name in names))
        assert {tuple(case[name] for name in names) for case in chosen} == set(every)
    least = math.prod(sorted(sizes)[-strength:])
    assert least <= len(chosen) <= 1.3 * least
