"""Goals are met by all samples, or the run ends with what was reached: never less, in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from skimage.metrics import structural_similarity

import dpca
from dpca import CellPCA
from dpca.cli import main
from dpca.codec.quantize import error_within_bound
from dpca.jobs import CompressionSettings, append_store, compress, encode_store
from dpca.jobs.compressed import encode_trials
from dpca.jobs.compressed.encode_write import largest_errors
from dpca.representation.compressed.compressed_form import StoreForm
from dpca.storage import DataError, Stack, ingest, open_stack
from dpca.storage.disk import folder_bytes
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.conftest import smooth_images
from tests.helpers.interrupted import interrupt_at
from tests.jobs.compressed.odd_stacks import GOALS, Trial, odd_trial, run

SHAPE, ROWS = (12, 10), 64


def made(folder: Path, name: str, values: np.ndarray, **how: Any) -> Stack:
    np.save(folder / f"{name}.npy", values)
    return ingest(folder / f"{name}.npy", folder / f"{name}.zarr", run=Run(threads=1), **how)


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    """Of which every eighth is rough: too few of these are among those by which a step is chosen."""
    values = smooth_images(900, SHAPE).astype(int)
    rough = np.random.default_rng(0).integers(-20, 20, values.shape) * (np.arange(900) % 8 == 3)[:, None, None]
    return np.clip(values + rough, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, samples: np.ndarray) -> Path:
    folder = tmp_path_factory.mktemp("fitted")
    CellPCA(None, cell_shape=6, overlap=2, shared=True).fit(made(folder, "stack", samples)).save(folder / "model.zarr")
    return folder


@pytest.fixture(autouse=True)
def _tried_on_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_trials, "_TRIED_MOST", 24)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreForm, "rows", ROWS)
    monkeypatch.setattr(StoreForm, "shard_rows", ROWS)


def mse(store: Path, samples: np.ndarray) -> np.ndarray:
    error = dpca.open_compressed(store)[...].astype(float) - samples
    return np.square(error / 255).mean(axis=(1, 2))


def encode(fitted: Path, target: Path, run: Run = Run(), **goal: Any) -> None:
    encode_store(open_stack(fitted / "stack.zarr"), fitted / "model.zarr", target, run=run, **goal)


@pytest.mark.cases(1)
@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("psnr", [30.0, 33.0, 40.0])  # the first two take another step, and some shards again
def test_the_mean_error_of_all_samples_is_the_one_asked_for(
    fitted: Path, tmp_path: Path, samples: np.ndarray, psnr: float
) -> None:
    encode(fitted, tmp_path / "psnr.zarr", psnr=psnr)
    encode(fitted, tmp_path / "mse.zarr", mse=10 ** (-psnr / 10))
    for name in ("psnr", "mse"):
        assert psnr <= -10 * np.log10(mse(tmp_path / f"{name}.zarr", samples).mean()) < psnr + 0.1


def test_the_mean_similarity_of_all_samples(fitted: Path, tmp_path: Path, samples: np.ndarray) -> None:
    encode(fitted, tmp_path / "out.zarr", ssim=0.9)
    decoded = dpca.open_compressed(tmp_path / "out.zarr")[...]
    assert 0.9 <= np.mean([structural_similarity(*both) for both in zip(samples, decoded, strict=True)]) < 0.935


def test_every_file_counts_for_a_ratio(fitted: Path, tmp_path: Path, samples: np.ndarray) -> None:
    encode(fitted, tmp_path / "out.zarr", ratio=2.5)
    assert 2.5 <= samples.nbytes / folder_bytes(tmp_path / "out.zarr") < 2.7


def test_every_sample_meets_a_goal_where_that_is_asked_for(
    fitted: Path, tmp_path: Path, samples: np.ndarray, scheduler: str
) -> None:
    argv = ["encode", str(fitted / "model.zarr"), str(fitted / "stack.zarr"), str(tmp_path / "out.zarr")]
    assert main([*argv, "--psnr", "32", "--every-sample", "--scheduler", scheduler]) == 0
    errors = -10 * np.log10(mse(tmp_path / "out.zarr", samples))
    assert 32 <= errors.min() < 32.1
    assert errors.mean() < 34.5  # smooth ones have 37 dB with this step, and their bits are saved
    assert dpca.open_compressed(tmp_path / "out.zarr").facts["goal"] == {
        "name": "psnr",
        "value": 32.0,
        "every_sample": True,
    }
    with pytest.raises(DataError, match="every_sample"):
        encode(fitted, tmp_path / "no.zarr", ratio=2.0, every_sample=True)


def test_what_is_not_reached_is_told_and_leaves_nothing(fitted: Path, tmp_path: Path, samples: np.ndarray) -> None:
    few = CellPCA(8, cell_shape=6).fit(samples[:500])
    few.save(tmp_path / "few.zarr")
    with pytest.raises(DataError, match="psnr"):
        encode_store(open_stack(fitted / "stack.zarr"), tmp_path / "few.zarr", tmp_path / "out.zarr", psnr=38.0)
    assert [path.name for path in tmp_path.iterdir()] == ["few.zarr"]


@pytest.mark.kill
@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("goal", [{"psnr": 33.0}, {"ssim": 0.93, "every_sample": True}])
def test_the_same_bytes_wherever_a_run_is_interrupted(
    fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goal: dict[str, Any]
) -> None:
    """Between attempts, and between the first and the second writing of a shard."""
    names: list[str] = []
    left = iter(lambda: True, False)

    def more(unit: str) -> bool:
        allowed = next(left, False)
        names.extend([unit] * allowed)
        return allowed

    interrupt_at(monkeypatch, more)
    encode(fitted, tmp_path / "calm.zarr", **goal)
    calm = len(names)
    assert calm > 17  # a plan, shards and what is reached, and more than that
    resume_from = calm - 17 if "every_sample" in goal else 17
    for count in (resume_from - 2, 1, 1, 1, 3):
        left = iter([True] * count)
        with pytest.raises(KeyboardInterrupt):
            encode(fitted, tmp_path / "stopped.zarr", **goal)
    left = iter(lambda: True, False)
    encode(fitted, tmp_path / "stopped.zarr", **goal)
    assert tree(tmp_path / "stopped.zarr") == tree(tmp_path / "calm.zarr")


def tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_same_bytes_on_a_cluster(fitted: Path, tmp_path: Path, cluster: Any) -> None:
    for goal in ({"psnr": 33.0}, {"psnr": 33.0, "every_sample": True}):
        encode(fitted, tmp_path / "here.zarr", Run(overwrite=True), **goal)
        encode(fitted, tmp_path / "there.zarr", Run(client=cluster, overwrite=True), **goal)
        assert tree(tmp_path / "here.zarr") == tree(tmp_path / "there.zarr")


def test_appended_samples_meet_the_goal_with_the_others_or_that_is_told(tmp_path: Path) -> None:
    values = smooth_images(300, SHAPE)
    CellPCA(None, cell_shape=6).fit(values).save(tmp_path / "model.zarr")
    encode_store(made(tmp_path, "first", values[:200]), tmp_path / "model.zarr", tmp_path / "out.zarr", psnr=36.0)
    append_store(tmp_path / "out.zarr", made(tmp_path, "alike", values[200:]))
    assert -10 * np.log10(mse(tmp_path / "out.zarr", values).mean()) >= 36
    hard = np.clip(values[:1].astype(int) + np.random.default_rng(0).integers(-9, 9, (1, *SHAPE)), 0, 255)
    done = append_store(tmp_path / "out.zarr", made(tmp_path, "hard", hard.astype(np.uint8)), drift="accept")
    now = -10 * np.log10(mse(tmp_path / "out.zarr", np.concatenate([values, hard])).mean())
    assert bool(done.missed) == (now < 36)


def test_the_job_of_one_command_asks_for_every_sample(tmp_path: Path, samples: np.ndarray) -> None:
    settings = CompressionSettings(
        CellPCA(36, cell_shape=6, shared=True, random_state=0), goal={"psnr": 30.0}, every_sample=True
    )
    np.save(tmp_path / "in.npy", samples[:200])
    report = compress(tmp_path / "in.npy", tmp_path / "out.zarr", settings).report
    assert report["goal"]["every_sample"]
    assert -10 * np.log10(mse(tmp_path / "out.zarr", samples[:200]).max()) >= 30
    with pytest.raises(DataError, match="every_sample|choose_cells"):
        compress(tmp_path / "in.npy", tmp_path / "no.zarr", CompressionSettings(settings.model, every_sample=True))


@pytest.mark.fuzz
@pytest.mark.parametrize("goal", GOALS)
def test_odd_stacks_meet_goals_or_are_refused_in_a_sentence(tmp_path: Path, goal: str) -> None:
    """A slice of ``tests/benchmarks/searches/fuzz_goals.py``."""
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        trial = odd_trial(np.random.default_rng([7, GOALS.index(goal), number]), goal)
        found = run(trial, tmp_path / str(number))
        assert found.partition(":")[0] in ("met", "refused"), f"{trial.words}: {found}"


RNG = np.random.default_rng(0)
FOUND = {
    "no SSIM": (RNG.integers(0, 255, (20, 6, 6), dtype=np.uint8), {"ssim": 0.9}, "refused"),
    "ends of int32": (RNG.choice([-(2**31), 2**31 - 1], (20, 8, 8)).astype(np.int32), {"max_error": 0.5}, "refused"),
    "denormals": (RNG.normal(size=(20, 8, 8)) * 1e-310, {"psnr": 30.0}, "refused"),
    "the smallest": (RNG.choice([5e-324, 0.0], (20, 8, 8)), {"ratio": 2.0}, "refused"),
    "large": ((RNG.normal(size=(20, 8, 8)) * 1e30).astype(np.float32), {"max_relative_error": 0.01}, "met"),
    "hardly numbers": (RNG.choice([-1e300, 1e300], (15, 3, 2)), {"max_error": 2e296}, "refused"),
    "of all sizes": (RNG.choice([1e30, 1e-30], (300, 8, 8)).astype(np.float32), {"ratio": 2.0}, "met"),
    "exact": (np.arange(9600, dtype=np.uint16).reshape(40, 16, 15), {"ratio": 1.2}, "met"),
    "no end of steps": (RNG.integers(800, 1900, (40, 8, 8)).astype(np.int16), {"psnr": 3.0}, "met"),
    "large integers": (2**62 + RNG.integers(0, 9, (20, 8, 8)), {"max_error": 0.5}, "refused"),
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("kind", FOUND)
def test_what_was_a_traceback(tmp_path: Path, kind: str) -> None:
    values, goal, expected = FOUND[kind]
    trial = Trial(values, None, None, goal, every_sample=False, chosen=True, appended=0)
    found = run(trial, tmp_path)
    assert found.partition(":")[0] == expected, found


def test_a_decoder_that_misses_a_promise_is_refused(tmp_path: Path) -> None:
    """Values outside the stated range have too few digits: their error is below twice the error bound."""
    values = (np.random.default_rng(0).random((40, 8, 8)) * 2**12).astype(np.float32)
    values[7] = 2.0**14 + np.arange(64).reshape(8, 8) / 512
    stack = made(tmp_path, "stack", values, reading=ReadOptions(data_range=(0, 2**12)))
    CellPCA(3, cell_shape=4).fit(stack).save(tmp_path / "model.zarr")
    with pytest.raises(DataError, match="bound"):
        encode_store(stack, tmp_path / "model.zarr", tmp_path / "out.zarr", max_error=1.7e-3)
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize("dtype", ["u1", "i1", "u4", "i4", "u8", "i8", "f2", "f4", "f8"])
def test_largest_errors_are_never_told_smaller_than_they_are(dtype: str) -> None:
    rng, of = np.random.default_rng(0), np.dtype(dtype)
    if of.kind == "f":
        x, y = (rng.choice([1, 1e-3, 0.1], (2, 60, 9)) * rng.normal(size=(2, 60, 9))).astype(of)
    else:
        ends = np.iinfo(of)
        x, y = rng.integers(ends.min, ends.max, (2, 60, 9), dtype=of, endpoint=True)
    y[0] = x[0]
    found = largest_errors(x, y)
    for error, a, b in zip(found, x, y, strict=True):
        exact = max(abs(number(p) - number(q)) for p, q in zip(a.ravel(), b.ravel(), strict=True))
        assert exact <= number(np.float64(error)) <= exact * (1 + 2**-50)
    assert found[0] == 0


def number(value: Any) -> Any:
    from fractions import Fraction

    return Fraction(value.item())


def test_a_promise_counts_the_rounding_of_large_integers() -> None:
    assert error_within_bound(0.5, np.uint8, 255) == error_within_bound(0.5, np.int64, 2**40)
    assert error_within_bound(100, np.int64, 2**53) < 100.5 - 2
    with pytest.raises(ValueError, match="int64"):
        error_within_bound(0.5, np.int64, 2**53)
