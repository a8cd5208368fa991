"""What the plan of denoising foretells, beside what the job does and what is computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import zarr
from sklearn.base import clone

from dpca import Denoiser
from dpca.engine.sources.source import as_source
from dpca.jobs import denoise_store, plan_denoising
from dpca.jobs.denoising.denoise import output_form
from dpca.jobs.plans import denoising_plan
from dpca.storage import ingest, open_stack
from dpca.storage.disk import folder_bytes
from dpca.storage.errors import DataError, PlanError
from dpca.storage.readers import open_reader

pytestmark = pytest.mark.usefixtures("small_pictures")


def made(folder: Path, shape: tuple[int, ...] = (40, 24, 20)) -> Any:
    """Return a stack of counted photons, whose signal has one component."""
    signal = np.outer(np.arange(shape[0]) + 20, np.ones(np.prod(shape[1:]))).reshape(shape)
    np.save(folder / "x.npy", np.random.default_rng(0).poisson(signal).astype(np.uint16))
    return ingest(folder / "x.npy", folder / "x.zarr")


def by_hand(parts: Sequence[Any], work: Callable[[Any, Path], object], target: Path) -> list[float]:
    """Do the work, and return a second for each sample and half a second for each call."""
    for part in parts:
        work(part, target)
    return [part + 0.5 for part in parts]


@pytest.mark.parametrize(
    "given",
    [
        {"cell_shape": 8},
        {"noise": "poisson", "time_filter": True},
        {"noise": "rician", "keep_dtype": True},
        {"sigma": np.full((24, 20), 5.0)},
    ],
)
def test_stages_and_bytes_are_those_of_the_job(tmp_path: Path, given: dict[str, Any]) -> None:
    stack, denoiser = made(tmp_path), Denoiser(**given)
    one, two = plan_denoising(stack, denoiser, workers=[1, 2])
    assert list(one.stages) == ["noise", "denoise"]
    assert (one.samples, one.sample_shape, one.dtype, one.bytes_decoded) == (40, (24, 20), "uint16", stack.nbytes)
    assert all(stage.seconds > 0 and stage.memory > 0 for plan in (one, two) for stage in plan.stages.values())
    assert not [path.name for path in tmp_path.iterdir() if path.name not in ("x.npy", "x.zarr")]
    denoise_store(stack, tmp_path / "clean.zarr", clone(denoiser))
    assert one.bytes_written == pytest.approx(folder_bytes(tmp_path / "clean.zarr" / "samples"), rel=0.05)


def test_the_seconds_of_all_samples_follow_from_those_of_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denoising_plan, "fewest_seconds", by_hand)
    stack, denoiser = made(tmp_path, (64, 24, 20)), Denoiser(8, sigma=np.full((24, 20), 5.0))
    source = as_source(stack)
    form = output_form(source, stack.axes, np.dtype(np.float32), 2**30, in_time=False)
    expected = 64 * 1.0 + 0.5 * -(-64 // form.rows)
    one, two = plan_denoising(stack, denoiser, workers=[1, 2], budget=2**30)
    assert one.stages["denoise"].seconds == pytest.approx(expected)
    assert two.stages["denoise"].seconds == pytest.approx(expected)  # a single task
    # 16 samples of 12 x 20 are tried, so that each whole sample costs twice as much.
    monkeypatch.setattr(denoising_plan, "_MOST_BYTES", 16 * 24 * 20)
    cropped = plan_denoising(stack, denoiser, workers=[1], budget=2**30)[0].stages["denoise"].seconds
    assert cropped == pytest.approx(64 * 2 * 16.5 / 16)


def test_boxes_of_large_samples_are_tasks_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denoising_plan, "fewest_seconds", by_hand)
    x = np.random.default_rng(0).normal(size=(16, 1000, 1000)).astype(np.float32)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(1, 500, 500))
    stack, budget = open_stack(tmp_path / "x.zarr"), 72 * 10**6
    form = output_form(as_source(stack), stack.axes, x.dtype, budget, in_time=False)
    assert (form.rows, form.layout.shards) == (16, (1, 500, 1000))  # one unit of samples, of two boxes
    one, many = plan_denoising(stack, Denoiser(8, sigma=1.0), workers=[1, 64], budget=budget)
    assert many.stages["denoise"].seconds == pytest.approx(one.stages["denoise"].seconds / 2)


def test_the_memory_of_the_estimator_is_that_of_the_plan(tmp_path: Path) -> None:
    (plan,) = plan_denoising(made(tmp_path), Denoiser(8, memory_budget=2**29), workers=[1], budget=2**30)
    assert plan.memory_allowed == 2**29


def test_a_movie_in_a_file_is_ingested_first(tmp_path: Path) -> None:
    x = np.random.default_rng(0).poisson(30, (40, 24, 20)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "movie.tif", x, imagej=True, metadata={"axes": "TYX"})
    reader, denoiser = open_reader(str(tmp_path / "movie.tif")), Denoiser(noise="poisson")
    (plan,) = plan_denoising(reader, denoiser, workers=[1])
    assert list(plan.stages) == ["ingest", "noise", "denoise"]
    denoise_store(reader, tmp_path / "clean.zarr", denoiser)
    assert plan.bytes_written == pytest.approx(folder_bytes(tmp_path / "clean.zarr" / "samples"), rel=0.05)


@pytest.mark.parametrize(
    ("n", "given", "budget", "error", "word"),
    [
        (1, {}, 2**30, DataError, "1 sample"),
        (40, {"gain": 2.0}, 2**30, DataError, "poisson"),
        (40, {}, 2**16, PlanError, "memory"),
    ],
)
def test_what_the_job_refuses(
    tmp_path: Path, n: int, given: dict[str, Any], budget: int, error: type[Exception], word: str
) -> None:
    stack = made(tmp_path, (n, 24, 20))
    with pytest.raises(error, match=word):
        plan_denoising(stack, Denoiser(**given), workers=[1], budget=budget)
