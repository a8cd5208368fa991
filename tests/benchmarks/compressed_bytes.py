"""How many bytes a compressed store takes beside JPEGs of the same quality, of photographs that no fit has seen.

    python tests/benchmarks/compressed_bytes.py

Every file of the store counts: scores, components, mean, quality, metadata. The JPEGs are made of the same pixels, with
halved chroma and optimized tables, at several qualities; their bytes at the error that the store has are interpolated.
Each line also tells seconds of the processor for each photograph: to encode with all trials, and to decode in order.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator

import numpy as np
from PIL import Image

import dpca
from dpca import CellPCA
from dpca.jobs import encode_store
from dpca.kernels.quality import ssim_per_sample
from dpca.storage import Stack, ingest, open_stack
from dpca.storage.disk import folder_bytes
from dpca.storage.reading import array_in, open_group
from tests.benchmarks.inputs import Array, Inputs
from tests.benchmarks.sides import Line, alone, at_most, ratio_of

_QUALITIES = (50, 60, 70, 78, 84, 88, 92)
# Photographs whose JPEGs stand for those of all.
_JPEGS = 200
_GOALS = {"psnr": 36.0, "ssim": 0.92}


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    stack, unseen = photographs(inputs)
    n_unseen = len(unseen)
    found = _jpegs(unseen[:: max(1, len(unseen) // _JPEGS)])
    for name, value in _GOALS.items():
        store, began = inputs.folder / f"{name}.zarr", time.process_time()
        encode_store(stack, inputs.folder / "shared.zarr", store, **{name: value})
        encoded, began = time.process_time() - began, time.process_time()
        opened = dpca.open_compressed(store)
        for start in range(0, n_unseen, 192):
            opened[start : start + 192]
        decoded = time.process_time() - began
        reached = float(array_in(open_group(store), "mse" if name == "psnr" else "ssim")[...].mean())
        sides = {
            "store": folder_bytes(store) / n_unseen,
            "JPEG": _bytes_at(found, name, reached),
            "reached": -10 * np.log10(reached) if name == "psnr" else reached,
            "seconds to encode": encoded / n_unseen,
            "seconds to decode": decoded / n_unseen,
        }
        where = f"photographs of {unseen.shape[1:]}, {name} {value:g}, bytes of one"
        yield at_most(
            1.0, name=f"bytes at {name}", where=where, n=n_unseen, **ratio_of([sides], ["store"], ["JPEG"], "bytes")
        )


def photographs(inputs: Inputs) -> tuple[Stack, Array]:
    """Return photographs as a stack and in memory, which the model ``shared.zarr``, made here as well, has not seen."""
    n_seen, n_unseen, k = (100, 60, 16) if inputs.quick else (6000, 1233, 256)
    if not (inputs.folder / "shared.zarr").exists():
        pixels = np.asarray(inputs.stack.samples[:])
        chosen = np.random.default_rng(0).permutation(len(pixels))[: n_seen + n_unseen]
        model = CellPCA(k, cell_shape=8 if inputs.quick else 16, overlap=4 if inputs.quick else 8, shared=True)
        model.fit(pixels[np.sort(chosen[n_unseen:])]).save(inputs.folder / "shared.zarr")
        np.save(inputs.folder / "unseen.npy", pixels[np.sort(chosen[:n_unseen])])
        ingest(inputs.folder / "unseen.npy", inputs.folder / "unseen.zarr", data_range=(0, 255))
    return open_stack(inputs.folder / "unseen.zarr"), np.load(inputs.folder / "unseen.npy")


def _jpegs(photographs: Array) -> dict[str, Array]:
    """Return bytes, mean squared error and SSIM of JPEGs of each quality, mean over the photographs."""
    found = []
    for quality in _QUALITIES:
        files = []
        for pixels in photographs:
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "JPEG", quality=quality, subsampling="4:2:0", optimize=True)
            files.append(file)
        back = np.stack([np.asarray(Image.open(file)) for file in files])
        error = np.square((back.astype(np.float64) - photographs) / 255).mean()
        ssim = ssim_per_sample(photographs, back, data_range=255.0, n_spatial=2).mean()
        found.append((np.mean([len(file.getvalue()) for file in files]), error, ssim))
    return dict(zip(("bytes", "psnr", "ssim"), np.array(found).T, strict=True))


def _bytes_at(found: dict[str, Array], name: str, reached: float) -> float:
    along = np.log(found["psnr"]) if name == "psnr" else -found["ssim"]
    at = np.log(reached) if name == "psnr" else -reached
    order = np.argsort(along)
    return float(np.exp(np.interp(at, along[order], np.log(found["bytes"])[order])))


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
