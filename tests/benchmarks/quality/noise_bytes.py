"""The bytes of a noisy movie, of which a store loses 1 % of the noise variance, beside Anscombe's transform.

    python tests/benchmarks/quality/noise_bytes.py

A simulated movie of a two-photon microscope has the Poisson noise of its photons, and the read noise of a camera.
`encode_store` has the goal ``noise_share``. Beside it are the values after the generalized transform of Anscombe,
rounded with a step that adds the same variance, in zstd and in Blosc. Numcodecs packs them in blocks of 100 samples.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import numcodecs  # type: ignore[import-untyped]
import numpy as np

import dpca
from dpca import CellPCA, Denoiser
from dpca.jobs import encode_store, fit_store
from dpca.storage import ingest
from dpca.storage.disk import folder_bytes
from dpca.storage.survey import ReadOptions
from tests.benchmarks.inputs import Array, Inputs
from tests.benchmarks.sides import Line, alone, at_most, ratio_of
from tests.helpers.phantoms import movie

# Counts of one photon, of no photon, and of the read noise. Share of the noise variance that may be lost.
_GAIN, _OFFSET, _READ, _SHARE = 30.0, 100.0, 20.0, 0.01
# Samples of a block of other codecs.
_BLOCK = 100
_PEERS = {
    "zstd": numcodecs.Zstd(3),
    "Blosc": numcodecs.Blosc("zstd", 3, numcodecs.Blosc.BITSHUFFLE),
}


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    n, size, cells = (200, 32, 6) if inputs.quick else (2000, 128, 80)
    photons, footprints, _ = movie(n, size, cells)
    rng = np.random.default_rng(1)
    counts = _GAIN * rng.poisson(photons) + _OFFSET + rng.normal(0, _READ, photons.shape)
    x = np.rint(counts).clip(0, 65535).astype(np.uint16)
    variance = _GAIN**2 * photons.mean(axis=0) + _READ**2
    where = f"16-bit movie of {cells} cells, {size} x {size} pixels"

    began = time.process_time()
    np.save(inputs.folder / "movie.npy", x)
    span = (float(x.min()), float(x.max()))
    stack = ingest(inputs.folder / "movie.npy", inputs.folder / "movie", reading=ReadOptions(data_range=span))
    fit_store(stack, inputs.folder / "noise model", CellPCA(12, cell_shape=16))
    noise = Denoiser(noise="poisson", gain=_GAIN, offset=_OFFSET, read_noise=_READ)
    encode_store(stack, inputs.folder / "noise model", inputs.folder / "noise", noise=noise, noise_share=_SHARE)
    encoded = time.process_time() - began
    found = dpca.open_compressed(inputs.folder / "noise")[:].astype(np.float64)

    codes = _anscombe(x)
    back = _inverse(codes)
    sides = {
        "store": float(folder_bytes(inputs.folder / "noise")),
        **{name: float(_packed(codes, codec)) for name, codec in _PEERS.items()},
        "share lost": float((np.square(found - x).mean(axis=0) / variance).mean()),
        "share lost by Anscombe": float((np.square(back - x).mean(axis=0) / variance).mean()),
        "seconds to encode": encoded,
    }
    for name in _PEERS:
        ratio = ratio_of([sides], ["store"], [name], "bytes")
        yield at_most(0.8, name=f"noise, bytes beside Anscombe and {name}", where=where, n=n, **ratio)
    shares = [{"lost": sides["share lost"], "asked": _SHARE}]
    yield at_most(1.01, name="noise, share lost", where=where, n=n, **ratio_of(shares, ["lost"], ["asked"], "share"))
    traces = {"store": _bias(found, x, footprints), "Anscombe": _bias(back, x, footprints), "trace": 1.0}
    ratio = ratio_of([traces], ["store"], ["trace"], "share")
    yield at_most(0.001, name="noise, largest bias of a trace", where=where, n=n, **ratio)


def _bias(found: Array, x: Array, footprints: Array) -> float:
    """Return the largest error of the mean of a trace, as a share of its mean."""
    weights = footprints.reshape(len(footprints), -1)
    error, mean = (found - x).mean(axis=0).ravel(), x.mean(axis=0).ravel() - _OFFSET
    return float(np.abs(weights @ error / (weights @ mean)).max())


def _anscombe(x: Array) -> Array:
    """Return integers of values with noise of variance 1 (Murtagh, Starck & Bijaoui 1995), in the shortest type."""
    inside = _GAIN * (x - _OFFSET) + 0.375 * _GAIN**2 + _READ**2
    codes = np.rint(2 / _GAIN * np.sqrt(np.maximum(inside, 0)) / np.sqrt(12 * _SHARE))
    return codes.astype(np.uint8 if codes.max() < 256 else np.uint16)


def _inverse(codes: Array) -> Array:
    """Return the values of such integers."""
    inside = np.square(codes * (_GAIN / 2 * np.sqrt(12 * _SHARE)))
    values: Array = (inside - 0.375 * _GAIN**2 - _READ**2) / _GAIN + _OFFSET
    return values


def _packed(codes: Array, codec: numcodecs.abc.Codec) -> int:
    blocks = (np.ascontiguousarray(codes[i : i + _BLOCK]) for i in range(0, len(codes), _BLOCK))
    return sum(len(codec.encode(block)) for block in blocks)


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
