"""Compressed stores of samples that are too large for the memory of a task."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs import Blosc
from PIL import Image
from skimage.metrics import structural_similarity

import dpca
from dpca import CellPCA
from dpca.cli import main
from dpca.engine.folds.plan import TASK_OVERHEAD, Outline, PlanError
from dpca.engine.folds.rehearsal import Workers
from dpca.engine.sources.source import as_source
from dpca.engine.sources.tiled import TiledStack
from dpca.jobs import compress, encode_store, open_input
from dpca.jobs.base import shards
from dpca.jobs.compressed import compare, encode_tiles, encode_write
from dpca.jobs.compressed.encode_memory import EncodeMemory
from dpca.jobs.compressed.verify_quality import verify_quality
from dpca.jobs.plans import shard_plan
from dpca.jobs.plans.plan import _Tried, plan_job
from dpca.jobs.plans.tile_trial import MeasuringPass
from dpca.jobs.scores.settings import CompressionSettings
from dpca.representation.compressed.compressed import Compressed, TiledCompressed
from dpca.storage import DataError, open_stack, verify
from dpca.storage.arrays.tiles import Tiles
from dpca.storage.disk import folder_bytes
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.helpers.pictures import leave_pictures_empty
from tests.helpers.traced import traced_peak

FORMAT = Path(dpca.__file__).parents[1] / "storage" / "FORMAT.md"


@pytest.fixture(autouse=True)
def large_from_few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_plan, "LARGE_SAMPLE", 2**14)
    monkeypatch.setattr(shard_plan, "_TILE_VALUES", [2500])
    leave_pictures_empty(monkeypatch.setattr)


def pictures(
    path: Path, shape: tuple[int, ...], dtype: str = "u1", chunks: tuple[int, ...] | None = None
) -> np.ndarray:
    rng = np.random.default_rng(5)
    axes = np.meshgrid(*(np.linspace(0, 3, length) for length in shape), indexing="ij", sparse=True)
    values = sum(np.sin(3 * (i + 1) * axis) for i, axis in enumerate(axes)) + 0.05 * rng.normal(size=shape)
    scaled = (30 * values + 128).clip(0, 255).astype(dtype)
    zarr.create_array(str(path), data=scaled, chunks=chunks or shape)
    return scaled


def compressed(folder: Path, goal: dict[str, float], run: Run = Run(), **settings: Any) -> TiledCompressed:
    model = CellPCA(8, cell_shape=settings.pop("cell_shape", 10), shared=True, random_state=0)
    given = CompressionSettings(model, goal=goal, **settings)
    compress(folder / "stack.zarr", folder / "out.zarr", given, run=run)
    store = dpca.open_compressed(folder / "out.zarr")
    assert isinstance(store, TiledCompressed)
    return store


@pytest.mark.parametrize("breaks", [(), (1,), (5, 6, 24)])
@pytest.mark.parametrize(
    ("shape", "tile"), [((1, 9), (4,)), ((17, 7, 10), (3, 10)), ((33, 5, 6, 2), (2, 4, 2)), ((16, 8), (8,))]
)
def test_entries_and_runs_are_inverse_and_cores_cover_a_sample_once(
    shape: tuple[int, ...], tile: tuple[int, ...], breaks: tuple[int, ...]
) -> None:
    tiles = Tiles(shape[0], shape[1:], tile, tuple(first for first in breaks if first < shape[0]))
    for first in tiles.breaks:
        earlier, samples = Tiles(first, shape[1:], tile, tiles.breaks[: tiles.breaks.index(first)]), np.arange(first)
        for number in range(tiles.n_tiles):
            np.testing.assert_array_equal(tiles.entries(number, samples), earlier.entries(number, samples))
    seen = np.zeros(shape[1:], int)
    for core, region in zip(tiles.cores, tiles.regions, strict=True):
        assert all(c <= a and b <= d and d - c == t for (a, b), (c, d), t in zip(core, region, tile, strict=True))
        seen[tuple(slice(*ends) for ends in core)] += 1
    assert (seen == 1).all()
    for start in range(0, tiles.shape[0], 5):
        stop, end = min(start + 23, tiles.shape[0]), start
        for run in tiles.runs(start, stop):
            assert run.entry == end
            samples = np.arange(*run.samples)
            end += len(samples)
            assert tiles.entries(run.tile, samples).tolist() == list(range(run.entry, end))
        assert end == stop


@pytest.mark.parametrize("chunks", [(1, 50, 50, 3), (3, 157, 133, 3)])
@pytest.mark.parametrize("name", ["psnr", "ssim"])
def test_a_goal_is_met_by_whole_samples_and_their_quality_is_exact(
    tmp_path: Path, name: str, chunks: tuple[int, ...]
) -> None:
    x = pictures(tmp_path / "stack.zarr", (3, 157, 133, 3), chunks=chunks)
    store = compressed(tmp_path, {name: {"psnr": 36.0, "ssim": 0.93}[name]}, choose_cells=True)
    assert store.shape == x.shape
    assert not verify(tmp_path / "out.zarr")
    y, quality = store[...], store.quality
    mse = ((x - y.astype(float)) ** 2).mean(axis=(1, 2, 3)) / 255**2
    ssim = [structural_similarity(a, b, data_range=255, channel_axis=-1) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(quality["mse"], mse, rtol=1e-6)
    np.testing.assert_allclose(quality["ssim"], ssim, atol=2e-6)
    assert -10 * np.log10(mse.mean()) >= 36 if name == "psnr" else np.mean(ssim) >= 0.93
    assert not verify_quality(str(tmp_path / "out.zarr"), open_stack(tmp_path / "stack.zarr"))


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8", "i2"])
def test_an_error_bound_holds_for_every_value(tmp_path: Path, dtype: str) -> None:
    x = pictures(tmp_path / "stack.zarr", (17, 16, 14, 23), dtype, (4, 16, 10, 23))
    store = compressed(tmp_path, {"max_error": 1.0}, cell_shape=5)
    worst = np.abs(x.astype(float) - store[...].astype(float)).max(axis=(1, 2, 3))
    assert (worst <= store.quality["max_error"]).all()
    assert store.quality["max_error"].max() <= 1
    assert not verify_quality(str(tmp_path / "out.zarr"), open_stack(tmp_path / "stack.zarr", data_range=(0, 255)))


def test_every_index_reads_what_the_documented_format_says(tmp_path: Path) -> None:
    pictures(tmp_path / "stack.zarr", (18, 157, 133))
    store = compressed(tmp_path, {"psnr": 38.0})
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", FORMAT.read_text(), re.S):
        exec(code, names)
    y = names["read_tiled"](str(tmp_path / "out.zarr"))
    whole = store[...]
    assert np.abs(whole.astype(int) - y).max() <= 1
    for index in (7, (slice(2, 18, 5), slice(40, 90), slice(None, None, -3)), ([17, 3, 3], 156), (-1, 50, [0, 132])):
        np.testing.assert_array_equal(store[index], whole[index])
    np.testing.assert_array_equal(store.dask()[3:17, 20:120].compute(), whole[3:17, 20:120])
    peak, _ = traced_peak(lambda: store, lambda one: one[4:9, 45:110, 30:90], 2**40)
    assert peak <= store.read_bytes((slice(4, 9), slice(45, 110), slice(30, 90)))


def test_a_small_region_decodes_only_its_part_of_one_tile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures(tmp_path / "stack.zarr", (2, 157, 133))
    store, read = compressed(tmp_path, {"psnr": 38.0}), list[Any]()
    decoded = Compressed.decoded
    monkeypatch.setattr(Compressed, "decoded", lambda self, *asked: read.append(asked) or decoded(self, *asked))
    store[1, 3:9, 4:5]
    ((entries, box),) = read
    assert entries.tolist() == [1]
    assert box == ((3, 9), (4, 5))


def measured_tasks(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[int, int]]]:
    """Return where the peak and the planned bytes of each task of a job will be, by the kind of its pass."""
    measured: dict[str, list[tuple[int, int]]] = {}
    write = shards.write_shards

    def traced(job: Any, units: Any) -> Any:
        if isinstance(job, encode_write.EncodeJob):
            codec = encode_write._codec_of(job.store, job.fingerprint, job.attempt.folder)
            values = sum(rows.size for rows in codec.components.rows)
            memory = EncodeMemory(job.source, job.form, len(codec.cell), job.max_error is not None, values)
            planned = memory.task_bytes(job.decoded)
        else:
            store = encode_tiles._opened(job.store, job.fingerprint, job.attempt)
            planned = job.task_bytes(store, store.tiles, promised=True)
        peak, found = traced_peak(lambda: None, lambda _: write(job, units), planned)
        measured.setdefault(type(job).__name__, []).append((peak, planned - TASK_OVERHEAD))
        return found

    monkeypatch.setattr(shards, "write_shards", traced)
    return measured


def test_peaks_are_at_most_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_plan, "_TILE_VALUES", [2**16])
    pictures(tmp_path / "stack.zarr", (5, 400, 420), "f4", (1, 200, 210))
    measured = measured_tasks(monkeypatch)
    compressed(tmp_path, {"max_error": 0.5}, Run(threads=1))
    assert measured.keys() == {"EncodeJob", "MeasureJob"}
    assert all(peak <= planned for pairs in measured.values() for peak, planned in pairs), measured


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_job_resumes_with_its_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures(tmp_path / "stack.zarr", (3, 157, 133))
    store = compressed(tmp_path, {"psnr": 38.0})
    whole, tile = store[...], store.tiles.tile_shape
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "stack.zarr").symlink_to(tmp_path / "stack.zarr")
    with monkeypatch.context() as patched:
        patched.setattr(encode_tiles.MeasureJob, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compressed(tmp_path / "again", {"psnr": 38.0}, Run(threads=1))
    monkeypatch.setattr(shard_plan, "_TILE_VALUES", [1000])
    resumed = compressed(tmp_path / "again", {"psnr": 38.0})
    assert resumed.tiles.tile_shape == tile
    np.testing.assert_array_equal(resumed[...], whole)


def test_a_value_that_is_not_finite_is_reported_with_the_number_of_its_sample(tmp_path: Path) -> None:
    x = pictures(tmp_path / "stack.zarr", (4, 157, 133), "f4")
    x[2, 150, 120] = np.nan
    zarr.create_array(str(tmp_path / "stack.zarr"), data=x, overwrite=True)
    with pytest.raises(DataError, match="2"):
        compressed(tmp_path, {"max_error": 1.0}, reading=ReadOptions(data_range=(0, 255)))
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize(("goal", "overlap"), [({"psnr": 38.0}, 4), ({"max_error": 2.0}, 0)])
def test_a_model_of_tiles_encodes_large_samples(tmp_path: Path, goal: dict[str, float], overlap: int) -> None:
    x = pictures(tmp_path / "stack.zarr", (5, 157, 133), chunks=(1, 50, 133))
    stack = open_stack(tmp_path / "stack.zarr")
    parts = np.concatenate([x[:, a : a + 60, b : b + 51] for a in (0, 50, 97) for b in (0, 40, 82)])
    model = CellPCA(40, cell_shape=8, overlap=overlap, shared=True).fit(parts)
    model.save(tmp_path / "model.zarr")
    encode_store(stack, tmp_path / "model.zarr", tmp_path / "out.zarr", **goal)
    store = dpca.open_compressed(tmp_path / "out.zarr")
    assert isinstance(store, TiledCompressed)
    assert store.tiles.tile_shape == (60, 51)
    error = x - store[...].astype(float)
    np.testing.assert_allclose(store.quality["mse"], (error**2).mean(axis=(1, 2)) / 255**2, rtol=1e-6)
    reached = -10 * np.log10((error**2).mean() / 255**2)
    assert reached >= goal["psnr"] if "psnr" in goal else np.abs(error).max() <= goal["max_error"]
    assert verify(tmp_path / "out.zarr") == []
    assert verify_quality(str(tmp_path / "out.zarr"), stack) == []


@pytest.mark.parametrize(("shared", "shape"), [(False, (60, 51)), (True, (158, 40)), (True, (20, 20, 3))])
def test_a_model_of_other_samples_is_refused(tmp_path: Path, shared: bool, shape: tuple[int, ...]) -> None:
    pictures(tmp_path / "stack.zarr", (2, 157, 133))
    x = np.random.default_rng(0).normal(size=(9, *shape))
    CellPCA(3, cell_shape=8, shared=shared).fit(x).save(tmp_path / "model.zarr")
    with pytest.raises(DataError, match="shared"):
        encode_store(open_stack(tmp_path / "stack.zarr"), tmp_path / "model.zarr", tmp_path / "out.zarr", psnr=30)


@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_tiles_are_compared_with_other_codecs(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x = pictures(tmp_path / "stack.zarr", (3, 157, 133), dtype)
    store = compressed(tmp_path, {"max_error": 1.0}, reading=ReadOptions(data_range=(0, 255)))
    monkeypatch.setattr(compare, "_codecs", lambda *asked: [("JPEG", compare._still("JPEG"), (75,))])
    stack = open_stack(tmp_path / "stack.zarr")
    if dtype == "f4":
        monkeypatch.setattr(compare, "_codecs", lambda *asked: [])
    entries = TiledStack.of(stack, store.tiles)
    values = np.empty(entries.shape, dtype)
    as_source(entries).reader()((0, len(values)), tuple((0, n) for n in values.shape[1:]), values)
    found = compare.compare_store(str(tmp_path / "out.zarr"), stack, sample=len(values))
    error = values - store.entries[...].astype(float)
    assert found.store.psnr == pytest.approx(-10 * np.log10((error**2).mean() / 255**2))
    assert found.store.bytes == folder_bytes(tmp_path / "out.zarr") / 3
    times = x[0].size / values[0].size
    blosc = Blosc("zstd", clevel=5, shuffle=Blosc.BITSHUFFLE)
    packed = sum(len(blosc.encode(values[i : i + 16])) for i in range(0, len(values), 16))
    assert found.others[-1].bytes == pytest.approx(times * packed / len(values))
    if dtype == "u1":
        files = [io.BytesIO() for _ in values]
        for tile, file in zip(values, files, strict=True):
            Image.fromarray(tile).save(file, "JPEG", quality=75, optimize=True)
        size = times * np.mean([len(file.getvalue()) for file in files])
        # As many values in files of whole samples take nearly as many bytes, since tiles have headers of their own.
        Image.fromarray(x[0]).save(whole := io.BytesIO(), "JPEG", quality=75, optimize=True)
        assert found.others[0].bytes == pytest.approx(size)
        assert len(whole.getvalue()) < size < 2.5 * len(whole.getvalue())
    assert main(["compare", str(tmp_path / "out.zarr"), str(tmp_path / "stack.zarr"), "--sample", "4"]) == 0
    assert "this store" in capsys.readouterr().out


def test_scores_are_refused(tmp_path: Path) -> None:
    pictures(tmp_path / "stack.zarr", (2, 157, 133))
    store = compressed(tmp_path, {"psnr": 38.0})
    with pytest.raises(DataError, match="tiles"):
        dpca.analysis.scores(store)


def test_large_samples_are_refused_with_the_memory_that_would_be_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    source = Outline("many", (8, 8000, 8000), np.dtype("u1"), (1, 1000, 1000))
    settings = CompressionSettings(CellPCA(8, cell_shape=10, shared=True), goal={"psnr": 36.0})
    axes = ("sample", "y", "x")
    found = [shard_plan.choose_tiles(source, axes, settings, Run(memory=mb * 10**6)) for mb in (140, 1000)]
    sizes = [int(np.prod(tiles.tile_shape)) for tiles in found if tiles is not None]
    assert len(sizes) == 2
    assert sizes[0] < sizes[1] <= 2**20
    with pytest.raises(PlanError, match="MB"):
        shard_plan.choose_tiles(source, axes, settings, Run(memory=20 * 10**6))
    small = Outline("few", (8, 300, 300), np.dtype("u1"), (8, 300, 300))
    assert shard_plan.choose_tiles(small, axes, settings, Run(memory=10**9)) is None


def test_tiles_are_read_as_samples(tmp_path: Path) -> None:
    x = pictures(tmp_path / "stack.zarr", (18, 31, 26), chunks=(5, 8, 26))
    stack = open_stack(tmp_path / "stack.zarr")
    tiles = Tiles(18, (31, 26), (12, 10))
    source = as_source(TiledStack.of(stack, tiles))
    out = np.empty(source.shape, "u1")
    source.reader()((0, len(out)), ((0, 12), (0, 10)), out)
    for tile, region in enumerate(tiles.regions):
        box = tuple(slice(*ends) for ends in region)
        np.testing.assert_array_equal(out[tiles.entries(tile, np.arange(18))], x[(slice(None), *box)])


def test_the_command_divides_large_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures(tmp_path / "stack.zarr", (2, 157, 133))
    assert main(["compress", str(tmp_path / "stack.zarr"), str(tmp_path / "out.zarr"), "--quality", "psnr=36"]) == 0
    assert "tiles" in capsys.readouterr().out


@pytest.mark.parametrize("ingested", [False, True])
def test_the_plan_of_a_job_knows_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ingested: bool) -> None:
    x = pictures(tmp_path / "stack.zarr", (2, 157, 133), chunks=(1, 50, 50))
    np.save(tmp_path / "x.npy", x)
    settings = CompressionSettings(CellPCA(8, cell_shape=10, shared=True, random_state=0), goal={"psnr": 36.0})
    given = open_input(tmp_path / "x.npy") if ingested else open_stack(tmp_path / "stack.zarr")
    # The time to measure a value is an hour, so that nothing else counts.
    monkeypatch.setattr("dpca.jobs.plans.plan.try_measuring", lambda *_: 3600.0)
    one, two = plan_job(given, settings, workers=[1, 2], budget=200 * 10**6)
    assert [*one.stages] == ["ingest"] * ingested + ["fit", "encode"]
    assert (one.samples, one.sample_shape) == (2, (157, 133))
    # Boxes are tiles of 50 x 50, with the pixels of windows that extend beyond.
    values = len(x) * (3 * 56 + 7) * (2 * 56 + 33)
    assert one.stages["encode"].seconds == pytest.approx(3600 * values, rel=1e-3)
    assert two.stages["encode"].seconds == pytest.approx(1800 * values, rel=1e-3)


def test_the_second_pass_is_measured_for_a_plan(tmp_path: Path) -> None:
    """Its task is that of the job."""
    pictures(tmp_path / "stack.zarr", (2, 157, 133), chunks=(1, 50, 50))
    settings = CompressionSettings(CellPCA(8, cell_shape=10, shared=True, random_state=0), goal={"psnr": 36.0})
    stages = list(_Tried(open_stack(tmp_path / "stack.zarr"), settings, Workers(1, 1, 10**9), tmp_path, 2**24).stages())
    second = stages[-1].second_pass
    assert isinstance(second, MeasuringPass)
    seconds, need = second(Workers(1, 1, 10**9))
    assert 0 < seconds < 100
    assert need == second(Workers(1, 1, need))[1] > second(Workers(1, 1, need - 1))[1]
    assert replace(second, promised=True)(Workers(1, 1, 10**9))[1] > need
    with pytest.raises(PlanError, match="tile"):
        second(Workers(1, 1, 10**6))


def test_boxes_are_smaller_if_there_are_few_and_do_not_depend_on_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures(tmp_path / "stack.zarr", (2, 157, 133))
    source, tiles = as_source(open_stack(tmp_path / "stack.zarr")), Tiles(2, (157, 133), (50, 50))
    for enough, expected in ((1, (1, (157, 133))), (2, (4, (100, 100))), (12, (12, (50, 50))), (50, (12, (50, 50)))):
        monkeypatch.setattr(encode_tiles, "_ENOUGH_TASKS", enough)
        for n in (1, 3, 50):
            jobs = encode_tiles.measure_jobs(source, tiles, ("sample", "y", "x"), ("",) * 3, (0, 255))
            job, need = encode_tiles.measure_job(jobs, tiles, Run(threads=n, memory=10**9), promised=False)
            assert need == job.task_bytes(None, tiles, promised=False)
            assert (job.n_units, job.box, job.rows) == (*expected, 16)
