"""Compressed stores are decoded to the same bits on every processor, and whichever part of them is read."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import dpca
from dpca import CellPCA
from dpca.jobs import encode_store
from dpca.storage import ingest, open_stack
from dpca.storage.survey import ReadOptions
from tests.conftest import smooth_images
from tests.helpers.core_types import environment, taken, usable
from tests.representation import decode_elsewhere

# Apart by what they fuse and how wide they add; every other one does as one of them.
OTHERS = [name for name in usable(("Prescott", "Haswell", "SkylakeX")) if name not in taken()]


def film() -> np.ndarray:
    """Maps (118, 24, 20) of slow waves that travel."""
    t, y, x = np.meshgrid(np.arange(118), np.arange(24), np.arange(20), indexing="ij")
    waves = [a * np.sin(y / b + x / c - t / d) for a, b, c, d in ((3, 4, 7, 9), (2, -3, 5, 14), (1, 2, 3, 30))]
    return np.asarray(np.sum(waves, axis=0))


def spot() -> np.ndarray:
    """Maps (118, 40, 36) of something that moves, for which components do not pay."""
    t, y, x = np.meshgrid(np.arange(118), np.arange(40), np.arange(36), indexing="ij")
    return np.exp(-((y - 3 - 0.45 * t) ** 2 + (x - 18 - 9 * np.sin(t / 9)) ** 2) / 20).astype(np.float32)


# Samples and their range, how cells overlap, the goal, and how the store must be for the case to be the one it is
# called: with waves, residuals, predictions.
CASES: dict[str, tuple[np.ndarray, tuple[int, int], int, dict[str, float], tuple[bool, bool, bool]]] = {
    "images": (smooth_images(118, (24, 20)), (0, 255), 3, {"psnr": 34.0}, (False, False, False)),
    "waves in float32": ((20 * film() + 128).astype(np.uint8), (0, 255), 0, {"psnr": 45.0}, (True, False, False)),
    "waves in float64": (film(), (-6, 6), 4, {"psnr": 45.0}, (True, False, False)),
    "residuals": (film().astype(np.float32), (-6, 6), 0, {"max_error": 0.01}, (True, True, False)),
    "predictions": (spot(), (0, 1), 0, {"max_error": 0.01}, (False, True, True)),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, made = tmp_path_factory.mktemp("processors"), []
    for name, (values, data_range, overlap, goal, form) in CASES.items():
        here = folder / name
        here.mkdir()
        np.save(here / "values.npy", values)
        ingest(here / "values.npy", here / "stack.zarr", reading=ReadOptions(data_range=data_range))
        stack = open_stack(here / "stack.zarr")
        CellPCA(12, cell_shape=8, overlap=overlap, shared=True).fit(stack).save(here / "model.zarr")
        encode_store(stack, here / "model.zarr", here / "out.zarr", **goal)
        facts = dpca.open_compressed(here / "out.zarr").facts
        assert (facts["waves"], facts["residual_step"] is not None, bool(facts.get("interpolated"))) == form, name
        made.append(str(here / "out.zarr"))
    return made


@pytest.mark.long
def test_parts_have_the_bits_of_the_whole(stores: list[str]) -> None:
    for path in stores:
        whole, as_zarr, *parts = decode_elsewhere.read(path)
        assert whole.tobytes() == as_zarr.tobytes()
        rows = [whole[some] for some in decode_elsewhere.ROWS]
        expected = [values for some in rows for values in (some, some[:, *decode_elsewhere.BOX])]
        assert [part.tobytes() for part in parts] == [values.tobytes() for values in expected], path


@pytest.mark.programs
@pytest.mark.parametrize("core_type", OTHERS)
def test_other_processors_read_the_same_bits(stores: list[str], core_type: str) -> None:
    command: list[Any] = [sys.executable, decode_elsewhere.__file__, *stores]
    there = subprocess.run(command, env=environment(core_type), capture_output=True, text=True, check=True)
    assert json.loads(there.stdout) == [decode_elsewhere.digests(path) for path in stores]
