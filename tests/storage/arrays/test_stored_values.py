"""Free space is required for complete chunks, as raw shards store them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca import CellPCA, Denoiser
from dpca.jobs import denoise_store, encode_store, fill_store, reconstruct_store, transform_store
from dpca.jobs.denoising.fill import ERRORS
from dpca.storage import StoreError, ingest
from dpca.storage.disk import folder_bytes
from dpca.storage.run import Run

_SAMPLES = ("samples",)


def test_space_for_the_last_chunk_is_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, run = np.random.default_rng(0), Run(threads=1)
    # Chunks of several samples, the last of which is not complete; cells do not divide samples.
    np.save(tmp_path / "x.npy", rng.normal(size=(1031, 21, 23)).astype("f4"))
    stack = ingest(tmp_path / "x.npy", tmp_path / "x.zarr", cell_shape=(16, 16), run=run)
    model = tmp_path / "model.zarr"
    CellPCA(2, cell_shape=16).fit(stack).save(model)
    encode_store(stack, model, tmp_path / "small.zarr", max_error=0.001, run=run)
    filling, denoiser = CellPCA(1, cell_shape=16, gaps="iterate", random_state=0), Denoiser(sigma=0.1)
    scores, both = ("scores",), ("scores", "reconstructions")
    ways: dict[str, tuple[tuple[str, ...], Callable[[Path], Any]]] = {
        "ingested": (_SAMPLES, lambda target: ingest(tmp_path / "x.npy", target, cell_shape=(16, 16), run=run)),
        "scores": (scores, lambda target: transform_store(stack, model, target, run=run)),
        "reconstructed": (both, lambda target: transform_store(stack, model, target, reconstruct=True, run=run)),
        "rebuilt": (_SAMPLES, lambda target: reconstruct_store(model, tmp_path / "scores", target, run=run)),
        "decoded": (_SAMPLES, lambda target: reconstruct_store(None, tmp_path / "small.zarr", target, run=run)),
        "denoised": (_SAMPLES, lambda target: denoise_store(stack, target, denoiser, run=run)),
        "filled": ((*_SAMPLES, ERRORS), lambda target: fill_store(stack, target, filling, run=run)),
    }
    for name, (arrays, make) in ways.items():
        make(tmp_path / name)
        stored = sum(folder_bytes(tmp_path / name / one / "c") for one in arrays)
        found = [zarr.open_array(tmp_path / name / one, mode="r") for one in arrays]
        chunks = 4 * sum(prod(-(-n // c) * c for n, c in zip(x.shape, x.chunks, strict=True)) for x in found)
        assert stored >= chunks > 4 * sum(x.size for x in found)
        for free, target in ((chunks, tmp_path / f"{name}-fits"), (chunks - 1, tmp_path / f"{name}-full")):
            with monkeypatch.context() as patch:
                patch.setattr("dpca.storage.disk._free", lambda path, room=free: room)
                if free == chunks:
                    make(target)
                else:
                    patch.delattr(Denoiser, "fit")  # a fit comes after the check
                    with pytest.raises(StoreError, match="free"):
                        make(target)
