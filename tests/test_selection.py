"""The two sizes of a test run."""

from __future__ import annotations

import pytest

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
"""
SHORT = ["test_short", "test_cases[0]", "test_cases[2]"]
ALL = ["test_short", "test_cluster", "test_long", *(f"test_cases[{case}]" for case in range(5))]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], SHORT),
        (["."], SHORT),
        (["--all"], ALL),
        (["test_some.py"], ALL),
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
