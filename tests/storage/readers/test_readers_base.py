"""What all readers share: the names of samples, runs of rows, and which members of archives are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpca.storage.readers import open_reader
from dpca.storage.readers.base import Numbered, Verdict, judge_member, printable, runs


def test_undecodable_and_control_characters_are_escaped() -> None:
    assert printable("é 日本.jpg") == "é 日本.jpg"
    assert printable("a\x1b[31m\n\udcff.jpg") == "a\\x1b[31m\\n\\udcff.jpg"


def test_undecodable_file_names_are_read(tmp_path: Path) -> None:
    with open(os.path.join(os.fsencode(tmp_path), b"\xff.jpg"), "wb") as file:
        file.write(b"x")
    reader = open_reader(tmp_path)
    assert list(reader.names) == ["\\udcff.jpg"]
    assert reader.fetch([0]) == [b"x"]


def test_numbers_stand_for_missing_names() -> None:
    names = Numbered(1001)
    assert (names[0], names[-1], names[7:9]) == ("0000", "1000", ["0007", "0008"])
    assert list(Numbered(2)) == ["0", "1"]
    with pytest.raises(IndexError):
        names[1001]


@pytest.mark.parametrize(
    ("indices", "expected"),
    [([], []), ([3], [(3, 4)]), ([0, 1, 2], [(0, 3)]), ([0, 2, 3, 7], [(0, 1), (2, 4), (7, 8)])],
)
def test_runs(indices: list[int], expected: list[tuple[int, int]]) -> None:
    assert list(runs(indices)) == expected


@pytest.mark.parametrize(
    "name",
    [
        "/a.jpg",
        "../a.jpg",
        "x/../../a.jpg",
        "..\\a.jpg",
        "C:\\a.jpg",
        "\\\\host\\a.jpg",
        "x/..",
        "/etc/passwd",
    ],
)
def test_names_that_lead_out_are_refused(name: str) -> None:
    assert judge_member(name, 1, "file", bytes) == "has a path that leads out of the archive"


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("a/b.jpg", Verdict.IMAGE),
        ("a/.b.jpg", Verdict.HIDDEN),
        (".a/b.jpg", Verdict.HIDDEN),
        ("./a.jpg", Verdict.IMAGE),
        ("a/__MACOSX/b.jpg", Verdict.HIDDEN),
        ("a__MACOSX.jpg", Verdict.IMAGE),
        ("a/b.txt", Verdict.OTHER),
        ("", "has a path that leads out of the archive"),
        ("/a.jpg", "has a path that leads out of the archive"),
        ("\\a.jpg", "has a path that leads out of the archive"),
        ("a/../b.jpg", "has a path that leads out of the archive"),
        ("a\\..\\b.jpg", "has a path that leads out of the archive"),
        ("c:b.jpg", "has a path that leads out of the archive"),
        ("1:b.jpg", Verdict.IMAGE),
    ],
)
def test_names_of_members(name: str, verdict: Verdict | str) -> None:
    assert judge_member(name, 9, "file", lambda: b"text") == verdict
