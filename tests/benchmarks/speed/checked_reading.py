"""What it costs to compare every chunk with the manifest, beside reading the same store without; in CPU time.

    python tests/benchmarks/speed/checked_reading.py

Both sides take turns on one thread, from the page cache: whole shards, single chunks, and opening 20 times. The last
line of each codec is the cost of writing the manifest beside that of reading the store once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import zarr

from dpca.storage import open_stack
from dpca.storage.arrays.arrays import Codec, create_array, create_root, write_shard
from dpca.storage.arrays.layout import choose_layout
from dpca.storage.arrays.reading import open_array, read_into
from dpca.storage.integrity.manifest import write_manifest
from tests.benchmarks.inputs import Inputs
from tests.benchmarks.sides import Line, alone, at_most, in_turn, ratio_of

AXES = ("sample", "y", "x", "channel")


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    codecs: tuple[Codec, ...] = ("raw", "blosc")
    for codec in codecs:
        store = _made(inputs.folder / f"{codec}.zarr", codec, 20 if inputs.quick else 2700)
        yield from _compared(codec, store, inputs.rounds)


def _made(path: Path, codec: Codec, n: int) -> Path:
    shape = (n, 250, 250, 3)
    layout = choose_layout(shape, 1, AXES, (10, 10))
    root = create_root(path, kind="stack", fingerprint="f", version=1, axes=AXES, data_range=[0, 255], source={})
    array = create_array(root, "samples", shape, np.uint8, layout, AXES, codec=codec)
    rng = np.random.default_rng(0)
    for start in range(0, shape[0], layout.shards[0]):
        rows = min(layout.shards[0], shape[0] - start)
        values = rng.integers(0, 16 if codec == "blosc" else 256, (rows, *shape[1:]), dtype=np.uint8)
        write_shard(array, start, values)
    write_manifest(path)
    return path


def _compared(codec: str, store: Path, rounds: int) -> Iterator[Line]:
    path = str(open_stack(store).array_path)
    checked, plain = open_array(path), zarr.open_array(path, mode="r")
    n, rows, shard = checked.shape[0], checked.chunks[0], (checked.shards or checked.chunks)[0]
    whole = np.empty((min(shard, n), *checked.shape[1:]), checked.dtype)
    tile = np.empty((min(rows, n), *checked.chunks[1:]), checked.dtype)
    middle = tuple(
        slice(n_ // 2 // c * c, min(n_ // 2 // c * c + c, n_))
        for n_, c in zip(checked.shape[1:], checked.chunks[1:], strict=True)
    )

    def shards(array: zarr.Array) -> None:
        for start in range(0, n, shard):
            stop = min(start + shard, n)
            read_into(array, slice(start, stop), whole[: stop - start])

    def chunks(array: zarr.Array) -> None:
        lengths = [s.stop - s.start for s in middle]
        part = tile[tuple(slice(0, length) for length in (rows, *lengths))]
        for start in range(0, n, rows):
            stop = min(start + rows, n)
            read_into(array, (slice(start, stop), *middle), part[: stop - start])

    sides: dict[str, tuple[Callable[[], object], Callable[[], object], float | None]] = {
        "reading shards": (lambda: shards(checked), lambda: shards(plain), 1.05),
        "reading chunks": (lambda: chunks(checked), lambda: chunks(plain), 1.05),
        "opening": (lambda: _often(open_array, path), lambda: _often(zarr.open_array, path, mode="r"), None),
        "writing the manifest": (lambda: write_manifest(store), lambda: shards(plain), None),
    }
    for what, (ours, theirs, asked) in sides.items():
        both = {"with the manifest": ours, "without": theirs}
        in_turn(both, 1)  # warms
        found = ratio_of(in_turn(both, rounds), ["with the manifest"], ["without"])
        yield at_most(asked, name=f"manifest, {what}, {codec}", where=f"{n:,} made images, {codec}", n=n, **found)


def _often(function: Callable[..., object], *arguments: object, **options: object) -> None:
    for _ in range(20):
        function(*arguments, **options)


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
