"""The ``dpca`` command, from images to scores and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from PIL import Image

from dpca import CellPCA, load
from dpca.cli import main
from dpca.jobs.compressed import verify_quality
from dpca.kernels.integer_products import INSTRUCTION
from dpca.storage import open_stack


def test_from_images_to_scores_and_back(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--scheduler", scheduler]
    folder = image_folder(40)
    stack, model, scores, again = (str(tmp_path / f"{name}.zarr") for name in ("stack", "model", "scores", "again"))
    assert main(["ingest", str(folder), stack, "--cell", "10", *where]) == 0
    assert "40 samples of 40 x 36 x 3 uint8" in capsys.readouterr().out
    assert main(["fit", stack, model, "--cell", "10", "--components", "30", *where]) == 0
    assert "16 cells, 30 components each" in capsys.readouterr().out
    assert main(["transform", model, stack, scores, *where]) == 0
    assert "mean ssim 0.9" in capsys.readouterr().out
    assert main(["reconstruct", model, scores, again, *where]) == 0
    for store in (stack, model, scores, again):
        assert main(["verify", store, *where]) == 0
        assert "every file" in capsys.readouterr().out

    originals = np.stack([np.asarray(Image.open(p)) for p in sorted(folder.iterdir())])
    fitted = CellPCA.load(model)
    expected = np.clip(np.rint(fitted.inverse_transform(fitted.transform(originals))), 0, 255)
    rebuilt = open_stack(again)
    assert (rebuilt.axes, rebuilt.data_range) == (open_stack(stack).axes, (0.0, 255.0))
    assert list(rebuilt.names) == [p.name for p in sorted(folder.iterdir())]
    assert np.abs(rebuilt.samples[...].astype(int) - expected).max() <= 1
    mse = zarr.open_group(scores, mode="r")["mse"][...]
    np.testing.assert_allclose(mse, ((originals / 255 - rebuilt.samples[...] / 255) ** 2).mean((1, 2, 3)), atol=1e-7)

    capsys.readouterr()
    for argv in (
        ["fit", stack, model, "--cell", "10", "--components", "30"],
        ["transform", model, stack, scores],
        ["reconstruct", model, scores, again],
    ):
        assert main([*argv, *where]) == 0
        assert "nothing to do" in capsys.readouterr().out


def test_missing_values_from_fit_to_export(tmp_path: Path, scheduler: str) -> None:
    rng, where = np.random.default_rng(0), ["--scheduler", scheduler]
    x = (rng.normal(size=(60, 2)) @ rng.normal(size=(2, 240))).reshape(60, 12, 20).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    stack, model, store, out = (str(tmp_path / name) for name in ("x.zarr", "model.zarr", "store.zarr", "out.npy"))
    zarr.create_array(stack, data=x, chunks=(10, 12, 20))
    assert main(["fit", stack, model, "--cell", "6", "--components", "2", "--gaps", "iterate", *where]) == 0
    assert main(["encode", model, stack, store, "--max-error", "0.1", *where]) == 0
    assert main(["verify", store, "--stack", stack, *where]) == 0
    np.save(tmp_path / "x.npy", x)
    assert main(["verify", store, "--stack", str(tmp_path / "x.npy"), *where]) == 0
    assert main(["export", store, out]) == 0
    np.testing.assert_allclose(np.load(out), x, atol=0.1001)


def test_weights_of_attributes_from_a_map_and_from_latitudes(
    tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    xarray = pytest.importorskip("xarray")
    rng, where = np.random.default_rng(0), ["--scheduler", scheduler]
    x, latitudes = rng.normal(size=(40, 12, 16)).astype(np.float32), np.linspace(-80, 80, 12)
    factors = np.broadcast_to(np.sqrt(np.cos(np.deg2rad(latitudes)))[:, None], (12, 16)).astype(np.float32)
    coords = {"lat": ("lat", latitudes, {"units": "degrees_north"})}
    source, weights = str(tmp_path / "x.nc"), str(tmp_path / "weights.npy")
    xarray.DataArray(x, coords, ("time", "lat", "lon"), name="sst").to_netcdf(source)
    np.save(weights, factors)
    options = ["--cell", "6x8", "--components", "2", "--data-range=-6,6", *where]
    expected = CellPCA(2, cell_shape=(6, 8), weights=factors).fit(x).components_
    for name, given in (("map", weights), ("coslat", "coslat")):
        store = str(tmp_path / f"{name}.zarr")
        assert main(["scores", source, store, "--weights", given, *options]) == 0
        np.testing.assert_allclose(np.abs(load(f"{store}/model").components_), np.abs(expected), atol=1e-5)
    assert main(["plan", source, "--weights", "coslat", *options[:-2]]) == 0
    for place in (weights, Path(weights).as_uri(), str(tmp_path / "w*.npy")):  # the values count, wherever they are
        np.save(weights, factors[None])
        again = ["scores", source, str(tmp_path / "map.zarr"), "--weights", place, *options, "--overwrite"]
        assert main(again) == 0
        capsys.readouterr()
        assert main(again[:-1]) == 0
        assert "nothing to do" in capsys.readouterr().out
        np.save(weights, factors[None] / 2)
        assert main(again[:-1]) == 4
        assert "other settings" in capsys.readouterr().err
    np.save(weights, factors[:, 1:])
    np.save(tmp_path / "x.npy", x)
    for command in (["scores", source, str(tmp_path / "bad.zarr")], ["plan", source]):
        assert main([*command, "--weights", weights, *(options if command[2:] else options[:-2])]) == 3
        error = capsys.readouterr()
        assert "weights" in error.err
        assert "ingest" not in error.out
    assert main(["plan", str(tmp_path / "x.npy"), "--weights", "coslat", *options[:-2]]) == 3
    assert "latitudes" in capsys.readouterr().err
    assert main(["plan", source, "--weights", "coslat", "--quality", "max-error=1", *options[:-2]]) == 3
    assert "weights" in capsys.readouterr().err


def test_few_photographs_of_which_some_are_broken(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, store = image_folder(8), str(tmp_path / "out.zarr")
    for name in ("z-broken.png", "z-torn.jpg"):
        (folder / name).write_bytes(b"nothing")
    options = ["--cell", "8", "--on-error", "skip", "--scheduler", scheduler]
    assert main(["scores", str(folder), store, "--components", "10", *options]) == 3
    assert "n_components" in capsys.readouterr().err
    assert main(["plan", str(folder), *options[:-2]]) == 0
    for _ in range(2):
        capsys.readouterr()
        assert main(["scores", str(folder), store, "--overwrite", *options]) == 0
        assert load(f"{store}/model").n_components_ == 8
    assert "nothing to do" in capsys.readouterr().out
    assert main(["scores", str(folder), store, "--components", "10", *options]) == 4


def test_quality_is_measured_on_the_photographs_that_were_compressed(
    image_folder: Callable[..., Path],
    tmp_path: Path,
    scheduler: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, store, where = image_folder(12), str(tmp_path / "small.zarr"), ["--scheduler", scheduler]
    (folder / "broken.png").write_bytes(b"nothing")
    resized = ["--resize", "24x16"]
    skipped = [*resized, "--on-error", "skip"]
    assert main(["compress", str(folder), store, "--cell", "8", "--quality", "psnr=30", *skipped, *where]) == 0
    for sample in ([], ["--sample", "3"]):
        capsys.readouterr()
        assert main(["verify", store, "--stack", str(folder), *resized, *sample, *where]) == 0
        assert "quality and error bounds hold" in capsys.readouterr().out
    used: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(verify_quality, "verify_quality", lambda *_, run, **__: used.append(run.client) or [])
        assert main(["verify", store, "--stack", str(folder), *resized, *where]) == 0
    assert used == [None]  # workers elsewhere do not see a temporary folder
    assert main(["compare", store, str(folder), *resized]) == 0
    assert "this store" in capsys.readouterr().out
    assert main(["compare", store, str(folder), *resized, "--json"]) == 0
    assert all(json.loads(line)["bytes"] for line in capsys.readouterr().out.splitlines())
    assert main(["verify", store, "--stack", str(folder), *where]) == 3
    assert "was made from" in capsys.readouterr().err
    group = zarr.open_group(store)
    group["mse"][...] = 2 * np.asarray(group["mse"][...])
    assert main(["verify", store, "--stack", str(folder), *resized, *where]) == 1
    assert not [path.name for path in tmp_path.iterdir() if path.suffix == ".partial"]


@pytest.mark.parametrize("command", [["scores"], ["compress", "--cell", "8"]])
def test_defaults_suit_few_photographs(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str, command: list[str]
) -> None:
    store = str(tmp_path / "out.zarr")
    assert main([*command, str(image_folder(12)), store, "--scheduler", scheduler]) == 0


def test_info_tells_what_there_is(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, stack = image_folder(12), str(tmp_path / "stack.zarr")
    assert main(["info", str(folder)]) == 0
    assert "photo-0011.png" in capsys.readouterr().out
    assert main(["ingest", str(folder), stack, "--scheduler", scheduler]) == 0
    capsys.readouterr()
    assert main(["info", stack, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["samples"], facts["sample_shape"], facts["data_range"]) == (12, [40, 36, 3], [0.0, 255.0])
    assert (
        main(["fit", stack, str(tmp_path / "m.zarr"), "--cell", "20", "--components", "2", "--scheduler", scheduler])
        == 0
    )
    capsys.readouterr()
    assert main(["info", str(tmp_path / "m.zarr")]) == 0
    told = capsys.readouterr().out
    assert "cell-pca" in told
    assert "checksums.json" not in told
    small = str(tmp_path / "small.zarr")
    assert main(["encode", str(tmp_path / "m.zarr"), stack, small, "--max-error", "0.5", "--scheduler", scheduler]) == 0
    capsys.readouterr()
    assert main(["info", small, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kind"], facts["samples"], facts["goal"]) == ("compressed", 12, {"max_error": 0.5})
    assert facts["ratio"] == pytest.approx(facts["bytes_decoded"] / facts["bytes_on_disk"], abs=0.01)
    assert (facts["max_error"]["highest"], facts["psnr"]["lowest"]) == (0, "inf")


def test_system_tells_what_multiplies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["system", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    feature = INSTRUCTION.feature if INSTRUCTION else None
    assert facts["instruction"] == feature
    assert facts["float32_products"] > 0
    assert (facts["integer_products"] is None) == (feature is None)
    assert main(["system"]) == 0
    assert "times as fast" in capsys.readouterr().out or feature is None


def test_verify_finds_damage(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = tmp_path / "stack.zarr"
    assert main(["ingest", str(image_folder(12)), str(stack), "--scheduler", scheduler]) == 0
    shard = next(p for p in sorted((stack / "samples" / "c").rglob("*")) if p.is_file())
    content = bytearray(shard.read_bytes())
    content[77] ^= 1
    shard.write_bytes(bytes(content))
    capsys.readouterr()
    assert main(["verify", str(stack), "--scheduler", scheduler]) == 1
    assert "1 problem" in capsys.readouterr().out


def test_synthetic_stacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "waves.zarr")
    argv = ["synthetic", path, "--model", "moving", "--samples", "70", "--shape", "8x6", "--parameter", "period=9"]
    assert main(argv) == 0
    assert "70 samples of 8 x 6 float32 (13.4 kB)" in capsys.readouterr().out
    assert main(["info", path, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["samples"], facts["source"]["name"]) == (70, "moving")
    assert (facts["bytes_decoded"], facts["bytes_on_disk"] < 2000) == (70 * 48 * 4, True)
    for wrong, sentence in (("n_samples=3", "n_samples"), ("depth=3", "no parameter 'depth'")):
        assert main([*argv, "--parameter", wrong]) == 3
        assert sentence in capsys.readouterr().err
    assert main([*argv, "--seed", "1"]) == 4
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["", "ingest", "synthetic", "info", "fit", "transform", "encode", "reconstruct", "verify"]
)
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*([command] if command else []), "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert f"dpca {command}" in text
    assert "example: dpca" in text or not command


def test_no_command_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "dpca ingest" in capsys.readouterr().out
