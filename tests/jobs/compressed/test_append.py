"""Append to compressed stores: earlier samples are unchanged, new ones meet the error bound or are refused."""

from __future__ import annotations

import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import dpca
from dpca import CellPCA
from dpca.cli import main
from dpca.codec.goal import Goal
from dpca.jobs import CompressionSettings, append_store, compress, encode_store
from dpca.jobs.base.stages import NOTHING
from dpca.jobs.compressed import append, refit
from dpca.jobs.compressed.verify_quality import verify_quality
from dpca.plots import drawing
from dpca.report.record import read_report
from dpca.representation.compressed.compressed_form import StoreForm
from dpca.storage import DataError, Stack, StoreError, ingest, open_stack, verify
from dpca.storage.arrays.reading import open_group
from dpca.storage.disk import folder_bytes
from dpca.storage.run import Run
from dpca.storage.transaction.claim import Claim
from tests.conftest import smooth_images
from tests.helpers.interrupted import interrupt_at

N, MORE, ROWS = 70, 60, 32


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def made(folder: Path, name: str, values: np.ndarray) -> Stack:
    np.save(folder / f"{name}.npy", values)
    return ingest(folder / f"{name}.npy", folder / f"{name}.zarr", run=Run(threads=1))


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return smooth_images(N + MORE, (24, 20, 3))


@pytest.fixture(scope="module", params=["psnr", "max_error"])
def before(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, images: np.ndarray) -> Path:
    """A store of the first samples in three shards, and stacks of all."""
    folder = tmp_path_factory.mktemp("before")
    stack = made(folder, "first", images[:N])
    made(folder, "second", images[N:])
    made(folder, "both", images)
    # All are seen by the fit: the new samples are no others than the first ones.
    CellPCA(40, cell_shape=10).fit(images).save(folder / "model.zarr")
    goal = {"psnr": 34.0} if request.param == "psnr" else {"max_error": 3.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoreForm, "rows", ROWS)
        patch.setattr(StoreForm, "shard_rows", ROWS)
        encode_store(stack, folder / "model.zarr", folder / "small.zarr", **goal)
    return folder


@pytest.fixture
def store(before: Path, tmp_path: Path) -> Path:
    return shutil.copytree(before / "small.zarr", tmp_path / "small.zarr")


def test_new_samples_come_behind_and_the_others_stay(before: Path, store: Path, images: np.ndarray) -> None:
    old, files, inodes = dpca.open_compressed(store)[...], tree(store), (store / "codes/c/0/1").stat().st_ino
    done = append_store(store, open_stack(before / "second.zarr"))
    assert done.samples == MORE
    grown = dpca.open_compressed(store)
    assert grown.shape == (N + MORE, 24, 20, 3)
    assert (grown[:N] == old).all()
    error = np.square((grown[N:].astype(float) - images[N:]) / 255).mean()
    assert done.measures["psnr"][1] == pytest.approx(-10 * np.log10(error), abs=1e-3)
    if "max_error" in grown.facts:
        assert np.abs(grown[...].astype(int) - images).max() <= 3
    assert verify(store) == []
    assert verify_quality(str(store), open_stack(before / "both.zarr")) == []
    assert open_group(store)["name"].shape == (N + MORE,)
    after = tree(store)
    for name in files:
        array, _, place = name.partition("/c/")
        # Full shards and what codes are decoded with are the same files.
        if array not in ("codes", "residual", "mse", "psnr", "ssim", "max_error", "name", "zarr.json") and place:
            assert after[name] == files[name], name
    assert after["codes/c/0/0"] == files["codes/c/0/0"]
    assert (store / "codes/c/0/1").stat().st_ino == inodes
    # The same samples are not appended twice.
    assert append_store(store, open_stack(before / "second.zarr")).cost is NOTHING
    assert tree(store) == after


def test_appended_twice_in_parts(before: Path, store: Path, tmp_path: Path, images: np.ndarray) -> None:
    for name, part in {"a": images[N : N + 26], "b": images[N + 26 :]}.items():  # the first fills the third shard
        append_store(store, made(tmp_path, name, part))
    assert verify(store) == []
    assert verify_quality(str(store), open_stack(before / "both.zarr")) == []


def test_an_interruption_leaves_the_old_store_and_the_next_run_the_new_one(
    before: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, files, second = tmp_path / "calm.zarr", tree(store), open_stack(before / "second.zarr")
    shutil.copytree(store, calm)
    append_store(calm, second)
    left = iter([True] * 2 + [False])  # the links, and a shard
    with monkeypatch.context() as patch:
        interrupt_at(patch, lambda unit: next(left, False))
        with pytest.raises(KeyboardInterrupt):
            append_store(store, second)
    assert tree(store) == files
    append_store(store, second)
    assert tree(store) == tree(calm)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calm.zarr", "small.zarr"]


@pytest.mark.parametrize("before", ["psnr"], indirect=True)
def test_samples_that_miss_the_goal_are_told_and_refused_or_accepted(
    before: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], scheduler: str
) -> None:
    rng, files = np.random.default_rng(0), tree(store)
    other = made(tmp_path, "other", rng.integers(0, 255, (9, 24, 20, 3), dtype=np.uint8))
    with pytest.raises(DataError, match=r"psnr.*\b34\b"):
        append_store(store, other)
    assert tree(store) == files
    assert not (tmp_path / "small.zarr.partial").exists()
    argv = ["append", str(store), str(tmp_path / "other.npy"), "--scheduler", scheduler]
    assert main(argv) == 3
    assert main([*argv, "--drift", "accept"]) == 0
    assert "note: the new samples have psnr" in capsys.readouterr().out
    assert verify(store) == []
    assert main([*argv, "--drift", "accept"]) == 0
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize("before", ["psnr"], indirect=True)
@pytest.mark.parametrize(
    ("goal", "value", "measure", "worse"),
    [("psnr", 34.0, "mse", 1), ("psnr", 10.0, "mse", 1), ("mse", 1e-9, "mse", 1), ("ssim", 0.999999, "ssim", -1)],
)
def test_a_goal_is_missed_by_more_than_three_standard_errors(
    goal: str, value: float, measure: str, worse: int, before: Path
) -> None:
    """Those of a mean over as many of the samples before; the goal, or what these reach where that is worse."""
    old = dpca.open_compressed(before / "small.zarr").quality
    wanted, reached, n = 10 ** (-value / 10) if goal == "psnr" else value, old[measure].mean(), 9
    limit = max(wanted, reached) if worse > 0 else min(wanted, reached)
    error = old[measure].std() / np.sqrt(n)
    for errors, kept in ((2.95, True), (3.05, False)):
        # Some above, some below: it is the mean that counts.
        new = limit + worse * errors * error + error * np.linspace(-1, 1, n)
        _, drifted = append._drift(Goal(goal, value), old, old | {measure: new}, (2.0, 2.0))
        assert (drifted == "") == kept
        assert kept or f"have {goal} " in drifted


@pytest.mark.parametrize("before", ["psnr"], indirect=True)
def test_a_ratio_is_missed_by_more_than_a_twentieth(before: Path) -> None:
    """Of the ratio that is asked for, or of that of the samples before where that is less."""
    quality = dpca.open_compressed(before / "small.zarr").quality
    for was, now, kept in ((30, 19.1, True), (30, 18.9, False), (10, 9.6, True), (10, 9.4, False)):
        _, drifted = append._drift(Goal("ratio", 20.0), quality, quality, (was, now))
        assert (drifted == "") == kept


@pytest.mark.parametrize("before", ["psnr"], indirect=True)
def test_what_another_run_appends_at_that_moment_is_not_lost(
    before: Path, store: Path, tmp_path: Path, images: np.ndarray
) -> None:
    first = made(tmp_path, "a", images[N : N + 20])

    class Late(Stack):
        """A stack that is asked for its content when the other run ends."""

        @property
        def fingerprint(self) -> str:  # type: ignore[override]
            append_store(store, first)
            return "late"

    stack = made(tmp_path, "b", images[N + 20 :])
    late = Late(**{field.name: getattr(stack, field.name) for field in fields(Stack)})
    with pytest.raises(StoreError, match="replaced"):
        append_store(store, late)
    assert dpca.open_compressed(store).shape[0] == N + 20
    assert verify(store) == []


@pytest.mark.parametrize("before", ["psnr"], indirect=True)
def test_what_does_not_fit_is_refused(before: Path, store: Path, tmp_path: Path, images: np.ndarray) -> None:
    files = tree(store)
    for name, values in {"short": images[:5, :20], "wide": images[:5].astype(np.uint16)}.items():
        with pytest.raises(DataError, match="shape"):
            append_store(store, made(tmp_path, name, values))
    with pytest.raises(DataError, match="object"):
        append_store("memory://bucket/small.zarr", open_stack(before / "second.zarr"))
    held = Claim(tmp_path / "small.zarr.partial", "small.zarr")
    with pytest.raises(StoreError, match="being"):
        append_store(store, open_stack(before / "second.zarr"))
    held.end()
    assert tree(store) == files


@pytest.mark.long
@pytest.mark.parametrize("before", ["psnr"], indirect=True)
def test_all_is_fitted_again_when_told_to_and_needed(before: Path, store: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pattern = rng.integers(0, 255, (1, 24, 20, 3), dtype=np.uint8)  # that comes and goes
    faint = rng.integers(0, 2, (20, 1, 1, 1), dtype=np.uint8) * pattern
    other, first = made(tmp_path, "other", faint), open_stack(before / "first.zarr")
    with pytest.raises(DataError, match="--stack"):
        append_store(store, other, drift="refit")
    with pytest.raises(DataError, match="error"):
        append_store(store, other, drift="refit", original=made(tmp_path, "no", first.samples[...] // 2))
    calm, before_it = shutil.copytree(store, tmp_path / "calm.zarr"), tree(store)
    append_store(calm, other, drift="refit", original=first)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(refit, "fill_codes", interrupted)
        append_store(store, other, drift="refit", original=first)
    assert tree(store) == before_it
    done = append_store(store, other, drift="refit", original=first)
    assert done.refitted
    assert tree(store) == tree(calm)
    assert "have psnr" in done.drifted
    whole = dpca.open_compressed(store)
    assert whole.names.tolist() == [*first.names.tolist(), *other.names.tolist()]
    values = np.concatenate([first.samples[...], faint])
    assert -10 * np.log10(np.square((whole[...].astype(float) - values) / 255).mean()) > 33.9
    assert verify(store) == []
    files = tree(store)
    assert append_store(store, other, drift="refit", original=first).cost is NOTHING
    assert tree(store) == files
    # Where the components suffice nothing is fitted again.
    done = append_store(store, made(tmp_path, "alike", values[:9]), drift="refit", original=made(tmp_path, "b", values))
    assert not done.refitted
    assert not (tmp_path / "small.zarr.partial").exists()


@pytest.mark.long
def test_the_report_of_a_job_is_renewed(tmp_path: Path, images: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "DPI", 20)
    model = CellPCA(20, cell_shape=12, shared=True, random_state=0)
    settings = CompressionSettings(model, goal={"psnr": 30.0}, keep_stack=True)
    np.save(tmp_path / "first.npy", images[:N])
    compress(tmp_path / "first.npy", tmp_path / "out.zarr", settings)
    folder = tmp_path / "out.report"
    before = read_report(folder)
    assert before is not None
    append_store(tmp_path / "out.zarr", made(tmp_path, "more", images[N:]), drift="accept")
    report, size = read_report(folder), folder_bytes(tmp_path / "out.zarr") - folder_bytes(tmp_path / "out.zarr/stack")
    assert report is not None
    assert (before["samples"], report["samples"]) == (N, N + MORE)
    assert report["bytes_compressed"] == pytest.approx(size, abs=99)  # but for the line that names the stack
    assert report["bytes_decoded"] == images.nbytes
    decoded = dpca.open_compressed(tmp_path / "out.zarr")[...]
    assert report["mse"] == pytest.approx(np.square((decoded.astype(float) - images) / 255).mean(), rel=1e-4)
    assert report["stages"].keys() == {"start", "ingest", "fit", "encode", "report", "append"}
    assert "Appended samples" in (folder / "index.html").read_text()
    assert (folder / "appended.png").is_file()
    assert verify(tmp_path / "out.zarr") == []
    assert (open_stack(tmp_path / "out.zarr" / "stack").samples[...] == images[:N]).all()
    other = made(tmp_path, "other", np.random.default_rng(0).integers(0, 255, (5, 24, 20, 3), dtype=np.uint8))
    stack = made(tmp_path, "all", images)
    assert append_store(tmp_path / "out.zarr", other, drift="refit", original=stack).refitted
    report = read_report(folder)
    assert report is not None
    assert report["samples"] == N + MORE + 5
    assert any("have psnr" in note for note in report["notes"])
