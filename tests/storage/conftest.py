from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from dpca.storage.arrays.arrays import create_array, create_root, write_shard, write_strings
from dpca.storage.arrays.layout import Layout
from tests.storage.sources.ingest_to_kill import small_shards

MakeStack = Callable[..., Path]


@pytest.fixture(scope="session")
def workers_inside() -> Iterator[LocalCluster]:
    """Two single-thread workers inside this process."""
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        yield cluster


@pytest.fixture
def client(workers_inside: LocalCluster) -> Iterator[Client]:
    """A client of these workers, for one test: others must not find it."""
    with Client(workers_inside) as client:
        yield client


@pytest.fixture
def _many_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("dpca.storage.ingest"), "choose_layout", small_shards)


@pytest.fixture
def make_stack() -> MakeStack:
    """Write a whole stack store of a few samples without going through ingest."""

    def make(path: Path, values: np.ndarray[Any, Any], *, rows: int = 4, **changed: Any) -> Path:
        axes = ("sample", "y", "x", "channel")[: values.ndim]
        facts = {
            "kind": "stack",
            "version": 1,
            "fingerprint": "f" * 32,
            "axes": axes,
            "data_range": [0, 255],
            "source": {"kind": "folder", "name": "faces", "count": len(values)},
            "color": "rgb",
            "ignored": 0,
            **changed,
        }
        group = create_root(path, **facts)
        layout = Layout((2, *values.shape[1:]), (rows, *values.shape[1:]))
        samples = create_array(group, "samples", values.shape, values.dtype, layout, axes)
        for start in range(0, len(values), rows):
            write_shard(samples, start, values[start : start + rows])
        write_strings(group, "name", [f"person/{i:03d}.jpg" for i in range(len(values))])
        return path

    return make
