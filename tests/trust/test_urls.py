"""Stores behind URLs are checked as those in folders are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest

from dpca.jobs import transform_store
from dpca.storage import StoreError, open_stack, verify
from dpca.storage.run import Run


def test_an_input_behind_a_url_of_a_file_is_an_input(stores: Path) -> None:
    stack, model = open_stack(f"file://{stores / 'stack.zarr'}"), stores / "cells.zarr"
    for target in (stores / "stack.zarr", stores / "stack.zarr" / "m"):
        with pytest.raises(StoreError, match="input"):
            transform_store(stack, model, target, run=Run(overwrite=True))
    with pytest.raises(StoreError, match="input"):
        transform_store(stack, f"file://{model}", model, run=Run(overwrite=True))
    assert verify(stores / "stack.zarr") == []


@pytest.fixture
def remote(made: Path) -> Any:
    """A file system in memory that holds a stack and a job's store."""
    files = fsspec.filesystem("memory")
    for name in ("stack.zarr", "job.zarr"):
        files.put(str(made / name), f"/{name}", recursive=True)
    yield files
    for name in ("stack.zarr", "job.zarr"):
        files.rm(f"/{name}", recursive=True)


def test_stores_behind_urls_are_whole(remote: Any) -> None:
    for path in ("stack.zarr", "stack.zarr/samples", "job.zarr", "job.zarr/model/mean"):
        assert verify(f"memory://{path}") == []
    assert open_stack("memory://job.zarr/stack").labels is not None


@pytest.mark.parametrize("name", ["samples", "samples/zarr.json", "samples/c/0/0/0/0", "label/c/0"])
@pytest.mark.parametrize("inside", ["stack.zarr", "job.zarr/stack"])
def test_damage_behind_a_url_is_named_and_not_read(inside: str, name: str, remote: Any) -> None:
    remote.rm(f"/{inside}/{name}", recursive=True)
    for path in {inside, inside.partition("/")[0]}:
        assert any(name.partition("/")[0] in problem for problem in verify(f"memory://{path}"))
    with pytest.raises(StoreError):
        _ = (open_stack(f"memory://{inside}").samples[...], open_stack(f"memory://{inside}").labels)


def test_a_store_inside_is_missing_behind_a_url(remote: Any) -> None:
    remote.rm("/job.zarr/model", recursive=True)
    assert [problem for problem in verify("memory://job.zarr") if "job.zarr/model" in problem]
