"""Results of folds do not depend on workers, on segments, or on interruptions."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca.engine.folds.fold import fold
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import as_source
from dpca.partition import CellGrid, map_at_random
from dpca.rules.base.state import State
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.storage import DataError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.conftest import smooth_images

GRID = CellGrid((40, 36, 3), (10, 10))


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return smooth_images(300)


@pytest.fixture(scope="module")
def expected(images: np.ndarray) -> list[dict[str, np.ndarray]]:
    """One plain pass over each cell, without the engine."""
    results = []
    for i in range(GRID.n_parts):
        box = tuple(slice(a, b) for a, b in GRID.region(i))
        rule = CovariancePCA(4)
        cell = np.ascontiguousarray(images[(slice(None), *box)].reshape(300, -1))
        results.append(rule.finish(rule.update(rule.init(cell.shape[1], cell.dtype), cell)))
    return results


def same(a: list[dict[str, np.ndarray]], b: list[dict[str, np.ndarray]]) -> bool:
    return all(np.array_equal(x[key], y[key]) for x, y in zip(a, b, strict=True) for key in x)


def stored(folder: Path, images: np.ndarray, chunks: tuple[int, ...], version: int = 3) -> str:
    path = str(folder / f"v{version}-{'-'.join(map(str, chunks))}.zarr")
    zarr.create_array(path, data=images, chunks=chunks, zarr_format=version)
    return path


@pytest.mark.parametrize(
    ("chunks", "version"),
    [((64, 20, 20, 3), 3), ((300, 40, 36, 3), 3), ((7, 40, 36, 1), 3), ((50, 13, 11, 3), 3), ((50, 13, 11, 3), 2)],
)
def test_any_chunking_here_and_on_a_cluster(
    chunks: tuple[int, ...],
    version: int,
    images: np.ndarray,
    expected: list[dict[str, np.ndarray]],
    tmp_path: Path,
    cluster: Any,
) -> None:
    source = as_source(stored(tmp_path, images, chunks, version))
    assert same(fold(CovariancePCA(4), source, GRID)[0], expected)
    assert same(fold(CovariancePCA(4), source, GRID, run=Run(client=cluster))[0], expected)
    # So little memory that groups split and batches shrink.
    assert same(fold(CovariancePCA(4), source, GRID, run=Run(memory=36 * 2**20))[0], expected)


def test_arrays_in_memory_and_dask_arrays(
    images: np.ndarray, expected: list[dict[str, np.ndarray]], cluster: Any
) -> None:
    assert same(fold(CovariancePCA(4), as_source(images), GRID)[0], expected)
    lazy = da.from_array(images, chunks=((100, 3, 197), 17, 36, 2))
    assert same(fold(CovariancePCA(4), as_source(lazy), GRID)[0], expected)
    assert same(fold(CovariancePCA(4), as_source(lazy), GRID, run=Run(client=cluster))[0], expected)


@dataclass(frozen=True)
class Fragile(CovariancePCA):
    """Counts its updates in a folder, and fails at a given one."""

    folder: str = field(default="", compare=False)
    fail_at: int = field(default=-1, compare=False)

    def update(self, state: State, batch: np.ndarray) -> State:
        n = len(os.listdir(self.folder))
        if n == self.fail_at:
            raise RuntimeError("struck")
        (Path(self.folder) / f"{n}-{id(state)}-{time.monotonic_ns()}").touch()
        return super().update(state, batch)


def test_a_fold_goes_on_where_it_stopped(
    images: np.ndarray, expected: list[dict[str, np.ndarray]], tmp_path: Path, given_plan: Callable[..., None]
) -> None:
    given_plan(short_task=0, threads=1)
    source = as_source(stored(tmp_path, images, (300, 10, 36, 3)))
    checkpoints = Checkpoints(str(tmp_path / "kept"))
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with pytest.raises(RuntimeError, match="struck"):
        fold(Fragile(4, str(first), 13), source, GRID, run=Run(checkpoints=checkpoints))
    results, _ = fold(Fragile(4, str(second)), source, GRID, run=Run(checkpoints=checkpoints))
    assert same(results, expected)
    done = len(list((tmp_path / "kept").rglob("*.npz")))
    assert done == 4
    # Four rows of four cells; those of the rows that were finished are not updated again.
    assert 4 <= len(os.listdir(second)) < 16
    # A damaged checkpoint is done again, not believed.
    for kept in (tmp_path / "kept").rglob("*.npz"):
        kept.write_bytes(kept.read_bytes()[:100])
    assert same(fold(CovariancePCA(4), source, GRID, run=Run(checkpoints=checkpoints))[0], expected)


@dataclass(frozen=True)
class Deadly(CovariancePCA):
    """Kills its own process once."""

    marker: str = field(default="", compare=False)

    def update(self, state: State, batch: np.ndarray) -> State:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().update(state, batch)
        os.kill(os.getpid(), signal.SIGKILL)
        return state


def test_a_worker_that_is_killed_is_replaced(
    images: np.ndarray, expected: list[dict[str, np.ndarray]], tmp_path: Path
) -> None:
    from dpca.engine.clusters.cluster import open_client

    source = as_source(stored(tmp_path, images, (100, 20, 20, 3)))
    with open_client(workers=2, memory="1GB") as client:
        results, _ = fold(Deadly(4, str(tmp_path / "struck")), source, GRID, run=Run(client=client))
    assert (tmp_path / "struck").exists()
    assert same(results, expected)


def test_a_client_that_is_not_the_default(
    images: np.ndarray, expected: list[dict[str, np.ndarray]], tmp_path: Path, hidden_cluster: Any
) -> None:
    source = as_source(stored(tmp_path, images, (100, 20, 20, 3)))
    assert same(fold(CovariancePCA(4), source, GRID, run=Run(client=hidden_cluster))[0], expected)


def test_threads_that_share_what_is_read(
    images: np.ndarray, tmp_path: Path, given_plan: Callable[..., None], cluster: Any
) -> None:
    """Bands lie all over a sample: two tasks would read all of it twice."""
    given_plan(short_task=0, threads=3)
    source = as_source(stored(tmp_path, images, (64, 20, 20, 3)))
    bands, rule = map_at_random((40, 36, 3), 300, np.random.default_rng(0)), CovariancePCA(4)
    found, report = fold(rule, source, bands)
    assert (report.plan.threads, len(report.plan.groups), report.plan.read_bytes) == (3, 1, images.nbytes)
    resumable = Checkpoints(str(tmp_path / "kept"))
    assert same(fold(rule, source, bands, run=Run(checkpoints=resumable))[0], found)
    assert same(fold(rule, source, bands, run=Run(checkpoints=resumable))[0], found)
    apart, report = fold(rule, source, bands, run=Run(client=cluster))
    assert (report.plan.threads, report.plan.read_bytes) == (1, 2 * images.nbytes)
    assert same(apart, found)
    # Where there is little memory, a few bands take turns.
    few, report = fold(rule, source, bands, run=Run(memory=36 * 2**20))
    assert len(report.plan.groups) > 1
    assert same(few, found)
    assert fold(rule, source, GRID)[1].plan.threads == 1  # cells lie side by side, and each is read once in any case


def test_what_a_thread_raises_comes_out(images: np.ndarray, given_plan: Callable[..., None]) -> None:
    given_plan(short_task=0, threads=3)
    bands = map_at_random((40, 36, 3), 300, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"\b2\b"):
        fold(CovariancePCA(4), as_source(images[:1]), bands)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_names_its_sample(value: float) -> None:
    x = np.random.default_rng(0).normal(size=(50, 12)).astype(np.float32)
    x[37, 5] = value
    with pytest.raises(DataError, match="sample.37"):
        fold(CovariancePCA(2), as_source(x), CellGrid((12,), (4,)))


def test_what_does_not_fit_is_refused_before_it_runs(images: np.ndarray) -> None:
    with pytest.raises(PlanError, match="smaller"):
        fold(CovariancePCA(4), as_source(images), GRID, run=Run(memory=1000))


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros(5), "samples on axis 0"),
        (np.zeros((5, 0)), "no values"),
        (np.zeros((5, 3), complex), "complex128"),
        (np.array([["a", "b"]]), "<U1"),
    ],
)
def test_arrays_that_are_no_stack(array: np.ndarray, says: str) -> None:
    with pytest.raises(DataError, match=says):
        as_source(array)
