"""What it costs to compare every chunk with the manifest, beside reading the same store without; in CPU time.

    python tests/benchmarks/checked_reading.py                       (a made stack of 0.5 GB)
    python tests/benchmarks/checked_reading.py --stack lfw.zarr

Both sides take turns on one thread, from the page cache: whole shards, single chunks, and opening. The last line is the
cost of writing the manifest beside that of reading the store once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import zarr

sys.path.insert(0, str(Path(__file__).parents[2]))

from dpca.storage import open_stack
from dpca.storage.arrays import Codec, create_array, create_root, write_shard
from dpca.storage.layout import choose_layout
from dpca.storage.manifest import write_manifest
from dpca.storage.reading import open_array, read_into

AXES = ("sample", "y", "x", "channel")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stack", help="stack store with a manifest (default: a made one)")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.stack:
            stores = {"stack": Path(options.stack)}
        else:
            codecs: tuple[Codec, ...] = ("raw", "blosc")
            stores = {codec: _made(Path(folder) / f"{codec}.zarr", codec) for codec in codecs}
        for name, store in stores.items():
            _compare(name, store, options.rounds)
    return 0


def _made(path: Path, codec: Codec) -> Path:
    shape = (2700, 250, 250, 3)
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


def _compare(name: str, store: Path, rounds: int) -> None:
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

    for what, read in (("whole shards", shards), ("single chunks", chunks)):
        ours, theirs = _in_turn(lambda read=read: read(checked), lambda read=read: read(plain), rounds)
        print(f"{name}: {what}: {ours * 1e3:.1f} ms with the manifest, {theirs * 1e3:.1f} without: {ours / theirs:.3f}")
    ours, theirs = _in_turn(lambda: open_array(path), lambda: zarr.open_array(path, mode="r"), rounds, 20)
    print(f"{name}: opening: {ours / 20 * 1e3:.2f} ms with the manifest, {theirs / 20 * 1e3:.2f} without")
    ours, theirs = _in_turn(lambda: write_manifest(store), lambda: shards(plain), rounds)
    print(f"{name}: writing the manifest: {ours * 1e3:.1f} ms, reading all {theirs * 1e3:.1f} ms: {ours / theirs:.3f}")


def _in_turn(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int, times: int = 1
) -> tuple[float, float]:
    """Return the median CPU seconds of both sides, run in turn."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        for side, call in enumerate((ours, theirs)):
            began = time.process_time()
            for _ in range(times):
                call()
            if turn:  # the first one warms
                seconds[side].append(time.process_time() - began)
    return median(seconds[0]), median(seconds[1])


if __name__ == "__main__":
    sys.exit(main())
