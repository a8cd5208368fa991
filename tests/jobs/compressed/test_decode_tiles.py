"""Compressed stores of large samples become stacks box by box."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpca
from dpca.engine.folds.plan import PlanError
from dpca.jobs import reconstruct_store
from dpca.jobs.base import shards
from dpca.jobs.compressed import decode
from dpca.storage import open_stack, verify
from dpca.storage.run import Run
from tests.helpers.interrupted import interrupt_at
from tests.helpers.traced import traced_peak
from tests.jobs.compressed.test_append_tiles import made_and_appended

SHAPE = (470, 530)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of large samples, some of which were appended."""
    return made_and_appended(tmp_path_factory.mktemp("tiles"), SHAPE, 5, 7, 60_000).parent


@pytest.fixture(autouse=True)
def _small_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MOST_DECODED", 2**19)
    monkeypatch.setattr(decode, "LEAST_DECODED", 2**14)


def test_boxes_are_the_samples_and_peaks_as_planned(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write, peaks = dpca.open_compressed(folder / "out.zarr"), shards.write_shards, list[int]()

    def traced(job: Any, units: Any) -> Any:
        peak, found = traced_peak(lambda: None, lambda _: write(job, units), 0)
        peaks.append(peak)
        return found

    monkeypatch.setattr(shards, "write_shards", traced)
    reconstruct_store(None, folder / "out.zarr", tmp_path / "again.zarr", run=Run(threads=1))
    again = open_stack(tmp_path / "again.zarr")
    assert len(peaks) > 4
    np.testing.assert_array_equal(again.samples[...], store[...])
    assert again.names.tolist() == store.names.tolist()
    assert verify(tmp_path / "again.zarr") == []
    layout, rows = decode._planned(store, None, 2**40)
    box = (slice(0, rows), *map(slice, layout.shards[1:]))
    assert layout.shards[1:] < SHAPE
    assert max(peaks) <= store.read_bytes(box) + 3 * np.prod(layout.shards)


def test_little_memory_gives_smaller_boxes_or_a_refusal(folder: Path) -> None:
    store = dpca.open_compressed(folder / "out.zarr")
    (large, rows), found = decode._planned(store, None, 2**40), set()
    least = next(m for m in range(2**24, 2**28, 2**18) if not _refused(store, m))
    for memory in range(least, 2**28, 2**20):
        layout, some = decode._planned(store, None, memory)
        found.add((layout.shards, some))
    assert (large.shards, rows) in found
    assert len(found) > 2
    with pytest.raises(PlanError, match="MB"):
        decode._planned(store, None, least - 2**18)


def _refused(store: Any, memory: int) -> bool:
    try:
        decode._planned(store, None, memory)
    except PlanError:
        return True
    return False


def test_an_interrupted_job_resumes_with_its_boxes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, left = dpca.open_compressed(folder / "out.zarr"), iter([True] * 3 + [False] * 100)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at(patch, lambda unit: next(left))
        reconstruct_store(None, folder / "out.zarr", tmp_path / "again.zarr", run=Run(threads=1))
    assert not (tmp_path / "again.zarr").exists()
    monkeypatch.setattr(decode, "MOST_DECODED", 2**15)
    reconstruct_store(None, folder / "out.zarr", tmp_path / "again.zarr", run=Run(threads=1))
    np.testing.assert_array_equal(open_stack(tmp_path / "again.zarr").samples[...], store[...])


def test_previews_are_decoded_by_boxes(folder: Path, tmp_path: Path, scheduler: str) -> None:
    argv = ["reconstruct", str(folder / "out.zarr"), str(tmp_path / "again.zarr"), "--components", "2"]
    assert dpca.cli.main([*argv, "--scheduler", scheduler]) == 0
    store = dpca.open_compressed(folder / "out.zarr", level=2)
    np.testing.assert_array_equal(open_stack(tmp_path / "again.zarr").samples[...], store[...])
