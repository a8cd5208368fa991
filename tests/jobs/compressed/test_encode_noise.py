"""Compressed stores that lose a share of the noise."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import dpca
from dpca import CellPCA, Denoiser, open_compressed
from dpca.cli.program import run as run_dpca
from dpca.codec import noise as noise_steps
from dpca.jobs import CompressionSettings, append_store, compress, encode_store, fit_store
from dpca.jobs.compressed import append
from dpca.jobs.compressed.verify_quality import verify_quality
from dpca.kernels.algebra.types import Array
from dpca.models.base import passes
from dpca.report.record import read_report
from dpca.storage import open_stack, verify
from dpca.storage.disk import folder_bytes
from dpca.storage.errors import DataError, StoreError
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from tests.helpers.interrupted import interrupt_at

N, SHAPE, CELL = 96, (21, 26), 12
FORMAT = Path(dpca.__file__).parent / "storage" / "FORMAT.md"
GAIN, OFFSET, READ = 30.0, 100.0, 20.0
POISSON: dict[str, Any] = {"noise": "poisson", "gain": GAIN, "offset": OFFSET, "read_noise": READ}


def photons() -> Array:
    """Return the photons of a scene that changes; cells at two edges are cut."""
    wave = 1 + np.sin(np.arange(N) / 7)[:, None, None]
    found: Array = 3 + 40 * wave * np.hanning(SHAPE[0] + 4)[:-4, None] * np.hanning(SHAPE[1])
    return found


def movie(dtype: str = "uint16") -> tuple[Array, Array]:
    """Return counts of these photons, and the variance of their noise by attribute."""
    rng = np.random.default_rng(0)
    counts = GAIN * rng.poisson(photons()) + OFFSET + rng.normal(0, READ, (N, *SHAPE))
    values = np.rint(counts).clip(0, 65535).astype(dtype) if np.dtype(dtype).kind != "f" else counts.astype(dtype)
    return values, GAIN**2 * photons().mean(axis=0) + READ**2


def stored(folder: Path, x: Array, **model: Any) -> Stack:
    """Write samples and a model of them."""
    zarr.create_array(str(folder / "x.zarr"), data=x, chunks=(20, *x.shape[1:]))
    stack = open_stack(folder / "x.zarr")
    fit_store(stack, folder / "model", CellPCA(4, cell_shape=CELL, random_state=0, **model))
    return stack


def share_of(x: Array, y: Array, variance: Array) -> float:
    """Return the mean squared error in units of the noise variance."""
    return float(np.mean((y.astype(np.float64) - x) ** 2 / variance))


@pytest.mark.parametrize("dtype", ["uint16", "int32", "float32", "float64"])
@pytest.mark.parametrize("share", [0.01, 0.2])
@pytest.mark.parametrize("overlap", [0, 4])
def test_the_share_is_lost(tmp_path: Path, dtype: str, share: float, overlap: int) -> None:
    """Measured with the true variance, as stated, in any part, by the reader of the description, and by verify."""
    x, variance = movie(dtype)
    stack = stored(tmp_path, x, overlap=overlap)
    encode_store(stack, tmp_path / "model", tmp_path / "c", noise=Denoiser(**POISSON), noise_share=share)
    store = open_compressed(tmp_path / "c")
    y = store[...]
    assert y.dtype == x.dtype
    assert 0.93 * share < share_of(x, y, variance) <= 1.03 * share  # the variance is that of the mean, as measured
    stated = store.quality["noise_share"]
    assert 0.95 * share < stated.mean() <= share
    sigma = np.sqrt(store.codec.noise.variance)  # type: ignore[union-attr]
    np.testing.assert_allclose(stated, np.mean((y - x.astype(float)) ** 2 / sigma**2, axis=(1, 2)), rtol=1e-5)
    half = np.sqrt(3 * share) * sigma * 1.01 + (0.5 if store.dtype.kind != "f" else 0)
    assert (np.abs(y - x.astype(float)) <= half).all()
    np.testing.assert_array_equal(store[91:3:-7, 5:20, [2, 9, 4]], y[91:3:-7, 5:20, [2, 9, 4]])
    np.testing.assert_array_equal(store.dask()[20:40, 3:9].compute(), y[20:40, 3:9])
    assert store.facts["noise_share"] == pytest.approx(0.995 * share)  # met at the first attempt
    assert (store.facts["version"], store.facts["goal"]) == (3, {"name": "noise_share", "value": share})
    names: dict[str, Any] = {}
    exec("".join(re.findall(r"```python\n(.*?)```", FORMAT.read_text(), re.DOTALL)), names)
    np.testing.assert_allclose(names["read_compressed"](str(tmp_path / "c")), y, rtol=1e-6)
    assert verify(tmp_path / "c") == []
    assert verify_quality(str(tmp_path / "c"), stack) == []


def test_no_attribute_loses_much_more_than_others(tmp_path: Path) -> None:
    """Dark and bright pixels lose the same share, and no mean is biased."""
    x, variance = movie()
    stack = stored(tmp_path, x)
    encode_store(stack, tmp_path / "model", tmp_path / "c", noise=Denoiser(**POISSON), noise_share=0.05)
    errors = open_compressed(tmp_path / "c")[...].astype(float) - x
    shares = np.mean(errors**2, axis=0) / variance
    dark = photons().mean(axis=0) < 8
    assert shares[dark].mean() == pytest.approx(shares[~dark].mean(), rel=0.1)
    assert shares.max() < 2.5 * 0.05  # of 96 errors
    assert abs(errors.mean()) < 4 * np.sqrt(0.05 * variance.mean() / errors.size)


def test_stores_are_smaller_than_with_one_step(tmp_path: Path) -> None:
    """One step for all attributes that loses as much takes more bytes."""
    x, variance = movie()
    stack = stored(tmp_path, x)
    encode_store(stack, tmp_path / "model", tmp_path / "c", noise=Denoiser(**POISSON), noise_share=0.01)
    step = np.sqrt(12 * 0.01 / np.mean(1 / variance))
    encode_store(stack, tmp_path / "model", tmp_path / "one", max_error=float(np.floor(step / 2)))
    assert share_of(x, open_compressed(tmp_path / "one")[...], variance) > 0.007
    residual = [
        sum(p.stat().st_size for p in (tmp_path / s / "residual").rglob("*") if p.is_file()) for s in ("c", "one")
    ]
    assert residual[0] < residual[1]


def test_noise_that_is_given_or_estimated(tmp_path: Path) -> None:
    """A number and a map give steps in proportion; Gaussian noise is estimated."""
    rng = np.random.default_rng(0)
    x = (photons() + rng.normal(0, 2.0, (N, *SHAPE))).astype(np.float32)
    stack, levels = stored(tmp_path, x), np.full(SHAPE, 2.0, np.float32)
    levels[:, :9] = 3.0
    steps = {}
    for name, sigma in {"estimated": None, "number": 2.0, "map": levels}.items():
        encode_store(stack, tmp_path / "model", tmp_path / name, noise=Denoiser(sigma=sigma), noise_share=0.01)
        steps[name] = open_compressed(tmp_path / name).codec.noise.steps  # type: ignore[union-attr]
    np.testing.assert_allclose(steps["number"], np.sqrt(0.12 * 0.995) * 2, rtol=0.002)
    np.testing.assert_allclose(steps["map"] / steps["number"], levels / 2, rtol=0.004)
    np.testing.assert_allclose(steps["estimated"], steps["number"], rtol=0.1)


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_constant_attributes(tmp_path: Path, dtype: str) -> None:
    """A masked background has no noise: integers there are lossless, other values have the finest step."""
    x, _ = movie(dtype)
    x[:, :6], x[:, 15, 20] = 7, 60000
    stack = stored(tmp_path, x)
    encode_store(stack, tmp_path / "model", tmp_path / "c", noise=Denoiser(**POISSON), noise_share=0.01)
    store = open_compressed(tmp_path / "c")
    errors = np.abs(store[...].astype(float) - x)
    assert store.codec.noise is not None
    assert errors[:, :6].max() <= (0 if dtype == "uint16" else store.codec.noise.steps.min() / 2 + 0.01)
    assert errors[:, 15, 20].max() <= (0 if dtype == "uint16" else store.codec.noise.steps.min() / 2 + 0.01)
    assert store.quality["noise_share"].mean() <= 0.01
    assert verify_quality(str(tmp_path / "c"), stack) == []


@pytest.mark.parametrize("sigma", [0.01, 4.0, 5.0, 8.0, 12.0, 20.0])
def test_integers_with_little_noise(tmp_path: Path, sigma: float) -> None:
    """Of which no rounding loses so little, or only a small step does: also of the same mean everywhere."""
    x = np.rint(100.5 + np.random.default_rng(0).normal(0, sigma, (N, *SHAPE))).astype(np.int16)
    x[: N // 2], x[N // 2 :] = x[: N // 2], 201 - x[: N // 2]  # all means are 100.5
    stack = stored(tmp_path, x)
    encode_store(stack, tmp_path / "model", tmp_path / "c", noise=Denoiser(sigma=sigma), noise_share=0.01)
    lost = float(np.mean((open_compressed(tmp_path / "c")[...].astype(float) - x) ** 2)) / sigma**2
    assert lost == 0 if sigma < 1 else 0.9 * 0.01 < lost <= 0.01


def test_a_missed_goal_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With smaller steps, if errors are larger than expected."""
    monkeypatch.setattr(noise_steps, "_EXPECTED", 1.1)
    x, _ = movie()
    stack = stored(tmp_path, x)
    encode_store(stack, tmp_path / "model", tmp_path / "c", noise=Denoiser(**POISSON), noise_share=0.01)
    store = open_compressed(tmp_path / "c")
    assert 0.0095 < store.quality["noise_share"].mean() <= 0.01
    assert store.facts["noise_share"] < 0.0101


def test_missing_values(tmp_path: Path) -> None:
    """Shares are those of the values that are there."""
    x, variance = movie("float32")
    x[np.random.default_rng(3).random(x.shape) < 0.2] = np.nan
    stack = stored(tmp_path, x, gaps="iterate")
    sigma = np.sqrt(variance).astype(np.float32)
    encode_store(stack, tmp_path / "model", tmp_path / "c", noise=Denoiser(sigma=sigma), noise_share=0.02)
    store = open_compressed(tmp_path / "c")
    y = store[...]
    np.testing.assert_array_equal(np.isnan(y), np.isnan(x))
    assert store.codec.noise is not None
    expected = np.nanmean((y - x.astype(float)) ** 2 / store.codec.noise.variance, axis=(1, 2))
    np.testing.assert_allclose(store.quality["noise_share"], expected, rtol=1e-5)
    assert expected.mean() <= 0.02
    assert verify_quality(str(tmp_path / "c"), stack) == []


def test_samples_are_appended(tmp_path: Path) -> None:
    """With the steps of the store; noisier samples lose no more in units of its noise."""
    x, variance = movie()
    x = x[np.random.default_rng(5).permutation(N)]  # stores of similar neighbors interpolate between samples
    stack = stored(tmp_path, x[:70])
    encode_store(stack, tmp_path / "model", tmp_path / "c", noise=Denoiser(**POISSON), noise_share=0.02)
    before = open_compressed(tmp_path / "c")[...]
    zarr.create_array(str(tmp_path / "new.zarr"), data=x[70:], chunks=(20, *SHAPE))
    done = append_store(tmp_path / "c", open_stack(tmp_path / "new.zarr"))
    assert (done.samples, done.drifted) == (26, "")
    store = open_compressed(tmp_path / "c")
    np.testing.assert_array_equal(store[:70], before)
    assert store.quality["noise_share"].shape == (96,)
    assert share_of(x[70:], store[70:], variance) == pytest.approx(0.02, rel=0.05)
    assert verify(tmp_path / "c") == []


def test_a_refit_keeps_the_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All samples are encoded again with the noise of the store."""
    x = movie()[0][np.random.default_rng(5).permutation(N)]
    stack = stored(tmp_path, x[:70])
    encode_store(stack, tmp_path / "model", tmp_path / "c", noise=Denoiser(**POISSON), noise_share=0.02)
    before = open_compressed(tmp_path / "c").codec.noise
    zarr.create_array(str(tmp_path / "new.zarr"), data=x[70:], chunks=(20, *SHAPE))
    monkeypatch.setattr(append, "_drift", lambda *_: ({}, "drifted"))
    done = append_store(tmp_path / "c", open_stack(tmp_path / "new.zarr"), drift="refit", original=stack)
    store = open_compressed(tmp_path / "c")
    assert (done.refitted, len(store)) == (True, N)
    assert before is not None
    assert store.codec.noise is not None
    np.testing.assert_allclose(store.codec.noise.steps, before.steps, rtol=0.004)
    assert 0.019 < share_of(x, store[...], store.codec.noise.variance) <= 0.02


@pytest.mark.kill
def test_the_same_bytes_wherever_a_run_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the estimate of the noise, between it and the encoding, and between shards."""
    monkeypatch.setattr(passes, "default_client", lambda: None)  # markers of workers are not counted
    stack = stored(tmp_path, movie()[0])

    def encode(name: str) -> dict[str, bytes]:
        run = Run(threads=1)
        encode_store(
            stack, tmp_path / "model", tmp_path / name, run=run, noise=Denoiser(noise="poisson"), noise_share=0.02
        )
        files = (path for path in (tmp_path / name).rglob("*") if path.is_file())
        return {path.relative_to(tmp_path / name).as_posix(): path.read_bytes() for path in files}

    calm, allowed, ended = encode("calm"), 0, False
    while not ended:
        with monkeypatch.context() as patch:
            left = iter([True] * allowed)
            interrupt_at(patch, lambda unit, left=left: next(left, False))
            try:
                encode("stopped")
                ended = True
            except KeyboardInterrupt:
                allowed += 1
        assert encode("stopped") == calm
        shutil.rmtree(tmp_path / "stopped")
    assert allowed >= 4  # the estimate, the noise, the plan and a shard


def test_verify_finds_other_samples_and_steps(tmp_path: Path) -> None:
    """A share that is not the stated one, and steps that were changed."""
    x, _ = movie()
    stack = stored(tmp_path, x)
    encode_store(stack, tmp_path / "model", tmp_path / "c", noise=Denoiser(**POISSON), noise_share=0.02)
    y = open_compressed(tmp_path / "c")[...].astype(int)
    x[3] = y[3] - np.sort((y[3] - x[3]).ravel()).reshape(SHAPE)  # the same errors, of other attributes
    zarr.create_array(str(tmp_path / "other.zarr"), data=x, chunks=(20, *SHAPE))
    problems = verify_quality(str(tmp_path / "c"), open_stack(tmp_path / "other.zarr"))
    assert [problem.split()[:3] for problem in problems] == [["sample", "3", "lost"]]
    shard = next(p for p in sorted((tmp_path / "c" / "noise_steps" / "c").rglob("*")) if p.is_file())
    content = bytearray(shard.read_bytes())
    content[len(content) // 3] ^= 1
    shard.write_bytes(content)
    assert {problem.partition("/")[0] for problem in verify(tmp_path / "c")} == {"noise_steps"}
    with pytest.raises(StoreError, match="noise_steps"):
        open_compressed(tmp_path / "c")


def test_what_is_refused(tmp_path: Path) -> None:
    """Noise of another goal, noise that depends on the signal, no noise at all, and maps of another shape."""
    x, _ = movie("float32")
    stack = stored(tmp_path, x)
    encode = tmp_path / "model", tmp_path / "c"
    with pytest.raises(DataError, match="noise_share"):
        encode_store(stack, *encode, noise=Denoiser(), psnr=40)
    with pytest.raises(DataError, match="rician"):
        encode_store(stack, *encode, noise=Denoiser(noise="rician"), noise_share=0.01)
    with pytest.raises(DataError, match="sigma"):
        encode_store(stack, *encode, noise=Denoiser(sigma=np.ones((3, 4))), noise_share=0.01)
    with pytest.raises(DataError, match="every_sample"):
        encode_store(stack, *encode, every_sample=True, noise_share=0.01)
    with pytest.raises(DataError, match="32"):
        encode_store(stack, *encode, noise=Denoiser(sigma=1e-6), noise_share=0.01)
    with pytest.raises(DataError, match="goal"):
        compress(stack, tmp_path / "d", CompressionSettings(CellPCA(3, cell_shape=CELL), noise=Denoiser()))
    zarr.create_array(str(tmp_path / "flat.zarr"), data=np.ones((9, *SHAPE), np.float32), chunks=(9, *SHAPE))
    flat = replace(open_stack(tmp_path / "flat.zarr"), data_range=(0.0, 1.0))
    with pytest.raises(DataError, match="noise"):
        encode_store(flat, *encode, noise_share=0.01)
    assert not (tmp_path / "c").exists()


def test_the_job_chooses_cells_and_reports_the_share(tmp_path: Path) -> None:
    """`compress` estimates the noise once, and states what was lost."""
    x, variance = movie()
    np.save(tmp_path / "x.npy", x)
    settings = CompressionSettings(
        CellPCA(ratio=3.0, cell_shape=CELL, random_state=0), goal={"noise_share": 0.01}, noise=Denoiser(**POISSON),
        choose_cells=True,
    )  # fmt: skip
    done = compress(tmp_path / "x.npy", tmp_path / "c.zarr", settings)
    store = open_compressed(tmp_path / "c.zarr")
    assert share_of(x, store[...], variance) == pytest.approx(0.01, rel=0.06)
    report: Any = read_report(done.folder)
    assert report["noise_share"] == pytest.approx(store.quality["noise_share"].mean(), rel=1e-5)
    assert "noise" in report["stages"]
    assert report["settings"]["noise"] == POISSON
    assert compress(tmp_path / "x.npy", tmp_path / "c.zarr", settings).already_done


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`dpca compress`, `dpca encode` with a map, and `dpca plan`."""
    x, variance = movie()
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "sigma.npy", np.sqrt(variance))
    stored(tmp_path, x)
    source, noise = str(tmp_path / "x.npy"), ["--noise", "poisson", "--gain", "30", "--offset", "100"]
    quality = ["--quality", "noise-share=0.01", *noise, "--read-noise", "20"]
    assert run_dpca(["compress", source, str(tmp_path / "c.zarr"), *quality, "--cell", "12", "--components", "4"]) == 0
    assert "noise variance lost" in capsys.readouterr().out
    given = [str(tmp_path / "model"), str(tmp_path / "x.zarr"), str(tmp_path / "d.zarr")]
    assert run_dpca(["encode", *given, "--noise-share", "0.01", "--sigma", str(tmp_path / "sigma.npy")]) == 0
    assert "mean noise share 0.0" in capsys.readouterr().out
    for name in ("c.zarr", "d.zarr"):
        assert share_of(x, open_compressed(tmp_path / name)[...], variance) == pytest.approx(0.01, rel=0.06)
    assert run_dpca(["encode", *given, "--noise-share", "0.01", "--sigma", str(tmp_path / "sigma.npy")]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert run_dpca(["plan", source, *quality, "--cell", "12", "--components", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["bytes_written"] == pytest.approx(folder_bytes(tmp_path / "c.zarr"), rel=0.2)
    assert {"noise", "fit", "encode"} <= found["seconds"].keys()


@pytest.mark.parametrize("cells", [[], ["--cell", "12", "--components", "marchenko-pastur"]])
def test_the_command_with_a_known_level(tmp_path: Path, cells: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`dpca compress --sigma`, with the choice of cells and with ranks that depend on the level, too."""
    x = np.rint(500 + 20 * np.random.default_rng(0).normal(size=(60, *SHAPE))).astype(np.uint16)
    np.save(tmp_path / "x.npy", x)
    given = ["compress", str(tmp_path / "x.npy"), str(tmp_path / "c.zarr"), "--sigma", "20"]
    assert run_dpca([*given, "--quality", "noise-share=0.01", *cells]) == 0
    assert "noise variance lost" in capsys.readouterr().out
    assert share_of(x, open_compressed(tmp_path / "c.zarr")[...], np.full(SHAPE, 400.0)) == pytest.approx(0.01, rel=0.1)
    assert run_dpca([*given, "--quality", "psnr=40", "--cell", "12", "--overwrite"]) != 0
    assert "marchenko-pastur" in capsys.readouterr().err
