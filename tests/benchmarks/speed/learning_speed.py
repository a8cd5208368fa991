"""What feeding a trainer costs beside decoding photographs, and a ridge classifier beside its one product.

    python tests/benchmarks/speed/learning_speed.py --source lfw-deepfunneled-00.tar

Batches are 3 of 20 components of the scores of cells, mixed and standardized, 128 samples each.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr
from PIL import Image

import dpca
from dpca import CellPCA, StreamingRidgeClassifier
from dpca.jobs.scores.transform import transform_store
from dpca.storage import Stack, ingest
from dpca.storage.arrays.reading import open_array, read_into
from dpca.storage.readers import open_reader
from dpca.storage.survey import ReadOptions
from tests.benchmarks.inputs import CELL, Inputs
from tests.benchmarks.sides import Clock, Line, Seconds, alone, at_most, ratio_of

_COMPONENTS, _USED, _BATCH = 20, 3, 128
# Photographs of a store of scores, and those that slow sides look at: what one takes does not depend on their number.
_SAMPLES, _FEW = 4096, 256
_CLASSES = 14


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    n = min(_SAMPLES, inputs.stack.n_samples)
    model, path = inputs.folder / "fed model.zarr", inputs.folder / "fed.zarr"
    few = inputs.few(n)
    CellPCA(_COMPONENTS, cell_shape=CELL).fit(few).save(model)
    transform_store(few, model, path)
    rounds = [_feeding(inputs, str(path), str(model), n) for _ in range(inputs.rounds)]
    where = f"scores of {few.sample_shape}, cells of {CELL}, {_USED} of {_COMPONENTS} components"
    for limit, below in ((1 / 15, "decode and resize"), (1 / 30, "one at a time"), (3, "whole shards in order")):
        found = ratio_of(rounds, ["batches"], [below])
        yield at_most(limit, name=f"batches and {below}", where=where, n=n, **found)
    stack = ingest(inputs.photographs, inputs.folder / "learned from.zarr", reading=ReadOptions(resize=(25, 25)))
    rounds = [_learning(stack) for _ in range(inputs.rounds)]
    for limit, side in ((1.5, "ridge"), (None, "ridge and choice")):
        found = ratio_of(rounds, [side], ["read", "product"])
        yield at_most(limit, name=side, where=f"photographs of {stack.sample_shape}", n=stack.n_samples, **found)


def _feeding(inputs: Inputs, path: str, model: str, n: int) -> Seconds:
    clock, few = Clock(), min(_FEW, n)
    scores = dpca.open_scores(path, model=model)
    clock("batches", lambda: [None for _ in scores.batches(_BATCH, n_components=_USED, shuffle=0, standardize=True)])
    clock("whole shards in order", lambda: _in_order(f"{path}/scores"))
    chosen = np.random.default_rng(0).integers(0, n, few)
    stored = zarr.open_array(f"{path}/scores", mode="r")
    clock("one at a time", lambda: [stored[int(i), ..., :_USED] for i in chosen])
    reader = open_reader(inputs.photographs)
    clock("decode and resize", lambda: [_decoded(payload) for payload in reader.fetch(range(few))])
    for name in ("one at a time", "decode and resize"):
        clock.seconds[name] *= n / few
    return clock.seconds


def _in_order(path: str) -> None:
    array = open_array(path)
    rows = (array.shards or array.chunks)[0]
    buffer = np.empty((rows, *array.shape[1:]), array.dtype)
    for start in range(0, array.shape[0], rows):
        stop = min(start + rows, array.shape[0])
        read_into(array, slice(start, stop), buffer[: stop - start])


def _decoded(payload: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(payload)).resize((25, 25), Image.Resampling.BICUBIC))


def _learning(stack: Stack) -> Seconds:
    clock, y = Clock(), np.arange(stack.n_samples) % _CLASSES
    x = clock("read", lambda: _whole(stack))
    wide = x.reshape(len(x), -1).astype(np.float32)
    clock("product", lambda: wide.T @ wide)
    clock("ridge", lambda: StreamingRidgeClassifier(1e3).fit(stack, y))
    clock("ridge and choice", lambda: StreamingRidgeClassifier().fit(stack, y))
    return clock.seconds


def _whole(stack: Stack) -> Any:
    read_into(stack.samples, slice(None), x := np.empty(stack.shape, stack.dtype))
    return x


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
