"""Fits, jobs and commands read a stack of kept JPEG files as they read one of pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import pytest
from PIL import Image

from dpca import PCA, BandPCA, CellPCA, StreamingPCA
from dpca.cli import main
from dpca.jobs import CompressionSettings, compress
from dpca.storage import ReadOptions, Stack, ingest, open_stack
from dpca.storage.arrays.direct import codec_of
from dpca.storage.arrays.kept_jpegs import JPEGCodec
from dpca.storage.readers import open_reader
from tests.conftest import smooth_images

pytestmark = pytest.mark.usefixtures("small_pictures")


class Stacks(NamedTuple):
    """A folder of JPEGs, ingested to pixels and with its files."""

    photographs: Path
    pixels: Stack
    files: Stack


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Stacks:
    folder = tmp_path_factory.mktemp("kept")
    (folder / "photographs").mkdir()
    for i, pixels in enumerate(smooth_images(40, (24, 32, 3))):
        Image.fromarray(pixels).save(folder / "photographs" / f"{i:02d}.jpg", quality=92)
    made = (
        ingest(folder / "photographs", folder / f"{keep}.zarr", reading=ReadOptions(keep_jpegs=keep), shard_bytes=9000)
        for keep in (False, True)
    )
    return Stacks(folder / "photographs", *made)


@pytest.mark.parametrize(
    "model", [PCA(3), CellPCA(2, cell_shape=8), BandPCA(2, band_size=96), StreamingPCA(3, random_state=0)], ids=repr
)
def test_fits(model: Any, stacks: Stacks) -> None:
    scores = [np.asarray(model.fit(stack).transform(stack)) for stack in (stacks.pixels, stacks.files)]
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-3 * np.abs(scores[0]).max())


def test_batches_and_dask(stacks: Stacks) -> None:
    expected = stacks.pixels.samples[:]
    batches = stacks.files.batches(7, labels=np.arange(40), shuffle=1)
    found = {int(i): sample for x, y in batches for sample, i in zip(x, y, strict=True)}
    np.testing.assert_array_equal(np.stack([found[i] for i in range(40)]), expected)
    lazy = da.from_zarr(stacks.files.path, component="samples")
    np.testing.assert_array_equal(lazy[3:30, ::2].compute(), expected[3:30, ::2])


def test_a_compressed_store(stacks: Stacks, tmp_path: Path) -> None:
    outputs = [tmp_path / "pixels.zarr", tmp_path / "files.zarr"]
    for output, keep in zip(outputs, (False, True), strict=True):
        settings = CompressionSettings(
            CellPCA(12, cell_shape=8), goal={"psnr": 36.0}, keep_stack=True, reading=ReadOptions(keep_jpegs=keep)
        )
        compress(open_reader(stacks.photographs), output, settings)
        assert (codec_of(open_stack(output / "stack").samples) is JPEGCodec) == keep


def test_commands(stacks: Stacks, tmp_path: Path, capsys: pytest.CaptureFixture[str], scheduler: str) -> None:
    kept = str(tmp_path / "kept.zarr")
    assert main(["ingest", str(stacks.photographs), kept, "--keep-jpegs", "--scheduler", scheduler]) == 0
    assert main(["verify", kept, "--scheduler", scheduler]) == 0
    capsys.readouterr()
    assert main(["info", kept]) == 0
    assert "smaller than decoded" in capsys.readouterr().out
    np.testing.assert_array_equal(open_stack(kept).samples[:], stacks.pixels.samples[:])
    assert main(["plan", str(stacks.photographs), "--cell", "8", "--components", "2", "--keep-jpegs"]) == 0
    assert main(["ingest", str(stacks.photographs), str(tmp_path / "x.zarr"), "--keep-jpegs", "--crop", "8x8"]) == 3
    assert "--keep-jpegs" in capsys.readouterr().err
