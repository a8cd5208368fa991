"""Models that follow a stack while it is written, and go on after they, or its writer, were killed."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import dpca
from dpca import PCA, CellPCA, StreamingPCA
from dpca.cli import main
from dpca.storage import DataError, StoreError, open_stack
from tests.helpers.forked import Program, Programs
from tests.storage.growth.steps_to_kill import SHAPE, step, write
from tests.storage.transaction.jobs_to_kill import tree

SCRIPT = str(Path(__file__).parents[2] / "storage" / "growth" / "steps_to_kill.py")
STREAMING = StreamingPCA(3, method="incremental-svd", oversampling=2, batch_size=7, keep_state=True)


def test_killed_writers_and_followers_leave_what_undisturbed_ones_do(tmp_path: Path, programs: Programs) -> None:
    write(str(tmp_path / "calm" / "run.zarr"), 90, 0)
    for _ in dpca.follow(tmp_path / "calm" / "run.zarr", clone(STREAMING), checkpoint=tmp_path / "calm" / "m.zarr"):
        pass
    rng = np.random.default_rng(0)
    run, kept = str(tmp_path / "run.zarr"), str(tmp_path / "m.zarr")
    commands = {"write": [run, "90", "0.01"], "follow": [run, kept]}

    def started(name: str) -> Program:
        return programs.start([sys.executable, SCRIPT, name, *commands[name]])

    running = {name: started(name) for name in commands}
    for name in [*commands] * 3:
        time.sleep(rng.uniform(0.05, 0.4))
        with running[name] as program:
            program.kill()
        running[name] = started(name)
    assert [program.communicate()[1] for program in running.values()] == ["", ""]
    assert tree(Path(run)) == tree(tmp_path / "calm" / "run.zarr")
    np.testing.assert_array_equal(open_stack(run).samples[...], [step(t) for t in range(90)])
    found, expected = tree(Path(kept)), tree(tmp_path / "calm" / "m.zarr")
    # The root states how far components moved since they were last accessed.
    assert {name for name in expected if found[name] != expected[name]} == {"zarr.json"}
    assert found.keys() == expected.keys()
    assert StreamingPCA.load(kept).n_samples_seen_ == 90


@pytest.mark.parametrize(
    "model",
    [
        STREAMING,
        StreamingPCA(2, method="ccipca", keep_state=True, random_state=0),
        CellPCA(2, cell_shape=3, keep_state=True),
    ],
    ids=["incremental-svd", "ccipca", "cells"],
)
def test_a_model_that_follows_is_that_of_all_samples(tmp_path: Path, model: Any) -> None:
    run, seen = tmp_path / "run.zarr", []
    writer = threading.Thread(target=write, args=(str(run), 30, 0.002))
    writer.start()
    for n, found in enumerate(dpca.follow(run, clone(model), checkpoint=tmp_path / "m.zarr", poll=0.01, patience=60)):
        seen.append(found.n_samples_seen_)
        if n == 3:
            break  # as a follower does that is killed, but for the checkpoint, which is not there yet
    for found in dpca.follow(run, clone(model), checkpoint=tmp_path / "m.zarr", poll=0.01, patience=60):
        seen.append(found.n_samples_seen_)
    writer.join()
    assert seen == [4, 8, 12, 16, *range(4, 29, 4), 30]
    at_once = clone(model)
    for start in range(0, 30, 4):
        at_once.partial_fit(open_stack(run).samples[start : min(start + 4, 30)])
    np.testing.assert_array_equal(type(model).load(tmp_path / "m.zarr").components_, at_once.components_)
    # What is done is done: nothing is taken in twice.
    assert list(dpca.follow(run, clone(model), checkpoint=tmp_path / "m.zarr")) == []


def test_a_follower_says_what_it_cannot_do(tmp_path: Path) -> None:
    write(str(tmp_path / "run.zarr"), 10, 0)
    with pytest.raises(DataError, match="partial_fit"):
        next(dpca.follow(tmp_path / "run.zarr", PCA(2)))
    with pytest.raises(DataError, match="keep_state"):
        next(dpca.follow(tmp_path / "run.zarr", StreamingPCA(2), checkpoint=tmp_path / "m.zarr"))
    list(dpca.follow(tmp_path / "run.zarr", StreamingPCA(2, keep_state=True), checkpoint=tmp_path / "m.zarr"))
    with pytest.raises(DataError, match="n_components=2"):
        next(dpca.follow(tmp_path / "run.zarr", StreamingPCA(3, keep_state=True), checkpoint=tmp_path / "m.zarr"))
    with pytest.raises(StoreError, match="input"):
        next(dpca.follow(tmp_path / "run.zarr", clone(STREAMING), checkpoint=tmp_path / "run.zarr"))


def test_the_command_says_what_components_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(str(tmp_path / "run.zarr"), 30, 0)
    command = ["watch", str(tmp_path / "run.zarr"), str(tmp_path / "m.zarr"), "--components", "30", "--every", "0.001"]
    assert main(command) == 0
    *lines, end = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("30 samples: 30 components explain 100.00% of the variance")
    assert end.startswith(
        f"'{tmp_path}/run.zarr' is closed, and '{tmp_path}/m.zarr' has seen all 30 samples; next: dpca "
    )
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == [lines[-1], end]
    assert StreamingPCA.load(tmp_path / "m.zarr").sample_shape_ == SHAPE
