"""What writing a stack back from scores takes: it is planned, and refused before anything is written."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from dpca import BandPCA, CellPCA, StreamingPCA
from dpca.engine.folds.plan import PlanError
from dpca.jobs.scores import reconstruct
from dpca.jobs.scores.reconstruct import reconstruct_store
from dpca.jobs.scores.transform import transform_store
from dpca.kernels.algebra import linalg
from dpca.storage import Stack, ingest, open_stack
from dpca.storage.arrays.reading import open_array
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.conftest import smooth_images

pytestmark = pytest.mark.memory

MODELS = {
    "cells": CellPCA(3, cell_shape=10),
    "lapped": CellPCA(3, cell_shape=10, overlap=4),
    "bands": BandPCA(3, band_size=1000),
    "whole": StreamingPCA(3),
}


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> dict[type, Stack]:
    """A stack of each type."""
    folder, images = tmp_path_factory.mktemp("stacks"), smooth_images(128, (100, 90, 3))
    stacks: dict[type, Stack] = {}
    for dtype, stated in ((np.uint8, None), (np.float32, (0, 255))):
        np.save(folder / "x.npy", images.astype(dtype))
        stacks[dtype] = ingest(
            folder / "x.npy", folder / f"{dtype.__name__}.zarr", reading=ReadOptions(data_range=stated)
        )
    return stacks


def _scores(model: Any, folder: Path, stack: Stack) -> tuple[str, str]:
    """Store a model, and scores made with it; return both paths."""
    model.fit(stack.samples[:9]).save(folder / "model.zarr")
    transform_store(stack, folder / "model.zarr", folder / "scores.zarr")
    return str(folder / "model.zarr"), str(folder / "scores.zarr")


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_shard_takes_no_more_memory_than_planned(
    kind: str, dtype: type, stacks: dict[type, Stack], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, measured = clone(MODELS[kind]), []
    paths = _scores(model, tmp_path, stacks[dtype])
    write = reconstruct.DecodeJob.write

    def traced(*given: Any) -> dict[str, Any]:
        linalg.release_scratch()
        tracemalloc.start()
        quality = write(*given)
        measured.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        return quality

    monkeypatch.setattr(reconstruct.DecodeJob, "write", traced)
    reconstruct_store(*paths, tmp_path / "again.zarr", run=Run(threads=1))
    written = open_stack(tmp_path / "again.zarr").samples
    rows = min(written.shards[0], 128)
    planned = reconstruct.task_bytes(open_array(tmp_path / "scores.zarr" / "scores"), model.basis_, rows, written.dtype)
    # The plan allows for the three copies of a shard that a codec makes; raw chunks are written without any.
    assert 0.15 * planned < max(measured) <= planned


def test_too_little_memory_is_refused_before_anything_is_written(
    stacks: dict[type, Stack], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = _scores(clone(MODELS["cells"]), tmp_path, stacks[np.uint8])
    with pytest.raises(PlanError, match=r"128.*\b1.MB"):
        reconstruct_store(*paths, tmp_path / "again.zarr", run=Run(memory=10**6))
    assert not list(tmp_path.glob("again*"))
