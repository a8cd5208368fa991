"""A file of chunks is compared with the checksums of the file that was written there, byte by byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpca.storage.arrays.arrays import create_array, create_root, write_shard
from dpca.storage.arrays.layout import Layout
from dpca.storage.errors import StoreError
from dpca.storage.integrity.checksums import ShardChecksums, compare_file, compare_stored, stored_checksums


@pytest.fixture
def array(tmp_path: Path) -> Path:
    """An array of two shards of two chunks each."""
    group = create_root(tmp_path / "a.zarr", kind="test", fingerprint="f")
    made = create_array(group, "x", (8, 5), np.uint8, Layout((2, 5), (4, 5)), ("sample", "column"))
    for start in (0, 4):
        write_shard(made, start, np.arange(5 * start, 5 * start + 20, dtype=np.uint8).reshape(4, 5))
    return tmp_path / "a.zarr" / "x"


def test_every_byte_counts(array: Path) -> None:
    known = stored_checksums(array)
    assert list(known) == ["c/0/0", "c/1/0"]
    path, expected = array / "c/0/0", ShardChecksums.from_entry(known["c/0/0"])
    content = path.read_bytes()
    compare_file(str(path), expected)
    for i in range(len(content)):
        path.write_bytes(content[:i] + bytes([content[i] ^ 16]) + content[i + 1 :])
        with pytest.raises(ValueError, match="bytes"):
            compare_file(str(path), expected)
    for other in (content[:-1], content + b"\0", b"\0" + content):
        path.write_bytes(other)
        with pytest.raises(ValueError, match="expected"):
            compare_file(str(path), expected)


def test_an_intact_shard_of_another_place_is_damage(array: Path) -> None:
    known = stored_checksums(array)
    compare_stored(str(array.parent), "x", known)
    with pytest.raises(ValueError, match="checksum"):
        compare_file(str(array / "c/1/0"), ShardChecksums.from_entry(known["c/0/0"]))
    (array / "c/1/0").write_bytes((array / "c/0/0").read_bytes())
    with pytest.raises(StoreError, match="checksums"):
        compare_stored(str(array.parent), "x", known)
