"""Free space is required for complete chunks, as raw shards store them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpca import CellPCA
from dpca.jobs import encode_store, reconstruct_store, transform_store
from dpca.storage import StoreError, ingest, open_stack
from dpca.storage.disk import folder_bytes
from dpca.storage.run import Run


def _raw_bytes(path: Path) -> int:
    return folder_bytes(path / "samples" / "c")


def test_space_for_the_last_chunk_is_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, run = np.random.default_rng(0), Run(threads=1)
    # Chunks of several samples, the last of which is not complete; cells do not divide samples.
    np.save(tmp_path / "x.npy", rng.normal(size=(1031, 41, 43)).astype("f4"))
    stack = ingest(tmp_path / "x.npy", tmp_path / "x.zarr", cell_shape=(16, 16), run=run)
    model = tmp_path / "model.zarr"
    CellPCA(2, cell_shape=16).fit(stack).save(model)
    transform_store(stack, model, tmp_path / "scores.zarr", run=run)
    encode_store(stack, model, tmp_path / "small.zarr", max_error=0.5, run=run)
    ways = {
        "ingested": lambda target: ingest(tmp_path / "x.npy", target, cell_shape=(16, 16), run=run),
        "rebuilt": lambda target: reconstruct_store(model, tmp_path / "scores.zarr", target, run=run),
        "decoded": lambda target: reconstruct_store(None, tmp_path / "small.zarr", target, run=run),
    }
    for name, make in ways.items():
        make(tmp_path / name)
        stored = _raw_bytes(tmp_path / name)
        array = open_stack(tmp_path / name).samples
        chunks = np.prod([-(-n // c) * c for n, c in zip(array.shape, array.chunks, strict=True)])
        assert stored >= 4 * chunks > stack.nbytes
        with monkeypatch.context() as patch:
            patch.setattr("dpca.storage.disk._free", lambda path, room=4 * chunks - 1: room)
            with pytest.raises(StoreError, match="free"):
                make(tmp_path / f"{name}-full")
