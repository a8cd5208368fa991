"""How many bytes a compressed store takes beside JPEG, AVIF and scores, of photographs that no fit has seen.

    python tests/benchmarks/quality/compressed_bytes.py

Every file of the store counts: scores, components, mean, quality, metadata. JPEG and AVIF are made of the same pixels,
JPEG with halved chroma and optimized tables, at several qualities; their bytes at the error that the store has are
interpolated. The errors are those that are asked for, and those of the README's table of quality. Scores are those of
the thesis, four bytes each, of cells of 10 x 10 pixels: the fewest components with the similarity of the store.
Each line also tells seconds of the processor for each photograph: to encode with all trials, and to decode in order.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image, features

import dpca
from dpca import CellPCA
from dpca.jobs import encode_store
from dpca.kernels.pixels import Pixels
from dpca.kernels.quality import ssim_per_sample
from dpca.storage import Stack, ingest, open_stack
from dpca.storage.arrays.reading import array_in, open_group
from dpca.storage.disk import folder_bytes
from dpca.storage.survey import ReadOptions
from tests.benchmarks.inputs import CELL, Array, Inputs
from tests.benchmarks.sides import Line, alone, at_least, at_most, ratio_of

_QUALITIES: dict[str, tuple[int, ...]] = {
    "JPEG": (10, 15, 20, 25, 30, 35, 40, 45, 50, 60, 70, 78, 84, 88, 92),
    "AVIF": (10, 20, 30, 40, 50, 60, 70, 80),
}
_HOW: dict[str, dict[str, Any]] = {"JPEG": {"subsampling": "4:2:0", "optimize": True}, "AVIF": {}}
# Photographs whose pictures stand for those of all.
_PICTURES = 200
# Goals, and what is asked of the bytes beside those of JPEG. The last three are the mean squared errors of the README.
_GOALS = (("psnr", 36.0, 1.0), ("ssim", 0.92, 1.0), *(("psnr", psnr, None) for psnr in (30.2, 33.7, 35.4)))


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    stack, unseen = photographs(inputs)
    n_unseen = len(unseen)
    few = unseen[:: max(1, n_unseen // _PICTURES)]
    peers = {name: _pictures(name, few) for name in _QUALITIES if features.check(name.lower().replace("jpeg", "jpg"))}
    for name, value, asked in _GOALS:
        store, began = inputs.folder / f"{name}{value:g}.zarr", time.process_time()
        encode_store(stack, inputs.folder / "shared.zarr", store, **{name: value})
        encoded, began = time.process_time() - began, time.process_time()
        opened = dpca.open_compressed(store)
        for start in range(0, n_unseen, 192):
            opened[start : start + 192]
        decoded = time.process_time() - began
        reached = float(array_in(open_group(store), "mse" if name == "psnr" else "ssim")[...].mean())
        sides = {
            "store": folder_bytes(store) / n_unseen,
            **{peer: _bytes_at(found, name, reached) for peer, found in peers.items()},
            "reached": -10 * np.log10(reached) if name == "psnr" else reached,
            "seconds to encode": encoded / n_unseen,
            "seconds to decode": decoded / n_unseen,
        }
        where = f"photographs of {unseen.shape[1:]}, {name} {value:g}, bytes of one"
        if name == "ssim":
            sides["float32 scores"] = _bytes_of_scores(inputs, few, reached)
            ratio = ratio_of([sides], ["float32 scores"], ["store"], "bytes")
            yield at_least(8.0, name=f"scores at {name} {value:g}", where=where, n=n_unseen, **ratio)
        ratio = ratio_of([sides], ["store"], ["JPEG"], "bytes")
        yield at_most(asked, name=f"bytes at {name} {value:g}", where=where, n=n_unseen, **ratio)


def photographs(inputs: Inputs) -> tuple[Stack, Array]:
    """Return photographs as a stack and in memory, which the model ``shared.zarr``, made here as well, has not seen."""
    n_seen, n_unseen, k = (100, 60, 16) if inputs.quick else (12_000, 1233, 256)
    if not (inputs.folder / "shared.zarr").exists():
        pixels = np.asarray(inputs.stack.samples[:])
        chosen = np.random.default_rng(0).permutation(len(pixels))[: n_seen + n_unseen]
        model = CellPCA(k, cell_shape=8 if inputs.quick else 16, overlap=4 if inputs.quick else 8, shared=True)
        seen = pixels[np.sort(chosen[n_unseen:])]
        model.fit(seen).save(inputs.folder / "shared.zarr")
        CellPCA(20, cell_shape=CELL).fit(seen).save(inputs.folder / "cells.zarr")
        np.save(inputs.folder / "unseen.npy", pixels[np.sort(chosen[:n_unseen])])
        ingest(inputs.folder / "unseen.npy", inputs.folder / "unseen.zarr", reading=ReadOptions(data_range=(0, 255)))
    return open_stack(inputs.folder / "unseen.zarr"), np.load(inputs.folder / "unseen.npy")


def _pictures(kind: str, photographs: Array) -> dict[str, Array]:
    """Return bytes, mean squared error and SSIM of pictures of each quality, mean over the photographs."""
    found = []
    for quality in _QUALITIES[kind]:
        files = []
        for pixels in photographs:
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, kind, quality=quality, **_HOW[kind])
            files.append(file)
        back = np.stack([np.asarray(Image.open(file)) for file in files])
        found.append((np.mean([len(file.getvalue()) for file in files]), *_quality(photographs, back)))
    return dict(zip(("bytes", "psnr", "ssim"), np.array(found).T, strict=True))


def _quality(photographs: Array, back: Array) -> tuple[float, float]:
    error = np.square((back.astype(np.float64) - photographs) / 255).mean()
    return float(error), float(ssim_per_sample(photographs, back, data_range=255.0, n_spatial=2).mean())


def _bytes_of_scores(inputs: Inputs, photographs: Array, ssim: float) -> float:
    """Return the bytes of the scores of a photograph, of as few components as reach an SSIM."""
    basis = CellPCA.load(inputs.folder / "cells.zarr").basis_
    scores = basis.encode(photographs)
    for k in range(1, scores.shape[-1] + 1):
        back = basis.leading(k).decode(scores[..., :k], pixels=Pixels(photographs.dtype, (0.0, 255.0)))
        if _quality(photographs, back)[1] >= ssim:
            break
    return float(scores[0, ..., :k].nbytes)


def _bytes_at(found: dict[str, Array], name: str, reached: float) -> float:
    along = np.log(found["psnr"]) if name == "psnr" else -found["ssim"]
    at = np.log(reached) if name == "psnr" else -reached
    order = np.argsort(along)
    return float(np.exp(np.interp(at, along[order], np.log(found["bytes"])[order])))


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
