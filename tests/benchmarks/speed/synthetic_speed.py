"""What making the samples of synthetic stacks costs, in CPU time: beside 500 MB a second, and beside copying memory.

    python tests/benchmarks/speed/synthetic_speed.py

What else is measured over a synthetic stack pays for its samples, too: the sides of these lines, over the bytes that
``where`` states, are the time of a byte that belongs to the generator.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import numpy as np

from dpca.storage import Stack, create_synthetic
from dpca.storage.arrays.reading import read_into
from tests.benchmarks.inputs import Inputs
from tests.benchmarks.sides import Line, alone, at_most, in_turn, ratio_of

# Model, shape of a sample, what it should take of the time at 500 MB a second.
STACKS = (
    ("portraits", (256, 256, 3), 1.0),
    ("textures", (256, 256, 3), 1.0),
    ("moving", (256, 256), 1.0),
    ("spiked", (4096,), 1.0),
)
_RATE = 500e6
_BYTES = 96 * 2**20


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    for name, shape, asked in STACKS:
        itemsize = 1 if len(shape) == 3 else 4
        n = 3 if inputs.quick else _BYTES // (itemsize * int(np.prod(shape)))
        stack = create_synthetic(inputs.folder / f"{name}.zarr", name, n_samples=10**7, sample_shape=shape)
        whole, other = np.ones((2, n, *shape), stack.dtype)
        boxes = [slice(0, n)] if len(shape) == 1 else [slice(0, n), slice(64, 128), slice(64, 128)]
        tile = np.ones((n, *shape), stack.dtype)[tuple(slice(0, b.stop - b.start) for b in boxes)]
        sides = {
            "making": partial(read_into, stack.samples, slice(0, n), whole),
            "copying": partial(np.copyto, other, whole),
            "making a tile": partial(read_into, stack.samples, tuple(boxes), tile),
        }
        in_turn(sides, 1)  # draws the modes
        rounds = in_turn(sides, inputs.rounds)
        where = f"{whole.nbytes:,} bytes of {_said(stack)}"
        for each in rounds:
            each["500 MB/s"] = whole.nbytes / _RATE
            each["as much of the whole"] = each["making"] * tile.size / whole.size
        told = [
            ("samples", ["making"], ["500 MB/s"], asked),
            ("beside copying", ["making"], ["copying"], None),
            ("a tile", ["making a tile"], ["as much of the whole"], None),
        ]
        for what, above, below, limit in told:
            yield at_most(limit, name=f"synthetic {name}, {what}", where=where, n=n, **ratio_of(rounds, above, below))


def _said(stack: Stack) -> str:
    return f"{stack.dtype} samples of {' x '.join(map(str, stack.sample_shape))}"


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
