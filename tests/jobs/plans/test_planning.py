"""A job of which the last stage does not fit the memory is refused before the first one begins."""

from __future__ import annotations

import importlib
import os
import re
import tomllib
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dask.utils import parse_bytes
from sklearn.base import clone

from dpca import PCA, BandPCA, CellPCA, StreamingPCA
from dpca.engine.clusters.cluster import open_client
from dpca.engine.folds.plan import Outline, PlanError
from dpca.engine.sources.source import as_source
from dpca.jobs import CompressionSettings, compress, open_input
from dpca.jobs.plans.shard_plan import plan_shards
from dpca.jobs.scores.box_write import plan_scores
from dpca.pipelines.celeba_cpca import main as job
from dpca.storage import ingest
from dpca.storage.arrays.layout import SHARD_BYTES
from dpca.storage.ingest import plan_ingest, task_bytes
from dpca.storage.readers import open_reader
from dpca.storage.remote.memory import room_within, task_budget
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.conftest import smooth_images
from tests.helpers.certificates import shown_to

ALL = CompressionSettings(CellPCA(None, cell_shape=10))
KINDS: dict[str, CompressionSettings] = {
    "cells": CompressionSettings(CellPCA(3, cell_shape=8)),
    "all of cells": CompressionSettings(CellPCA(None, cell_shape=8)),
    "shared cells": CompressionSettings(CellPCA(3, cell_shape=8, shared=True)),
    "lapped cells": CompressionSettings(CellPCA(3, cell_shape=8, overlap=2)),
    "a ratio": CompressionSettings(CellPCA(ratio=12.0, cell_shape=8)),
    "a target": CompressionSettings(CellPCA(target_psnr=30.0, cell_shape=8)),
    "bands": CompressionSettings(BandPCA(3, band_size=90)),
    "bands by chance": CompressionSettings(BandPCA(3, band_size=90, mapping="random")),
    "a stream": CompressionSettings(StreamingPCA(3, random_state=0)),
    "exact": CompressionSettings(PCA(3, random_state=0)),
    "exact, all": CompressionSettings(PCA(None, solver="covariance", random_state=0)),
    "a shuffled stream": CompressionSettings(StreamingPCA(3, method="oja", shuffle=True, random_state=0)),
}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with open_client(workers=1, memory="900MB") as client:
        yield client


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("a") / "a.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (12, 250, 200, 3), dtype=np.uint8))
    return path


def test_only_the_last_stage_does_not_fit_and_nothing_is_begun(source: Path, tmp_path: Path, client: Any) -> None:
    said: list[str] = []
    with pytest.raises(PlanError) as caught:
        compress(open_input(source), tmp_path / "out.zarr", ALL, run=Run(client=client, say=said.append))
    told = re.fullmatch(
        r"stage 'scores' of this job does not fit the memory: writing a shard of \d+ samples takes ([\d,]+) MB but a "
        r"task may take ([\d,]+) MB: allow each worker at least ([\d,]+) MB more",
        str(caught.value),
    )
    assert told is not None, str(caught.value)
    need, limit, more = (int(number.replace(",", "")) for number in told.groups())
    assert limit == pytest.approx(task_budget(client, 1) / 1e6, abs=30)
    assert need - limit == pytest.approx(more, abs=1)
    assert said == []
    assert os.listdir(tmp_path) == []


def test_the_program_says_so_with_its_exit_code(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], client: Any
) -> None:
    argv = ["--source", str(source), "--output", str(tmp_path / "out.zarr"), "--components", "all"]
    with shown_to(client):
        assert job([*argv, "--scheduler", client.scheduler.address]) == 5
    error = capsys.readouterr().err
    assert error.startswith("error: stage 'scores' of this job does not fit the memory")
    assert error.count("\n") == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.cases(4)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planned_from_a_reader_is_what_comes_of_it(tmp_path: Path, kind: str) -> None:
    """Shape, type, chunks and the size of the model, or less of it where the data decides."""
    settings = KINDS[kind]
    np.save(tmp_path / "a.npy", smooth_images(40, (30, 26, 3)))
    reader = open_reader(tmp_path / "a.npy")
    shape, dtype, layout, axes = plan_ingest(reader, settings.reading, settings.model.cell_shape_for, None)
    stack = ingest(reader, tmp_path / "s.zarr", cell_shape=settings.model.cell_shape_for(axes[1:]))
    made = as_source(stack)
    assert (shape, dtype, layout.chunks, axes) == (made.shape, made.dtype, made.chunks, stack.axes)
    outline = Outline("a.npy", shape, dtype, layout.chunks)
    planned, known = clone(settings.model).plan_fit(outline, axes[1:], Run())
    fitted = clone(settings.model).fit(stack).basis_
    assert type(planned) is type(fitted)
    assert planned.components.shape[1:] == fitted.components.shape[1:]
    assert planned.components.dtype == fitted.components.dtype
    assert planned.mean.nbytes == fitted.mean.nbytes
    if known:
        assert planned.components.shape == fitted.components.shape
        assert planned.score_shape == fitted.score_shape
    else:
        assert len(planned.components) <= len(fitted.components)
        assert np.prod(planned.score_shape) <= np.prod(fitted.score_shape)


@pytest.mark.parametrize("kind", KINDS)
def test_every_limit_is_refused_by_a_stage_by_name_or_by_none(tmp_path: Path, kind: str) -> None:
    settings = KINDS[kind]
    np.save(tmp_path / "a.npy", smooth_images(40, (30, 26, 3)))
    reader = open_reader(tmp_path / "a.npy")
    shape, dtype, layout, axes = plan_ingest(reader, settings.reading, settings.model.cell_shape_for, None)
    outline = Outline("a.npy", shape, dtype, layout.chunks)
    basis, _ = clone(settings.model).plan_fit(outline, axes[1:], Run())
    with pytest.raises(PlanError, match=r"shard.*\d.MB"):
        plan_scores(outline, basis, axes, reconstruct=True, budget=1)
    with pytest.raises(PlanError, match=r"a\.npy.*shard.*\d.MB"):
        plan_ingest(reader, settings.reading, settings.model.cell_shape_for, 1)
    settings = replace(settings, model=clone(settings.model).set_params(memory_budget=1))
    with pytest.raises(PlanError, match="'fit'"):
        plan_shards(reader, settings, Run(memory=2**32))


def test_ingest_itself_is_refused_before_it_makes_anything(source: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"\b20.MB"):
        ingest(source, tmp_path / "out.zarr", run=Run(memory=20_000_000))
    assert os.listdir(tmp_path) == []
    assert ingest(source, tmp_path / "out.zarr", run=Run(memory=80_000_000)).n_samples == 12


def sparse(path: Path, shape: tuple[int, ...]) -> Any:
    """Photographs of a shape that take no room on the disk."""
    np.lib.format.open_memmap(path, "w+", np.uint8, shape).flush()
    return open_reader(path)


@pytest.mark.parametrize(
    ("shape", "memory"),
    [
        ((240, 250, 250, 3), None),
        ((60, 500, 500, 3), None),
        ((22, 768, 1024, 3), None),
        ((1_200, 250, 250, 3), None),
        ((13_233, 250, 250, 3), None),
        ((1_200, 250, 250, 3), "1.2GB"),
        ((13_233, 250, 250, 3), "1.2GB"),
    ],
)
def test_the_shipped_job_fits_its_workers_on_photographs(
    tmp_path: Path, shape: tuple[int, ...], memory: str | None
) -> None:
    """Shards, and with them the batches of the fit, become smaller before anything is refused."""
    shipped = tomllib.loads((Path(__file__).parents[3] / "docs/examples/job.toml").read_text())
    room = room_within(parse_bytes(memory or shipped["memory"]))
    model = CellPCA(cell_shape=16, overlap=8, shared=True)
    settings = CompressionSettings(model, goal=shipped["target"], choose_cells=True)
    size, shard_bytes = plan_shards(sparse(tmp_path / "a.npy", shape), settings, Run(memory=room))
    assert size == np.prod(shape)
    assert (shard_bytes == SHARD_BYTES) == (memory is None)


def test_small_shards_are_written_in_the_memory_that_is_planned(tmp_path: Path) -> None:
    """A budget of a sixth of what a whole shard takes; a run that is resumed with another one keeps its shards."""
    images = smooth_images(400, (100, 90, 3))
    np.save(tmp_path / "a.npy", images)
    reader, budget = open_reader(tmp_path / "a.npy"), 40_000_000
    _, dtype, layout, _ = plan_ingest(reader, ReadOptions(), lambda axes: None, budget)
    whole = plan_ingest(reader, ReadOptions(), lambda axes: None, None)[2]
    assert layout.rows_per_shard < whole.rows_per_shard
    tracemalloc.start()
    stack = ingest(reader, tmp_path / "s.zarr", run=Run(memory=budget, threads=1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert stack.samples.shards == layout.shards
    assert peak <= task_bytes(reader, dtype, layout) <= budget
    np.testing.assert_array_equal(stack.samples[:], images)


def test_a_resumed_ingest_keeps_the_shards_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = smooth_images(400, (100, 90, 3))
    np.save(tmp_path / "a.npy", images)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(importlib.import_module("dpca.storage.ingest"), "_finish", _interrupted)
        ingest(tmp_path / "a.npy", tmp_path / "s.zarr", run=Run(memory=40_000_000))
    stack = ingest(tmp_path / "a.npy", tmp_path / "s.zarr")
    assert np.prod(stack.samples.shards) * 4 < 40_000_000
    np.testing.assert_array_equal(stack.samples[:], images)


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt
