"""Reading a compressed store takes no more memory than `read_bytes` returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpca
from dpca import CellPCA
from dpca.jobs import encode_store
from dpca.kernels.algebra import linalg
from dpca.representation.compressed.compressed import Compressed
from dpca.storage import ingest
from dpca.storage.survey import ReadOptions
from tests.conftest import smooth_images
from tests.helpers.traced import traced_peak
from tests.jobs.compressed.test_encode_sequences import drifting

pytestmark = pytest.mark.memory

N = 300
INDEXES: dict[str, Any] = {
    "all": ...,
    "one sample": 7,
    "a cell of all": np.s_[:, :10, :10],
    "far samples": [2, 120, N - 1],
    "a chunk": np.s_[:160],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("read")
    images = smooth_images(N, (40, 36, 3))
    still = np.repeat(drifting(N), 3, axis=1)
    kinds = {
        "images": (images, (0, 255)),
        "wide": (images.astype(np.uint32) * 2**20, (0, 2**28)),
        "film": (still, (-6, 6)),
    }
    for name, (values, stated) in kinds.items():
        np.save(folder / "values.npy", values)
        stack = ingest(folder / "values.npy", folder / f"{name}-stack.zarr", reading=ReadOptions(data_range=stated))
        CellPCA(30, cell_shape=10, overlap=4, shared=True).fit(stack).save(folder / f"{name}-model.zarr")
        for goal in ({"psnr": 33.0}, {"max_relative_error": 0.01}):
            encode_store(stack, folder / f"{name}-model.zarr", folder / f"{name}-{min(goal)}.zarr", **goal)
    return folder


@pytest.mark.parametrize("goal", ["psnr", "max_relative_error"])
@pytest.mark.parametrize("kind", ["images", "wide", "film"])
def test_reading_takes_no_more_than_it_says(folder: Path, kind: str, goal: str) -> None:
    def opened() -> Compressed:
        linalg.release_scratch()
        store = dpca.open_compressed(folder / f"{kind}-{goal}.zarr")
        store[0]  # what is looked up once
        linalg.release_scratch()
        return store

    for name, index in INDEXES.items():
        planned = opened().read_bytes(index)
        peak, _ = traced_peak(opened, lambda store, index=index: store[index], planned)
        assert peak <= planned, name
        assert planned < 8 * peak + 2**23, name
    store = dpca.open_compressed(folder / f"{kind}-{goal}.zarr")
    assert store.read_bytes([]) < store.read_bytes(3) < store.read_bytes(slice(200)) <= store.read_bytes()
    with pytest.raises(IndexError):
        store.read_bytes(N)
