"""What the analysis of a compressed store costs beside the same on decoded photographs, decoding included.

    python tests/benchmarks/speed/analysis_speed.py --source lfw-deepfunneled-00.tar

The other side reads all photographs with `open_compressed` and does the same with numpy: inner products in single
precision of samples minus their mean, as fast as BLAS is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np

import dpca
from dpca import CellPCA, analysis
from dpca.jobs import encode_store
from dpca.kernels.algebra.linalg import add_lower, gram_lower, symmetrize
from dpca.representation.compressed.compressed import Compressed
from tests.benchmarks.inputs import Array, Inputs
from tests.benchmarks.sides import Line, alone, at_least, in_turn, ratio_of

_SAMPLES, _PSNR = 3000, 36.0


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    few = inputs.few(min(_SAMPLES, inputs.stack.n_samples))
    k, how = (16, {"cell_shape": 8, "overlap": 4}) if inputs.quick else (256, {"cell_shape": 16, "overlap": 8})
    CellPCA(k, shared=True, **how).fit(few).save(inputs.folder / "analyzed-model.zarr")
    encode_store(few, inputs.folder / "analyzed-model.zarr", inputs.folder / "analyzed.zarr", psnr=_PSNR)
    store = dpca.open_compressed(inputs.folder / "analyzed.zarr")
    where = f"compressed photographs of {store.shape[1:]}, {_PSNR:g} dB"
    for asked, name, ours, theirs in (
        (5.0, "inner products", lambda: analysis.gram(store), _gram),
        (None, "mean photograph", lambda: analysis.mean(store), lambda x: x.mean(axis=0, dtype=np.float64)),
        (None, "10 nearest", lambda: analysis.nearest(store, 7), _nearest),
    ):
        sides: dict[str, Callable[[], object]] = {
            "from scores": ours,
            "decoded": lambda theirs=theirs: theirs(_decoded(store)),
        }
        found = ratio_of(in_turn(sides, inputs.rounds), ["decoded"], ["from scores"])
        yield at_least(asked, name=f"{name} from scores", where=where, n=store.shape[0], **found)


def _decoded(store: Compressed) -> Array:
    pixels = np.empty(store.shape, store.dtype)
    for start in range(0, len(store), store.rows):
        pixels[start : start + store.rows] = store[start : start + store.rows]
    return pixels


def _gram(pixels: Array) -> Array:
    """Add up products of some columns at a time, in the type of single precision."""
    n, columns = len(pixels), pixels.reshape(len(pixels), -1)
    total = np.zeros((n, n))
    for start in range(0, columns.shape[1], 2**14):
        x = np.ascontiguousarray(columns[:, start : start + 2**14].T, np.float32)
        x -= x.mean(axis=1, keepdims=True)
        add_lower(total, gram_lower("product", x))
    return symmetrize(total)


def _nearest(pixels: Array) -> Array:
    far = [float(np.square(x.astype(np.float32) - pixels[7]).sum()) for x in pixels]
    return np.argsort(far)[1:11]


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
