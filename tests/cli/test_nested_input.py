"""Text that is nested too deeply for parsers: an error message, never a traceback."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

import dpca
from dpca.cli.arguments import _option
from dpca.cli.job import _is_record
from dpca.cli.job_file import read_job_file
from dpca.engine.clusters.cluster_file import read_cluster_file
from dpca.explore.opening import open_explorer
from dpca.report.record import read_report
from dpca.storage import DataError, StoreError, open_stack
from dpca.storage.readers import open_reader
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.claim import read_json
from dpca.storage.transaction.lease import _is_dead

DEEP = 5_000


def deep(kind: str) -> str:
    return {
        "arrays": "[" * DEEP + "]" * DEEP,
        "objects": '{"a":' * DEEP + "1" + "}" * DEEP,
        "a key": '{"attributes": ' + "[" * DEEP + "]" * DEEP + "}",
    }[kind]


def toml(kind: str) -> str:
    return {
        "arrays": "inputs = " + "[" * DEEP + "]" * DEEP,
        "objects": "inputs = " + "{a = " * DEEP + "1" + "}" * DEEP,
        "a key": "[" + ".".join("a" * DEEP) + "]",
    }[kind]


@pytest.mark.parametrize("kind", ["arrays", "objects", "a key"])
@pytest.mark.parametrize("read", [read_job_file, read_cluster_file])
def test_toml(tmp_path: Path, kind: str, read: Callable[[str], object]) -> None:
    (tmp_path / "a.toml").write_text(toml(kind))
    with pytest.raises(DataError) as refused:
        read(str(tmp_path / "a.toml"))
    assert "\n" not in str(refused.value)


METADATA: dict[str, str] = {
    "zarr.json": "zarr.json",
    ".zarray": ".zarray",
    ".zattrs": ".zattrs",
    ".zgroup": ".zgroup",
    ".zmetadata": ".zmetadata",
}


@pytest.mark.parametrize("kind", ["arrays", "objects", "a key"])
@pytest.mark.parametrize("name", METADATA)
@pytest.mark.parametrize("read", [open_stack, open_reader, dpca.open_compressed, dpca.open_scores, open_explorer])
def test_metadata_of_zarr(tmp_path: Path, kind: str, name: str, read: Callable[[str], object]) -> None:
    path = tmp_path / "a.zarr"
    group = name in (".zgroup", ".zmetadata")
    if group:
        zarr.open_group(path, mode="w", zarr_format=2).create_array("samples", data=np.zeros((3, 8, 8), "u1"))
    else:
        zarr.create_array(path, data=np.zeros((3, 8, 8), "u1"), zarr_format=3 if name == "zarr.json" else 2)
    (path / name).write_text(deep(kind))
    try:
        read(str(path))
    except (DataError, StoreError) as refused:
        assert "\n" not in str(refused)  # noqa: PT017


@pytest.mark.parametrize("kind", ["arrays", "objects", "a key"])
def test_our_own_json(tmp_path: Path, kind: str) -> None:
    for name in ("report.json", "index.html"):
        (tmp_path / name).write_text(deep(kind))
    with pytest.raises(StoreError, match="damaged"):
        read_report(tmp_path)
    assert not _is_record(deep(kind).encode())
    assert read_json(tmp_path / "report.json") is None
    assert not _is_dead(deep(kind).encode())
    with pytest.raises((ValueError, argparse.ArgumentTypeError)):
        _option(f"@{tmp_path / 'report.json'}")
    assert _option(f"name={deep(kind)}") == {"name": deep(kind)}


@pytest.mark.parametrize("kind", ["arrays", "objects"])
def test_headers_and_checkpoints(tmp_path: Path, kind: str) -> None:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {deep(kind)}}}".encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header)
    with pytest.raises(DataError):
        open_reader(tmp_path / "a.npy")
    kept = Checkpoints(str(tmp_path / "kept"))
    kept.save("one", {"a": np.zeros(3)}, {"n": 1})
    (file,) = (tmp_path / "kept").iterdir()
    shutil.copy(file, tmp_path / "whole")
    np.savez(file, **{"a": np.zeros(3), "counts.json": np.frombuffer(deep(kind).encode(), np.uint8)})
    if not file.exists():
        Path(f"{file}.npz").rename(file)
    assert kept.load("one") is None
