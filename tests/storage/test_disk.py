"""What a disk says, in one sentence."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dpca.storage.disk import exchanged, require_free_space, writing_errors
from dpca.storage.errors import StoreError


@pytest.mark.parametrize(
    ("number", "match"),
    [
        (errno.ENOSPC, "the disk is full while writing 'out.zarr'.*make room and run the same command again"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EACCES, "cannot be written.*another output"),
        (errno.EROFS, "cannot be written.*another output"),
        (errno.ENOTDIR, "a part of its path is a file"),
    ],
)
def test_the_disk_says_no_in_one_sentence(number, match):
    with pytest.raises(StoreError, match=match), writing_errors("out.zarr"):
        raise OSError(number, os.strerror(number))


def test_what_the_job_takes_is_named():
    with pytest.raises(StoreError, match=r"free of 2\.5 TB needed"), writing_errors("out.zarr", 2_500_000_000_000):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_other_errors_pass():
    with pytest.raises(FileNotFoundError), writing_errors("out.zarr"):
        os.stat("/nowhere/at/all")


def test_space_is_asked_for_before_starting(tmp_path):
    require_free_space(tmp_path / "not" / "yet.zarr", 1, "the stack")
    with pytest.raises(StoreError, match=r"the stack takes 1,000 PB") as caught:
        require_free_space(tmp_path / "not" / "yet.zarr", 10**18, "the stack")
    assert "free: make room or choose another output" in str(caught.value)


def test_folders_are_swapped_in_one_step_or_not_at_all(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"in-{name}").touch()
    done = exchanged(tmp_path / "a", tmp_path / "b")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["in-b" if done else "in-a"]
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["in-a" if done else "in-b"]
    assert not exchanged(tmp_path / "a", tmp_path / "none")
    assert (tmp_path / "a").exists()
