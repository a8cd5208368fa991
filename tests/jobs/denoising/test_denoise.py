"""`denoise_store` writes what `Denoiser` computes, for any chunks and memory, and resumes to the same bytes."""

import importlib
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import zarr

from dpca import Denoiser, Run
from dpca.cli import main
from dpca.engine.sources.source import as_source
from dpca.jobs import denoise_store, export_store
from dpca.storage import ingest, open_stack, verify
from dpca.storage.disk import folder_bytes
from dpca.storage.errors import DataError, PlanError, StoreError
from dpca.storage.readers.maps import read_map
from tests.helpers.interrupted import interrupt_at
from tests.helpers.phantoms import rmse
from tests.helpers.s3_server import content

pytestmark = pytest.mark.usefixtures("small_pictures")
job = importlib.import_module("dpca.jobs.denoising.denoise")


def made(
    path: Path, chunks: tuple[int, ...] = (16, 24, 20), dtype: type = np.float32, n: int = 50
) -> tuple[Any, np.ndarray]:
    """Return a stack of a signal of two components with noise, and its values."""
    rng = np.random.default_rng(0)
    smooth = np.cumsum(rng.normal(size=(2, 24 * 20)), axis=1) / 10
    x = (100 + rng.normal(size=(n, 2)) @ smooth * 10).reshape(n, 24, 20)
    x = (x + rng.normal(size=x.shape)).astype(dtype)
    array = zarr.open_array(path, mode="w", shape=x.shape, chunks=chunks, dtype=x.dtype)
    array[...] = x
    return open_stack(path), x


def files(store: Path) -> dict[str, bytes]:
    return {str(file.relative_to(store)): file.read_bytes() for file in sorted(store.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("chunks", [(16, 24, 20), (1, 24, 20), (50, 5, 7)])
@pytest.mark.parametrize("noise", ["gaussian", "poisson", "rician"])
def test_the_values_of_the_class_for_any_chunks(tmp_path: Path, chunks: tuple[int, ...], noise: str) -> None:
    stack, x = made(tmp_path / "x.zarr", chunks)
    model = Denoiser(8, noise=noise)
    denoise_store(stack, tmp_path / "clean.zarr", model)
    clean = open_stack(tmp_path / "clean.zarr")
    expected = Denoiser(8, noise=noise).fit(x)
    np.testing.assert_allclose(clean.samples[...], expected.transform(x), rtol=1e-5)
    group = zarr.open_group(tmp_path / "clean.zarr", mode="r")
    for name in ("sigma", "rank", "removed"):
        np.testing.assert_allclose(group[name][...], getattr(expected, f"{name}_"), rtol=1e-4, atol=1e-4)
    assert clean.data_range == (clean.samples[...].min(), clean.samples[...].max())
    assert not hasattr(model, "sigma_")
    assert verify(tmp_path / "clean.zarr") == []


@pytest.mark.parametrize("chunks", [(16, 24, 20), (300, 5, 7)])
def test_a_series_in_time_has_the_values_of_the_class(
    tmp_path: Path, chunks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, x = made(tmp_path / "x.zarr", chunks, n=300)
    monkeypatch.setattr(job, "SHARD_BYTES", 70 * 24 * 20 * 4)
    denoise_store(stack, tmp_path / "clean.zarr", Denoiser(8, time_filter=True))
    clean = open_stack(tmp_path / "clean.zarr").samples
    assert 1 < clean.shards[0] < 100
    np.testing.assert_allclose(clean[...], Denoiser(8, time_filter=True).fit_transform(x), rtol=1e-5)
    assert rmse(clean[...], Denoiser(8).fit_transform(x)) > 0.005


@pytest.mark.parametrize("time_filter", [False, True])
def test_boxes_of_large_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time_filter: bool) -> None:
    stack, x = made(tmp_path / "x.zarr", n=200)
    monkeypatch.setattr(job, "_UNIT_ROWS", -4 * 4 * 64 + 60 if time_filter else 60)
    monkeypatch.setattr(job, "SHARD_BYTES", 500)
    monkeypatch.setattr(job, "_LEAST_SHARD", 100)
    choose = job.choose_layout
    small = {"shape": (8, 20)}

    def divided(*given: Any, part_bytes: int | None, **named: Any) -> Any:
        if part_bytes is None:
            return choose(*given, part_bytes=None, **named)
        return job.Layout((1, *small["shape"]), (1, *small["shape"]))

    monkeypatch.setattr(job, "choose_layout", divided)
    denoise_store(stack, tmp_path / "clean.zarr", Denoiser(8, time_filter=time_filter))
    clean = open_stack(tmp_path / "clean.zarr")
    assert clean.samples.shards == (1, 8, 20)
    model = Denoiser(8, time_filter=time_filter)
    np.testing.assert_allclose(clean.samples[...], model.fit_transform(x), rtol=1e-5)
    for name in ("sigma", "rank", "removed"):
        found = zarr.open_group(tmp_path / "clean.zarr", mode="r")[name][...]
        np.testing.assert_allclose(found, getattr(model, f"{name}_"), rtol=1e-4, atol=1e-4)
    assert verify(tmp_path / "clean.zarr") == []


def test_little_memory(tmp_path: Path) -> None:
    """Covariances are then accumulated group by group, and shards are smaller."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(600, 1)) @ rng.normal(size=(1, 128 * 128)) + rng.normal(size=(600, 128 * 128))).astype("f4")
    array = zarr.open_array(tmp_path / "x.zarr", mode="w", shape=(600, 128, 128), chunks=(50, 32, 32), dtype="f4")
    array[...] = x.reshape(600, 128, 128)
    stack, model = open_stack(tmp_path / "x.zarr"), Denoiser(16)
    plenty, little = (model.plan(stack, Run(memory=memory, threads=1)) for memory in (2**31, 2**27))
    assert len(little.groups) > len(plenty.groups)
    assert little.task_bytes <= 2**27
    denoise_store(stack, tmp_path / "clean.zarr", model, run=Run(memory=2**27, threads=1))
    found = open_stack(tmp_path / "clean.zarr").samples[...]
    np.testing.assert_allclose(found, Denoiser(16).fit_transform(array[...]), atol=1e-4)
    with pytest.raises(PlanError, match="memory"):
        denoise_store(stack, tmp_path / "other.zarr", model, run=Run(memory=2**24))


def test_the_same_bytes_wherever_a_run_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, _ = made(tmp_path / "x.zarr", (4, 24, 20))
    denoise_store(stack, tmp_path / "whole.zarr", Denoiser(8))
    whole, allowed, target = files(tmp_path / "whole.zarr"), 0, tmp_path / "again.zarr"
    while True:
        left = iter([True] * allowed)  # threads share it
        with monkeypatch.context() as patch:
            interrupt_at(patch, lambda unit, left=left: next(left, False))
            try:
                denoise_store(stack, target, Denoiser(8), run=Run(threads=1))
                break
            except KeyboardInterrupt:
                allowed += 1
        denoise_store(stack, target, Denoiser(8))
        assert files(target) == whole
        shutil.rmtree(target)
    # The filters of all cells, those of a box, the maps, and the shards, among others.
    assert allowed >= 5


def test_filters_are_kept_for_another_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which boxes the filters are for depends on the memory, so that of the interrupted run decides."""
    rng = np.random.default_rng(0)
    x = (rng.normal(100, 3, (20, 500, 500)) + rng.normal(0, 9, (20, 1, 1))).astype(np.float32)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(1, 250, 250))
    stack, first, memories = open_stack(tmp_path / "x.zarr"), job.DenoiseJob.first, (160 * 10**6, 2**30)
    little, much = (job.output_form(as_source(stack), stack.axes, x.dtype, memory, False) for memory in memories)
    assert little.layout != much.layout
    assert much.task_bytes > memories[0]

    def interrupted(self: Any, dtype: Any) -> Any:
        raise KeyboardInterrupt

    for before, after in (memories, memories[::-1]):
        target = tmp_path / f"{before}.zarr"
        with monkeypatch.context() as patch:
            patch.setattr(job.DenoiseJob, "first", interrupted)
            with pytest.raises(KeyboardInterrupt):
                denoise_store(stack, target, Denoiser(16), run=Run(memory=before, threads=1))
        assert job.DenoiseJob.first is first
        if after < before:
            with pytest.raises(PlanError, match="more"):
                denoise_store(stack, target, Denoiser(16), run=Run(memory=after, threads=1))
        denoise_store(stack, target, Denoiser(16), run=Run(memory=memories[1], threads=1))
        found = open_stack(target).samples
        assert found.shards == (little if before == memories[0] else much).layout.shards
        np.testing.assert_allclose(found[...], Denoiser(16).fit_transform(x), atol=1e-3)


def test_the_filters_of_a_task_count_as_its_memory(tmp_path: Path) -> None:
    stack, _ = made(tmp_path / "x.zarr")
    planned = partial(job.output_form, as_source(stack), stack.axes, np.dtype(np.float32), in_time=False)
    none, some = planned(2**30), planned(2**30, held=5000.0)
    assert some.task_bytes >= none.task_bytes + 5000 * 24 * 20
    with pytest.raises(PlanError, match="shard"):
        planned((none.task_bytes + some.task_bytes) // 2, held=5000.0)


def test_a_finished_job_is_recognized_and_others_are_not(tmp_path: Path) -> None:
    stack, _ = made(tmp_path / "x.zarr")
    target = tmp_path / "clean.zarr"
    assert denoise_store(stack, target, Denoiser(8)).bytes
    assert not denoise_store(stack, target, Denoiser(8)).bytes
    for other in (Denoiser(6), Denoiser(8, sigma=1.0), Denoiser(8, sigma=np.ones((24, 20))), Denoiser((8, 8))):
        with pytest.raises(StoreError, match="overwrite"):
            denoise_store(stack, target, other)
    with pytest.raises(StoreError, match="overlap|input"):
        denoise_store(stack, tmp_path / "x.zarr", Denoiser(8), run=Run(overwrite=True))


def test_the_dtype_of_the_stack(tmp_path: Path) -> None:
    stack, x = made(tmp_path / "x.zarr", dtype=np.uint16)
    denoise_store(stack, tmp_path / "clean.zarr", Denoiser(8, keep_dtype=True))
    clean = open_stack(tmp_path / "clean.zarr")
    assert clean.dtype == np.uint16
    np.testing.assert_array_equal(clean.samples[...], Denoiser(8, keep_dtype=True).fit_transform(x))
    assert "BloscCodec" in str(clean.samples.metadata)
    assert folder_bytes(tmp_path / "clean.zarr" / "samples") < x.nbytes / 1.5


def test_integers_need_no_more_space_than_those_with_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, x = made(tmp_path / "x.zarr", dtype=np.uint16)
    monkeypatch.setattr("dpca.storage.disk._free", lambda path: x.nbytes - 1)
    denoise_store(stack, tmp_path / "clean.zarr", Denoiser(8, keep_dtype=True))
    with pytest.raises(StoreError, match="space"):
        denoise_store(stack, tmp_path / "floats.zarr", Denoiser(8))


def test_in_a_bucket(tmp_path: Path, bucket: str) -> None:
    stack, _ = made(tmp_path / "x.zarr")
    denoise_store(stack, tmp_path / "clean.zarr", Denoiser(8))
    target = f"{bucket}/clean.zarr"
    assert denoise_store(stack, target, Denoiser(8)).bytes
    found = open_stack(target)
    np.testing.assert_array_equal(found.samples[...], open_stack(tmp_path / "clean.zarr").samples[...])
    assert verify(target) == []
    assert content(target) == content(tmp_path / "clean.zarr")
    assert sorted(content(f"{bucket}/clean.report")) == sorted(content(tmp_path / "clean.report"))
    assert not denoise_store(stack, target, Denoiser(8)).bytes


def test_a_value_that_is_not_finite(tmp_path: Path) -> None:
    made(tmp_path / "x.zarr")
    zarr.open_array(tmp_path / "x.zarr", mode="r+")[7, 3, 3] = np.nan
    with pytest.raises(DataError, match="7"):
        denoise_store(open_stack(tmp_path / "x.zarr"), tmp_path / "clean.zarr", Denoiser(8))
    assert not (tmp_path / "clean.zarr").exists()


def test_volumes_of_other_programs_with_their_b_values(tmp_path: Path) -> None:
    """A time series in NIfTI goes in, and comes out."""
    nibabel = pytest.importorskip("nibabel")
    x = np.random.default_rng(0).normal(100, 5, (9, 10, 8, 12)).astype(np.float32)
    affine = np.diag([2.0, 2.0, 3.0, 1.0])
    nibabel.save(nibabel.Nifti1Image(x, affine), tmp_path / "x.nii")
    (tmp_path / "x.bval").write_text(" ".join(str(1000 * (i % 3)) for i in range(12)))
    stack = ingest(tmp_path / "x.nii", tmp_path / "x.zarr")
    denoise_store(stack, tmp_path / "clean.zarr")
    clean = open_stack(tmp_path / "clean.zarr")
    assert clean.coordinates is not None
    assert clean.coordinates.dims == stack.coordinates.dims
    assert clean.coordinates.arrays["b_value"].values.tolist() == [0, 1000, 2000] * 4
    sigma = np.linspace(4, 6, 10 * 8 * 12, dtype=np.float32).reshape(10, 8, 12)
    nibabel.save(nibabel.Nifti1Image(sigma.T, affine), tmp_path / "sigma.nii.gz")
    known = Denoiser(sigma=read_map(tmp_path / "sigma.nii.gz").astype(np.float32)).fit(x)
    np.testing.assert_allclose(known.sigma_, sigma, rtol=1e-6)
    export_store(tmp_path / "clean.zarr", tmp_path / "clean.nii")
    image = nibabel.load(tmp_path / "clean.nii")
    assert image.shape == x.shape
    np.testing.assert_allclose(np.asarray(image.dataobj).mean(), x.mean(), rtol=1e-2)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = made(tmp_path / "x.zarr")[1]
    target = tmp_path / "clean.zarr"
    command = ["denoise", str(tmp_path / "x.zarr"), str(target), "--cell", "8", "--workers", "1"]
    assert main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "reads of the samples  2.00" in said
    assert "all stages" in said
    assert not target.exists()
    assert main(command) == 0
    assert f"{np.median(Denoiser(8).fit(x).sigma_):#.3g} (median)" in capsys.readouterr().out
    np.testing.assert_allclose(open_stack(target).samples[...], Denoiser(8).fit_transform(x), rtol=1e-5)
    assert main(command) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main([*command, "--gain", "2"]) != 0


def test_a_map_of_the_noise_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nibabel = pytest.importorskip("nibabel")
    x = made(tmp_path / "x.zarr")[1]
    sigma = np.linspace(0.8, 1.2, 24 * 20, dtype=np.float32).reshape(24, 20)
    np.save(tmp_path / "sigma.npy", sigma)
    nibabel.save(nibabel.Nifti1Image(sigma.T[:, :, None], np.eye(4)), tmp_path / "sigma.nii.gz")
    expected = Denoiser(8, sigma=sigma).fit_transform(x)
    command = ["denoise", str(tmp_path / "x.zarr"), str(tmp_path / "clean.zarr"), "--cell", "8", "--workers", "1"]
    assert main([*command, "--sigma", str(tmp_path / "sigma.npy")]) == 0
    np.testing.assert_allclose(open_stack(tmp_path / "clean.zarr").samples[...], expected, rtol=1e-5)
    maps = [str(tmp_path / "clean.zarr" / "sigma"), str(tmp_path / "sigma.npy")]
    capsys.readouterr()
    for same in maps:
        assert main([*command, "--sigma", same]) == 0
        assert "nothing to do" in capsys.readouterr().out
    np.save(tmp_path / "sigma.npy", sigma + 0.1)
    assert main([*command, "--sigma", maps[1]]) == 4
    tifffile.imwrite(tmp_path / "picture.jpg", np.zeros((24, 20), np.uint8))
    for number in ("0", "-1", "nan", "inf"):
        assert main([*command[:2], str(tmp_path / "other.zarr"), f"--sigma={number}"]) == 3
        assert f"--sigma is {number}:" in capsys.readouterr().err
    for wrong, word in (("sigma.nii.gz", "sigma"), ("nothing.npy", "nothing"), ("picture.jpg", "sigma")):
        capsys.readouterr()
        assert main([*command[:2], str(tmp_path / "other.zarr"), "--sigma", str(tmp_path / wrong)]) not in (0, 4)
        assert word in capsys.readouterr().err


def test_any_source_and_nothing_of_it_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).poisson(np.outer(np.arange(40) + 20, np.ones(24 * 20)).reshape(40, 24, 20))
    tifffile.imwrite(tmp_path / "movie.tif", x.astype(np.uint16), imagej=True, metadata={"axes": "TYX"})
    command = ["denoise", str(tmp_path / "movie.tif"), str(tmp_path / "clean.zarr"), "--noise", "poisson"]
    assert main([*command, "--dry-run", "--workers", "1"]) == 0
    assert "samples  3.00" in capsys.readouterr().out
    assert main([*command, "--dry-run", "--workers", "1", "--offset", "0"]) == 0
    assert "samples  2.00" in capsys.readouterr().out
    assert not (tmp_path / "clean.zarr").exists()
    assert main([*command, "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "gain 0.99" in said
    assert "offset 0 (the noise does not determine it" in said
    clean = open_stack(tmp_path / "clean.zarr")
    np.testing.assert_allclose(clean.samples[...], Denoiser(noise="poisson").fit_transform(x), rtol=1e-5)
    assert sorted(path.name for path in (tmp_path / "clean.zarr").iterdir() if path.is_dir()) == [
        *("name", "rank", "removed", "samples", "sigma"),
    ]
    assert verify(tmp_path / "clean.zarr") == []
    assert main([*command, "--workers", "1"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main([*command[:3], "--workers", "1"]) == 4  # Gaussian noise: another output
    assert "--overwrite" in capsys.readouterr().err
