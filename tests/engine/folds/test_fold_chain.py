"""Rules that cannot merge: a chain of segments is bit-identical to one stream, also after interruptions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca.engine.folds.callbacks import FoldProgress, Marks
from dpca.engine.folds.fold import fold
from dpca.engine.sources.source import as_source
from dpca.partition import Whole
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.state import State
from dpca.rules.stochastic.oja import Oja
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.conftest import smooth_images

N, CHUNK, SIZE = 230, 16, 20
FOLD = sys.modules["dpca.engine.folds.fold"]
WHOLE = Whole((10, 12, 3))


@dataclass(frozen=True)
class Fragile(Oja):
    """Oja's rule that fails at one update, once a file says so."""

    fuse: str = ""
    fail_at: int = 7

    def update(self, state: State, batch: np.ndarray) -> State:
        if state.counts["n_updates"] == self.fail_at and self.fuse and Path(self.fuse).exists():
            raise RuntimeError("stopped")
        return super().update(state, batch)


@pytest.fixture
def images() -> np.ndarray:
    return smooth_images(N, (10, 12, 3))


@pytest.fixture
def path(images: np.ndarray, tmp_path: Path) -> str:
    zarr.create_array(str(tmp_path / "x.zarr"), data=images, chunks=(CHUNK, 10, 12, 3))
    return str(tmp_path / "x.zarr")


@pytest.fixture
def links(given_plan: Callable[..., None]) -> None:
    """Segments of few chunks."""
    given_plan(link_bytes=60 * 360, batch_rows=CHUNK)


def one_stream(rule: Any, images: np.ndarray) -> dict[str, np.ndarray]:
    rows = images.reshape(len(images), -1)
    state = rule.init(rows.shape[1], rows.dtype)
    for start in range(0, len(rows), SIZE):
        state = rule.update(state, rows[start : start + SIZE])
    return rule.finish(state)


def test_a_chain_gives_the_bytes_of_one_stream(images: np.ndarray, path: str, links: None, cluster: Any) -> None:
    rule = Oja(3, seed=1)
    expected = one_stream(rule, images)
    for client in (None, cluster):
        (found,), report = fold(InBatches(rule, SIZE), as_source(path), Whole((10, 12, 3)), run=Run(client=client))
        assert len(report.plan.segments) > 3
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


def test_a_stopped_chain_goes_on_where_it_was(images: np.ndarray, path: str, links: None, tmp_path: Path) -> None:
    fuse = tmp_path / "fuse"
    fuse.touch()
    rule = Fragile(3, seed=1, fuse=str(fuse))
    kept = Checkpoints(str(tmp_path / "kept"))
    with pytest.raises(RuntimeError, match="stopped"):
        fold(InBatches(rule, SIZE), as_source(path), Whole((10, 12, 3)), run=Run(checkpoints=kept))
    finished = list((tmp_path / "kept").rglob("*segment*"))
    assert finished
    fuse.unlink()
    (found,), _ = fold(InBatches(rule, SIZE), as_source(path), Whole((10, 12, 3)), run=Run(checkpoints=kept))
    for name, value in one_stream(Oja(3, seed=1), images).items():
        np.testing.assert_array_equal(found[name], value)


def test_a_watched_fold_keeps_two_checkpoints_for_the_case_that_the_newest_is_damaged(
    images: np.ndarray, path: str, links: None, tmp_path: Path
) -> None:
    fuse = tmp_path / "fuse"
    fuse.touch()
    rule = InBatches(Fragile(3, seed=1, fuse=str(fuse), fail_at=10), SIZE)
    run = Run(checkpoints=Checkpoints(str(tmp_path / "kept")))
    given = {"callback": Marks([200], lambda progress: None), "run": run}
    with pytest.raises(RuntimeError, match="stopped"):
        fold(rule, as_source(path), WHOLE, **given)
    _, newest = sorted(p for p in (tmp_path / "kept").rglob("*segment*") if "part" not in p.name)
    newest.write_bytes(newest.read_bytes()[:-30])
    fuse.unlink()
    (found,), _ = fold(rule, as_source(path), WHOLE, **given)
    for name, value in one_stream(Oja(3, seed=1), images).items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("where", ["here", "cluster"])
def test_who_watches_sees_the_states_at_the_marks_and_changes_nothing(
    where: str, images: np.ndarray, path: str, links: None, request: pytest.FixtureRequest
) -> None:
    client = request.getfixturevalue("cluster") if where == "cluster" else None
    rule, rows, seen = Oja(3, seed=1), images.reshape(N, -1), {}

    def note(progress: FoldProgress) -> None:
        seen[progress.n_samples] = [InBatches(rule, SIZE).finish(state) for state in progress.states()]

    callback = Marks([10, 150, N], note)
    (found,), _ = fold(InBatches(rule, SIZE), as_source(path), WHOLE, run=Run(client=client), callback=callback)
    assert set(seen) == {10, 150}  # what is found in the end is the result
    for n in seen:
        for name, value in one_stream(rule, rows[:n]).items():
            np.testing.assert_array_equal(seen[n][0][name], value)
    for name, value in one_stream(rule, rows).items():
        np.testing.assert_array_equal(found[name], value)


def test_a_watched_fold_that_was_stopped_shows_what_is_left(
    images: np.ndarray, path: str, links: None, tmp_path: Path
) -> None:
    kept, seen = Checkpoints(str(tmp_path / "kept")), []

    def note(progress: FoldProgress) -> None:
        seen.append(progress.n_samples)
        if seen == [100, 150]:
            raise RuntimeError("stopped")

    given = {"callback": Marks([100, 150, 200], note), "run": Run(checkpoints=kept)}
    with pytest.raises(RuntimeError, match="stopped"):
        fold(InBatches(Oja(3, seed=1), SIZE), as_source(path), WHOLE, **given)
    (found,), _ = fold(InBatches(Oja(3, seed=1), SIZE), as_source(path), WHOLE, **given)
    assert seen == [100, 150, 200]
    for name, value in one_stream(Oja(3, seed=1), images).items():
        np.testing.assert_array_equal(found[name], value)
