"""Folds give the same result wherever, in whatever pieces and after whatever accident they run."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca.engine import PlanError, as_source, fold
from dpca.engine.checkpoint import Checkpoints
from dpca.partition import CellGrid
from dpca.rules import CovariancePCA, State
from storage import DataError
from tests.conftest import smooth_images

GRID = CellGrid((40, 36, 3), (10, 10))


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return smooth_images(300)


@pytest.fixture(scope="module")
def expected(images: np.ndarray) -> list[dict[str, np.ndarray]]:
    """One plain pass over each cell, without the engine."""
    results = []
    for i in range(GRID.n_partitions):
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


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("chunks", [(64, 20, 20, 3), (300, 40, 36, 3), (7, 40, 36, 1), (50, 13, 11, 3)])
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
    assert same(fold(CovariancePCA(4), source, GRID, client=cluster)[0], expected)
    # So little memory that groups split and batches shrink.
    assert same(fold(CovariancePCA(4), source, GRID, budget=36 * 2**20)[0], expected)


def test_arrays_in_memory_and_dask_arrays(
    images: np.ndarray, expected: list[dict[str, np.ndarray]], cluster: Any
) -> None:
    assert same(fold(CovariancePCA(4), as_source(images), GRID)[0], expected)
    lazy = da.from_array(images, chunks=((100, 3, 197), 17, 36, 2))
    assert same(fold(CovariancePCA(4), as_source(lazy), GRID)[0], expected)
    assert same(fold(CovariancePCA(4), as_source(lazy), GRID, client=cluster)[0], expected)


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
    images: np.ndarray, expected: list[dict[str, np.ndarray]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dpca.engine.plan

    monkeypatch.setattr(dpca.engine.plan, "_SHORT_TASK", 0)
    monkeypatch.setattr("dpca.engine.memory.thread_count", lambda: 1)
    source = as_source(stored(tmp_path, images, (300, 10, 36, 3)))
    checkpoints = Checkpoints(str(tmp_path / "kept"))
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with pytest.raises(RuntimeError, match="struck"):
        fold(Fragile(4, str(first), 13), source, GRID, checkpoints=checkpoints)
    results, _ = fold(Fragile(4, str(second)), source, GRID, checkpoints=checkpoints)
    assert same(results, expected)
    done = len(list((tmp_path / "kept").rglob("*.npz")))
    assert done == 4
    # Four rows of four cells; those of the rows that were finished are not updated again.
    assert 4 <= len(os.listdir(second)) < 16
    # A damaged checkpoint is done again, not believed.
    for kept in (tmp_path / "kept").rglob("*.npz"):
        kept.write_bytes(kept.read_bytes()[:100])
    assert same(fold(CovariancePCA(4), source, GRID, checkpoints=checkpoints)[0], expected)


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
    from dpca.engine.cluster import open_client

    source = as_source(stored(tmp_path, images, (100, 20, 20, 3)))
    with open_client(workers=2, memory="1GB") as client:
        results, _ = fold(Deadly(4, str(tmp_path / "struck")), source, GRID, client=client)
    assert (tmp_path / "struck").exists()
    assert same(results, expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_names_its_sample(value: float) -> None:
    x = np.random.default_rng(0).normal(size=(50, 12)).astype(np.float32)
    x[37, 5] = value
    with pytest.raises(DataError, match="sample 37"):
        fold(CovariancePCA(2), as_source(x), CellGrid((12,), (4,)))


def test_what_does_not_fit_is_refused_before_it_runs(images: np.ndarray) -> None:
    with pytest.raises(PlanError, match="smaller cells"):
        fold(CovariancePCA(4), as_source(images), GRID, budget=1000)


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
