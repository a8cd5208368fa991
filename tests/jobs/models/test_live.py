"""A fit that a budget ends resumes, and another program reads the model so far."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from sklearn.base import clone

from dpca import PCA, BandPCA, CellPCA, KernelPCA, StreamingPCA
from dpca.cli import main
from dpca.jobs import fit_store, read_live
from dpca.jobs.models.live import write_live
from dpca.models.base.callbacks import Progress
from dpca.models.base.store import load_any
from dpca.storage import DataError, StoreError, open_stack
from tests.conftest import smooth_images

N, SHAPE = 300, (8, 10, 3)
MODELS: dict[str, Any] = {
    "segments that are merged": StreamingPCA(3, method="incremental-svd", batch_size=32, random_state=0),
    "a chain": StreamingPCA(3, method="oja", shuffle=True, batch_size=20, random_state=0),
    "rounds": StreamingPCA(3, method="oja", execution="averaged", n_streams=2, round_size=20, batch_size=10),
    "cells": CellPCA(3, cell_shape=5),
    "lapped cells": CellPCA(2, cell_shape=4, overlap=2),
    "bands": BandPCA(3, band_size=40, keep_state=True),
    "covariance": PCA(3),
    "several passes": PCA(3, solver="randomized", n_iter=1, tol=0.9),
    "a kernel": KernelPCA(3, n_landmarks=30),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("stack") / "x.zarr")
    zarr.create_array(path, data=smooth_images(N, SHAPE), chunks=(16, *SHAPE))
    return path


def content(path: Path) -> dict[Path, bytes]:
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.cases(2)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("model", list(MODELS.values()), ids=list(MODELS))
def test_a_fit_that_budgets_end_goes_on_to_the_bytes_of_one_that_none_does(
    model: Any, path: str, tmp_path: Path
) -> None:
    model, stack = clone(model).set_params(random_state=0), open_stack(path)
    fit_store(stack, tmp_path / "whole.zarr", clone(model))
    live, target, seen = tmp_path / "live.zarr", tmp_path / "m.zarr", []
    while True:
        found = fit_store(stack, target, clone(model), live=live, max_samples=90)
        told = read_live(live)
        np.testing.assert_array_equal(told.model.transform(stack.samples[:9]), found.model.transform(stack.samples[:9]))
        assert (told.n_samples, told.finished) == (N, True)
        assert told.n_samples_seen == found.model.n_samples_seen_
        if not found.stopped:
            break
        assert not target.exists()
        seen.append(told.n_samples_seen)
        assert len(seen) < 9
    assert seen == sorted(seen)
    assert told.n_samples_seen == N
    assert content(target) == content(tmp_path / "whole.zarr")
    assert [p.name for p in tmp_path.glob("*.partial")] == []


@pytest.mark.long
def test_who_polls_reads_whole_models(path: str, tmp_path: Path) -> None:
    x, live, ended = open_stack(path).samples[...], tmp_path / "live.zarr", threading.Event()
    models = [StreamingPCA(2, method="incremental-svd", random_state=0).fit(x[:n]) for n in (50, 150, 300)]
    write_live(Progress.of(models[0], N, 0.0), live)

    def write() -> None:
        for turn in range(40):
            write_live(Progress.of(models[turn % 3], N, float(turn)), live)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    looks = 0
    while not ended.is_set():
        told = read_live(live)
        (expected,) = (m for m in models if m.n_samples_seen_ == told.n_samples_seen)
        np.testing.assert_array_equal(told.model.components_, expected.components_)
        looks += 1
    writer.join()
    assert looks
    assert read_live(live).seconds == 39


def test_the_command_ends_goes_on_and_says_so(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, live = tmp_path / "m.zarr", tmp_path / "live.zarr"
    argv = ["fit", path, str(model), "--cell", "5", "--components", "2", "--workers", "1"]
    assert main([*argv, "--max-samples", "100"]) == 3
    assert "--live" in capsys.readouterr().err
    budget = ["--live", str(live), "--max-samples", "200"]
    assert main([*argv, *budget]) == 0
    said = capsys.readouterr().out
    assert "the budget ended the fit" in said
    assert "% of the variance" in said
    assert "note:" not in said
    assert 200 <= load_any(live).n_samples_seen_ < N
    assert not model.exists()
    assert main([*argv, *budget]) == 0
    assert f"wrote '{model}'" in capsys.readouterr().out
    np.testing.assert_array_equal(load_any(model).components_, read_live(live).model.components_)
    before = content(model)
    shutil.rmtree(live)
    assert main([*argv, *budget]) == 0
    assert read_live(live).finished
    assert content(model) == before


def test_what_is_at_the_place_of_the_model_so_far(path: str, tmp_path: Path) -> None:
    stack, model = open_stack(path), CellPCA(2, cell_shape=5)
    with pytest.raises(DataError, match="live="):
        fit_store(stack, tmp_path / "m.zarr", model, max_seconds=1)
    model.fit(stack).save(tmp_path / "other.zarr")
    before = content(tmp_path / "other.zarr")
    for live in (path, tmp_path / "other.zarr", tmp_path / "m.zarr"):
        with pytest.raises(StoreError):
            fit_store(stack, tmp_path / "m.zarr", clone(model), live=live)
    assert content(tmp_path / "other.zarr") == before
    for wrong in (path, tmp_path / "nothing.zarr", tmp_path / "other.zarr"):
        with pytest.raises(StoreError):
            read_live(wrong)
