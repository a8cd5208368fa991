from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpca import CellPCA, open_compressed
from dpca.cli import main
from dpca.jobs import CompressionSettings, compress
from dpca.jobs.compressed import compare
from dpca.jobs.compressed.compare import Comparison, Point, compare_store
from dpca.jobs.plans import shard_plan
from dpca.plots.png import is_dpca_png
from dpca.representation.compressed.compressed import TiledCompressed
from dpca.storage import DataError, open_stack
from dpca.storage.disk import folder_bytes
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.outputs import OutputFile
from tests.conftest import smooth_images
from tests.jobs.compressed.test_encode import encoded, stack_of


@pytest.mark.long
def test_images_beside_other_codecs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = smooth_images(40, (40, 36, 3))
    CellPCA(20, cell_shape=8, shared=True).fit(stack_of(tmp_path, images)).save(tmp_path / "model.zarr")
    store = encoded(tmp_path, tmp_path / "out.zarr", psnr=34.0)
    found = compare_store(str(tmp_path / "out.zarr"), open_stack(tmp_path / "stack.zarr"))
    assert found.store.bytes == folder_bytes(tmp_path / "out.zarr") / 40
    error = np.square((store[...].astype(float) - images) / 255).mean()
    assert found.store.psnr == pytest.approx(-10 * np.log10(error))
    (jpeg,) = (point for point in found.others if point.codec == "JPEG" and point.setting == 75)
    files = [io.BytesIO() for _ in images]
    for image, file in zip(images, files, strict=True):
        Image.fromarray(image).save(file, "JPEG", quality=75, optimize=True)
    assert jpeg.bytes == np.mean([len(file.getvalue()) for file in files])
    assert found.at_equal_error()["blosc (zstd)"] is not None
    argv = ["compare", str(tmp_path / "out.zarr"), str(tmp_path / "stack.zarr"), "--sample", "8"]
    assert main([*argv, "--plot", str(tmp_path / "rates.png")]) == 0
    told = capsys.readouterr().out
    assert "this store" in told
    assert all(name in told for name in ("JPEG", "WebP", "AVIF", "JPEG XL", "zfp", "SZ3", "blosc"))
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    OutputFile(tmp_path / "rates.png", "plot", is_dpca_png)  # which the next one may replace
    Image.fromarray(images[0]).save(tmp_path / "photo.png")
    before = folder_bytes(tmp_path)
    for name in ("photo.png", "out.zarr/zarr.json", "stack.zarr/new.png", "stack.zarr"):
        assert main([*argv, "--plot", str(tmp_path / name)]) == 4
    assert folder_bytes(tmp_path) == before
    capsys.readouterr()
    assert main([*argv, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"this store", "JPEG", "blosc (zstd)"} <= {line["codec"] for line in lines}


def test_volumes_beside_codecs_that_keep_a_largest_error(tmp_path: Path) -> None:
    values = (
        smooth_images(20, (12, 14)).astype(np.float32)[:, :, None] * np.linspace(1, 2, 6, dtype=np.float32)[:, None]
    )
    CellPCA(8, cell_shape=6).fit(
        stack_of(tmp_path, values, axes=("z", "y", "x"), reading=ReadOptions(data_range=(0, 512)))
    ).save(tmp_path / "model.zarr")
    encoded(tmp_path, tmp_path / "out.zarr", max_error=2.0)
    found = compare_store(str(tmp_path / "out.zarr"), open_stack(tmp_path / "stack.zarr"))
    names = {point.codec for point in found.others} | set(found.missing)
    assert {"zfp", "SZ3", "blosc (zstd)"} <= names
    assert "JPEG" not in names
    if importlib.util.find_spec("imagecodecs") is None:
        assert all('dpca[compare]"' in why for why in found.missing.values())
    else:
        assert found.at_equal_error()["SZ3 at the same largest error"] is not None
    stack_of(
        tmp_path, values[:9], axes=("z", "y", "x"), reading=ReadOptions(data_range=(0, 512)), run=Run(overwrite=True)
    )
    with pytest.raises(DataError, match=r"\(20,.*\(9,"):
        compare_store(str(tmp_path / "out.zarr"), open_stack(tmp_path / "stack.zarr"))


def test_bytes_at_equal_error_are_interpolated_and_never_guessed() -> None:
    points = [Point("A", 1, 100, 30.0), Point("A", 2, 400, 40.0), Point("B", 1, 9, 20.0), Point("B", 2, 10, 25.0)]
    found = Comparison(Point("this store", None, 50, 35.0), [*points, Point("C", None, 999, np.inf)], {}, (0, 255))
    assert found.at_equal_error() == {"A": pytest.approx(200), "B": None, "C": 999}


@pytest.mark.usefixtures("small_pictures")
@pytest.mark.parametrize("large", [False, True], ids=["whole", "tiles"])
def test_samples_with_missing_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    x = smooth_images(40, (48, 60, 1))[..., 0].astype(np.float32)
    x[:, 4:9, 20:] = x[::3, 12, 5:9] = x[7] = np.nan
    marks = None if large else "infinite"
    x[5, 30] = np.nan if large else np.inf
    if large:
        monkeypatch.setattr(shard_plan, "LARGE_SAMPLE", 2**10)
        monkeypatch.setattr(shard_plan, "_TILE_VALUES", [600])
    stack = stack_of(tmp_path, x, reading=ReadOptions(gaps=True, infinite=True))
    model = CellPCA(3, cell_shape=6, gaps="iterate", missing_value=marks, random_state=0)
    compress(stack, tmp_path / "c.zarr", CompressionSettings(model, goal={"max_error": 6.0}))
    store = open_compressed(tmp_path / "c.zarr")
    assert isinstance(store, TiledCompressed) == large

    def shifted(samples: np.ndarray, setting: float) -> tuple[int, np.ndarray]:
        assert np.isfinite(samples).all()  # zfp has no code for NaN
        return 1000, samples + np.float32(setting)

    monkeypatch.setattr(compare, "_codecs", lambda *given: iter([("shifted", shifted, (2.0,))]))
    found = compare_store(str(tmp_path / "c.zarr"), stack, sample=2000)
    here, (low, high) = np.isfinite(x), store.facts["data_range"]
    error = np.mean((store[...][here].astype(float) - x[here]) ** 2) / (high - low) ** 2
    assert found.store.psnr == pytest.approx(-10 * np.log10(error), rel=1e-3 if large else 1e-6)  # tiles overlap
    shift, lossless = found.others
    assert shift.psnr == pytest.approx(-20 * np.log10(2.0 / (high - low)), rel=1e-4)
    assert lossless.psnr == np.inf
