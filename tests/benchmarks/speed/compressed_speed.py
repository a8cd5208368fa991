"""How fast a compressed store is made and read, beside what is asked for and beside decoding JPEGs.

    python tests/benchmarks/speed/compressed_speed.py

Photographs that no fit has seen, at 36 dB, as in `compressed_bytes`. The search for the step is counted by itself: it
takes as long for a million photographs. JPEGs, of quality 75, are decoded by libjpeg-turbo.
"""

from __future__ import annotations

import io
import shutil
import sys
import time
from collections.abc import Iterator

import numpy as np
import simplejpeg
from PIL import Image

import dpca
from dpca.jobs import encode_store
from dpca.storage.arrays.reading import array_in, read_into
from dpca.storage.progress import Stage, no_progress
from dpca.storage.run import Run
from tests.benchmarks.inputs import Inputs
from tests.benchmarks.quality.compressed_bytes import photographs
from tests.benchmarks.sides import Line, alone, at_least, at_most, in_turn, ratio_of

# What is asked for, of one core: bytes of pixels a second, and seconds for one photograph.
_ENCODE, _DECODE, _ONE = 30e6, 150e6, 0.040
# Photographs that are decoded at once: those of a chunk of codes.
_AT_ONCE = 192
_SINGLE, _CELLS = 20, 8


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    stack, pixels = photographs(inputs)
    target, goal = inputs.folder / "speed.zarr", 30.0 if inputs.quick else 36.0
    rounds = []
    for _ in range(inputs.rounds):
        shutil.rmtree(target, ignore_errors=True)
        began: list[float] = [time.process_time()]

        def announce(stage: str, total: int, unit: str, began: list[float] = began) -> Stage:
            began.append(time.process_time())  # the step is found
            return no_progress(stage, total, unit)

        encode_store(stack, inputs.folder / "shared.zarr", target, run=Run(progress=announce), psnr=goal)
        search, encoded = np.diff([*began[:2], time.process_time()])
        rounds.append({"encode": encoded, "search": search, "at 30 MB/s": pixels.nbytes / _ENCODE})
    shown = {"where": f"photographs of {pixels.shape[1:]}", "n": len(pixels)}
    yield at_most(1.0, name="encode", **shown, **ratio_of(rounds, ["encode"], ["at 30 MB/s"]))

    store, rng = dpca.open_compressed(target), np.random.default_rng(0)
    files = [io.BytesIO() for _ in pixels]
    for file, photograph in zip(files, pixels, strict=True):
        Image.fromarray(photograph).save(file, "JPEG", quality=75)
    cell = store.facts["cell_shape"][0]
    corners = rng.integers(0, np.array(pixels.shape[1:3]) // cell, (_CELLS, 2)) * cell
    codes, some = array_in(store._group, "codes"), rng.integers(0, len(pixels), _SINGLE)
    store[:_AT_ONCE], store[:, :cell, :cell]  # compiles the loops

    def whole() -> None:
        for start in range(0, len(pixels), _AT_ONCE):
            store[start : start + _AT_ONCE]

    def read() -> None:
        for start in range(0, len(pixels), _AT_ONCE):
            columns = slice(start, min(start + _AT_ONCE, len(pixels)))
            read_into(codes, (slice(None), columns), np.empty((codes.shape[0], columns.stop - start), codes.dtype))

    sides = {
        "decode": whole,
        "codes": read,
        "JPEG": lambda: [simplejpeg.decode_jpeg(file.getbuffer()) for file in files],
        "one": lambda: [store[int(i)] for i in some],
        "cells": lambda: [store[:, y : y + cell, x : x + cell] for y, x in corners.tolist()],
    }
    rounds = [
        {
            "decode": each["decode"],
            "codes alone": each["codes"],
            "JPEG": each["JPEG"],
            "at 150 MB/s": pixels.nbytes / _DECODE,
            "one photograph": each["one"] / _SINGLE,
            "40 ms": _ONE,
            "one cell of all": each["cells"] / _CELLS,
        }
        for each in in_turn(sides, inputs.rounds)
    ]
    yield at_most(1.0, name="decode", **shown, **ratio_of(rounds, ["decode"], ["at 150 MB/s"]))
    yield at_most(1.0, name="one photograph", **shown, **ratio_of(rounds, ["one photograph"], ["40 ms"]))
    yield at_least(10.0, name="one cell", **shown, **ratio_of(rounds, ["JPEG"], ["one cell of all"]))


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
