"""Where memory is short, shards and batches become smaller; jobs and their plans decide alike, and bytes stay."""

from __future__ import annotations

import itertools
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dask.utils import parse_bytes

import dpca
from dpca import BandPCA, CellPCA, StreamingPCA
from dpca.cli import main
from dpca.engine.folds.plan import Outline, PlanError
from dpca.jobs import CompressionSettings, append_store, compress, encode_store, plan_job
from dpca.jobs.compressed.encode_memory import EncodeMemory
from dpca.jobs.compressed.encode_write import _cut
from dpca.jobs.plans.shard_plan import plan_shards
from dpca.representation.compressed.compressed_form import StoreForm
from dpca.storage import Stack, ingest, open_stack
from dpca.storage.arrays.layout import SHARD_BYTES
from dpca.storage.readers import Reader, open_reader
from dpca.storage.remote.memory import room_within
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.conftest import smooth_images
from tests.jobs.compressed.test_append import tree
from tests.jobs.compressed.test_encode_sequences import drifting

SHIPPED = tomllib.loads((Path(__file__).parents[3] / "docs/examples/job.toml").read_text())
PHOTOS = (10, 1000, 1500, 3)
CELLS: dict[str, Any] = {"cell_shape": 16, "overlap": 8, "shared": True}


def reader_of(path: Path, shape: tuple[int, ...], dtype: str = "u1") -> Reader:
    """Samples of a shape that take no room on the disk."""
    np.lib.format.open_memmap(path, "w+", np.dtype(dtype), shape).flush()
    return open_reader(path)


def settings_of(goal: dict[str, float], **cells: int) -> CompressionSettings:
    """What `dpca scores`, and the shipped job, ask for."""
    return CompressionSettings(
        CellPCA(**CELLS | cells), goal=goal, choose_cells=True, reading=ReadOptions(data_range=(0, 255))
    )


def least_budget(given: Reader, settings: CompressionSettings) -> int:
    """The smallest budget that is not refused, by bisection."""
    low, high = 0, 2**33
    while high - low > 1:
        middle = (low + high) // 2
        try:
            plan_shards(given, settings, Run(memory=middle))
            high = middle
        except PlanError:
            low = middle
    return high


@pytest.mark.long
def test_the_shipped_job_takes_ten_photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """45 MB: encoding them takes 193 MB (measured). With less, shards are smaller, and the fit reads blocks."""
    # What other processes of the machine leave free is no part of this test.
    monkeypatch.setattr("dpca.models.cells.partition_rule.usable_bytes", lambda: 2**40)
    photos, settings = reader_of(tmp_path / "a.npy", PHOTOS), settings_of(SHIPPED["target"])
    room = room_within(parse_bytes(SHIPPED["memory"]))
    assert room == pytest.approx(1_040e6)
    assert plan_shards(photos, settings, Run(memory=room)) == (45_000_000, SHARD_BYTES)
    least = least_budget(photos, settings)
    assert least < 500e6
    assert plan_shards(photos, settings, Run(memory=least))[1] < SHARD_BYTES
    with pytest.raises(PlanError, match=r"'encode'.*\b10.samples"):
        plan_shards(photos, settings, Run(memory=least - 1))


class Decided(Exception):
    """What was decided, in the place of the work."""


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stops jobs and plans once they have decided; the budget of a task is that of the dictionary."""
    found: dict[str, Any] = {}

    def open_or_ingest(*_: Any, shard_bytes: int, **__: Any) -> None:
        raise Decided(shard_bytes)

    def tried(*given: Any) -> None:
        raise Decided(given[-1])

    monkeypatch.setattr("dpca.jobs.scores.compression.open_or_ingest", open_or_ingest)
    monkeypatch.setattr("dpca.jobs.plans.plan._Tried", tried)
    return found


def outcome(work: Any) -> str:
    try:
        work()
    except (Decided, PlanError) as decided:
        return str(decided)
    raise AssertionError("nothing was decided")


MODELS = {
    "cells": CellPCA(3, cell_shape=40),
    "bands": BandPCA(3, band_size=500),
    "stream": StreamingPCA(3, random_state=0),
    "own budget": CellPCA(3, cell_shape=40, memory_budget=90_000_000),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((10, 400, 300, 3), "u1"),
        ((3, 500, 400), "f4"),
        ((40, 200, 100, 3), "u2"),
        ((700, 64, 64), "f8"),
        ((4_000, 125, 125, 3), "u1"),
    ],
)
def test_a_plan_decides_as_the_job_does(
    tmp_path: Path, shape: tuple[int, ...], dtype: str, decisions: dict[str, Any]
) -> None:
    given, seen = reader_of(tmp_path / "a.npy", shape, dtype), set()
    asked = [settings_of(goal, cell_shape=40) for goal in ({"psnr": 36.0}, {"max_relative_error": 0.01})]
    asked += [CompressionSettings(model, reading=ReadOptions(data_range=(0, 255))) for model in MODELS.values()]
    for settings, budget in itertools.product(asked, (26e6, 50e6, 80e6, 188e6, 4e9)):
        job = outcome(lambda: compress(given, tmp_path / "out.zarr", settings, run=Run(memory=int(budget))))  # noqa: B023
        assert outcome(lambda: plan_job(given, settings, workers=[1, 64], budget=int(budget))) == job  # noqa: B023
        seen.add(job if job.isdigit() else "refused")
    assert {"refused", str(SHARD_BYTES)} <= seen
    assert len(seen) > 2 or np.prod(shape) < 2**22  # of which shards are small anyway


@pytest.mark.long
def test_a_plan_of_small_shards_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where whole shards do not fit, `dpca plan` plans those that do; its stages stay within the budget."""
    np.save(tmp_path / "a.npy", smooth_images(160, (100, 90, 3)))
    given, settings = open_reader(tmp_path / "a.npy"), CompressionSettings(CellPCA(3, cell_shape=16, shared=True))
    least = 50_000_000
    shard_bytes = plan_shards(given, settings, Run(memory=least))[1]
    assert shard_bytes < SHARD_BYTES
    (small,), (large,) = (plan_job(given, settings, workers=[1], budget=budget) for budget in (least, 2**31))
    assert small.stages["ingest"].memory < large.stages["ingest"].memory
    assert small.memory_allowed == least
    assert main(["plan", str(tmp_path / "a.npy"), "--cell", "16", "--workers", "1", "--memory", "300MB"]) == 5
    assert "stage 'ingest' of this job does not fit the memory" in capsys.readouterr().err


def test_residuals_of_a_shard_count_for_its_memory() -> None:
    source = Outline("a", (40, 600, 700), np.dtype("u1"), (8, 200, 100))
    form = StoreForm(source.shape, 1)
    assert form.shard_rows >= 40
    without, with_residuals = (EncodeMemory(source, form, 900, promised).task_bytes(1) for promised in (False, True))
    assert with_residuals - without > 40 * 600 * 700 * 4


@pytest.mark.parametrize("dtype", ["u1", "u2", "i4", "f4", "f8"])
@pytest.mark.parametrize("promised", [False, True])
def test_fewer_samples_are_decoded_before_a_shard_is_refused(dtype: str, promised: bool) -> None:
    source = Outline("a", (40, 600, 700), np.dtype(dtype), (8, 200, 100))
    form = StoreForm(source.shape, source.dtype.itemsize)
    memory = EncodeMemory(source, form, 900, promised)
    each = {count: memory.task_bytes(count) for count in (40, 16, 8, 4, 2, 1)}
    most = memory.decoded_at_once(2**40)
    for budget in each.values():
        count = memory.decoded_at_once(budget)
        assert memory.task_bytes(count) <= budget
        if (twice := 2 * count) <= most:
            assert memory.task_bytes(twice) > budget
    with pytest.raises(PlanError, match=r"\b1.MB"):
        memory.decoded_at_once(each[1] - 1)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans have single samples decoded; collects how many samples are decoded at once."""
    counts: list[int] = []

    def cut(n: int, count: int) -> Iterator[slice]:
        counts.append(count)
        return _cut(n, count)

    monkeypatch.setattr(EncodeMemory, "decoded_at_once", lambda *_: 1)
    monkeypatch.setattr("dpca.jobs.compressed.encode_write._cut", cut)
    yield
    assert set(counts) == {1}


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film of which waves pay, in two parts, photographs, and models of both."""
    folder, film, photos = tmp_path_factory.mktemp("films"), drifting(90), smooth_images(50)
    for name, values in (("film", film[:70]), ("later", film[70:]), ("photos", photos), ("floats", photos / np.pi)):
        np.save(folder / f"{name}.npy", values.astype(photos.dtype if name == "photos" else np.float32))
        ingest(
            folder / f"{name}.npy",
            folder / f"{name}.zarr",
            reading=ReadOptions(data_range=(-6, 6) if len(values) == 70 else (0, 255)),
        )
    CellPCA(12, cell_shape=8, shared=True).fit(film).save(folder / "film model.zarr")
    CellPCA(30, cell_shape=10, overlap=4, shared=True).fit(photos).save(folder / "photos model.zarr")
    CellPCA(30, cell_shape=10, overlap=4, shared=True).fit((photos / np.pi).astype("f4")).save(
        folder / "floats model.zarr"
    )
    goals: dict[str, dict[str, Any]] = {
        "film": {"max_error": 0.01},
        "film each": {"psnr": 45.0, "every_sample": True},
        "photos": {"psnr": 30.0},
        "photos each": {"psnr": 30.0, "every_sample": True},
        "floats": {"max_error": 4.0},
    }
    for name, goal in goals.items():
        stack = name.split()[0]
        encode_store(stack_in(folder, stack), folder / f"{stack} model.zarr", folder / f"{name} whole.zarr", **goal)
        np.save(folder / f"{name} goal.npy", np.array(goal, object))
    return folder


def stack_in(folder: Path, name: str) -> Stack:
    return open_stack(folder / f"{name}.zarr")


@pytest.mark.long
@pytest.mark.parametrize("name", ["film", "film each", "photos", "photos each", "floats"])
@pytest.mark.usefixtures("one_by_one")
def test_single_samples_are_decoded_to_the_same_bytes(films: Path, tmp_path: Path, name: str) -> None:
    whole, stack = dpca.open_compressed(films / f"{name} whole.zarr"), name.split()[0]
    assert whole.facts["waves"] == name.startswith("film")
    assert len(whole.codec.cell) > 0
    goal = np.load(films / f"{name} goal.npy", allow_pickle=True).item()
    encode_store(stack_in(films, stack), films / f"{stack} model.zarr", tmp_path / "out.zarr", **goal)
    assert tree(tmp_path / "out.zarr") == tree(Path(whole.path))


@pytest.mark.long
@pytest.mark.parametrize("count", [3, 20])
def test_few_samples_are_appended_to_waves_where_memory_is_short(
    films: Path, tmp_path: Path, count: int, request: pytest.FixtureRequest
) -> None:
    """Fewer samples than a run, which a stack of its own would not store as waves."""
    np.save(tmp_path / "new.npy", drifting(90)[70 : 70 + count])
    ingest(tmp_path / "new.npy", tmp_path / "new.zarr", reading=ReadOptions(data_range=(-6, 6)))
    stores = [shutil.copytree(films / "film whole.zarr", tmp_path / name) for name in ("whole.zarr", "short.zarr")]
    append_store(stores[0], open_stack(tmp_path / "new.zarr"), drift="accept")
    request.getfixturevalue("one_by_one")
    append_store(stores[1], open_stack(tmp_path / "new.zarr"), drift="accept")
    assert tree(stores[0]) == tree(stores[1])
    store = dpca.open_compressed(stores[1])
    assert store.facts["waves"]
    assert np.abs(store[70:].astype(float) - drifting(90)[70 : 70 + count]).max() <= 0.01
