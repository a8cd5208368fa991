from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from skimage.metrics import structural_similarity

import dpca
from dpca import PCA, CellPCA
from dpca.cli import main
from dpca.engine.folds.plan import TASK_OVERHEAD, PlanError
from dpca.engine.sources.source import as_source
from dpca.jobs import append_store, encode_store
from dpca.jobs.base.stages import NOTHING
from dpca.jobs.compressed import encode_trials
from dpca.jobs.compressed.encode_memory import EncodeMemory
from dpca.jobs.compressed.encode_write import PLAN, EncodeJob, _codec_of
from dpca.jobs.compressed.verify_quality import verify_quality
from dpca.kernels.algebra import linalg
from dpca.representation.compressed.compressed import Compressed
from dpca.representation.compressed.compressed_form import StoreForm
from dpca.storage import DataError, Stack, StoreError, ingest, open_stack, verify
from dpca.storage.arrays.reading import open_group
from dpca.storage.disk import folder_bytes
from dpca.storage.integrity.manifest import remove_manifest
from dpca.storage.readers import open_reader
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.conftest import smooth_images
from tests.helpers.interrupted import interrupt_at

N, SHAPE = 200, (40, 36, 3)
FORMAT = Path(dpca.__file__).parents[1] / "storage" / "FORMAT.md"
KINDS = {
    "shared, lapped": {"cell_shape": 10, "overlap": 4, "shared": True},
    "own": {"cell_shape": (8, 12)},
}


def stack_of(folder: Path, values: np.ndarray, **how: Any) -> Stack:
    np.save(folder / "values.npy", values)
    ingest(folder / "values.npy", folder / "stack.zarr", **how)
    return open_stack(folder / "stack.zarr")


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return smooth_images(N, SHAPE)


@pytest.fixture(scope="module", params=KINDS)
def fitted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, images: np.ndarray) -> Path:
    """A folder with a stack and a model of it."""
    folder = tmp_path_factory.mktemp("fitted")
    CellPCA(60, **KINDS[request.param]).fit(stack_of(folder, images)).save(folder / "model.zarr")
    return folder


@pytest.fixture
def _tried_on_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are chosen by few samples: most of the time of a small store."""
    monkeypatch.setattr(encode_trials, "_TRIED_MOST", 24)


def encoded(folder: Path, target: Path, run: Run = Run(), **goal: Any) -> Compressed:
    encode_store(open_stack(folder / "stack.zarr"), folder / "model.zarr", target, run=run, **goal)
    return dpca.open_compressed(target)


def read_as_described(path: Path, n_blocks: int | None = None) -> np.ndarray:
    """Read a store by the lines of FORMAT.md, all or the first blocks of them, with zarr and numpy alone."""
    blocks = re.findall(r"```python\n(.*?)```", FORMAT.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec("".join(blocks[:n_blocks]), names)
    return names["read_compressed"](path)


@pytest.mark.cases(1)
@pytest.mark.parametrize("psnr", [31.0])
def test_goals_of_error_are_reached_and_hardly_exceeded(
    fitted: Path, tmp_path: Path, images: np.ndarray, psnr: float
) -> None:
    error = encoded(fitted, tmp_path / "out.zarr", psnr=psnr)[...].astype(float) - images
    assert psnr - 0.05 < -10 * np.log10(np.square(error / 255).mean()) < psnr + 0.15
    same = encoded(fitted, tmp_path / "same.zarr", mse=10 ** (-psnr / 10))
    assert same.facts["step"] == pytest.approx(dpca.open_compressed(tmp_path / "out.zarr").facts["step"], rel=0.2)


def test_the_goal_of_similarity(fitted: Path, tmp_path: Path, images: np.ndarray) -> None:
    decoded = encoded(fitted, tmp_path / "out.zarr", ssim=0.85)[:60]
    found = [structural_similarity(x, y, channel_axis=-1) for x, y in zip(images[:60], decoded, strict=True)]
    assert 0.84 < np.mean(found) < 0.87


@pytest.mark.cases(1)
def test_the_goal_of_bytes_counts_all_of_them(fitted: Path, tmp_path: Path, images: np.ndarray) -> None:
    encoded(fitted, tmp_path / "out.zarr", ratio=12.0)
    assert 11 < images.nbytes / folder_bytes(tmp_path / "out.zarr") < 13.5


@pytest.mark.usefixtures("_tried_on_few")
@pytest.mark.cases(1)
@pytest.mark.parametrize(("asked", "most"), [(0.5, 0), (2.7, 2)])
def test_integers_differ_by_no_more_than_promised(
    fitted: Path, tmp_path: Path, images: np.ndarray, asked: float, most: int
) -> None:
    decoded = encoded(fitted, tmp_path / "out.zarr", max_error=asked)
    assert np.abs(decoded[...].astype(int) - images).max() == most
    assert (read_as_described(tmp_path / "out.zarr") == decoded[...]).all()
    assert folder_bytes(tmp_path / "out.zarr") < images.nbytes


def test_the_reader_of_the_description_reads_the_same(fitted: Path, tmp_path: Path) -> None:
    decoded = encoded(fitted, tmp_path / "out.zarr", psnr=33.0)[...]
    described = read_as_described(tmp_path / "out.zarr", 2)
    assert described.dtype == np.uint8
    # A value halfway between two integers may be rounded either way.
    assert np.abs(described.astype(int) - decoded).max() <= 1
    assert (described != decoded).mean() < 1e-4


def test_the_quality_of_each_sample_is_stored(fitted: Path, tmp_path: Path, images: np.ndarray) -> None:
    store = encoded(fitted, tmp_path / "out.zarr", psnr=33.0)
    group = open_group(tmp_path / "out.zarr")
    mse = np.square((store[...].astype(float) - images) / 255).mean(axis=(1, 2, 3))
    np.testing.assert_allclose(group["mse"][...], mse, rtol=1e-5)
    np.testing.assert_allclose(group["psnr"][...], -10 * np.log10(mse), rtol=1e-5)
    similar = [structural_similarity(x, y, channel_axis=-1) for x, y in zip(images[:9], store[:9], strict=True)]
    np.testing.assert_allclose(group["ssim"][:9], similar, atol=1e-4)
    assert group["name"].shape == (N,)
    assert verify(tmp_path / "out.zarr") == []


HOSTILE = {
    "denormals": np.array([5e-324, -1e-310, 3e-310]),
    "a constant": np.array([7.25]),
    "zeros of both signs": np.array([0.0, -0.0]),
    "of many sizes": np.array([1e-30, -1.0, 255.0, 1e15, -0.0]),
    "huge": np.array([-1e30, 1e30, 3e30, 0.0]),
    "an offset": np.array([1e6, 1e6 + 1, 1e6 + 0.5]),
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_promises_about_hostile_values_are_kept_or_refused(tmp_path: Path, dtype: type, kind: str) -> None:
    rng = np.random.default_rng(0)
    values = (rng.choice(HOSTILE[kind], (40, 6, 5)) * rng.choice([1, 1 - 1e-3, 0.5], (40, 6, 5))).astype(dtype)
    low, high = float(values.min()), float(values.max())
    stack = stack_of(tmp_path, values, reading=ReadOptions(data_range=(low, high if high > low else low + 1)))
    try:
        CellPCA(3, cell_shape=4, overlap=2).fit(stack).save(tmp_path / "model.zarr")
        decoded = encoded(tmp_path, tmp_path / "out.zarr", max_relative_error=1e-3)
    except DataError:
        if kind not in ("denormals", "an offset"):  # for which the type has too few digits
            raise
        return
    promised = decoded.facts["max_error"]
    assert promised == pytest.approx(1e-3 * (stack.data_range[1] - stack.data_range[0]))
    for read in (decoded[...], read_as_described(tmp_path / "out.zarr")):
        assert read.dtype == dtype
        assert np.abs(read.astype(np.longdouble) - values.astype(np.longdouble)).max() <= promised


def test_floats_agree_with_the_description_to_the_last_place(tmp_path: Path) -> None:
    values = smooth_images(80, (20, 24)).astype(np.float32) / 255 + 3
    CellPCA(20, cell_shape=8, overlap=4, shared=True).fit(values).save(tmp_path / "model.zarr")
    stack_of(tmp_path, values, reading=ReadOptions(data_range=(3, 4)))
    for goal in ({"psnr": 35.0}, {"max_relative_error": 1e-3}):
        decoded = encoded(tmp_path, tmp_path / "out.zarr", Run(overwrite=True), **goal)[...]
        described = read_as_described(tmp_path / "out.zarr")
        assert (np.abs(described - decoded) <= np.spacing(decoded)).all()
    assert np.abs(decoded - values).max() <= 1e-3


def test_volumes_of_wide_integers(tmp_path: Path) -> None:
    values = (smooth_images(40, (12, 14)).astype(np.int32)[:, :, None] * np.arange(1, 9)[None, None, :, None]) * 30
    stack = stack_of(tmp_path, values, axes=("z", "y", "x"))
    CellPCA(30, cell_shape=4).fit(stack).save(tmp_path / "model.zarr")
    assert (encoded(tmp_path, tmp_path / "out.zarr", max_error=0.5)[...] == values).all()


def test_a_stack_of_equal_samples(tmp_path: Path) -> None:
    values = np.repeat(smooth_images(1, (12, 10)), 30, axis=0)
    stack = stack_of(tmp_path, values)
    CellPCA(5, cell_shape=4).fit(stack).save(tmp_path / "model.zarr")
    assert (encoded(tmp_path, tmp_path / "out.zarr", max_error=0.5)[...] == values).all()
    near = encoded(tmp_path, tmp_path / "psnr.zarr", psnr=40.0)[...].astype(float)
    assert np.square((near - values) / 255).mean() <= 1e-4


@pytest.mark.usefixtures("_tried_on_few")
@pytest.mark.kill
@pytest.mark.parametrize("fitted", ["shared, lapped"], indirect=True)
def test_the_same_bytes_after_an_interruption(fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreForm, "shard_rows", 64)
    monkeypatch.setattr(StoreForm, "rows", 64)
    goal = {"max_error": 2.0}
    encoded(fitted, tmp_path / "calm.zarr", **goal)
    left = iter([True] * 3 + [False])  # the plan, and two shards
    with monkeypatch.context() as patch:
        interrupt_at(patch, lambda unit: next(left, False))
        with pytest.raises(KeyboardInterrupt):
            encoded(fitted, tmp_path / "stopped.zarr", **goal)
    assert not (tmp_path / "stopped.zarr").exists()
    encoded(fitted, tmp_path / "stopped.zarr", **goal)
    assert tree(tmp_path / "stopped.zarr") == tree(tmp_path / "calm.zarr")
    stack = open_stack(fitted / "stack.zarr")
    assert encode_store(stack, fitted / "model.zarr", tmp_path / "calm.zarr", **goal) is NOTHING


def tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("fitted", ["own"], indirect=True)
def test_the_same_bytes_on_a_cluster(fitted: Path, tmp_path: Path, cluster: Any) -> None:
    encoded(fitted, tmp_path / "here.zarr", psnr=33.0)
    encoded(fitted, tmp_path / "there.zarr", Run(client=cluster), psnr=33.0)
    assert tree(tmp_path / "here.zarr") == tree(tmp_path / "there.zarr")


@pytest.mark.usefixtures("_tried_on_few")
@pytest.mark.cases(1)
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("fitted", ["shared, lapped"], indirect=True)
def test_damage_is_found(fitted: Path, tmp_path: Path, first: int) -> None:
    decoded = encoded(fitted, tmp_path / "out.zarr", max_error=2.0)
    whole = decoded[...]
    rng = np.random.default_rng(0)
    for path in sorted(path for path in (tmp_path / "out.zarr").rglob("*") if path.is_file())[first::4]:
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[rng.integers(len(content))] ^= 1 << rng.integers(8)
        name = path.relative_to(tmp_path / "out.zarr")
        for damaged in rng.permutation(np.array([bytes(flipped), content[: len(content) // 2], None], object))[:1]:
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            assert name.name == "zarr.json" or verify(tmp_path / "out.zarr"), name
            try:
                read = dpca.open_compressed(tmp_path / "out.zarr")[...]
            except (StoreError, DataError):
                pass
            else:
                assert (read == whole).all(), name  # names and qualities are not read
        path.write_bytes(content)
    assert verify(tmp_path / "out.zarr") == []


@pytest.mark.parametrize("fitted", ["own"], indirect=True)
@pytest.mark.parametrize(
    ("goal", "why"),
    [
        ({}, "exactly one of"),
        ({"psnr": 33.0, "ratio": 3.0}, "exactly one of"),
        ({"max_error": 0.3}, r"give 0\.5"),
        ({"psnr": 90.0}, "more components"),
        ({"ratio": 1e6}, "weaker"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    fitted: Path, tmp_path: Path, goal: dict[str, float], why: str
) -> None:
    with pytest.raises(DataError, match=why):
        encoded(fitted, tmp_path / "out.zarr", **goal)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fitted", ["own"], indirect=True)
def test_other_models_are_refused(fitted: Path, tmp_path: Path, images: np.ndarray) -> None:
    stack = open_stack(fitted / "stack.zarr")
    PCA(3).fit(images[:50]).save(tmp_path / "pca.zarr")
    CellPCA(3, cell_shape=10).fit(images[:50, :30]).save(tmp_path / "other.zarr")
    with pytest.raises(DataError, match="CellPCA"):
        encode_store(stack, tmp_path / "pca.zarr", tmp_path / "out.zarr", psnr=30.0)
    with pytest.raises(DataError, match="fitted"):
        encode_store(stack, tmp_path / "other.zarr", tmp_path / "out.zarr", psnr=30.0)


@pytest.mark.usefixtures("_tried_on_few")
@pytest.mark.memory
@pytest.mark.parametrize("kind", ["smooth, psnr", "one cell, psnr", "smooth, promise", "noise, promise"])
def test_a_shard_takes_no_more_memory_than_planned(tmp_path: Path, kind: str) -> None:
    noise, one_cell = kind.startswith("noise"), kind.startswith("one cell")
    goal = {"psnr": 35.0} if kind.endswith("psnr") else {"max_relative_error": 0.01}
    if noise:  # hardly packed at all: of what is planned for it, at least half is taken
        values, goal = np.random.default_rng(0).integers(0, 2**28, (768, 24, 20), np.int32), {"max_error": 0.5}
    elif one_cell:  # components as large as three in ten of the samples, and each worth its bits
        rng = np.random.default_rng(0)
        values = (128 + 4 * rng.normal(size=(200, 60)) @ rng.normal(size=(60, 9000))).clip(0, 255)
        values = values.reshape(200, 100, 90).astype(np.uint8)
    else:
        values = smooth_images(200, (100, 90, 3)).astype(np.uint8 if "psnr" in goal else np.float32)
    stack = stack_of(tmp_path, values, reading=ReadOptions(data_range=(0, 2**28 if noise else 255)))
    model = CellPCA(60, cell_shape=(100, 90)) if one_cell else CellPCA(40, cell_shape=10, overlap=4, shared=True)
    model.fit(stack).save(tmp_path / "model.zarr")
    store = encoded(tmp_path, tmp_path / "out.zarr", **goal)
    remove_manifest(tmp_path / "out.zarr")
    kept = Checkpoints(str(tmp_path / "kept"))
    kept.save(PLAN, {"least": np.full(len(store.codec.cell), 0.6)}, {})
    promised = store.facts.get("max_error")
    job = EncodeJob(as_source(stack), str(tmp_path / "out.zarr"), "f", promised, 2, kept, not len(store.codec.cell))
    if one_cell:  # its components are most of what is held
        _codec_of.cache_clear()
    else:
        job.write(0)  # reads the codec
    linalg.release_scratch()
    tracemalloc.start()
    job.write(0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    values = sum(rows.size for rows in store.codec.components.rows)
    planned = EncodeMemory(job.source, job.form, len(store.codec.cell), promised is not None, values).task_bytes()
    assert peak <= planned
    assert peak <= planned - TASK_OVERHEAD < 2 * peak or not noise
    assert peak <= planned - TASK_OVERHEAD < 3 * peak or not kind.endswith("psnr")


@pytest.mark.usefixtures("_tried_on_few")
@pytest.mark.parametrize("fitted", ["own"], indirect=True)
def test_what_a_store_states_is_measured_again(
    fitted: Path, tmp_path: Path, images: np.ndarray, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    encoded(fitted, tmp_path / "near.zarr", psnr=33.0)
    encoded(fitted, tmp_path / "kept.zarr", max_error=2.0)
    changed = images.copy()
    changed[[17, 150], 3, 4, 1] ^= 0x40
    (tmp_path / "other").mkdir()
    other = stack_of(tmp_path / "other", changed)
    short = stack_of(tmp_path, images[: N - 1])
    for name in ("near", "kept"):
        store = str(tmp_path / f"{name}.zarr")
        assert verify_quality(store, open_stack(fitted / "stack.zarr")) == []
        assert verify_quality(store, None) == []
        told = verify_quality(store, other)
        assert [int(text.split()[1]) for text in told] == [17, 150]
        assert verify_quality(store, other, sample=2) == []  # none of the two
        with pytest.raises(DataError, match=r"\b199\b.*\b200\b"):
            verify_quality(store, short)
    assert "above the error bound 2" in told[0]
    whole, verify_it = str(fitted / "stack.zarr"), ["verify", str(tmp_path / "kept.zarr"), "--scheduler", scheduler]
    assert main([*verify_it, "--stack", whole]) == 0
    assert "error bounds hold" in capsys.readouterr().out
    assert main([*verify_it, "--stack", str(tmp_path / "other" / "stack.zarr"), "--sample", str(N)]) == 1
    assert "2 problems" in capsys.readouterr().out


def test_samples_that_exceed_the_memory_are_refused_before_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = stack_of(tmp_path, smooth_images(40, (40, 30)))
    CellPCA(5, cell_shape=10).fit(stack).save(tmp_path / "model.zarr")
    encode_store(stack, tmp_path / "model.zarr", tmp_path / "out.zarr", psnr=30)
    before = sorted(path.name for path in tmp_path.iterdir())
    monkeypatch.setattr("dpca.jobs.compressed.encode.Trials", lambda *_: pytest.fail("samples were read"))
    run = Run(memory=2**20)
    with pytest.raises(PlanError, match=r"MB.*tiles"):
        encode_store(stack, tmp_path / "model.zarr", tmp_path / "again.zarr", psnr=30, run=run)
    np.save(tmp_path / "more.npy", smooth_images(3, (40, 30)))
    monkeypatch.setattr("dpca.jobs.compressed.append.ingest", lambda *_: pytest.fail("samples were ingested"))
    with pytest.raises(PlanError, match="MB"):
        append_store(tmp_path / "out.zarr", open_reader(tmp_path / "more.npy"), run=run)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "more.npy"])
