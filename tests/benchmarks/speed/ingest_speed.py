"""What ingesting JPEGs costs beside decoding them with libjpeg-turbo and writing their pixels to files.

python tests/benchmarks/speed/ingest_speed.py --source lfw-deepfunneled-00.tar
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import simplejpeg

from dpca.storage import ingest
from dpca.storage.readers import open_reader
from tests.benchmarks.inputs import CELL, Inputs
from tests.benchmarks.sides import Line, alone, at_most, in_turn, ratio_of

_AT_ONCE = 512


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    n = inputs.stack.n_samples
    rounds = in_turn({"ingest": partial(_ingest, inputs), **bound(inputs)}, inputs.rounds)
    found = ratio_of(rounds, ["ingest"], ["turbo decode", "write files"])
    yield at_most(1.5, name="ingest", where=f"JPEGs of {inputs.stack.sample_shape}", n=n, **found)


def bound(inputs: Inputs) -> dict[str, Callable[[], object]]:
    """Return what ingesting cannot do without."""
    return {"turbo decode": partial(_decode, inputs), "write files": partial(_write, inputs)}


def _ingest(inputs: Inputs) -> None:
    ingest(inputs.photographs, inputs.folder / "ingested.zarr", cell_shape=CELL)
    shutil.rmtree(inputs.folder / "ingested.zarr")


def _decode(inputs: Inputs) -> None:
    reader = open_reader(inputs.photographs)
    for start in range(0, len(reader), _AT_ONCE):
        for payload in reader.fetch(range(start, min(start + _AT_ONCE, len(reader)))):
            simplejpeg.decode_jpeg(payload)


def _write(inputs: Inputs) -> None:
    """Write files of the size of the stack's shards."""
    stack, made = inputs.stack, inputs.folder / "files"
    made.mkdir()
    rows = stack.samples.shards[0]
    pixels = np.ones((rows, *stack.sample_shape), stack.dtype)
    for start in range(0, stack.n_samples, rows):
        (made / str(start)).write_bytes(pixels[: stack.n_samples - start].data)
    shutil.rmtree(made)


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
