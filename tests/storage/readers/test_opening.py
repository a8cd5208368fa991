"""Readers are chosen by the content of a source; its name is only a hint."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.storage.errors import DataError
from dpca.storage.readers import open_reader

VALUES = np.random.default_rng(0).integers(0, 256, (11, 6, 5, 3), dtype=np.uint8)


def saved(folder: Path) -> Path:
    np.save(folder / "a.npy", VALUES)
    return folder / "a.npy"


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="/nothing'"):
        open_reader(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"\*\.tar"):
        open_reader(str(tmp_path / "*.tar"))
    with pytest.raises(DataError, match="empty"):
        open_reader([])


def test_a_name_with_pattern_characters_is_a_name_first(tmp_path: Path) -> None:
    np.save(tmp_path / "a[1].npy", VALUES)
    np.testing.assert_array_equal(open_reader(tmp_path / "a[1].npy").fetch(range(11)), VALUES)


@pytest.mark.parametrize("content", [b"plain text\n", b"%PDF-1.7", bytes(600)])
def test_unknown_formats(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_bytes(content)
    with pytest.raises(DataError, match="format"):
        open_reader(tmp_path / "a.dat")


@pytest.mark.parametrize("name", ["a.tar", "a.zip", "a.npz", "a.tgz", "a.npy", "a.h5"])
@pytest.mark.parametrize("content", [b"", b"plain text\n" * 100])
def test_what_is_not_what_its_name_says(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(open_reader(tmp_path / name).names)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_content_counts_more_than_the_name(tmp_path: Path) -> None:
    saved(tmp_path).rename(tmp_path / "a.dat")
    np.testing.assert_array_equal(open_reader(tmp_path / "a.dat").fetch(range(11)), VALUES)


def test_an_array_among_several_sources(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match="'b'.*images"):
        open_reader([tmp_path / "a.npy", tmp_path / "b"])


def test_a_device() -> None:
    with pytest.raises(DataError, match="pipe"):
        open_reader("/dev/null")


def test_what_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)

    def forbidden(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", forbidden)
    with pytest.raises(DataError, match=r"a\.npy.*permissions"):
        open_reader(path)
