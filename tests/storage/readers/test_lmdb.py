"""LMDB databases: what the library writes is read, and nothing that a file says is believed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.storage.errors import DataError
from dpca.storage.readers import Refused, open_reader
from dpca.storage.readers.images.lmdb_images import LmdbReader
from tests.storage.sources.made_sources import write_lsun

# inline values of all sizes, and some that have pages of their own
MANY = {b"%05d" % i: bytes([i % 251]) * (i * 37 % 1900) for i in range(3000)}
LARGE = {b"%03d" % i: bytes([i]) * (i * 977) for i in range(120)}


def by_the_library(path: Path) -> dict[bytes, bytes]:
    with lmdb.open(os.fspath(path), readonly=True, lock=False) as environment, environment.begin() as view:
        return dict(view.cursor())


@pytest.mark.parametrize("content", [{}, {b"a": b""}, MANY, LARGE], ids=["empty", "one", "many", "large"])
def test_what_the_library_reads_is_read(content: Mapping[bytes, bytes], tmp_path: Path) -> None:
    path = write_lsun(tmp_path / "l", content)
    reader = open_reader(path)
    expected = by_the_library(path)
    assert expected == content
    assert [name.encode() for name in reader.names] == list(expected)
    if content:
        assert reader.fetch(range(len(reader))) == list(expected.values())


def test_a_database_that_was_changed_often_is_read_as_it_is_now(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    content: dict[bytes, bytes] = {}
    with lmdb.open(os.fspath(tmp_path / "l"), map_size=1 << 26) as environment:
        for _ in range(25):
            with environment.begin(write=True) as transaction:
                for key in (b"%d" % n for n in rng.integers(0, 900, 120)):
                    if rng.random() < 0.4:
                        transaction.delete(key)
                        content.pop(key, None)
                    else:
                        content[key] = rng.bytes(int(rng.integers(0, 9000)))
                        transaction.put(key, content[key])
            assert LmdbReader(os.fspath(tmp_path / "l"))._keys == sorted(content)
    reader = open_reader(tmp_path / "l")
    assert reader.fetch(range(len(reader))) == [content[key] for key in sorted(content)]


def test_databases_inside_a_database_are_refused(tmp_path: Path) -> None:
    with lmdb.open(os.fspath(tmp_path / "l"), max_dbs=1, map_size=1 << 24) as environment:
        environment.open_db(b"inner")
    with pytest.raises(DataError, match="key"):
        open_reader(tmp_path / "l")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    content = {
        **{b"%03d" % i: bytes([i]) * (i * 31 % 600) for i in range(100)},
        b"100": bytes(9000),
        b"101": b"x" * 5000,
    }
    path = write_lsun(tmp_path_factory.mktemp("lmdb") / "l", content) / "data.mdb"
    return path, path.read_bytes()


hostile = st.sampled_from([0, 1, 2, 7, 255, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**47, 2**63 - 1, 2**64 - 1])


@settings(max_examples=250, deadline=None)
@given(at=st.integers(0, 10**6), size=st.sampled_from([1, 2, 4, 8]), value=hostile)
def test_any_number_may_be_false(sound: tuple[Path, bytes], at: int, size: int, value: int) -> None:
    path, content = sound
    damaged = bytearray(content)
    at = at % (len(content) // size) * size
    damaged[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    path.write_bytes(damaged)
    try:
        reader = LmdbReader(str(path))
        block = reader.fetch(range(len(reader)))
    except DataError:
        return
    assert all(isinstance(payload, bytes | Refused) for payload in block)
    assert sum(len(payload) for payload in block if isinstance(payload, bytes)) < 1e9
