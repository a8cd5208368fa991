"""Shared by the tests of ingest: small shards, readers that end early, and the content of stores."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.storage.readers import Reader
from tests.storage.sources.made_sources import (
    encoded,
    jpegs,
    pixels,
    truth,
    write_folder,
    write_lsun,
    write_tar,
    write_zip,
)

# the module, which the function of the same name hides in the package
INGEST: Any = importlib.import_module("dpca.storage.ingest")
WRITER: Any = importlib.import_module("dpca.storage.decoded_shard")

BROKEN = encoded(pixels(99), "JPEG")[:300]


def stacked(files: dict[str, bytes]) -> np.ndarray[Any, Any]:
    return np.stack([truth(payload) for payload in files.values()])


class Interrupted(Exception):
    pass


class Breaking(Reader):
    """A valid reader that raises an error after some items."""

    kind = "folder"
    name = "t"

    def __init__(self, inner: Reader, limit: int) -> None:
        self._inner, self._limit = inner, limit
        self.random_access = inner.random_access
        self.encoded, self.sample_shape, self.dtype = inner.encoded, inner.sample_shape, inner.dtype

    @property
    def names(self) -> Sequence[str]:
        return self._inner.names

    def fingerprint(self) -> str:
        return self._inner.fingerprint()

    def part(self, indices: Sequence[int]) -> Callable[[], Any]:
        return partial(self._read, indices)

    def stream(self, requests: Iterable[Sequence[int]]) -> Iterator[Any]:
        def checked() -> Iterator[Sequence[int]]:
            for indices in requests:
                if max(indices) >= self._limit:
                    raise Interrupted
                yield indices

        return self._inner.stream(checked())

    def _read(self, indices: Sequence[int]) -> Any:
        if max(indices) >= self._limit:
            raise Interrupted
        return self._inner.fetch(indices)


def noted_writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that will hold the first row of every shard that is written."""
    written: list[int] = []
    write = WRITER.write_shard

    def noting(array: Any, start: Any, values: Any) -> None:
        written.append(start[0])
        write(array, start, values)

    monkeypatch.setattr(WRITER, "write_shard", noting)
    return written


SOURCES: dict[str, Callable[[Path, dict[str, bytes]], Path]] = {
    "folder": lambda path, files: write_folder(path / "tree", files),
    "tar": lambda path, files: write_tar(path / "a.tar", files),
    "tgz": lambda path, files: write_tar(path / "a.tgz", files, "gz"),
    "zip": lambda path, files: write_zip(path / "a.zip", files),
    "lmdb": lambda path, files: write_lsun(path / "l", {name.encode(): payload for name, payload in files.items()}),
}


def bad_files(n: int, bad: dict[int, bytes]) -> dict[str, bytes]:
    return {name: bad.get(i, payload) for i, (name, payload) in enumerate(jpegs(n).items())}
