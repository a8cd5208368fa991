"""The second pass: scores, reconstructions and quality of every sample, whatever happens on the way."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity

from dpca import BandPCA, CellPCA, StreamingPCA
from dpca.engine.folds.plan import TASK_OVERHEAD, PlanError
from dpca.engine.sources.source import as_source
from dpca.jobs.scores import score_write
from dpca.jobs.scores.score_write import WriteJob, write_scores
from dpca.kernels.algebra import linalg
from dpca.models.base.store import model_fingerprint
from dpca.storage import DataError, StoreError
from dpca.storage.arrays.arrays import create_root
from dpca.storage.arrays.layout import Layout, axes_for
from dpca.storage.run import Run
from dpca.storage.transaction.workspace import Workspace
from tests.conftest import smooth_images


@dataclass
class Case:
    """Samples and a model of them, on disk."""

    folder: Path
    samples: np.ndarray
    cell: Any
    k: int | None
    data_range: tuple[float, float]
    overlap: int = 0
    fitted: int | None = None  # samples of the fit, from the first on

    def __post_init__(self) -> None:
        self.stack, given = str(self.folder / "x.zarr"), self.samples[: self.fitted]
        if self.cell is None:
            self.model: Any = StreamingPCA(self.k).fit(given)
        elif isinstance(self.cell, dict):
            self.model = BandPCA(self.k, **self.cell).fit(given)
        else:
            self.model = CellPCA(self.k, cell_shape=self.cell, overlap=self.overlap).fit(given)
        self.model.save(self.folder / "model.zarr")
        zarr.create_array(self.stack, data=self.samples, chunks=(5, *self.samples.shape[1:]))

    def work(self, name: str = "out") -> Workspace:
        """Return the workspace of a store that is never published."""
        return Workspace(self.folder / f"{name}.zarr", kind="test", fingerprint="f")

    def job(self, name: str = "out", *, source: Any = None, reconstruct: bool = True, ssim: bool = True) -> WriteJob:
        """Return the pass that writes to a store of this name."""
        stack, model = as_source(self.stack if source is None else source), self.folder / "model.zarr"
        axes = ("sample", *axes_for(self.samples.shape[1:]))
        return WriteJob(
            stack,
            str(model),
            model_fingerprint(model),
            str(self.work(name).store),
            axes,
            rows=score_write.stack_layout(stack, self.model.basis_, axes).shards[0],
            data_range=self.data_range,
            reconstruct=reconstruct,
            ssim=ssim,
        )

    def write(
        self, name: str = "out", *, source: Any = None, reconstruct: bool = True, ssim: bool = True, **how: Any
    ) -> zarr.Group:
        """Write to a store of this name, or go on with it."""
        job = self.job(name, source=source, reconstruct=reconstruct, ssim=ssim)
        with self.work(name) as work:
            group = create_root(job.store, kind="test", fingerprint="f")
            write_scores(job, group, work=work, run=Run(**how))
        return group

    def content(self, name: str = "out") -> dict[str, bytes]:
        root = Path(self.work(name).store)
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def floats(n: int, shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
    """Smooth enough for two components a cell to say something."""
    rng = np.random.default_rng(0)
    waves = rng.normal(size=(4, *shape)).cumsum(axis=1)
    values = np.tensordot(rng.normal(size=(n, 4)), waves, 1) + rng.normal(0, 0.3, (n, *shape))
    return low + (values - values.min()) / (values.max() - values.min()) * (high - low)


KINDS: dict[str, Any] = {
    "color": (smooth_images(37, (30, 26, 3)), 10, 4, (0, 255), 2),
    "gray of 16 bits": (floats(23, (20, 21), 0, 65535).astype(np.uint16), 7, 5, (0, 65535), 2),
    "12 bits in 16": (floats(20, (20, 21), 0, 4095).astype(np.uint16), (10, 21), 3, (0, 4095), 2),
    "float images": (floats(19, (16, 15), -3, 5).astype(np.float32), 5, 3, (-3.0, 5.0), 2),
    "float64, all components": (floats(20, (9, 9), 0, 1), 3, None, (0.0, 1.0), 2),
    "volumes": (floats(18, (9, 12, 11), 0, 255).astype(np.uint8), 4, 6, (0, 255), 3),
    "volumes of two fields": (floats(12, (8, 9, 7, 2), 0, 1e20).astype(np.float32), 4, 3, (0.0, 1e20), 3),
    "signed": (floats(20, (8, 9), -900, 900).astype(np.int16), 4, 2, (-1000, 1000), 2),
    "vectors": (floats(50, (40,), 0, 1).astype(np.float32), 8, 2, (0.0, 1.0), 0),
    "bands of images": (smooth_images(37, (30, 26, 3)), {"band_size": 500, "n_intervals": 4}, 4, (0, 255), 2),
    "bands of volumes": (floats(18, (9, 12, 11), 0, 255).astype(np.uint8), {"band_size": 300}, 6, (0, 255), 3),
    "bands of vectors": (floats(50, (40,), 0, 1), {"band_size": 15, "mapping": "raster"}, None, (0.0, 1.0), 0),
    "color, lapped": (smooth_images(37, (30, 26, 3)), 10, 4, (0, 255), 4, 2),
    "volumes, lapped": (floats(18, (9, 12, 11), 0, 255).astype(np.uint8), 4, 6, (0, 255), 2, 3),
    "whole images": (smooth_images(37, (30, 26, 3)), None, 4, (0, 255), 2),
    "whole volumes": (floats(18, (9, 12, 11), 0, 255).astype(np.uint8), None, 6, (0, 255), 3),
    "whole vectors": (floats(50, (40,), 0, 1), None, 2, (0.0, 1.0), 0),
    "too small for SSIM": (smooth_images(40, (6, 12)), 3, 2, (0, 255), 0),
}


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Case, int]:
    *what, n_spatial = KINDS[request.param]
    return Case(tmp_path, *what), n_spatial


@pytest.fixture
def color(tmp_path: Path) -> Case:
    return Case(tmp_path, smooth_images(70, (30, 26, 3)), 10, 4, (0, 255))


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Shards in order, in this thread; their numbers as they are begun."""
    resume_from: list[int] = []
    write = WriteJob.write

    def note(job: WriteJob, shard: int) -> dict[str, Any]:
        resume_from.append(shard)
        return write(job, shard)

    monkeypatch.setattr("dpca.storage.run.thread_count", lambda: 1)
    monkeypatch.setattr(WriteJob, "write", note)
    yield resume_from


@pytest.fixture
def shards(color: Case, monkeypatch: pytest.MonkeyPatch) -> int:
    """Shards of 16 samples, the last one short."""
    layout = Layout((8, 15, 13, 3), (16, 30, 26, 3))
    monkeypatch.setattr(score_write, "choose_layout", lambda *_, **__: layout)
    return 5


@pytest.mark.cases(6)
def test_what_is_written_is_what_the_model_and_scikit_image_say(case: tuple[Case, int]) -> None:
    made, n_spatial = case
    x, model, (low, high) = made.samples, made.model, made.data_range
    group = made.write()
    scores, rebuilt = group["scores"], group["reconstructions"][...]
    assert (len(x) + scores.shards[0] - 1) // scores.shards[0] > 1  # shards have seams
    scale = np.sqrt(model.explained_variance_.max())
    np.testing.assert_allclose(scores[...], model.transform(x), atol=1e-4 * scale)
    exact = model.inverse_transform(scores[...])
    if x.dtype.kind in "iu":
        # Where a value lies between two integers, another block size may round it to the other.
        expected = np.clip(np.rint(exact), low, high).astype(x.dtype)
        assert np.abs(rebuilt.astype(float) - expected).max() <= 1
        assert (rebuilt != expected).mean() < 1e-3
    else:
        np.testing.assert_allclose(rebuilt, exact.astype(x.dtype), atol=1e-5 * (high - low))
    assert rebuilt.dtype == x.dtype
    width = high - low
    a, b = x.astype(float) / width, rebuilt.astype(float) / width
    mse = [mean_squared_error(p, q) for p, q in zip(a, b, strict=True)]
    np.testing.assert_allclose(group["mse"][...], mse, rtol=1e-5, atol=1e-25)
    if group["mse"][...].min() > 1e-20:
        psnr = [peak_signal_noise_ratio(p, q, data_range=1) for p, q in zip(a, b, strict=True)]
        np.testing.assert_allclose(group["psnr"][...], psnr, rtol=1e-5)
    if not n_spatial:
        assert "ssim" not in group
        return
    channels = -1 if x.ndim - 1 > n_spatial else None
    ssim = [structural_similarity(p, q, data_range=1, channel_axis=channels) for p, q in zip(a, b, strict=True)]
    np.testing.assert_allclose(group["ssim"][...], ssim, atol=2e-6)


def test_the_promised_error_is_the_measured_one(tmp_path: Path) -> None:
    """For values that are not rounded; every sample counts once, also those of the last, shorter shard."""
    made = Case(tmp_path, floats(45, (16, 15), 0, 1).astype(np.float32), 5, 3, (0.0, 1.0))
    assert made.write()["mse"][...].mean() == pytest.approx(made.model.expected_mse((0, 1)), rel=1e-5)
    assert made.model.expected_mse((0, 2)) == pytest.approx(made.model.expected_mse((0, 1)) / 4)


def test_names_and_places(color: Case) -> None:
    group = color.write()
    assert group["scores"].metadata.dimension_names == ("sample", "cell_y", "cell_x", "component")
    assert group["reconstructions"].metadata.dimension_names == ("sample", "y", "x", "channel")
    assert group["psnr"].metadata.dimension_names == ("sample",)
    assert group["scores"].shards[0] == group["reconstructions"].shards[0]
    assert sorted(group.array_keys()) == ["mse", "psnr", "reconstructions", "scores", "ssim"]


def test_scores_alone_come_with_the_same_quality(color: Case) -> None:
    full, lean = color.write("full"), color.write("lean", reconstruct=False)
    assert "reconstructions" not in lean
    for name in ("scores", "mse", "psnr", "ssim"):
        np.testing.assert_array_equal(lean[name][...], full[name][...])


def test_whole_samples_have_a_row_of_scores_each(tmp_path: Path) -> None:
    group = Case(tmp_path, smooth_images(37, (30, 26, 3)), None, 4, (0, 255)).write(ssim=False)
    assert group["scores"].metadata.dimension_names == ("sample", "component")
    assert sorted(group.array_keys()) == ["mse", "psnr", "reconstructions", "scores"]


def test_the_same_bytes_here_on_a_cluster_and_from_memory(color: Case, shards: int, cluster: Any) -> None:
    color.write("here")
    color.write("there", client=cluster)
    color.write("memory", source=color.samples, client=cluster)
    color.write("dask", source=da.from_array(color.samples, chunks=(9, 11, 26, 2)))
    assert color.content("here") == color.content("there") == color.content("memory") == color.content("dask")


@pytest.mark.parametrize("fail_at", [0, 2, 4])
def test_a_pass_that_was_stopped_does_only_what_is_missing(
    fail_at: int, color: Case, shards: int, one_by_one: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    color.write("undisturbed")
    assert one_by_one == list(range(shards))
    one_by_one.clear()
    write_shard = score_write.write_shard

    def fail(array: Any, start: int, values: np.ndarray) -> None:
        # The scores of a shard are there, its pixels are not: the shard is not done.
        if start == 16 * fail_at and "reconstructions" in str(array.store_path):
            raise KeyboardInterrupt
        write_shard(array, start, values)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(score_write, "write_shard", fail)
        color.write()
    assert one_by_one == list(range(fail_at + 1))
    for missing in (list(range(fail_at, shards)), []):
        one_by_one.clear()
        color.write()
        assert one_by_one == missing
        assert color.content() == color.content("undisturbed")


def test_a_torn_record_is_done_again_and_never_left_out(color: Case, shards: int, one_by_one: list[int]) -> None:
    color.write()
    before = color.content()
    one_by_one.clear()
    record = sorted(color.folder.glob("out.zarr.partial/done-*/*.npz"))[1]
    record.write_bytes(record.read_bytes()[:-40])
    color.write()
    assert len(one_by_one) == 1
    assert color.content() == before


def test_a_record_that_vanishes_is_told(color: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workspace, "mark_done", lambda *_, **__: None)
    with pytest.raises(StoreError, match="gone"):
        color.write()


@pytest.mark.parametrize("where", ["here", "cluster"])
def test_a_value_that_is_not_finite_names_its_sample(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    made = Case(tmp_path, floats(40, (9, 8), 0, 1).astype(np.float32), 4, 2, (0.0, 1.0))
    zarr.open_array(made.stack, mode="r+")[33, 4, 4] = np.inf
    client = request.getfixturevalue("cluster") if where == "cluster" else None
    with pytest.raises(DataError, match=r"sample.33.*x\.zarr.*finite"):
        made.write(client=client)


def test_too_little_memory_is_refused_with_what_is_missing(color: Case) -> None:
    with pytest.raises(PlanError, match=r"shard.*\b1.MB"):
        color.write(memory=10**6)
    assert not list(color.folder.glob("out*"))


def test_progress_counts_samples_and_what_was_done_before(color: Case, shards: int, one_by_one: list[int]) -> None:
    advanced: list[int] = []

    class Stage:
        def advance(self, n: int) -> None:
            advanced.append(n)

        def close(self) -> None:
            advanced.append(-1)

    def progress(stage: str, total: int, unit: str) -> Stage:
        assert (stage, total, unit) == ("scores", 70, "samples")
        return Stage()

    for _ in range(2):
        advanced.clear()
        color.write(progress=progress)
        assert advanced.pop() == -1
        assert sum(advanced) == 70


@pytest.fixture(scope="module")
def large_images() -> np.ndarray:
    return smooth_images(128, (100, 90, 3))


@pytest.mark.memory
@pytest.mark.parametrize(
    ("cell", "overlap"),
    [(10, 0), (10, 4), (None, 0), ({"band_size": 1000}, 0)],
    ids=["cells", "lapped", "whole", "bands"],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("reconstruct", [True, False])
def test_a_shard_takes_no_more_memory_than_planned(
    reconstruct: bool, dtype: type, cell: Any, overlap: int, large_images: np.ndarray, tmp_path: Path
) -> None:
    made = Case(tmp_path, large_images.astype(dtype), cell, 3, (0, 255), overlap, fitted=9)
    job, basis = made.job(reconstruct=reconstruct), made.model.basis_
    score_write.create_arrays(job, basis, create_root(job.store, kind="test", fingerprint="f"))
    linalg.release_scratch()
    tracemalloc.start()
    job.write(0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    planned = score_write.task_bytes(job.source, basis, job.rows, reconstruct)
    assert 0.4 * (planned - TASK_OVERHEAD) < peak <= planned


def test_an_image_that_is_its_own_reconstruction(tmp_path: Path) -> None:
    """All components give 8-bit images back: no error, no limit to the signal-to-noise ratio."""
    made = Case(tmp_path, smooth_images(40, (14, 14)), 7, None, (0, 255))
    group = made.write()
    np.testing.assert_array_equal(group["reconstructions"][...], made.samples)
    np.testing.assert_array_equal(group["mse"][...], 0)
    np.testing.assert_array_equal(group["psnr"][...], np.inf)
    np.testing.assert_allclose(group["ssim"][...], 1, atol=1e-7)
