"""With an error bound, no store has more bytes than Blosc, nor than zfp at the same bound, for any values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numcodecs import Blosc

from dpca import CellPCA
from dpca.storage.disk import folder_bytes
from dpca.storage.survey import ReadOptions
from tests.jobs.compressed.test_encode import encoded, read_as_described, stack_of

# Bytes of the metadata of a store, and of the quality and the name of each sample.
STATED, OF_A_SAMPLE = 12_000, 32
SHAPE = (30, 40, 44)


def _of(make: Callable[[np.random.Generator], np.ndarray], dtype: type, max_error: float) -> tuple[np.ndarray, float]:
    return make(np.random.default_rng(0)).astype(dtype), max_error


def _tiles(rng: np.random.Generator) -> np.ndarray:
    tile = rng.integers(0, 256, (8, 11))
    return np.stack([np.roll(np.tile(tile, (5, 4)), i * 7, axis=1) for i in range(30)])


def _waves(shape: tuple[int, ...]) -> np.ndarray:
    t, y, x = np.meshgrid(*map(np.arange, shape), indexing="ij")
    return np.sin(t / 5 + y / 7) * np.cos(x / 6)


KINDS = {
    "noise of bytes": _of(lambda rng: rng.integers(0, 256, SHAPE), np.uint8, 0.5),
    "noise of floats": _of(lambda rng: rng.normal(size=SHAPE), np.float32, 1e-3),
    "a constant": _of(lambda rng: np.full(SHAPE, 7), np.uint8, 0.5),
    "a ramp": _of(lambda rng: np.arange(np.prod(SHAPE)).reshape(SHAPE), np.uint16, 0.5),
    "few of many": _of(lambda rng: rng.normal(size=SHAPE) * (rng.random(SHAPE) < 0.01), np.float32, 1e-3),
    "waves": _of(lambda rng: _waves(SHAPE), np.float32, 1e-3),
    "two rough frames": _of(lambda rng: rng.normal(0, 40, (2, 40, 44)).cumsum(axis=2), np.int16, 0.5),
    "one frame": _of(lambda rng: 99 * _waves((1, 40, 44)) + 128, np.uint8, 0.5),
    "of many sizes": _of(lambda rng: 10 ** rng.uniform(-6, 6, SHAPE), np.float32, 10.0),
    "tiles": _of(_tiles, np.uint8, 0.5),
    "two values": _of(lambda rng: rng.choice([-1e3, 1e3], SHAPE), np.float32, 0.1),
    "noise of wide integers": _of(lambda rng: rng.integers(0, 2**16, SHAPE), np.uint16, 0.5),
    "a film with noise": _of(lambda rng: 80 * _waves(SHAPE) + rng.normal(120, 2, SHAPE), np.uint8, 2.0),
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("kind", KINDS)
def test_no_store_is_larger_than_blosc_or_zfp(tmp_path: Path, kind: str) -> None:
    values, max_error = KINDS[kind]
    low, high = float(values.min()), float(values.max())
    stack_of(tmp_path, values, reading=ReadOptions(data_range=(low, max(high, low + 1))))
    several = values if len(values) > 1 else np.concatenate([values, values[:, ::-1]])  # one has no components
    CellPCA(2, cell_shape=8).fit(several).save(tmp_path / "model.zarr")
    store = encoded(tmp_path, tmp_path / "out.zarr", max_error=max_error)
    for read in (store[...], read_as_described(tmp_path / "out.zarr")):
        assert np.abs(read.astype(float) - values).max() <= max_error
    peers = {f"blosc {mode}": len(Blosc("zstd", 5, mode).encode(values)) for mode in (0, 1, 2)}
    try:
        import imagecodecs
    except ImportError:
        pass
    else:
        peers["zfp"] = len(imagecodecs.zfp_encode(values.astype(np.float32), mode="a", level=max_error))
    size = folder_bytes(tmp_path / "out.zarr") - STATED - OF_A_SAMPLE * len(values)
    assert size <= min(peers.values()), peers
